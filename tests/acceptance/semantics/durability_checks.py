"""B34, C25-C28, C42, C53: restarts, transactions, a leader's death, alarms."""

from __future__ import annotations

from pamqp.commands import Basic, Connection, Tx

from tests.acceptance.rows.suite import needs
from tests.acceptance.semantics.brokers import QuorateNodes
from tests.acceptance.semantics.visit import CLASSIC, Visit, refused, same


@needs("restart")
def b34_what_may_be_lost(broker: Visit) -> None:
    """After a crash every confirmed persistent message is there, also one held unacked."""
    queue = broker.queue()
    channel = broker.channel()
    sent = [str(number) for number in range(50)]
    broker.fill(queue, *sent)
    held = broker.get(channel, queue)
    broker.restart()
    broker.until_ready(queue, 50)
    assert sorted(broker.drain(queue), key=int) == sent
    assert held.body == "0"


@needs("restart")
def c25_durability_of_exchanges(broker: Visit) -> None:
    """A restart ends a non-durable exchange, and leaves queues, messages and durable ones."""
    durable, transient = broker.exchange("fanout"), broker.exchange("fanout", durable=False)
    queue = broker.queue(kind=CLASSIC)
    for exchange in (durable, transient):
        broker.bind(queue, exchange)
        broker.publish(exchange, "", "a")
    broker.restart()
    broker.publish(durable, "", "b")
    with refused(404, "NOT_FOUND"):
        broker.channel().exchange_declare(transient, passive=True)
    assert broker.drain(queue) == ["a", "a", "b"]


@needs("restart")
def c26_durability_of_queues(broker: Visit) -> None:
    """A restart ends a non-durable queue with its messages; a durable one stays, with its own."""
    durable, transient = broker.queue(kind=CLASSIC), broker.transient()
    for queue in (durable, transient):
        broker.fill(queue, "a")
    broker.restart()
    with refused(404, "NOT_FOUND"):
        broker.channel().queue_declare(transient, passive=True)
    assert broker.drain(durable) == ["a"]


@needs("restart")
def c27_durability_of_messages(broker: Visit) -> None:
    """A persistent message in a durable queue survives; a transient one may be lost."""
    queue = broker.queue(kind=CLASSIC)
    broker.fill(queue, "persistent", delivery_mode=2)
    broker.fill(queue, "transient", delivery_mode=1)
    broker.restart()
    assert broker.drain(queue)[:1] == ["persistent"]


def c28_transactions(broker: Visit) -> None:
    """Publishes and acks wait for tx.commit, and tx.rollback forgets them; 406 without select."""
    queue, other = broker.queue(), broker.queue()
    channel = broker.channel()
    channel.tx_select()
    for target in (queue, other):
        channel.basic_publish("", target, b"a")
    assert (broker.ready(queue), broker.ready(other)) == (0, 0), "before the commit"
    channel.tx_commit()
    assert (broker.ready(queue), broker.ready(other)) == (1, 1), "after the commit"
    channel.basic_publish("", queue, b"b")
    channel.tx_rollback()
    channel.tx_commit()
    assert broker.ready(queue) == 1, "rolled back and there"

    held = broker.get(channel, queue)
    channel.basic_ack(held.tag)
    channel.tx_rollback()
    channel.basic_ack(held.tag)  # the tag is unacked again
    channel.tx_commit()
    channel.basic_ack(broker.get(channel, other).tag)
    channel.close()
    broker.until_ready(other, 1)
    assert broker.drain(queue) == [], "acked and committed"
    assert broker.drain(other) == ["a"], "acked without a commit"

    wire = broker.wire()
    wire.send(Tx.Commit())
    refusal = wire.refusal()
    assert refusal.level == "channel"
    same(refusal.code, refusal.text, 406, "channel is not transactional")


def c28_a_commit_that_a_full_queue_refuses(broker: Visit) -> None:
    """A commit into a full queue that refuses closes the channel with 406, also when only some of
    its messages fit, or the queue is full by bytes.
    """
    for limit in ({"x-max-length": 2}, {"x-max-length-bytes": 2}):
        queue = broker.queue({"x-overflow": "reject-publish", **limit}, kind=CLASSIC)
        broker.fill(queue, "1")
        channel = broker.channel()
        channel.tx_select()
        for body in (b"2", b"3", b"4"):
            channel.basic_publish("", queue, body)
        with refused(406, "partial tx completion"):
            channel.tx_commit()
        channel = broker.channel()
        channel.tx_select()
        channel.basic_publish("", queue, b"2")
        if broker.ready(queue) < 2:
            channel.tx_commit()
        broker.until_ready(queue, 2)


def c28_a_refused_commit_does_nothing(broker: Visit) -> None:
    """Nothing of a refused commit takes effect: whichever queue is full, and in however many groups
    the others are; the acks in it neither.
    """
    full = [broker.queue({"x-overflow": "reject-publish", "x-max-length": 1}) for _ in range(3)]
    free = [broker.queue() for _ in range(3)]
    for first in range(3):
        source = broker.queue()
        broker.fill(source, "job")
        channel = broker.channel()
        channel.tx_select()
        held = broker.get(channel, source)
        broker.fill(full[first], "there already")
        for queue in (*free, *full):
            channel.basic_publish("", queue, b"x")
        channel.basic_ack(held.tag)
        with refused(406, "partial tx completion"):
            channel.tx_commit()
        broker.until_ready(source, 1)
        assert [broker.ready(queue) for queue in free] == [0, 0, 0]
        assert [broker.ready(queue) for queue in full] == [int(each == first) for each in range(3)]
        assert broker.drain(full[first]) == ["there already"]
    channel = broker.channel()
    channel.tx_select()
    for queue in (*free, *full):
        channel.basic_publish("", queue, b"y")
    channel.tx_commit()
    assert [broker.drain(queue) for queue in (*free, *full)] == [["y"]] * 6


@needs("cluster")
def c42_told_of_a_failover(broker: Visit) -> None:
    """With x-cancel-on-ha-failover a consumer is cancelled when the leader dies; others go on."""
    nodes = broker.broker
    assert isinstance(nodes, QuorateNodes)
    queue = broker.queue()
    dying = nodes.leader(queue)
    url = nodes.url_of(next(node for node in nodes.nodes if node is not dying))
    told, other = broker.wire(url), broker.wire(url)
    told.call(
        Basic.Consume(0, queue, "told", arguments={"x-cancel-on-ha-failover": True}),
        Basic.ConsumeOk,
    )
    other.call(Basic.Consume(0, queue, "other"), Basic.ConsumeOk)
    told.publish(queue, "before")
    other.publish(queue, "before")
    [first] = told.take(1, Basic.Deliver)  # no cancel came first, though another node leads
    assert first.body == b"before"
    other.take(1, Basic.Deliver)
    nodes.kill(dying)
    try:
        assert told.expect(Basic.Cancel).consumer_tag == "told"
        other.publish(queue, "after")
        [delivery] = other.take(1, Basic.Deliver)
        assert delivery.body == b"after"
    finally:
        nodes.revive(dying)


@needs("alarm")
def c53_a_memory_alarm(broker: Visit) -> None:
    """An alarm blocks those who publish, tells them so, and never stops a consumer."""
    queue = broker.queue()
    broker.fill(queue, "a")
    publisher = broker.wire()
    consumer = broker.wire()
    broker.broker.alarm(True)
    try:
        publisher.publish(queue, "b")
        publisher.expect(Connection.Blocked, 0)
        consumer.call(Basic.Consume(0, queue, no_ack=True), Basic.ConsumeOk)
        assert consumer.take(1, Basic.Deliver)[0].body == b"a"
    finally:
        broker.broker.alarm(False)
    publisher.expect(Connection.Unblocked, 0)
    publisher.publish(queue, "c")
    assert [each.body for each in consumer.take(2, Basic.Deliver)] == [b"b", b"c"]
