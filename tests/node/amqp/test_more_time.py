"""A consumer that is still at work asks for more time, by a publish that any client can do."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Confirm, Queue

from tests.acceptance.semantics.wire import Closed
from tests.node.amqp.conftest import Connect
from tests.node.nodes import Running

EXTEND = "amq.quorate.extend"
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def due(running: Running, queue: str) -> list[int]:
    """When each unsettled delivery has to be settled."""

    async def rows() -> list[int]:
        broker = running.node.broker
        info = await broker.find("/", queue)
        found = await broker.peek(info, start=1, count=10, state="unsettled")
        return [row["due_ms"] for row in found]

    return running.do(rows())


def test_the_time_of_one_delivery_or_of_all_begins_anew(connect: Connect, running: Running) -> None:
    wire = connect()
    arguments = {"x-consumer-timeout": HOUR_MS}
    wire.call(Queue.Declare(queue="slow", durable=True, arguments=arguments), Queue.DeclareOk)
    wire.publish("slow", "1", "2", "3")
    wire.call(Basic.Consume(queue="slow"), Basic.ConsumeOk)
    wire.take(3, Basic.Deliver)
    wire.call(Confirm.Select(), Confirm.SelectOk)
    first = due(running, "slow")

    soon = Basic.Properties(expiration=str(30 * MINUTE_MS))
    wire.publish("2", "", exchange=EXTEND, properties=soon)
    wire.expect(Basic.Ack)
    second = due(running, "slow")
    assert [second[0], second[2]] == [first[0], first[2]]
    assert second[1] <= first[1] - 29 * MINUTE_MS

    wire.publish("", "", exchange=EXTEND)
    wire.expect(Basic.Ack)
    third = due(running, "slow")
    assert third[1] >= second[1] + 29 * MINUTE_MS
    assert third[0] >= first[0]
    assert third[2] >= first[2]

    wire.send(Basic.Ack(3, multiple=True))
    wire.call(Queue.Delete(queue="slow"), Queue.DeleteOk)


def test_a_delivery_that_is_settled_gets_no_time_and_the_channel_stays(connect: Connect) -> None:
    wire = connect()
    wire.call(Queue.Declare(queue="done", durable=True), Queue.DeclareOk)
    wire.publish("done", "1")
    wire.call(Basic.Consume(queue="done"), Basic.ConsumeOk)
    wire.take(1, Basic.Deliver)
    wire.call(Confirm.Select(), Confirm.SelectOk)
    wire.send(Basic.Ack(1))
    wire.publish("1", "", exchange=EXTEND)
    assert wire.expect(Basic.Nack).delivery_tag == 1
    wire.call(Queue.Delete(queue="done"), Queue.DeleteOk)


def test_what_is_no_tag_is_refused_in_words(connect: Connect) -> None:
    wire = connect()
    wire.publish("all", "", exchange=EXTEND)
    with pytest.raises(Closed, match=r"406 .* has a delivery tag as its routing key"):
        wire.next()
