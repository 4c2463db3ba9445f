"""A24-A34, A40: exclusive consumers and single active consumers (SAC)."""

from __future__ import annotations

from tests.acceptance.rows.suite import needs
from tests.acceptance.semantics.brokers import QuorateNodes
from tests.acceptance.semantics.visit import CLASSIC, Consumer, Visit, bodies, refused

SINGLE = {"x-single-active-consumer": True}


def _with_priority(broker: Visit, queue: str, priority: int) -> Consumer:
    return broker.consume(broker.channel(), queue, arguments={"x-priority": priority})


def a24_an_exclusive_consumer_is_alone(broker: Visit) -> None:
    """Exclusive needs a queue without consumers, and keeps others out with 403, till it ends."""
    queue = broker.queue()
    first = broker.consume(broker.channel(), queue)
    with refused(403, "ACCESS_REFUSED", "in exclusive use"):
        broker.consume(broker.channel(), queue, exclusive=True)
    first.cancel()
    alone = broker.consume(broker.channel(), queue, exclusive=True)
    for exclusive in (False, True):
        with refused(403, "ACCESS_REFUSED", "in exclusive use"):
            broker.consume(broker.channel(), queue, exclusive=exclusive)
    alone.channel.close()
    again = broker.consume(broker.channel(), queue)
    broker.fill(queue, "a")
    assert again.one().body == "a"


def a25_single_active_consumer(broker: Visit) -> None:
    """With x-single-active-consumer the first consumer is served, the others only registered."""
    queue = broker.queue(SINGLE)
    first, second = (broker.consume(broker.channel(), queue) for _ in range(2))
    broker.fill(queue, *"abc")
    assert bodies(first.next(3)) == ["a", "b", "c"]
    second.quiet("it is not the active one")


def a26_another_becomes_active(broker: Visit) -> None:
    """When the active consumer is cancelled or dies another one takes over by itself."""
    queue = broker.queue(SINGLE)
    dying = broker.connect().channel()
    first = broker.consume(broker.channel(), queue)
    second = broker.consume(dying, queue)
    third = broker.consume(broker.channel(), queue)
    first.cancel()
    broker.fill(queue, "a")
    assert second.one().body == "a"
    third.quiet("the second is active")
    dying.connection.close()
    taken_over = third.one()
    assert (taken_over.body, taken_over.redelivered) == ("a", True)


def a27_takeover_by_priority(broker: Visit) -> None:
    """A consumer of higher priority takes over once the active one has acked what it holds."""
    queue = broker.queue(SINGLE)
    low = _with_priority(broker, queue, 0)
    broker.fill(queue, "a", "b")
    held = low.next(2)
    high = _with_priority(broker, queue, 5)
    broker.fill(queue, "c")
    low.quiet("it is on its way out")
    low.channel.basic_ack(held[0].tag)
    high.quiet("the other still holds a delivery")
    low.channel.basic_ack(held[1].tag)
    assert high.one().body == "c"
    low.quiet("it was replaced")


def a28_classic_single_active_follows_the_same_rule(broker: Visit) -> None:
    """On a classic queue too: the first is active, and the highest priority takes over."""
    queue = broker.queue(SINGLE, kind=CLASSIC)
    first, second = (_with_priority(broker, queue, 1) for _ in range(2))
    broker.fill(queue, "a")
    delivery = first.one()
    second.quiet("the first of equal ones is active")
    first.channel.basic_ack(delivery.tag)
    high = _with_priority(broker, queue, 9)
    broker.fill(queue, "b")
    assert high.one().body == "b"


def a29_no_exclusive_consumer_with_single_active(broker: Visit) -> None:
    """An exclusive consumer on a queue with a single active consumer is refused."""
    queue = broker.queue(SINGLE)
    with refused(403, "ACCESS_REFUSED"):
        broker.consume(broker.channel(), queue, exclusive=True)


def a30_a_busy_active_consumer_stays_the_only_one(broker: Visit) -> None:
    """At its prefetch limit the active one gets no more, and the others get nothing either."""
    queue = broker.queue(SINGLE)
    channel = broker.channel()
    channel.basic_qos(prefetch_count=1)
    active, other = broker.consume(channel, queue), broker.consume(broker.channel(), queue)
    broker.fill(queue, "a", "b")
    first = active.one()
    other.quiet("the active one is busy, not gone")
    channel.basic_ack(first.tag)
    assert active.one().body == "b"


@needs("management")
def a31_single_active_not_by_policy(broker: Visit) -> None:
    """A policy cannot make a queue one with a single active consumer."""
    queue = broker.queue()
    broker.policy(f"^{queue}$", {"single-active-consumer": True, "max-length": 1000})
    broker.policy(f"^{queue}$", {"x-single-active-consumer": True})
    consumers = [broker.consume(broker.channel(), queue) for _ in range(2)]
    broker.fill(queue, "a", "b")
    for consumer in consumers:
        consumer.one()


def a32_without_single_active_all_are_served(broker: Visit) -> None:
    """Without it consumers are served in turn."""
    queue = broker.queue()
    consumers = [broker.consume(broker.channel(), queue) for _ in range(3)]
    broker.fill(queue, *"abcdef")
    for consumer in consumers:
        consumer.next(2)
        consumer.quiet("each has its share")


@needs("management")
def a33_the_active_consumer_is_told(broker: Visit) -> None:
    """The list of consumers tells which one is active, also after it changed."""
    queue = broker.queue(SINGLE)
    first, second = (
        broker.consume(broker.channel(), queue, consumer_tag=tag) for tag in ("first", "second")
    )
    _until_active(broker, queue, {first.tag: True, second.tag: False})
    first.cancel()
    _until_active(broker, queue, {second.tag: True})


@needs("management")
def a34_the_flag_active(broker: Visit) -> None:
    """Without a single active consumer every consumer is active, classic or quorum."""
    for kind in ({"x-queue-type": "quorum"}, CLASSIC):
        queue = broker.queue(kind=kind)
        tags = [broker.consume(broker.channel(), queue).tag for _ in range(2)]
        _until_active(broker, queue, dict.fromkeys(tags, True))


@needs("management", "cluster")
def a34_a_consumer_of_a_suspected_node_is_not_active(broker: Visit) -> None:
    """A consumer whose node is suspected to be down is told as not active until that is settled."""
    nodes = broker.broker
    assert isinstance(nodes, QuorateNodes)
    queue = broker.queue()
    near = nodes.leader(queue)
    far = next(node for node in nodes.nodes if node is not near)
    tag = broker.consume(broker.connect(nodes.url_of(far)).channel(), queue).tag
    _until_active(broker, queue, {tag: True}, at=near.url)
    with nodes.paused(far):
        _until_active(broker, queue, {tag: False}, at=near.url)


def a40_no_single_active_consumer_on_a_stream(broker: Visit) -> None:
    """A queue of the type stream with a single active consumer is refused at its declaration."""
    with refused(406):
        broker.queue(SINGLE, kind={"x-queue-type": "stream"})


def _until_active(
    broker: Visit, queue: str, expected: dict[str, bool], at: str | None = None
) -> None:
    def told() -> dict[str, bool]:
        _, answer = broker.ask("GET", "/api/consumers/%2F", at=at)
        return {
            each["consumer_tag"]: each["active"]
            for each in answer
            if each["queue"]["name"] == queue
        }

    broker.until_told(told, lambda got: got == expected, f"not {expected}")
