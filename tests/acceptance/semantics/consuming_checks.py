"""A01-A17, A37-A38, C06: consuming, metadata, properties, cancelling, pulling."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pika
from pamqp.commands import Basic

from tests.acceptance.rows.suite import needs
from tests.acceptance.semantics.visit import CLASSIC, Channel, Visit, bodies, refused, same


def a01_consume_from_a_missing_queue(broker: Visit) -> None:
    """Consuming from a queue that does not exist closes that channel with 404, nothing else."""
    channel, other = broker.channel(), broker.channel()
    with refused(404, "NOT_FOUND"):
        channel.basic_consume(broker.name("missing"), print)
    queue = broker.queue()
    broker.fill(queue, "a")
    assert broker.get(other, queue).body == "a", "the other channel does not work"


def a02_delivery_starts_at_once_or_with_the_next_message(broker: Visit) -> None:
    """What is ready is delivered at once; an empty queue delivers when something comes."""
    full, empty = broker.queue(), broker.queue()
    broker.fill(full, "a", "b")
    channel = broker.channel()
    assert bodies(broker.consume(channel, full).next(2)) == ["a", "b"]
    later = broker.consume(channel, empty)
    later.quiet("the queue is empty")
    broker.fill(empty, "c")
    assert later.one().body == "c"


def a03_consumer_tags(broker: Visit) -> None:
    """The tag is the client's or a generated one; the same again on a channel is 530."""
    queue = broker.queue()
    channel = broker.channel()
    first = broker.consume(channel, queue, consumer_tag="mine")
    assert first.tag == "mine"
    broker.fill(queue, "a")
    assert first.one().consumer_tag == "mine"
    first.cancel()

    wire = broker.wire()
    made = [wire.call(Basic.Consume(0, queue), Basic.ConsumeOk).consumer_tag for _ in range(2)]
    assert all(made), "an empty tag was not replaced"
    assert len(set(made)) == 2, f"the same tag was generated twice: {made}"
    wire.call(Basic.Consume(0, queue, "again"), Basic.ConsumeOk)
    wire.send(Basic.Consume(0, queue, "again"))
    refusal = wire.refusal()
    assert refusal.level == "connection"
    same(refusal.code, refusal.text, 530, "attempt to reuse consumer tag 'again'")


def a04_consumers_come_and_go(broker: Visit) -> None:
    """Consumers may be registered and cancelled at any time while their channel lives."""
    queue = broker.queue()
    channel = broker.channel()
    for turn in range(3):
        consumer = broker.consume(channel, queue, auto_ack=True)
        broker.fill(queue, f"{turn}")
        assert consumer.one().body == f"{turn}"
        consumer.cancel()
    broker.fill(queue, "last")
    broker.until_ready(queue, 1)


def a05_a_client_recovers_after_a_lost_connection(broker: Visit) -> None:
    """A new connection declares all again, exchanges to consumers, and gets what was unacked."""
    queue, exchange = broker.queue(), broker.exchange("direct")
    broker.bind(queue, exchange, "key")
    broker.publish(exchange, "key", "a")
    lost = broker.wire()
    lost.call(Basic.Consume(0, queue), Basic.ConsumeOk)
    lost.take(1, Basic.Deliver)
    lost.reset()

    channel = broker.connect().channel()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.exchange_declare(exchange, "direct", durable=True)
    channel.queue_bind(queue, exchange, "key")
    again = broker.consume(channel, queue).one()
    assert (again.body, again.redelivered) == ("a", True)


def a06_each_delivery_calls_the_handler(broker: Visit) -> None:
    """A subscription pushes: its handler is called once for every message."""
    queue = broker.queue()
    called: list[bytes] = []

    def handler(_channel: Channel, _method: Any, _properties: Any, body: bytes) -> None:
        called.append(body)

    channel = broker.channel()
    channel.basic_consume(queue, handler, auto_ack=True)
    broker.fill(queue, "a", "b", "c")
    broker.until(lambda: len(called) == 3, "the handler was not called three times")
    assert called == [b"a", b"b", b"c"]


def a07_delivery_metadata(broker: Visit) -> None:
    """A delivery tells tag, redelivered, exchange, routing key and consumer tag."""
    queue, exchange = broker.queue(), broker.exchange("topic")
    broker.bind(queue, exchange, "#")
    broker.publish(exchange, "some.key", "a")
    channel = broker.channel()
    first = broker.consume(channel, queue, consumer_tag="tag").one()
    assert first[1:6] == (1, False, exchange, "some.key", "tag")
    channel.close()
    broker.until_ready(queue, 1)
    again = broker.get(broker.channel(), queue)
    assert again[1:6] == (1, True, exchange, "some.key", ""), "not as a redelivery"


def a08_properties_come_back_as_published(broker: Visit) -> None:
    """All properties, and headers of every type, arrive as they were given."""
    queue = broker.queue()
    given: Any = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={
            "text": "täxt",
            "number": 7,
            "large": 2**40,
            "negative": -5,
            "yes": True,
            "none": None,
            "list": [1, "two", [3]],
            "table": {"deep": {"deeper": "x"}},
            "bytes": b"\x00\xff",
            "time": datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        },
        delivery_mode=2,
        priority=3,
        correlation_id="correlation",
        reply_to="reply.to",
        expiration="3600000",
        message_id="message",
        timestamp=1_700_000_000,
        type="kind",
        user_id="guest",
        app_id="application",
    )
    channel = broker.channel()
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"a", given)
    got = broker.get(channel, queue).properties
    headers = dict(got.headers)
    headers["time"] = headers["time"].replace(tzinfo=UTC)  # older versions of pika tell none
    for key, value in given.headers.items():
        assert headers.get(key) == value, f"header {key} is {headers.get(key)!r}, not {value!r}"
    others: dict[str, Any] = {**vars(given), "headers": got.headers}
    assert vars(got) == others

    channel.basic_publish("", queue, b"b", pika.BasicProperties(delivery_mode=1))
    assert broker.get(channel, queue).properties.delivery_mode == 1


def a09_type_is_opaque(broker: Visit) -> None:
    """The broker neither validates nor uses the property `type`."""
    queue = broker.queue()
    for kind in ("", "direct", "x" * 255, "\u2603 {}"):
        broker.fill(queue, "a", type=kind)
        assert (broker.drained(queue)[0].properties.type or "") == kind


def a10_content_type_and_encoding_are_opaque(broker: Visit) -> None:
    """The broker validates neither content type nor encoding, nor the body against them."""
    queue = broker.queue()
    broker.fill(queue, "{no json", content_type="application/json", content_encoding="gzip,deflate")
    [got] = broker.drained(queue)
    assert got.body == "{no json"
    assert got.properties.content_type == "application/json"
    assert got.properties.content_encoding == "gzip,deflate"


def a11_user_id_is_validated(broker: Visit) -> None:
    """The property user_id must be the connection's user: else 406 closes the channel."""
    queue = broker.queue()
    channel = broker.channel()
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"a", pika.BasicProperties(user_id="guest"))
    with refused(406, "PRECONDITION_FAILED", "user_id"):
        channel.basic_publish("", queue, b"b", pika.BasicProperties(user_id="somebody"))
    assert broker.drain(queue) == ["a"]


def a12_the_ack_mode_is_chosen_when_consuming(broker: Visit) -> None:
    """Automatic: nothing is expected, and nothing comes back. Manual: unacked returns."""
    automatic, manual = broker.queue(), broker.queue()
    broker.fill(automatic, "a")
    broker.fill(manual, "b")
    channel = broker.channel()
    broker.consume(channel, automatic, auto_ack=True).one()
    broker.consume(channel, manual).one()
    channel.close()
    broker.until_ready(manual, 1)
    assert broker.ready(automatic) == 0


def a13_prefetch_bounds_manual_mode_only(broker: Visit) -> None:
    """With prefetch 2 two unacked deliveries are out; in automatic mode it has no effect."""
    queue = broker.queue()
    broker.fill(queue, *"abcdef")
    channel = broker.channel()
    channel.basic_qos(prefetch_count=2)
    consumer = broker.consume(channel, queue)
    assert bodies(consumer.next(2)) == ["a", "b"]
    consumer.quiet("two are unacked")
    consumer.cancel()
    automatic = broker.consume(channel, queue, auto_ack=True)
    assert bodies(automatic.next(4)) == ["c", "d", "e", "f"]


@needs("management")
def a14_consumer_capacity(broker: Visit) -> None:
    """The capacity is 0 without consumers and 1 (100 %) with consumers that wait."""
    queue = broker.queue()
    broker.until_about(queue, lambda about: not about["consumer_capacity"], "not 0 at first")
    broker.consume(broker.channel(), queue)
    broker.until_about(
        queue, lambda about: about["consumer_capacity"] == 1, "not 1 with an idle consumer"
    )


@needs("management")
def a15_capacity_has_both_names(broker: Visit) -> None:
    """The queue tells consumer_capacity, and the same under its old name."""
    queue = broker.queue()
    broker.consume(broker.channel(), queue)
    broker.until_about(
        queue,
        lambda about: about["consumer_capacity"] == about["consumer_utilisation"] == 1,
        "consumer_capacity and consumer_utilisation are not both 1",
    )


def a16_cancel_leaves_deliveries_alone(broker: Visit) -> None:
    """After cancel nothing new comes; what was delivered stays, may be acked, is not requeued."""
    queue = broker.queue()
    broker.fill(queue, *"abc")
    channel = broker.channel()
    channel.basic_qos(prefetch_count=2)
    consumer = broker.consume(channel, queue)
    first, _ = consumer.next(2)
    # Not by pika's own call: it gives back what it has not handed to its callback.
    consumer.cancel()
    channel.basic_ack(first.tag)
    consumer.quiet("it was cancelled")
    assert broker.ready(queue) == 1, "what a cancelled consumer holds was requeued"
    channel.close()
    broker.until_ready(queue, 2)
    assert sorted(broker.drain(queue)) == ["b", "c"]


def a17_get(broker: Visit) -> None:
    """Pulling: one message a call, in order, acked or not; empty is said; 405 with SAC."""
    queue = broker.queue()
    broker.fill(queue, *"abc")
    channel = broker.channel()
    assert broker.get(channel, queue, auto_ack=True).body == "a"
    second = broker.get(channel, queue)
    third = broker.get(channel, queue)
    assert bodies([second, third]) == ["b", "c"]
    assert channel.basic_get(queue)[0] is None, "empty is not told"
    channel.basic_ack(second.tag)
    channel.close()
    broker.until_ready(queue, 1)
    single = broker.queue({"x-single-active-consumer": True})
    with refused(405, "RESOURCE_LOCKED"):
        broker.channel().basic_get(single)


def a37_a_consumer_that_gives_up_is_seen_to_be_gone(broker: Visit) -> None:
    """A handler that cancels itself lowers the consumer count that the broker tells."""
    queue = broker.queue()
    channel = broker.channel()
    consumer = broker.consume(channel, queue)
    broker.until(lambda: broker.consumers(queue) == 1, "the consumer is not counted")
    broker.fill(queue, "poison")
    failed = consumer.one()
    consumer.cancel()
    channel.basic_nack(failed.tag)
    broker.until(lambda: broker.consumers(queue) == 0, "the cancelled consumer is counted")
    broker.until_ready(queue, 1)


def a38_deliveries_of_a_channel_are_in_order(broker: Visit) -> None:
    """Many messages from several queues: each queue's arrive in order, tags without a gap."""
    queues = [broker.queue() for _ in range(3)]
    wire = broker.wire()
    for queue in queues:
        wire.call(Basic.Consume(0, queue, queue, no_ack=True), Basic.ConsumeOk)
    sender = broker.wire()
    for queue in queues:
        sender.publish(queue, *(str(number) for number in range(200)))
    got = wire.take(600, Basic.Deliver)
    assert [each.method.delivery_tag for each in got] == list(range(1, 601))
    for queue in queues:
        own = [int(each.body) for each in got if each.method.consumer_tag == queue]
        assert own == list(range(200)), f"not in order: {own[:20]}"


def c06_push_and_pull_take_from_the_same_queue(broker: Visit) -> None:
    """A pulled message is not pushed to a consumer, and the other way round."""
    queue = broker.queue(kind=CLASSIC)
    broker.fill(queue, *"abcd")
    channel = broker.channel()
    assert broker.get(channel, queue, auto_ack=True).body == "a"
    channel.basic_qos(prefetch_count=2)
    assert bodies(broker.consume(channel, queue).next(2)) == ["b", "c"]
    assert broker.get(channel, queue).body == "d"
