"""Consumers that crash again and again: what never left the broker was not delivered."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic, Confirm, Queue

from cluster.machine.consumers import UNLIMITED_CREDIT
from tests.acceptance.semantics.wire import Wire
from tests.node.amqp.conftest import Connect, Running
from tests.testkit.waiting import wait_until

MESSAGES = 20_000
BODY = b"x" * 100
#: One more than the delivery limit of quorum queues.
ROUNDS = 21


def _fill(wire: Wire, queue: str, **arguments: Any) -> None:
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    wire.call(Queue.Declare(queue=queue, durable=True, arguments=given), Queue.DeclareOk)
    wire.call(Confirm.Select(), Confirm.SelectOk)
    for _ in range(MESSAGES // 1_000):
        wire.publish(queue, *[BODY] * 1_000)
    confirmed = 0
    while confirmed < MESSAGES:
        confirmed = wire.expect(Basic.Ack).delivery_tag


def _view(running: Running, queue: str) -> Any:
    broker = running.node.broker
    info = broker.locate("/", queue)
    assert info is not None
    return broker.machine(info.group).queue(info.queue)


def _crash_in_a_loop(running: Running, connect: Connect, queue: str, rounds: int) -> None:
    for _ in range(rounds):
        wire = connect()
        wire.call(Basic.Consume(queue=queue), Basic.ConsumeOk)
        wire.take(1, Basic.Deliver)
        wire.reset()
        wait_until(lambda: not _view(running, queue).consumers)


@pytest.mark.parametrize("kind", ["quorum", None])
def test_a_consumer_that_takes_one_and_crashes_does_not_delete_the_backlog(
    running: Running, connect: Connect, kind: str | None
) -> None:
    """Without a prefetch. It was gone after 21 rounds."""
    queue = f"backlog of {kind}"
    _fill(connect(), queue, **({"queue_type": kind} if kind else {}))

    _crash_in_a_loop(running, connect, queue, ROUNDS)

    view = _view(running, queue)
    print(kind, view.ready_count, getattr(view, "removed", None))
    # Some were on the network each time, with nobody to tell how far the client was.
    assert view.ready_count >= MESSAGES - UNLIMITED_CREDIT


@pytest.mark.parametrize(("kind", "expected"), [("quorum", UNLIMITED_CREDIT), (None, MESSAGES)])
def test_without_a_prefetch_all_is_delivered_as_far_as_the_type_of_the_queue_goes(
    running: Running, connect: Connect, kind: str | None, expected: int
) -> None:
    """As in RabbitMQ: a quorum queue has a bound, and a classic one has none."""
    queue = f"unacked of {kind}"
    wire = connect()
    _fill(wire, queue, **({"queue_type": kind} if kind else {}))
    wire.call(Basic.Consume(queue=queue), Basic.ConsumeOk)
    wire.take(expected, Basic.Deliver)
    assert _view(running, queue).unsettled_count == expected
    wire.send(Basic.Ack(expected, multiple=True))
    wait_until(lambda: _view(running, queue).messages == MESSAGES - expected)
