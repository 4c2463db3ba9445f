"""What a nemesis will do is decided by its seed and its mix."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from chaos.nemesis.episodes import Pace, Target, draw, pick
from chaos.nemesis.live_strikes import STRIKES
from chaos.nemesis.mixes import MIXES, VARIANTS, possible
from cluster.types import NodeId

EVERYTHING = MIXES["everything"]
NODES = [NodeId(f"node-{number}") for number in range(1, 6)]


def test_the_same_seed_draws_the_same_episodes():
    first, second = (list(islice(draw(7, EVERYTHING, Pace()), 200)) for _ in range(2))

    assert first == second


def test_another_seed_draws_others():
    first, second = (list(islice(draw(seed, EVERYTHING, Pace()), 20)) for seed in (1, 2))

    assert first != second


def test_every_kind_of_a_mix_comes_once_before_any_comes_again():
    episodes = islice(draw(3, EVERYTHING, Pace()), len(EVERYTHING))

    assert sorted(each.kind for each in episodes) == sorted(kind for kind, _ in EVERYTHING)


@pytest.mark.parametrize("kind", VARIANTS)
def test_every_variant_of_a_kind_comes_once_before_any_comes_again(kind: str):
    variants = VARIANTS[kind]
    episodes = list(islice(draw(3, ((kind, 1),), Pace()), 2 * len(variants)))

    assert sorted(each.variant for each in episodes[: len(variants)]) == sorted(variants)
    assert [each.variant for each in episodes[len(variants) :]] == [
        each.variant for each in episodes[: len(variants)]
    ]


def test_faults_that_are_named_come_in_that_order_and_as_they_are_named():
    mix = (("wipe", 1.0), ("kill:all", 1.0), ("degrade:loss", 1.0))
    episodes = list(islice(draw(3, mix, Pace(), shuffled=False), 3))

    assert [(each.kind, each.variant) for each in episodes] == [
        ("wipe", ""),
        ("kill", "all"),
        ("degrade", "loss"),
    ]
    assert episodes[1].target == "all"


def test_a_variant_that_cannot_be_had_is_not_drawn():
    episodes = islice(draw(3, (("degrade", 1.0),), Pace(), without={"degrade:loss"}), 10)

    assert {each.variant for each in episodes} == {"delay", "bandwidth"}


def test_what_an_episode_decides_by_itself_depends_on_seed_and_episode_alone():
    episodes = list(islice(draw(3, EVERYTHING, Pace()), 2))

    assert episodes[0].dice(3).random() == episodes[0].dice(3).random()
    assert episodes[0].dice(3).random() != episodes[1].dice(3).random()
    assert episodes[0].dice(3).random() != episodes[0].dice(4).random()


def test_only_what_bends_time_comes_beside_what_breaks():
    together = [each for each in islice(draw(5, EVERYTHING, Pace()), 500) if each.company]

    assert together
    assert {each.company.kind for each in together if each.company} == {"degrade", "skew_clock"}
    assert not {each.kind for each in together} & {kind for kind, _ in MIXES["data"]}


def test_a_calm_mix_draws_nothing():
    assert list(draw(1, MIXES["calm"], Pace())) == []


def test_there_is_a_strike_for_every_kind_of_every_mix():
    assert {kind for mix in MIXES.values() for kind, _ in mix} == set(STRIKES)


def test_what_the_machine_does_not_allow_is_left_out_and_named():
    missing = {"power_loss": "no loop devices", "degrade:loss": "a proxy loses no packets"}

    mix, not_tried = possible(EVERYTHING, missing)

    assert not {kind for kind, _ in mix} & {"power_loss", "power_loss_all"}
    assert "degrade" in {kind for kind, _ in mix}
    assert not_tried == {
        "power_loss": "no loop devices",
        "power_loss_all": "no loop devices",
        "degrade:loss": "a proxy loses no packets",
    }


def test_what_a_mix_does_not_hold_is_not_named_as_left_out():
    assert possible(MIXES["network"], {"power_loss": "none"})[1] == {}


@pytest.mark.parametrize(
    ("target", "count"), [("one", 1), ("minority", 2), ("majority", 3), ("all", 5)]
)
def test_a_target_is_so_many_of_five_nodes(target: Target, count: int):
    found = pick(target, NODES, None, random.Random(1))

    assert len(found) == len(set(found)) == count


def test_a_leader_is_struck_when_one_is_known():
    assert pick("leader", NODES, NODES[3], random.Random(1)) == [NODES[3]]
    assert len(pick("leader", NODES, None, random.Random(1))) == 1


def test_an_owner_of_links_is_struck_when_one_is_known():
    assert pick("owner", NODES, NODES[3], random.Random(1), [NODES[2]]) == [NODES[2]]
    assert len(pick("owner", NODES, NODES[3], random.Random(1))) == 1


@pytest.mark.parametrize("target", ["leader", "owner"])
def test_a_cut_around_one_node_may_be_around_it(target: Target):
    mix = ((f"partition:isolate_{target}", 1.0),)

    assert next(draw(3, mix, Pace())).target == target
