"""A35-A36, A39, C24, C31: who is served first, and which message."""

from __future__ import annotations

from tests.acceptance.semantics.visit import CLASSIC, Visit, bodies


def a35_consumers_of_higher_priority_first(broker: Visit) -> None:
    """While a consumer of higher x-priority can take more, the lower ones get nothing."""
    queue = broker.queue()
    high_channel = broker.channel()
    high_channel.basic_qos(prefetch_count=2)
    low = broker.consume(broker.channel(), queue, arguments={"x-priority": -1})
    high = broker.consume(high_channel, queue, arguments={"x-priority": 10})
    broker.fill(queue, *"ab")
    first, _ = high.next(2)
    low.quiet("the other had room")
    broker.fill(queue, "c")
    assert low.one().body == "c", "the other is at its prefetch limit"
    high_channel.basic_ack(first.tag)
    broker.fill(queue, "d")
    assert high.one().body == "d"


def a36_equal_priorities_take_turns(broker: Visit) -> None:
    """Among those of the same highest priority messages go round."""
    queue = broker.queue()
    low = broker.consume(broker.channel(), queue)
    highest = [
        broker.consume(broker.channel(), queue, arguments={"x-priority": 3}) for _ in range(2)
    ]
    broker.fill(queue, *"abcd")
    for consumer in highest:
        consumer.next(2)
    low.quiet("it has a lower priority")


def a39_consistent_hash_exchange(broker: Visit) -> None:
    """An x-consistent-hash exchange spreads keys over its queues; one key always goes to one."""
    exchange = broker.exchange("x-consistent-hash")
    queues = [broker.queue() for _ in range(2)]
    for queue in queues:
        broker.bind(queue, exchange, "10")
    wire = broker.wire()
    for _ in range(2):
        for number in range(100):
            wire.publish(f"key {number}", f"{number}", exchange=exchange)
    counted: list[list[str]] = []
    broker.until(
        lambda: sum(broker.ready(queue) for queue in queues) == 200, "200 messages did not arrive"
    )
    for queue in queues:
        counted.append(broker.drain(queue))
        assert len(counted[-1]) >= 20, f"one queue got only {len(counted[-1])} of 200"
    assert not set(counted[0]) & set(counted[1]), "one key went to both queues"


def a39_random_exchange(broker: Visit) -> None:
    """An x-random exchange gives each message to one of its queues, whatever its key."""
    exchange = broker.exchange("x-random")
    queues = [broker.queue() for _ in range(3)]
    for queue in queues:
        broker.bind(queue, exchange, "some key")
    wire = broker.wire()
    wire.publish("key", *map(str, range(300)), exchange=exchange)
    broker.until(
        lambda: sum(broker.ready(queue) for queue in queues) == 300, "300 messages did not arrive"
    )
    counted = [broker.drain(queue) for queue in queues]
    assert all(len(each) >= 50 for each in counted), f"shared as {[*map(len, counted)]}"
    assert sorted(int(body) for each in counted for body in each) == [*range(300)]


def a39_modulus_hash_exchange(broker: Visit) -> None:
    """An x-modulus-hash exchange spreads keys over its queues; one key always goes to one."""
    exchange = broker.exchange("x-modulus-hash")
    queues = [broker.queue() for _ in range(3)]
    for queue in queues:
        broker.bind(queue, exchange, "")
    for _ in range(2):
        for number in range(60):
            broker.publish(exchange, f"key {number}", f"{number}")
    counted = [broker.drain(queue) for queue in queues]
    assert all(len(each) >= 10 for each in counted), f"shared as {[*map(len, counted)]}"
    for each in counted:
        assert sorted(each) == sorted([*set(each)] * 2), "one key went to two queues"
    assert sum(map(len, counted)) == 120


def c24_priorities_of_messages(broker: Visit) -> None:
    """With x-max-priority higher ones come first, equal ones in order, over the maximum is it."""
    queue = broker.queue({"x-max-priority": 5})
    for body, priority in (("a", 1), ("b", 5), ("c", None), ("d", 200), ("e", 1), ("f", 0)):
        broker.fill(queue, body, priority=priority)
    assert broker.drain(queue) == ["b", "d", "a", "e", "c", "f"]


def c24_a_backlog_comes_by_priority(broker: Visit) -> None:
    """A new consumer gets what waits by priority, from the first message on, whatever its
    prefetch.
    """
    backlog = [str(priority) for priority in range(10)]
    for prefetch, auto_ack in ((0, False), (5, False), (0, True)):
        queue = broker.queue({"x-max-priority": 9}, kind=CLASSIC)
        for body in backlog:
            broker.fill(queue, body, priority=int(body))
        channel = broker.channel()
        channel.basic_qos(prefetch_count=prefetch)
        consumer = broker.consume(channel, queue, auto_ack=auto_ack)
        got: list[str] = []
        for _ in backlog:
            delivery = consumer.one()
            got.append(delivery.body)
            if not auto_ack:
                channel.basic_ack(delivery.tag)
        assert got == backlog[::-1], f"prefetch {prefetch}, auto-ack {auto_ack}"


def c31_messages_go_round(broker: Visit) -> None:
    """Each message goes to one consumer only; more consumers share the work."""
    queue = broker.queue()
    channel = broker.channel()
    consumers = [broker.consume(channel, queue) for _ in range(2)]
    broker.fill(queue, *"abcd")
    got = [bodies(consumer.next(2)) for consumer in consumers]
    assert sorted(got[0] + got[1]) == ["a", "b", "c", "d"]
