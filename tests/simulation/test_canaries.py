"""The harness can see: with one promise broken on purpose, seeds fail that pass otherwise. What
real nodes are broken by, too, is in tests/chaos/test_builds.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import node.broker.transactions
from chaos.simulator.plan import draw_plan
from chaos.simulator.run import Result, Run, Status
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import TransactionPart
from cluster.machine.context import ApplyContext
from cluster.machine.replies import Ok, Reply
from cluster.machine.transactions import Transactions

SEEDS = range(8)
HARSH = {
    "power": (("power_loss", 3), ("power_loss_all", 3)),
    "resets": (("kill", 2), ("reset", 6), ("pause", 2)),
}


def _first_unsafe(
    nemesis: str, change: Callable[[Run], None] | None = None, **settings: Any
) -> Result | None:
    for seed in SEEDS:
        plan = replace(
            draw_plan(seed, nodes=3, faults_s=10.0),
            nemesis_weights=HARSH[nemesis],
            fault_every_s=1.0,
            messages_per_s_max=300,
            window=16,
            latency_ms=5.0,
            **settings,
        )
        run = Run(plan)
        if change is not None:
            change(run)
        result = run.go()
        if result.status is Status.UNSAFE:
            return result
    return None


def _broken(result: Result | None) -> set[str]:
    """Names of the invariants that did not hold."""
    assert result is not None
    return {violation.split(":")[0].split("s  ")[-1] for violation in result.violations}


def test_a_disk_that_lies_about_fsync_is_found_out() -> None:
    def lie(run: Run) -> None:
        for machine in run.cluster.machines.values():
            machine.platter.options.lies = True

    result = _first_unsafe("power", lie)

    assert _broken(result) & {"promises", "one vote", "leader completeness"}


def test_a_part_of_a_transaction_that_is_done_again_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def part(self: Transactions, context: ApplyContext, command: TransactionPart) -> Reply:
        return Ok(self._carry_out(context, command.steps))

    monkeypatch.setattr(Transactions, "part", part)

    result = _first_unsafe("resets", features=("w7-amqp",), default_groups=2)

    # A client of AMQP is told no positions: what is stored twice comes twice for it.
    assert _seen(result, "w7-amqp: total-queue") == {"duplicated without the flag"}


def _seen(result: Result | None, checker: str) -> set[str]:
    """Kinds of anomalies that this one has seen."""
    assert result is not None
    (verdict,) = [each for each in result.verdicts if each.checker == checker]
    return {name for name, count in verdict.counts.items() if count} & {*verdict.examples}


def test_a_part_without_room_that_is_kept_for_it_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def keep_none(self: object, *_: object) -> None:
        """Whoever decides knows no limits of other groups."""

    monkeypatch.setattr(node.broker.transactions.TransactionCoordinator, "_keep_room", keep_none)

    result = _first_unsafe("resets", features=("room",), default_groups=2)

    assert _seen(result, "room") == {"over the limit"}


def test_an_import_that_leaves_what_came_before_its_refusal_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CatalogMachine, "copy", lambda self: self)

    result = _first_unsafe("resets", features=("imports",))

    assert _seen(result, "imports") == {"half done", "refused, yet there"}


@pytest.mark.parametrize("nemesis", sorted(HARSH))
def test_the_same_seeds_are_clean_without_a_break(nemesis: str) -> None:
    assert _first_unsafe(nemesis) is None
