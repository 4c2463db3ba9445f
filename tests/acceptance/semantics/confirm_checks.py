"""B22-B33, C11-C12, C29-C30, C33-C34: confirms, returns, and what they promise."""

from __future__ import annotations

import pika
import pika.exceptions
import pytest
from pamqp.commands import Basic, Confirm, Tx

from tests.acceptance.rows.suite import needs
from tests.acceptance.semantics.brokers import QuorateNodes
from tests.acceptance.semantics.visit import CLASSIC, Visit, same
from tests.acceptance.semantics.wire import Properties, Wire, methods

FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}


def _confirming(broker: Visit) -> Wire:
    wire = broker.wire()
    wire.call(Confirm.Select(), Confirm.SelectOk)
    return wire


def b22_confirm_select(broker: Visit) -> None:
    """confirm.select is answered, unless no-wait is asked for, and may be repeated."""
    queue = broker.queue()
    wire = broker.wire()
    wire.call(Confirm.Select(), Confirm.SelectOk)
    wire.call(Confirm.Select(), Confirm.SelectOk)
    silent = broker.wire()
    silent.send(Confirm.Select(nowait=True))
    for each in (wire, silent):
        each.publish(queue, "a")
        assert methods(each.take(1, Basic.Ack)) == ["Basic.Ack"]


def b23_confirm_or_transactions(broker: Visit) -> None:
    """A channel of transactions cannot confirm, nor the other way round: 406."""
    wire = broker.wire()
    wire.call(Tx.Select(), Tx.SelectOk)
    wire.send(Confirm.Select())
    refusal = wire.refusal()
    assert refusal.level == "channel"
    same(refusal.code, refusal.text, 406, "cannot switch from tx to confirm mode")
    other = _confirming(broker)
    other.send(Tx.Select())
    refusal = other.refusal()
    assert refusal.level == "channel"
    same(refusal.code, refusal.text, 406, "cannot switch from confirm to tx mode")


def b24_publishes_count_from_one(broker: Visit) -> None:
    """The first publish after the first confirm.select is 1; a second select changes nothing."""
    queue = broker.queue()
    wire = broker.wire()
    wire.publish(queue, "before")
    wire.call(Confirm.Select(), Confirm.SelectOk)
    wire.publish(queue, "a", "b")
    assert wire.outcomes(2) == {1: "ack", 2: "ack"}
    wire.call(Confirm.Select(), Confirm.SelectOk)
    wire.publish(queue, "c")
    assert wire.outcomes(1, first=3) == {3: "ack"}


def b25_acks_name_the_number(broker: Visit) -> None:
    """Each publish is covered by an ack of its number, or by a multiple one of a later."""
    queue = broker.queue()
    wire = _confirming(broker)
    wire.publish(queue, *(str(number) for number in range(50)))
    assert wire.outcomes(50) == dict.fromkeys(range(1, 51), "ack")


def b26_nack_when_the_broker_refuses(broker: Visit) -> None:
    """A full queue with reject-publish makes a nack, and the message may be published again."""
    queue = broker.queue(FULL, kind=CLASSIC)
    wire = _confirming(broker)
    wire.publish(queue, "a")
    assert wire.outcomes(1) == {1: "ack"}
    wire.publish(queue, "b")
    assert wire.outcomes(1, first=2) == {2: "nack"}
    assert broker.drain(queue) == ["a"]
    wire.publish(queue, "b")
    assert wire.outcomes(1, first=3) == {3: "ack"}


def b27_exactly_one_outcome(broker: Visit) -> None:
    """Of many publishes, stored, unroutable and refused, each has one outcome and no second."""
    queue, full = broker.queue(), broker.queue(FULL, kind=CLASSIC)
    broker.fill(full, "x")
    wire = _confirming(broker)
    missing = broker.name("missing")
    expected: dict[int, str] = {}
    for number in range(0, 300, 3):
        wire.publish(queue, "a")
        wire.publish(missing, "b", mandatory=number % 2 == 0)
        wire.publish(full, "c")
        expected |= {number + 1: "ack", number + 2: "ack", number + 3: "nack"}
    assert wire.outcomes(300) == expected
    # What comes with a later publish is its own: nothing was left over.
    wire.publish(queue, "last")
    assert wire.outcomes(1, first=301) == {301: "ack"}


def b28_unroutable_is_confirmed(broker: Visit) -> None:
    """A publish that no queue gets is confirmed."""
    wire = _confirming(broker)
    wire.publish("no.such.key", "a", exchange="amq.direct")
    wire.publish(broker.name("missing"), "b")
    assert wire.outcomes(2) == {1: "ack", 2: "ack"}


def b29_return_before_ack(broker: Visit) -> None:
    """An unroutable mandatory publish is returned with 312 NO_ROUTE, then confirmed."""
    wire = _confirming(broker)
    key = broker.name("missing")
    wire.publish(key, "body", mandatory=True, properties=Properties(message_id="m"))
    returned, ack = wire.take(2, Basic.Return, Basic.Ack)
    assert methods([returned, ack]) == ["Basic.Return", "Basic.Ack"]
    back = returned.method
    assert (back.reply_code, back.reply_text) == (312, "NO_ROUTE")
    assert (back.exchange, back.routing_key, returned.body) == ("", key, b"body")
    assert returned.properties.message_id == "m"


def b30_confirmed_is_in_all_queues(broker: Visit) -> None:
    """The ack comes when every target queue has the message; one that refuses makes a nack."""
    exchange = broker.exchange("fanout")
    queues = [broker.queue(), broker.queue(kind=CLASSIC), broker.queue()]
    for queue in queues:
        broker.bind(queue, exchange)
    wire = _confirming(broker)
    wire.publish("", "a", exchange=exchange)
    assert wire.outcomes(1) == {1: "ack"}
    assert [broker.drain(queue) for queue in queues] == [["a"]] * 3
    full = broker.queue({**FULL, "x-max-length": 0}, kind=CLASSIC)
    broker.bind(full, exchange)
    wire.publish("", "b", exchange=exchange)
    assert wire.outcomes(1, first=2) == {2: "nack"}


def b31_four_cases_of_a_confirm(broker: Visit) -> None:
    """Confirmed: unroutable, transient and stored, persistent and stored, consumed already."""
    exchange = broker.exchange("direct")
    durable, transient, watched = broker.queue(), broker.transient(), broker.queue()
    for queue in (durable, transient, watched):
        broker.bind(queue, exchange, queue)
    consumer = broker.wire()
    consumer.call(Basic.Consume(0, watched, no_ack=True), Basic.ConsumeOk)
    wire = _confirming(broker)
    wire.publish("nobody", "1", exchange=exchange, mandatory=True)
    assert methods(wire.take(2, Basic.Return, Basic.Ack))[0] == "Basic.Return"
    wire.publish(transient, "2", exchange=exchange, properties=Properties(delivery_mode=1))
    wire.publish(durable, "3", exchange=exchange)
    wire.publish(watched, "4", exchange=exchange)
    assert wire.outcomes(3, first=2) == {2: "ack", 3: "ack", 4: "ack"}
    assert consumer.take(1, Basic.Deliver)[0].body == b"4"
    assert (broker.drain(transient), broker.drain(durable)) == (["2"], ["3"])


def b32_many_publishes_may_be_outstanding(broker: Visit) -> None:
    """A publisher that streams 1000 messages before it reads gets all its confirms."""
    queue = broker.queue()
    wire = _confirming(broker)
    for first in range(0, 1000, 100):
        wire.publish(queue, *(str(number) for number in range(first, first + 100)))
    assert set(wire.outcomes(1000).values()) == {"ack"}
    assert broker.ready(queue) == 1000


def c11_mandatory(broker: Visit) -> None:
    """Unroutable and mandatory: returned to its publisher. Not mandatory: dropped in silence."""
    queue = broker.queue()
    wire = broker.wire()
    wire.publish("nobody", "dropped", exchange="amq.direct")
    wire.publish("nobody", "returned", exchange="amq.direct", mandatory=True)
    wire.publish(queue, "routed", mandatory=True)
    [returned] = wire.take(1, Basic.Return)
    assert returned.body == b"returned"
    broker.until_ready(queue, 1)


def c12_immediate(broker: Visit) -> None:
    """immediate=true is not implemented: 540."""
    queue = broker.queue()
    wire = broker.wire()
    wire.publish(queue, "a", immediate=True)
    refusal = wire.refusal()
    assert refusal.level == "connection"
    same(refusal.code, refusal.text, 540, "NOT_IMPLEMENTED - immediate=true")


def c29_three_ways_to_wait_for_confirms(broker: Visit) -> None:
    """One by one, in batches, and by callback: all end with everything confirmed once."""
    queue = broker.queue()
    broker.fill(queue, "1", "2")  # one by one, as pika's blocking channel does
    batch = _confirming(broker)
    batch.publish(queue, "3", "4", "5")
    assert set(batch.outcomes(3).values()) == {"ack"}
    window = _confirming(broker)
    outstanding: set[int] = set()
    for number in range(1, 41):
        window.publish(queue, "x")
        outstanding.add(number)
        while len(outstanding) >= 10 or (number == 40 and outstanding):
            [received] = window.take(1, Basic.Ack)
            tag = received.method.delivery_tag
            settled = {n for n in outstanding if n <= tag} if received.method.multiple else {tag}
            assert settled <= outstanding, f"{tag} was confirmed already"
            outstanding -= settled
    assert broker.ready(queue) == 45


def c30_a_confirm_is_no_proof_of_a_queue(broker: Visit) -> None:
    """Confirmed and committed messages that no queue is bound for are lost, unless mandatory."""
    exchange, queue = broker.exchange("direct"), broker.queue()
    broker.publish(exchange, "key", "lost")
    channel = broker.channel()
    channel.tx_select()
    channel.basic_publish(exchange, "key", b"lost too")
    channel.tx_commit()
    broker.bind(queue, exchange, "key")
    assert broker.ready(queue) == 0
    confirming = broker.channel()
    confirming.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as returned:
        confirming.basic_publish(exchange, "other", b"seen", mandatory=True)
    assert [each.body for each in returned.value.messages] == [b"seen"]


def c33_at_least_once(broker: Visit) -> None:
    """Confirms, mandatory, persistence and manual acks: nothing is lost when consumers die."""
    queue = broker.queue()
    sent = {str(number) for number in range(30)}
    channel = broker.channel()
    channel.confirm_delivery()
    for body in sorted(sent):
        channel.basic_publish(
            "", queue, body.encode(), pika.BasicProperties(delivery_mode=2), mandatory=True
        )
    done: set[str] = set()
    for _ in range(3):
        dying = broker.connect().channel()
        dying.basic_qos(prefetch_count=12)
        held = broker.consume(dying, queue).next(12 if len(done) < 20 else 30 - len(done))
        for delivery in held[:9]:
            dying.basic_ack(delivery.tag)
            done.add(delivery.body)
        dying.connection.close()
    broker.until_ready(queue, 30 - len(done))
    assert done | set(broker.drain(queue)) == sent


def c34_no_deduplication_unasked(broker: Visit) -> None:
    """Two publishes of the same message_id are two messages."""
    queue = broker.queue()
    broker.fill(queue, "a", "a", message_id="same")
    assert broker.drain(queue) == ["a", "a"]


def c34_deduplication_on_request(broker: Visit) -> None:
    """A queue with x-dedup-window stores a message id once, or a value of the header that it names;
    what is published again is confirmed, also by another connection.
    """
    by_id = broker.queue({"x-dedup-window": 60_000})
    by_header = broker.queue({"x-dedup-window": 60_000, "x-dedup-header": "order"})
    plain, fanout = broker.queue(), broker.exchange("fanout")
    for queue in (by_id, by_header, plain):
        broker.bind(queue, fanout)
    for _ in range(2):
        channel = broker.connect().channel()
        channel.confirm_delivery()
        for body, message_id, order in (("a", "1", 7), ("b", "1", 8), ("c", "2", 7), ("d", "", 9)):
            properties = pika.BasicProperties(message_id=message_id, headers={"order": order})
            channel.basic_publish(fanout, "", body.encode(), properties)
    broker.publish(fanout, "", "e")
    assert broker.drain(by_id) == [*"acd", *"d", "e"]
    assert broker.drain(by_header) == [*"abd", "e"]
    assert broker.drain(plain) == [*"abcd" * 2, "e"]


@needs("cluster")
def c34_deduplication_outlives_a_leader(broker: Visit) -> None:
    """What was stored once is known after the death of the leader, at any other node."""
    nodes = broker.broker
    assert isinstance(nodes, QuorateNodes)
    queue = broker.queue({"x-dedup-window": 600_000})
    broker.fill(queue, "a", message_id="1")
    dying = nodes.leader(queue)
    others = [node for node in nodes.nodes if node is not dying]
    nodes.kill(dying)
    try:
        wires = [broker.wire(nodes.url_of(node)) for node in others]
        for wire, body in zip(wires, "bc", strict=True):
            wire.call(Confirm.Select(), Confirm.SelectOk)
            wire.publish(queue, "again", properties=Properties(message_id="1"))
            wire.publish(queue, body, properties=Properties(message_id=body))
            while wire.expect(Basic.Ack).delivery_tag < 2:
                pass
        wires[0].call(Basic.Consume(0, queue), Basic.ConsumeOk)
        assert [each.body for each in wires[0].take(3, Basic.Deliver)] == [b"a", b"b", b"c"]
    finally:
        nodes.revive(dying)
