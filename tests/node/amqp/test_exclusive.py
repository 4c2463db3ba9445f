"""Exclusive queues: they end with their connection, whenever that ends, and nothing else does."""

from __future__ import annotations

from pamqp.commands import Basic, Queue

from tests.acceptance.semantics.wire import Closed, Wire
from tests.node.amqp.conftest import Connect
from tests.testkit.waiting import wait_until

NOT_FOUND = 404


def _is_gone(wire: Wire, queue: str) -> bool:
    try:
        wire.call(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)
    except Closed as closed:
        wire.open()
        return closed.code == NOT_FOUND
    return False


def test_a_connection_that_ends_while_it_declares_leaves_nothing(connect: Connect) -> None:
    other = connect()
    names = [f"half made {number}" for number in range(10)]
    for name in names:
        wire = connect()
        wire.send(Queue.Declare(queue=name, exclusive=True))
        wire.hang_up()
    # What came before it in the catalog is there when this is.
    other.call(Queue.Declare(queue="after", exclusive=True), Queue.DeclareOk)
    for name in names:
        wait_until(lambda: _is_gone(other, name))  # noqa: B023


def test_the_end_of_a_connection_leaves_a_later_queue_of_the_same_name(connect: Connect) -> None:
    """Its own queue went before, with its last consumer."""
    first, second = connect(), connect()
    declare = Queue.Declare(queue="name", exclusive=True, auto_delete=True)
    first.call(declare, Queue.DeclareOk)
    first.call(Basic.Consume(queue="name", consumer_tag="t"), Basic.ConsumeOk)
    first.call(Basic.Cancel(consumer_tag="t"), Basic.CancelOk)
    wait_until(lambda: _is_gone(second, "name"))
    second.call(Queue.Declare(queue="name", durable=True), Queue.DeclareOk)
    first.close()
    assert not _is_gone(second, "name")


def test_exclusive_queues_are_not_durable_whatever_is_said(connect: Connect) -> None:
    wire = connect()
    for durable in (True, False, True):
        wire.call(
            Queue.Declare(queue="temporary", exclusive=True, durable=durable), Queue.DeclareOk
        )
