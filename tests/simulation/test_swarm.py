"""Whole clusters from their seeds: no promise broken under faults, everything equal and drained
after them.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from chaos.simulator.command import _each, main
from chaos.simulator.plan import (
    ALL_FEATURES,
    ALL_KINDS_FROM,
    DISK_KINDS,
    FAULT_KINDS,
    FIRST_FAULT_KINDS,
    FRESH_FROM,
    draw_plan,
)
from chaos.simulator.run import Run, Status, run_seed
from tests import FIRST_SEED
from tests.testkit.draws import drawn

HERE = Path(__file__).parent
#: Numbered, so that the names of tests do not change: `--first-seed` says where they begin.
FRESH = range(6)
#: So many of those that once failed are tried, others for each commit. All of them, and hundreds of
#: fresh ones, are `make simulate`.
DRAWN = 6
FAULTS_S = 8.0


def _kept() -> dict[int, float]:
    """With how long faults last."""
    lines = (HERE / "seeds.txt").read_text(encoding="utf-8").splitlines()
    words = [line.split()[0].partition("/") for line in lines if line and not line.startswith("#")]
    return {int(seed): float(faults_s or FAULTS_S) for seed, _, faults_s in words}


KEPT = _kept()


@pytest.mark.parametrize("seed", drawn(KEPT, DRAWN))
def test_what_was_found_stays_mended(seed: int) -> None:
    _holds(seed, KEPT[seed])


@pytest.mark.parametrize("number", FRESH)
def test_no_promise_is_broken(number: int) -> None:
    """A failure shows the seed; when it is understood, it joins seeds.txt."""
    _holds(int(os.environ[FIRST_SEED]) + number)


def _holds(seed: int, faults_s: float = FAULTS_S) -> None:
    result = run_seed(seed, faults_s=faults_s)

    said = [*result.violations, *(v.describe() for v in result.verdicts if v.valid is not True)]
    again = f"again: pytest {__file__} --first-seed {seed}"
    assert result.status is Status.OK, "\n".join([again, result.plan, *said])
    assert result.counts["messages confirmed"] > 0


def test_fresh_seeds_draw_every_kind_of_fault_and_load() -> None:
    plans = [draw_plan(FRESH_FROM + seed) for seed in range(200)]

    assert {kind for plan in plans for kind, _ in plan.nemesis_weights} == {*FAULT_KINDS}
    assert {kind for plan in plans for kind, _ in plan.disk_weights} == {*DISK_KINDS}
    assert {name for plan in plans for name in plan.features} == {*ALL_FEATURES}
    assert len(ALL_FEATURES) == len({*ALL_FEATURES}), "the table has a line for each"
    both = {True, False}
    assert {plan.members for plan in plans} == {plan.write_back for plan in plans} == both
    assert {plan.mixed_releases for plan in plans} == both


def test_old_seeds_mean_what_they_always_meant() -> None:
    """Or the kept ones would show nothing any more."""
    plans = [draw_plan(seed) for seed in range(0, ALL_KINDS_FROM, 1_001)]

    assert not any(plan.write_back or plan.mixed_releases for plan in plans)
    assert {name for plan in plans for name in plan.features} == {"w2-native", "w2-amqp", "w7-amqp"}
    assert {kind for plan in plans for kind, _ in plan.nemesis_weights} <= {*FIRST_FAULT_KINDS}


def test_the_same_seed_is_the_same_run_under_any_hash_seed() -> None:
    """In processes of their own, since sets and dicts of text depend on PYTHONHASHSEED."""
    code = (
        "from chaos.quiet import quiet; from chaos.simulator.run import run_seed;"
        "quiet();"
        "print([run_seed(seed, faults_s=4.0).trace for seed in (500, 100_002)])"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(HERE.parents[1])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }

    assert len(traces) == 1


def test_events_are_one_line_each_and_name_time_and_node() -> None:
    lines: list[str] = []
    Run(draw_plan(500, faults_s=2.0), lines.append).go()

    assert any(" L  leads group" in line for line in lines)
    assert all(line[:10].strip().replace(".", "").isdigit() for line in lines)


def test_a_failing_seed_prints_the_command_that_replays_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from chaos.simulator import run

    monkeypatch.setattr(run, "SETUP_S_MAX", 0.0)

    status = main(["--seed", "500"])

    assert status == Status.STUCK
    assert "python -m chaos.simulator --seed 500 --events" in capsys.readouterr().out


def test_without_a_terminal_it_says_how_far_it_is() -> None:
    shown = Console(file=io.StringIO(), width=80)

    assert sorted(_each(shown, abs, range(20), 1)) == list(range(20))

    lines = shown.file.getvalue().split("\n")  # type: ignore[attr-defined]
    told = [line for line in lines if "have ended" in line]
    assert told == [f"{done} of 20 seeds have ended" for done in range(2, 21, 2)]
