"""C14-C18, C21, C23: times to live."""

from __future__ import annotations

import time

import pika
from pamqp.commands import Basic

from tests.acceptance.rows.suite import needs
from tests.acceptance.semantics.brokers import QuorateNodes
from tests.acceptance.semantics.visit import CLASSIC, Visit, refused

SHORT_MS = 150
HOUR_MS = 3_600_000


def c14_time_to_live_of_a_queue(broker: Visit) -> None:
    """x-message-ttl: all messages live equally long, and the expired leave the head promptly."""
    queue = broker.queue({"x-message-ttl": SHORT_MS})
    broker.fill(queue, "a", "b")
    broker.until_ready(queue, 0)
    assert broker.drain(queue) == []


def c15_time_to_live_of_a_message(broker: Visit) -> None:
    """expiration is judged at the head: behind a living message an expired one is counted."""
    queue = broker.queue()
    broker.fill(queue, "living")
    broker.fill(queue, "expiring", expiration=str(SHORT_MS))
    broker.fill(queue, "last")
    _pass(SHORT_MS * 2)
    assert broker.ready(queue) == 3, "it is not at the head, and not counted any more"
    assert broker.drain(queue) == ["living", "last"]


def c16_the_smaller_time_to_live(broker: Visit) -> None:
    """Of both times the smaller holds, and consumers never see an expired message."""
    short, long = (
        broker.queue({"x-message-ttl": SHORT_MS}),
        broker.queue({"x-message-ttl": HOUR_MS}),
    )
    broker.fill(short, "a", expiration=str(HOUR_MS))
    broker.fill(long, "b", expiration=str(SHORT_MS))
    for queue in (short, long):
        broker.until_ready(queue, 0)
        assert broker.drain(queue) == []


def c17_time_to_live_zero(broker: Visit) -> None:
    """With 0 a message is dropped, or dead-lettered, unless a consumer can have it at once."""
    dead = broker.queue()
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    for arguments, expiration in (({"x-message-ttl": 0}, None), ({}, "0")):
        queue = broker.queue({**letters, **arguments}, kind=CLASSIC)
        broker.fill(queue, "nobody waits", expiration=expiration)
        broker.until_ready(dead, 1)
        assert broker.drain(dead) == ["nobody waits"]
        consumer = broker.consume(broker.channel(), queue, auto_ack=True)
        broker.fill(queue, "a consumer waits", expiration=expiration)
        assert consumer.one().body == "a consumer waits"
    assert broker.drain(dead) == []


def c18_a_bad_expiration(broker: Visit) -> None:
    """An expiration that is no whole number of milliseconds closes the channel with 406."""
    queue = broker.queue()
    for text in ("soon", "1.5", "-1", "10 "):
        channel = broker.channel()
        channel.confirm_delivery()
        with refused(406, "PRECONDITION_FAILED - invalid expiration"):
            channel.basic_publish("", queue, b"a", pika.BasicProperties(expiration=text))
    assert broker.ready(queue) == 0


def c21_dead_letters_and_zero_instead_of_immediate(broker: Visit) -> None:
    """A dead letter exchange and a time to live of 0 tell the publisher's side: nobody listens."""
    exchange, unheard = broker.exchange("fanout"), broker.queue()
    broker.bind(unheard, exchange)
    queue = broker.queue({"x-message-ttl": 0, "x-dead-letter-exchange": exchange})
    broker.fill(queue, "a")
    broker.until_ready(unheard, 1)
    [letter] = broker.drained(unheard)
    assert (letter.body, letter.key) == ("a", queue)


def c23_delay_by_dead_letters(broker: Visit) -> None:
    """Queues without consumers, each with a time to live, delay what they get by that time."""
    delays, work = broker.exchange("direct"), broker.queue()
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work}
    for delay_ms in (100, 3000):
        waiting = broker.queue({**letters, "x-message-ttl": delay_ms})
        broker.bind(waiting, delays, f"{delay_ms}")
    consumer = broker.consume(broker.channel(), work, auto_ack=True)
    begin_s = time.monotonic()
    broker.publish(delays, "3000", "later")
    broker.publish(delays, "100", "sooner")
    assert consumer.one().body == "sooner"
    assert time.monotonic() - begin_s > 0.1
    assert consumer.one().body == "later"
    assert time.monotonic() - begin_s > 3


def c23_delay_by_a_header(broker: Visit) -> None:
    """x-delay and x-opt-delivery-time make any message wait in its queue; the consumer sees the
    delay negated, so that a message that is published again is not delayed again.
    """
    queue = broker.queue()
    consumer = broker.consume(broker.channel(), queue, auto_ack=True)
    begin_s = time.time()
    at_ms = int(begin_s * 1_000) + 2_000
    for body, headers in (
        ("third", {"x-opt-delivery-time": at_ms}),
        ("second", {"x-delay": 1_000, "other": "kept"}),
        ("first", {"x-delay": -1_000}),
    ):
        broker.fill(queue, body, headers=headers)
    first, second, third = consumer.next(3)
    assert [each.body for each in (first, second, third)] == ["first", "second", "third"]
    assert second.headers == {"x-delay": -1_000, "other": "kept"}
    assert time.time() - begin_s >= 2
    channel = broker.channel()
    channel.confirm_delivery()
    with refused(406, "x-delay"):
        properties = pika.BasicProperties(headers={"x-delay": "soon"})
        channel.basic_publish("", queue, b"", properties)


def c23_delayed_message_exchange(broker: Visit) -> None:
    """An x-delayed-message exchange routes as its x-delayed-type, and what says x-delay comes so
    much later; the argument is needed.
    """
    for arguments in ({}, {"x-delayed-type": "x-delayed-message"}, {"x-delayed-type": 5}):
        with refused(406, "x-delayed-type"):
            broker.exchange("x-delayed-message", arguments)
    exchange = broker.exchange("x-delayed-message", {"x-delayed-type": "topic"})
    queue, other = broker.queue(), broker.queue()
    broker.bind(queue, exchange, "order.*")
    broker.bind(other, exchange, "order.paid")
    begin_s = time.monotonic()
    broker.publish(exchange, "order.new", "later", headers={"x-delay": 700})
    broker.publish(exchange, "order.paid", "now")
    assert broker.drain(other) == ["now"]
    consumer = broker.consume(broker.channel(), queue, auto_ack=True)
    assert [each.body for each in consumer.next(2)] == ["now", "later"]
    assert time.monotonic() - begin_s >= 0.7


@needs("cluster")
def c23_delays_outlive_a_leader(broker: Visit) -> None:
    """A delayed message comes when it is due, though the leader of its queue died meanwhile."""
    nodes = broker.broker
    assert isinstance(nodes, QuorateNodes)
    queue = broker.queue()
    begin_s = time.monotonic()
    broker.fill(queue, "later", headers={"x-delay": 4_000})
    dying = nodes.leader(queue)
    nodes.kill(dying)
    try:
        url = nodes.url_of(next(node for node in nodes.nodes if node is not dying))
        wire = broker.wire(url)
        wire.call(Basic.Consume(0, queue), Basic.ConsumeOk)
        [delivery] = wire.take(1, Basic.Deliver)
        assert delivery.body == b"later"
        assert time.monotonic() - begin_s >= 4
    finally:
        nodes.revive(dying)


def _pass(milliseconds: float) -> None:
    """Time itself is the subject."""
    time.sleep(milliseconds / 1000)
