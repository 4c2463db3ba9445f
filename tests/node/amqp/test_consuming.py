"""Consumers that come, go and come again, in plain frames."""

from __future__ import annotations

from pamqp.commands import Basic, Connection, Queue

from tests.acceptance.semantics.wire import Wire
from tests.node.amqp.conftest import Connect
from tests.testkit.waiting import wait_until


def _delivery(wire: Wire) -> tuple[str, int, bytes]:
    (found,) = wire.take(1, Basic.Deliver)
    return found.method.consumer_tag, found.method.delivery_tag, found.body


def test_a_tag_that_is_used_again_gets_nothing_that_the_channel_holds(connect: Connect) -> None:
    """The consumer before it was cancelled: what it holds stays where it is (A16)."""
    wire = connect()
    wire.call(Queue.Declare(queue="again", exclusive=True), Queue.DeclareOk)
    wire.call(Basic.Qos(prefetch_count=1), Basic.QosOk)
    wire.publish("again", "1", "2", "3")
    wire.call(Basic.Consume(queue="again", consumer_tag="t"), Basic.ConsumeOk)
    assert _delivery(wire) == ("t", 1, b"1")
    for tag, body in ((2, b"2"), (3, b"3")):
        wire.call(Basic.Cancel(consumer_tag="t"), Basic.CancelOk)
        wire.call(Basic.Consume(queue="again", consumer_tag="t"), Basic.ConsumeOk)
        assert _delivery(wire) == ("t", tag, body)
    wire.send(Basic.Ack(3, multiple=True))
    wire.call(Basic.Cancel(consumer_tag="t"), Basic.CancelOk)
    deleted = wire.call(Queue.Delete(queue="again"), Queue.DeleteOk)
    assert deleted.message_count == 0


def test_the_longest_tag_can_be_used_again(connect: Connect) -> None:
    wire = connect()
    wire.call(Queue.Declare(queue="long tag", exclusive=True), Queue.DeclareOk)
    tag = "ü" * 127 + "t"
    for _ in range(3):
        wire.call(Basic.Consume(queue="long tag", consumer_tag=tag), Basic.ConsumeOk)
        wire.call(Basic.Cancel(consumer_tag=tag), Basic.CancelOk)


def test_nothing_is_delivered_once_the_end_of_a_consumer_was_told(connect: Connect) -> None:
    """Its queue was deleted while the channel's prefetch held deliveries back (B16)."""
    wire, other = connect(), connect()
    wire.call(Queue.Declare(queue="held", durable=True), Queue.DeclareOk)
    wire.call(Queue.Declare(queue="kept", exclusive=True), Queue.DeclareOk)
    wire.call(Basic.Qos(prefetch_count=1, global_=True), Basic.QosOk)
    wire.publish("kept", "kept 1", "kept 2")
    wire.call(Basic.Consume(queue="kept", consumer_tag="k"), Basic.ConsumeOk)
    assert _delivery(wire) == ("k", 1, b"kept 1")
    wire.call(Basic.Consume(queue="held", consumer_tag="h"), Basic.ConsumeOk)
    wire.publish("held", "held 1")
    # It is on its way to the consumer when it is no longer ready.
    look = Queue.Declare(queue="held", passive=True)
    wait_until(lambda: not other.call(look, Queue.DeclareOk).message_count)
    other.call(Queue.Delete(queue="held"), Queue.DeleteOk)
    assert wire.expect(Basic.Cancel).consumer_tag == "h"
    wire.send(Basic.Ack(1))
    assert _delivery(wire) == ("k", 2, b"kept 2")


def test_deliveries_of_a_single_active_consumer_carry_a_token_that_grows(connect: Connect) -> None:
    """Who takes over from a consumer has a higher one than it had, for the same message too."""
    first, second = connect(), connect()
    declare = Queue.Declare(
        queue="fenced", durable=True, arguments={"x-single-active-consumer": True}
    )
    first.call(declare, Queue.DeclareOk)
    theirs = Basic.Properties(headers={"x-fencing-token": 2**62, "kept": "yes"}, app_id="shop")
    first.publish("fenced", "1", properties=theirs)
    first.call(Basic.Consume(queue="fenced"), Basic.ConsumeOk)
    (before,) = first.take(1, Basic.Deliver)
    second.call(Basic.Consume(queue="fenced"), Basic.ConsumeOk)
    first.close()
    (after,) = second.take(1, Basic.Deliver)

    assert after.body == before.body == b"1"
    assert before.properties.app_id == after.properties.app_id == "shop"
    assert before.properties.headers.keys() == {"x-fencing-token", "kept"}
    assert after.properties.headers.keys() == {"x-fencing-token", "kept"}
    assert (
        0
        < before.properties.headers["x-fencing-token"]
        < after.properties.headers["x-fencing-token"]
        < 2**62
    )
    second.call(Queue.Delete(queue="fenced"), Queue.DeleteOk)


def test_deliveries_of_other_queues_are_as_they_were_published(connect: Connect) -> None:
    wire = connect()
    wire.call(Queue.Declare(queue="plain", durable=True), Queue.DeclareOk)
    wire.publish("plain", "1", properties=Basic.Properties(headers={"x-fencing-token": 7}))
    wire.publish("plain", "2", properties=Basic.Properties())
    wire.call(Basic.Consume(queue="plain"), Basic.ConsumeOk)
    theirs, none = wire.take(2, Basic.Deliver)

    assert theirs.properties.headers == {"x-fencing-token": 7}
    assert none.properties.headers is None
    wire.call(Queue.Delete(queue="plain"), Queue.DeleteOk)


def test_a_channel_that_failed_after_the_goodbye_was_said_does_nothing_more(
    connect: Connect,
) -> None:
    """All in one write. What follows the failure on its channel is ignored, as always."""
    other = connect()
    other.call(Queue.Declare(queue="left alone", durable=True), Queue.DeclareOk)
    look = Queue.Declare(queue="left alone", passive=True)
    fails = Queue.Declare(queue="wrong", durable=True, arguments={"x-max-length": "many"})
    for _ in range(10):
        wire = connect()
        wire.send_on(
            (1, fails),
            (1, Basic.Consume(queue="left alone", consumer_tag="t")),
            (1, Queue.Declare(queue="never made", exclusive=True)),
            (0, Connection.Close(200, "bye", 0, 0)),
        )
        wire.expect(Connection.CloseOk, 0)
    wait_until(lambda: not other.call(look, Queue.DeclareOk).consumer_count)
