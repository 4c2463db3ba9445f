from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from chaos.campaign import LEAST, LOAD_S_MIN, MIXES, Budget, Campaign, exit_status
from chaos.commands import _parser
from chaos.load.all import WORKLOADS
from chaos.nemesis.mixes import MIXES as ALL_MIXES
from chaos.nemesis.mixes import names_of
from chaos.plan import NoSuchPlan, Plan, mix_of, workloads_of
from tests.chaos.report.test_reports import outcome_of


def test_every_workload_runs_over_both_protocols_but_for_what_only_one_has():
    numbered = {name for name in WORKLOADS if name.startswith("w")}
    alone = {name for name in numbered if {f"{name[:2]}-native", f"{name[:2]}-amqp"} - {*WORKLOADS}}

    assert {*WORKLOADS} - numbered == {"streams-nats", "shovel-native", "federation-amqp"}
    assert {name[:2] for name in numbered} == {f"w{number}" for number in range(1, 10)}
    assert alone == {"w7-amqp", "w9-native"}


def test_the_command_of_a_run_is_one_that_the_parser_takes():
    plan = Plan(
        7, "kill,wipe", 12.5, workloads_of("w1,w3-amqp"), "proxy", "folders", "amnesia", 0.25
    )
    words = shlex.split(plan.command)

    given = _parser().parse_args(words[3:])

    assert words[:3] == ["python", "-m", "chaos"]
    assert plan == Plan(
        given.seed,
        given.mix,
        given.seconds,
        workloads_of(given.only),
        given.network,
        given.disks,
        given.build,
        given.pace,
    )


@pytest.mark.parametrize("pace", ["0", "-1", "nan", "inf", "fast"])
def test_a_pace_at_which_nothing_is_published_is_refused(pace: str):
    with pytest.raises(SystemExit):
        _parser().parse_args(["run", "--pace", pace])


def test_a_mix_may_be_named_by_its_faults():
    assert [name for name, _ in mix_of("kill:all,wipe")] == ["kill:all", "wipe"]


@pytest.mark.parametrize("name", ["kil", "kill,wip", "kill:some", ""])
def test_a_mix_that_is_not_there_is_refused_by_name(name: str):
    with pytest.raises(NoSuchPlan):
        mix_of(name)


def test_a_workload_that_is_not_there_is_refused_by_name():
    with pytest.raises(NoSuchPlan, match="w10"):
        workloads_of("w1,w10")


def test_ten_minutes_have_a_run_of_every_mix_and_end_with_what_came_least():
    mixes = Budget(10).mixes()

    assert {*mixes} == {*ALL_MIXES} - {"calm", "clocks"} | {LEAST} == {*MIXES}
    assert mixes[-1] == LEAST


def test_too_few_runs_for_every_mix_are_of_everything_and_of_what_came_least():
    assert Budget(3).mixes() == ["everything", LEAST]


def _campaign(tmp_path: Path, *runs: Counter[str], missing: Mapping[str, str]) -> Campaign:
    campaign = Campaign(1, Plan(1), tmp_path, Console())
    for faults in runs:
        outcome = outcome_of(tmp_path, {})
        outcome.totals.faults.update(faults)
        outcome.missing = missing
        campaign.outcomes.append(outcome)
    return campaign


def test_kinds_that_never_came_are_the_first_of_the_next_run_then_variants(tmp_path: Path):
    every = dict.fromkeys(names_of(ALL_MIXES["everything"]), 1)
    tried = Counter({**every, "wipe": 0, "kill:all": 0})
    campaign = _campaign(tmp_path, tried, missing={})

    assert campaign.least_tried()[:2] == ["wipe", "kill:all"]
    assert campaign.not_reached() == ["kill:all", "wipe"]
    assert mix_of(",".join(campaign.least_tried()))


def test_no_kind_has_its_second_turn_before_all_had_their_first(tmp_path: Path):
    campaign = _campaign(tmp_path, Counter(), missing={})
    kinds = [name.partition(":")[0] for name in campaign.least_tried()]

    count = len(ALL_MIXES["everything"])
    assert sorted(kinds[:count]) == sorted(kind for kind, _ in ALL_MIXES["everything"])


def test_what_the_machine_does_not_allow_was_not_due(tmp_path: Path):
    missing = {"degrade:loss": "a proxy", "fill_disk": "folders", "low_disk": "folders"}
    campaign = _campaign(tmp_path, Counter(), missing=missing)

    assert {"degrade:loss", "fill_disk", "low_disk"}.isdisjoint(campaign.not_reached())
    assert {"degrade:delay", "kill:leader", "wipe"} <= {*campaign.not_reached()}


def test_what_slow_runs_took_is_saved_by_those_that_follow():
    budget = Budget(10)

    first = budget.load_s(gone_s=0, runs_left=8, overheads_s=[])
    later = budget.load_s(gone_s=300, runs_left=5, overheads_s=[50.0, 60.0])
    last = budget.load_s(gone_s=540, runs_left=1, overheads_s=[50.0, 60.0])

    assert first == pytest.approx(600 / 8 - 35)
    assert later == LOAD_S_MIN
    assert last is None


def test_no_run_at_all_is_no_success():
    assert exit_status([]) == 2
