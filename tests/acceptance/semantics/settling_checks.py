"""B01-B12, C07, C09-C10: delivery tags, acks, nacks, requeueing, recovering."""

from __future__ import annotations

from pamqp.commands import Basic

from tests.acceptance.rows.suite import needs
from tests.acceptance.semantics.visit import Delivery, Visit, bodies, same


def b01_delivery_tags_count_per_channel(broker: Visit) -> None:
    """Delivery tags grow from 1 on each channel, over all its consumers and gets."""
    queue, other = broker.queue(), broker.queue()
    broker.fill(queue, *"abcd")
    broker.fill(other, "x")
    first, second = broker.channel(), broker.channel()
    assert [broker.get(first, queue).tag for _ in range(2)] == [1, 2]
    assert broker.get(second, queue).tag == 1, "each channel counts for itself"
    assert broker.get(first, other).tag == 3, "a channel counts over its queues"
    assert broker.consume(first, queue).one().tag == 4


def b02_unknown_delivery_tags(broker: Visit) -> None:
    """Settling an unknown, settled or other channel's tag closes the channel with 406."""
    queue = broker.queue()
    broker.fill(queue, "a", "b", "c")
    for how in ("unknown", "settled", "another channel's"):
        channel, other = broker.channel(), broker.channel()
        held = [broker.get(channel, queue) for _ in range(2)]
        if how == "unknown":
            channel.basic_ack(77)
            tag = 77
        elif how == "settled":
            channel.basic_nack(held[0].tag, requeue=True)
            channel.basic_ack(held[0].tag)
            tag = held[0].tag
        else:
            other.basic_reject(held[1].tag)
            tag = held[1].tag
            channel, other = other, channel
        same(*broker.reason(channel), 406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
        if other.is_open:
            other.close()
        broker.until_ready(queue, 3)


def b03_ack_removes(broker: Visit) -> None:
    """An acked message is gone for good."""
    queue = broker.queue()
    broker.fill(queue, "a", "b")
    channel = broker.channel()
    channel.basic_ack(broker.get(channel, queue).tag)
    channel.close()
    assert broker.drain(queue) == ["b"]


def b04_nack(broker: Visit) -> None:
    """A nack settles one or, with multiple, all up to a tag; it requeues or discards."""
    queue = broker.queue()
    broker.fill(queue, *"abcde")
    channel = broker.channel()
    held = [broker.get(channel, queue) for _ in range(5)]
    channel.basic_nack(held[1].tag, multiple=True, requeue=False)
    channel.basic_nack(held[3].tag, multiple=True, requeue=True)
    broker.until_ready(queue, 2)
    channel.basic_nack(held[4].tag, requeue=False)
    channel.close()
    assert sorted(broker.drain(queue)) == ["c", "d"]


def b05_reject(broker: Visit) -> None:
    """A reject settles one message: back into the queue, or away."""
    queue = broker.queue()
    broker.fill(queue, *"abc")
    channel = broker.channel()
    held = [broker.get(channel, queue) for _ in range(3)]
    channel.basic_reject(held[1].tag, requeue=False)
    channel.basic_reject(held[2].tag, requeue=True)
    broker.until_ready(queue, 1)
    channel.close()
    broker.until_ready(queue, 2)
    assert sorted(broker.drain(queue)) == ["a", "c"]


def b06_multiple(broker: Visit) -> None:
    """multiple settles all up to the tag, over all queues; tag 0 with it settles everything."""
    queue, other = broker.queue(), broker.queue()
    broker.fill(queue, *(str(number) for number in range(1, 9)))
    broker.fill(other, "x")
    channel = broker.channel()
    held = [broker.get(channel, queue) for _ in range(8)]
    channel.basic_ack(held[3].tag, multiple=True)
    channel.basic_ack(held[7].tag)  # 5 to 7 stay
    channel.basic_nack(held[6].tag, multiple=True, requeue=True)
    broker.until_ready(queue, 3)
    for _ in range(3):
        broker.get(channel, queue)
    broker.get(channel, other)
    channel.basic_ack(0, multiple=True)
    channel.close()
    assert (broker.drain(queue), broker.drain(other)) == ([], [])

    broker.fill(queue, "y")
    channel = broker.channel()
    broker.get(channel, queue)
    channel.basic_ack(0)
    same(*broker.reason(channel), 406, "unknown delivery tag 0")


def b07_discard(broker: Visit) -> None:
    """requeue=false drops the message, or sends it to the dead letter exchange."""
    dead = broker.queue()
    with_exchange = broker.queue({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    without = broker.queue()
    for queue in (with_exchange, without):
        broker.fill(queue, "a", "b")
        channel = broker.channel()
        channel.basic_nack(broker.get(channel, queue).tag, requeue=False)
        channel.basic_reject(broker.get(channel, queue).tag, requeue=False)
        channel.close()
        assert broker.drain(queue) == []
    broker.until_ready(dead, 2)
    assert broker.drain(dead) == ["a", "b"]


def b08_requeued_messages_find_their_place(broker: Visit) -> None:
    """A requeued message goes back to its original position."""
    queue = broker.queue()
    broker.fill(queue, *"abcde")
    channel = broker.channel()
    held = [broker.get(channel, queue) for _ in range(3)]
    channel.basic_nack(held[2].tag, requeue=True)
    broker.until_ready(queue, 3)
    channel.basic_nack(held[0].tag, requeue=True)
    broker.until_ready(queue, 4)
    assert broker.drain(queue) == ["a", "c", "d", "e"]


def b09_redeliveries_are_counted_and_limited(broker: Visit) -> None:
    """x-delivery-count grows with each failure, and x-delivery-limit ends a hot loop."""
    queue = broker.queue({"x-delivery-limit": 2})
    broker.fill(queue, "poison")
    channel = broker.channel()
    consumer = broker.consume(channel, queue)
    counts: list[int] = []
    for _ in range(3):
        delivery = consumer.one()
        counts.append(delivery.headers.get("x-delivery-count", 0))
        channel.basic_reject(delivery.tag, requeue=True)
    consumer.quiet("it is over the limit")
    assert counts == [0, 1, 2]
    assert broker.ready(queue) == 0


def b10_automatic_ack_is_fire_and_forget(broker: Visit) -> None:
    """In automatic mode a message is gone when sent, also when the consumer dies at once."""
    queue = broker.queue()
    broker.fill(queue, *"abc")
    wire = broker.wire()
    wire.call(Basic.Qos(0, 1), Basic.QosOk)
    wire.call(Basic.Consume(0, queue, no_ack=True), Basic.ConsumeOk)
    wire.take(3, Basic.Deliver)
    wire.reset()
    broker.until(lambda: broker.consumers(queue) == 0, "the consumer is still there")
    assert broker.ready(queue) == 0


def b11_unacked_returns_by_itself(broker: Visit) -> None:
    """When a channel or connection ends, for any reason, its unacked deliveries return."""
    queue = broker.queue()
    broker.fill(queue, "a", "b")

    def holding() -> tuple[Delivery, Delivery]:
        broker.until_ready(queue, 2)
        return broker.get(channel, queue), broker.get(channel, queue)

    channel = broker.channel()
    holding()
    channel.close()

    channel = broker.connect().channel()
    holding()
    channel.connection.close()

    channel = broker.channel()
    holding()
    channel.basic_ack(99)  # a channel error

    broker.until_ready(queue, 2)
    wire = broker.wire()
    wire.call(Basic.Consume(0, queue), Basic.ConsumeOk)
    wire.take(2, Basic.Deliver)
    wire.reset()
    broker.until_ready(queue, 2)
    assert sorted(broker.drain(queue)) == ["a", "b"]


def b12_redelivered(broker: Visit) -> None:
    """The flag is false the first time, and true when it may have been delivered before."""
    queue = broker.queue()
    broker.fill(queue, "a", "b")
    channel = broker.channel()
    first = broker.get(channel, queue)
    assert not first.redelivered
    channel.basic_nack(first.tag, requeue=True)
    broker.until_ready(queue, 2)
    other = broker.consume(broker.connect().channel(), queue)
    assert {each.body: each.redelivered for each in other.next(2)} == {"a": True, "b": False}


@needs("management")
def c07_ready_and_unacknowledged(broker: Visit) -> None:
    """A queue tells ready and unacked apart, and a consumer that leaves moves them back."""
    queue = broker.queue()
    broker.fill(queue, *"abc")
    channel = broker.channel()
    channel.basic_qos(prefetch_count=2)
    broker.consume(channel, queue).next(2)
    assert broker.ready(queue) == 1

    def counts(about: dict[str, int]) -> tuple[int, int, int]:
        return about["messages_ready"], about["messages_unacknowledged"], about["messages"]

    broker.until_about(queue, lambda about: counts(about) == (1, 2, 3), "not 1 ready, 2 unacked")
    channel.close()
    broker.until_about(queue, lambda about: counts(about) == (3, 0, 3), "not 3 ready")


def c09_discarded_is_not_delivered_again(broker: Visit) -> None:
    """What was rejected without requeue is removed at once, and no new consumer gets it."""
    queue = broker.queue()
    broker.fill(queue, "a", "b")
    channel = broker.channel()
    consumer = broker.consume(channel, queue)
    first, second = consumer.next(2)
    channel.basic_reject(first.tag, requeue=False)
    channel.basic_nack(second.tag, requeue=False)
    broker.consume(broker.channel(), queue).quiet("both were discarded")
    channel.close()
    broker.until(lambda: broker.consumers(queue) == 1, "the channel is closed, its consumer not")
    assert broker.ready(queue) == 0


def c10_recover(broker: Visit) -> None:
    """recover(requeue=true) gives back all unacked of the channel; requeue=false is 540."""
    queue = broker.queue()
    broker.fill(queue, "a", "b")
    channel = broker.channel()
    for _ in range(2):
        broker.get(channel, queue)
    channel.basic_recover(requeue=True)
    broker.until_ready(queue, 2)
    other = broker.channel()
    again = [broker.get(other, queue) for _ in range(2)]
    assert sorted(bodies(again)) == ["a", "b"]
    assert all(each.redelivered for each in again)

    wire = broker.wire()
    wire.send(Basic.Recover(requeue=False))
    refusal = wire.refusal()
    assert refusal.level == "connection"
    same(refusal.code, refusal.text, 540, "NOT_IMPLEMENTED")
