"""The harness can see: with one promise broken on purpose, seeds fail that pass otherwise. What
real nodes are broken by, too, is in tests/chaos/test_builds.py.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from chaos.simulator.plan import draw_plan
from chaos.simulator.run import Result, Run, Status
from cluster.groups.outcome import Outcome
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import TransactionPart
from cluster.machine.context import ApplyContext
from cluster.machine.keyed import KeyedReady
from cluster.machine.messages import Messages
from cluster.machine.replies import Enqueued, Ok, Reply
from cluster.machine.transactions import Transactions
from node.broker.dead_letters import DeadLetters
from node.broker.transactions import TransactionCoordinator

SEEDS = range(8)
HARSH = {
    "power": (("power_loss", 3), ("power_loss_all", 3)),
    "resets": (("kill", 2), ("reset", 6), ("pause", 2)),
}


def _result(
    nemesis: str, seed: int, change: Callable[[Run], None] | None = None, **settings: Any
) -> Result:
    plan = replace(
        draw_plan(seed, nodes=3, faults_s=6.0),
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
    return run.go()


def _unsafe(
    nemesis: str,
    broken: AbstractContextManager[object],
    change: Callable[[Run], None] | None = None,
    **settings: Any,
) -> Result:
    """Of the first seed that shows what is broken, and is clean without that."""
    with broken:
        for seed in SEEDS:
            result = _result(nemesis, seed, change, **settings)
            if result.status is Status.UNSAFE:
                break
        else:
            pytest.fail("it was not seen")
    assert _result(nemesis, seed, **settings).status is Status.OK
    return result


def _violated(result: Result) -> set[str]:
    """Names of the invariants that did not hold."""
    return {violation.split(":")[0].split("s  ")[-1] for violation in result.violations}


def _seen(result: Result, checker: str) -> set[str]:
    """Kinds of anomalies that this one has seen."""
    (verdict,) = [each for each in result.verdicts if each.checker == checker]
    return {name for name, count in verdict.counts.items() if count} & {*verdict.examples}


def test_a_disk_that_lies_about_fsync_is_found_out() -> None:
    def lie(run: Run) -> None:
        for machine in run.cluster.machines.values():
            machine.platter.options.lies = True

    result = _unsafe("power", nullcontext(), lie)

    assert _violated(result) & {"promises", "one vote", "leader completeness"}


def test_a_part_of_a_transaction_that_is_done_again_is_found_out() -> None:
    def part(self: Transactions, context: ApplyContext, command: TransactionPart) -> Reply:
        return Ok(self._carry_out(context, command.steps))

    again = mock.patch.object(Transactions, "part", part)

    result = _unsafe("resets", again, features=("w7-amqp",), default_groups=2)

    # A client of AMQP is told no positions: what is stored twice comes twice for it.
    assert _seen(result, "w7-amqp: total-queue") == {"duplicated without the flag"}


def test_a_part_without_room_that_is_kept_for_it_is_found_out() -> None:
    async def keep_none(self: object, *_: object, **__: object) -> None:
        """Whoever decides knows no limits of other groups."""

    no_room = mock.patch.object(TransactionCoordinator, "_keep_room", keep_none)

    result = _unsafe("resets", no_room, features=("room",), default_groups=2)

    assert _seen(result, "room") == {"over the limit"}


def _let_go(keyed: KeyedReady, first: int, last: int) -> None:
    """Whatever they hold is free."""
    for position in range(first, last + 1):
        key = keyed._keys.get(position)
        if key is not None and key.holder == position:
            key.holder = 0
            if key.ready:
                keyed._ring.append(key)


def test_a_second_message_of_a_key_in_flight_is_found_out() -> None:
    honest = KeyedReady.serve

    def hold_nothing(self: KeyedReady, limit: int) -> tuple[int, int]:
        first, last = honest(self, limit)
        _let_go(self, first, last)
        return first, last

    result = _unsafe(
        "resets", mock.patch.object(KeyedReady, "serve", hold_nothing), features=("groups",)
    )

    assert "two in flight" in _seen(result, "message-groups")


def test_a_message_that_is_overtaken_while_it_waits_for_its_retry_is_found_out() -> None:
    honest = Messages.delay

    def let_go(self: Messages, first: int, last: int, ready_at_ms: int) -> None:
        honest(self, first, last, ready_at_ms)
        if self.keyed is not None:
            _let_go(self.keyed, first, last)

    result = _unsafe("resets", mock.patch.object(Messages, "delay", let_go), features=("groups",))

    assert "overtaken" in _seen(result, "message-groups")


def test_an_import_that_leaves_what_came_before_its_refusal_is_found_out() -> None:
    in_place = mock.patch.object(CatalogMachine, "copy", lambda self: self)

    result = _unsafe("resets", in_place, features=("imports",))

    assert _seen(result, "imports") == {"half done", "refused, yet there"}


def test_a_dead_letter_that_is_forgotten_when_its_target_is_full_is_found_out() -> None:
    honest = DeadLetters._ask

    async def all_taken(self: DeadLetters, *letters: Any) -> Outcome:
        outcome = await honest(self, *letters)
        if isinstance(outcome.reply, Enqueued):
            return replace(outcome, reply=replace(outcome.reply, refused=()))
        return outcome

    result = _unsafe(
        "resets", mock.patch.object(DeadLetters, "_ask", all_taken), features=("refusing",)
    )

    assert _seen(result, "dead-letters") == {"lost"}
