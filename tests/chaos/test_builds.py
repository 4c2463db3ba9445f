"""Each broken build is seen under simulation, on seeds that are clean without it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

from chaos.builds import BUILDS, break_node, broken
from chaos.faults import isolate
from chaos.simulator.plan import draw_plan
from chaos.simulator.run import Run, Status
from cluster.groups.outcome import Outcome
from cluster.log.wal import Wal
from cluster.machine.commands import Barrier
from cluster.types import CATALOG_GROUP
from tests.testkit.draws import drawn

SEEDS = range(8)
#: By which seed a build was shown when it was last looked at: that one is tried first.
SHOWN_BY = {
    "forget-the-vote": 1,
    "dedup-not-replicated": 1,
    "commit-by-one": 1,
    "wiped-disk-votes": 2,
    "own-clock": 10,
}
#: Of simulated time; longer where it takes long until the damage is done.
FAULTS_S = {"forget-the-vote": 10.0}
#: The faults under which each shows itself soon.
FAULTS = {
    "ack-before-fsync": (("power_loss", 3), ("power_loss_all", 3)),
    "truncate-without-conflict": (("kill", 2), ("reset", 6), ("pause", 2)),
    "forget-the-vote": (("directed", 6), ("kill", 4), ("partition", 2)),
    "sac-without-fencing": (("kill", 2), ("reset", 6), ("pause", 2)),
    "dedup-not-replicated": (("kill", 2), ("reset", 6), ("pause", 2)),
    "commit-by-one": (("partition", 4), ("kill", 2), ("reset", 2)),
    "unflagged-redelivery": (("kill", 2), ("reset", 6), ("pause", 2)),
}
DISKS = {"wiped-disk-votes": (("wipe", 1), ("old_copy", 1))}
#: Seen by messages that may stay for a day, and by publishers that are forgotten and ask for ever.
CLOCKS = {"own-clock": (("wrong_clock", 1),)}
#: Of streams; seen by whoever compares the states of replicas.
APART = {"sequences-of-its-own": (("kill", 2), ("reset", 6))}
#: What its checkers see of it is what clients read: see `test_stale_reads_are_answered`.
READS = {"stale-reads"}
#: Seen by what streams are judged of: see `tests/simulation/test_driven.py`.
STREAMS = {
    "forgotten-acks",
    "handed-to-two",
    "compare-nothing",
    "forgotten-ids",
    "passed-over",
    "taken-twice",
}
#: Links connect by sockets of their own: seen by live runs alone (`python -m chaos selftest`).
LIVE_ONLY = {"settled-too-soon", "another-identity", "left-alone", "out-of-turn"}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def _seen_and_clean_without(
    name: str,
    faults: Any,
    disks: Any = (),
    features: tuple[str, ...] = (),
    *,
    bad: Collection[Status] = (Status.UNSAFE,),
) -> None:
    """On some seed the broken build shows itself, and the whole one is clean on the very same."""

    def ended(seed: int) -> Status:
        plan = replace(
            draw_plan(seed, nodes=3, faults_s=FAULTS_S.get(name, 4.0)),
            nemesis_weights=faults,
            disk_weights=disks,
            features=features,
            fault_every_s=0.7,
            messages_per_s_max=300,
            window=16,
            latency_ms=5.0,
        )
        return Run(plan).go().status

    with broken(name):
        seeds = (SHOWN_BY.get(name, 0), *SEEDS)
        seed = next((seed for seed in seeds if ended(seed) in bad), None)
    assert seed is not None
    assert ended(seed) not in bad


def test_every_build_is_tried_here() -> None:
    assert {*FAULTS, *DISKS, *CLOCKS, *APART, *READS, *STREAMS, *LIVE_ONLY} == {*BUILDS}


@pytest.mark.parametrize("name", sorted(LIVE_ONLY))
def test_what_a_build_breaks_is_there(name: str) -> None:
    with broken(name):
        pass


@pytest.mark.parametrize("name", drawn(FAULTS, 4))
def test_a_broken_build_is_seen(name: str) -> None:
    _seen_and_clean_without(name, FAULTS[name])


@pytest.mark.parametrize("name", DISKS)
def test_a_disk_that_forgot_and_votes_is_seen(name: str) -> None:
    _seen_and_clean_without(name, FAULTS["commit-by-one"], DISKS[name])


@pytest.mark.parametrize("name", APART)
def test_replicas_of_streams_that_differ_are_seen(name: str) -> None:
    _seen_and_clean_without(name, APART[name], features=("streams-nats",))


@pytest.mark.parametrize("name", CLOCKS)
def test_a_clock_that_is_believed_alone_is_seen(name: str) -> None:
    """Days off, it breaks nothing while a majority is asked."""
    bad = (Status.UNSAFE, Status.STUCK)
    _seen_and_clean_without(name, CLOCKS[name], features=("w6-native",), bad=bad)


@pytest.mark.parametrize(
    ("build", "kind"), [("stale-reads", "ok"), ("unflagged-redelivery", "refused")]
)
def test_a_leader_that_was_replaced_answers_reads_in_one_build_only(build: str, kind: str) -> None:
    with broken(build):
        run = Run(replace(draw_plan(3, nodes=3), jitter_ms=0.1))
        for node in run.cluster.nodes:
            run.cluster.start(node)
        run.world.run(5.0)
        old = run.cluster.leader(CATALOG_GROUP)
        assert old is not None
        run.cluster.partition(isolate(old, run.cluster.nodes))
        run.world.run(15.0)
        outcomes: list[Outcome] = []
        run.cluster.machines[old].groups()[CATALOG_GROUP].propose(Barrier(), outcomes.append)
        new = run.cluster.leader(CATALOG_GROUP)
        run.world.close()

    assert new not in (None, old)
    assert [outcome.kind for outcome in outcomes] == [kind]


def test_what_is_broken_for_a_while_is_whole_again() -> None:
    honest = vars(Wal)["_sync_active"]
    with broken("ack-before-fsync"):
        assert vars(Wal)["_sync_active"] is not honest

    assert vars(Wal)["_sync_active"] is honest


def test_a_build_that_nobody_made_is_told() -> None:
    with pytest.raises(ValueError, match="there are ack-before-fsync"):
        break_node("no-such-build")
