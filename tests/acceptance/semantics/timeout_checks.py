"""A18-A23, C08: deliveries that stay unacked for too long, and too many consumers."""

from __future__ import annotations

import time

from pamqp.commands import Basic

from tests.acceptance.rows.suite import needs
from tests.acceptance.semantics.visit import Channel, Visit, bodies, same

SHORT_MS = 400
#: Long enough that acks well within it come in time on a slow machine too.
LONGER_MS = 3000
#: Either must have been noticed by then, on a machine however busy.
NOTICED_S_MAX = 60.0
HOUR_MS = 3_600_000


def a18_unacked_for_too_long(broker: Visit) -> None:
    """One delivery over its timeout closes the channel with 406, and all its unacked return."""
    late, other = broker.queue({"x-consumer-timeout": SHORT_MS}), broker.queue()
    broker.fill(late, "a", "b")
    broker.fill(other, "c")
    channel = broker.channel()
    broker.consume(channel, other).one()
    broker.consume(channel, late).next(2)
    _until_closed(broker, channel)
    same(*broker.reason(channel), 406, "PRECONDITION_FAILED", "timed out")
    broker.until_ready(late, 2)
    broker.until_ready(other, 1)
    assert [each.redelivered for each in broker.drained(late)] == [True, True]


@needs("settings")
def a19_the_timeout_of_the_node(broker: Visit) -> None:
    """Queues that say nothing have the timeout of the node's settings."""
    queue = broker.queue()
    broker.fill(queue, "a")
    with broker.settings(f"amqp_options.consumer_timeout_ms = {SHORT_MS}\n"):
        channel = broker.channel()
        broker.consume(channel, queue).one()
        _until_closed(broker, channel)
        same(*broker.reason(channel), 406, "PRECONDITION_FAILED")


@needs("management")
def a20_the_timeout_of_a_policy(broker: Visit) -> None:
    """The policy key consumer-timeout sets it for the queues that match."""
    queue = broker.queue()
    status = broker.policy(f"^{queue}$", {"consumer-timeout": SHORT_MS})
    assert status < 300, f"the policy is refused with {status}"
    channel = broker.channel()
    consumer = broker.consume(channel, queue)

    def closed() -> bool:
        """A policy reaches its queues in a moment: what was delivered before is acked."""
        broker.fill(queue, "a")
        broker.until(lambda: consumer.waiting() or not channel.is_open, "nothing was delivered")
        broker.pump(SHORT_MS * 2 / 1000)
        if channel.is_open:
            channel.basic_ack(consumer.one().tag)
        return not channel.is_open

    broker.until(closed, "no delivery was late")
    same(*broker.reason(channel), 406, "PRECONDITION_FAILED")


def a21_the_timeout_of_a_queue(broker: Visit) -> None:
    """The argument x-consumer-timeout holds for its own queue, and for no other."""
    short = broker.queue({"x-consumer-timeout": SHORT_MS})
    long = broker.queue({"x-consumer-timeout": HOUR_MS})
    for queue in (short, long):
        broker.fill(queue, "a")
    patient, channel = broker.channel(), broker.channel()
    broker.consume(patient, long).one()
    broker.consume(channel, short).one()
    _until_closed(broker, channel)
    assert patient.is_open, "the timeout of one queue closed a channel without deliveries of it"


def a22_when_the_timeout_is_noticed(broker: Visit) -> None:
    """A timeout is never noticed before its time, and acks in time keep the channel open."""
    queue = broker.queue({"x-consumer-timeout": LONGER_MS})
    channel = broker.channel()
    channel.basic_qos(prefetch_count=1)
    consumer = broker.consume(channel, queue)
    broker.fill(queue, "a", "b", "c", "d", "e")
    for _ in range(4):
        delivery = consumer.one()
        broker.pump(LONGER_MS / 1000 / 3)
        channel.basic_ack(delivery.tag)
    begin_s = time.monotonic()
    consumer.one()
    _until_closed(broker, channel)
    assert time.monotonic() - begin_s > LONGER_MS / 1000 * 0.8, "closed too early"


@needs("settings")
def a23_too_many_consumers_on_a_channel(broker: Visit) -> None:
    """One consumer more than consumer_max_per_channel ends the connection with 530."""
    queue = broker.queue()
    with broker.settings("amqp_options.consumers_per_channel_max = 2\n"):
        wire = broker.wire()
        for _ in range(2):
            wire.call(Basic.Consume(0, queue), Basic.ConsumeOk)
        wire.send(Basic.Consume(0, queue))
        refusal = wire.refusal()
        assert refusal.level == "connection"
        same(refusal.code, refusal.text, 530, "reached maximum (2) of consumers per channel")


def c08_without_a_timeout_unacked_stays(broker: Visit) -> None:
    """No short timeout is set by itself: what is unacked stays with its consumer."""
    queue = broker.queue()
    broker.fill(queue, "a")
    channel = broker.channel()
    consumer = broker.consume(channel, queue)
    assert bodies(consumer.next(1)) == ["a"]
    broker.pump(SHORT_MS * 2 / 1000)
    assert channel.is_open
    assert broker.ready(queue) == 0


def _until_closed(broker: Visit, channel: Channel) -> None:
    broker.until(
        lambda: not channel.is_open,
        f"not closed within {NOTICED_S_MAX:g} s after a short timeout",
        within_s=NOTICED_S_MAX,
    )
