"""B14-B16, B19-B21, C32: how many unacked deliveries may be out."""

from __future__ import annotations

from pamqp.commands import Basic

from tests.acceptance.semantics.visit import Visit, bodies, same


def b14_each_ack_lets_one_through(broker: Visit) -> None:
    """At the prefetch limit each ack lets exactly one more through, a multiple one several."""
    queue = broker.queue()
    broker.fill(queue, *"abcdefgh")
    channel = broker.channel()
    channel.basic_qos(prefetch_count=3)
    consumer = broker.consume(channel, queue)
    held = consumer.next(3)
    channel.basic_ack(held[0].tag)
    assert consumer.one().body == "d"
    consumer.quiet("one ack lets one through")
    channel.basic_ack(held[2].tag, multiple=True)
    assert bodies(consumer.next(2)) == ["e", "f"]
    consumer.quiet("an ack of two lets two through")


def b15_prefetch_may_change_under_way(broker: Visit) -> None:
    """A lower limit with more deliveries out is no error; it holds for what is consumed next."""
    queue = broker.queue()
    broker.fill(queue, *"abcdef")
    channel = broker.channel()
    channel.basic_qos(prefetch_count=4)
    first = broker.consume(channel, queue)
    held = first.next(4)
    channel.basic_qos(prefetch_count=1)
    second = broker.consume(channel, queue)
    assert second.one().body == "e"
    second.quiet("its limit is 1")
    channel.basic_ack(held[3].tag, multiple=True)
    assert first.one().body == "f"


def b16_per_consumer_global_and_size(broker: Visit) -> None:
    """global=false bounds each new consumer, global=true all of a channel; a size is 540."""
    queue = broker.queue()
    broker.fill(queue, *"abcdef")
    channel = broker.channel()
    channel.basic_qos(prefetch_count=2)
    for _ in range(2):
        broker.consume(channel, queue).next(2)
    channel.basic_qos(prefetch_count=0)
    broker.consume(channel, queue).next(2)

    wire = broker.wire()
    wire.send(Basic.Qos(prefetch_size=1, prefetch_count=0))
    refusal = wire.refusal()
    assert refusal.level == "connection"
    same(refusal.code, refusal.text, 540, "NOT_IMPLEMENTED")

    shared = broker.queue()
    broker.fill(shared, *"abcde")
    channel = broker.channel()
    channel.basic_qos(prefetch_count=3, global_qos=True)
    both = [broker.consume(channel, shared) for _ in range(2)]
    broker.until(lambda: sum(len(each.deliveries) for each in both) == 3, "three did not come")
    for each in both:
        each.taken = len(each.deliveries)
        each.quiet("three are out on this channel")
    channel.basic_ack(1)
    broker.until(lambda: sum(len(each.deliveries) for each in both) == 4, "no fourth came")


def b19_a_sliding_window_out_of_order(broker: Visit) -> None:
    """Acks in any order move the window; nothing waits for the oldest."""
    queue = broker.queue()
    broker.fill(queue, *(str(number) for number in range(20)))
    channel = broker.channel()
    channel.basic_qos(prefetch_count=4)
    consumer = broker.consume(channel, queue)
    oldest, *held = consumer.next(4)
    for _ in range(16):
        channel.basic_ack(held.pop().tag)
        held.append(consumer.one())
    channel.basic_ack(oldest.tag)
    assert held[-1].body == "19"


def b20_four_unacked_and_one_ack(broker: Visit) -> None:
    """Tags 5 to 8 unacked at prefetch 4: nothing more comes; ack any one, and one more does."""
    queue = broker.queue()
    broker.fill(queue, *(str(number) for number in range(1, 11)))
    channel = broker.channel()
    channel.basic_qos(prefetch_count=4)
    consumer = broker.consume(channel, queue)
    channel.basic_ack(consumer.next(4)[-1].tag, multiple=True)
    assert [each.tag for each in consumer.next(4)] == [5, 6, 7, 8]
    consumer.quiet("four are unacked")
    channel.basic_ack(7)
    assert consumer.one().tag == 9
    consumer.quiet("four are unacked again")


def b21_prefetch_does_not_bound_get(broker: Visit) -> None:
    """basic.get gives messages whatever the prefetch is, also in manual mode."""
    queue = broker.queue()
    broker.fill(queue, *"abc")
    channel = broker.channel()
    channel.basic_qos(prefetch_count=1)
    assert [broker.get(channel, queue).body for _ in range(3)] == ["a", "b", "c"]


def c32_a_counter_for_each_consumer(broker: Visit) -> None:
    """qos(5): five are out, each ack lets one more through; pulling is not counted."""
    queue = broker.queue()
    broker.fill(queue, *(str(number) for number in range(10)))
    channel = broker.channel()
    channel.basic_qos(prefetch_count=5)
    pulled = broker.get(channel, queue)
    consumer = broker.consume(channel, queue)
    held = consumer.next(5)
    consumer.quiet("five are out")
    channel.basic_ack(pulled.tag)
    consumer.quiet("what was pulled is not counted")
    channel.basic_ack(held[2].tag)
    assert consumer.one().body == "6"
