"""Consuming: every message once to the user while the consumer lives, whatever happens to
connections.
"""

from __future__ import annotations

import asyncio

import pytest

import quorate
from quorate import wire
from tests.client.fake_node import FakeCluster
from tests.testkit.waiting import until


async def filled(cluster: FakeCluster, client: quorate.Client, count: int) -> None:
    await client.declare("orders")
    await client.publish_many("orders", [b"%d" % n for n in range(count)])


async def take(consumer: quorate.Consumer, count: int) -> list[quorate.Delivery]:
    return [await anext(consumer) for _ in range(count)]


async def test_messages_come_in_order_and_are_settled(cluster: FakeCluster, client: quorate.Client):
    await filled(cluster, client, 100)
    bodies: list[bytes] = []

    async for delivery in client.consume("orders", credit=10):
        bodies.append(delivery.body)
        await delivery.settle()
        if len(bodies) == 100:
            break

    assert bodies == [b"%d" % n for n in range(100)]
    await until(lambda: cluster.queue("orders").settled == list(range(1, 101)))


async def test_settles_of_one_turn_travel_as_one_range(
    cluster: FakeCluster, client: quorate.Client
):
    await filled(cluster, client, 50)
    async with client.consume("orders", credit=50) as consumer:
        for delivery in reversed(await take(consumer, 50)):
            await delivery.settle()
        await consumer.flush()

    settles = [frame for frame in cluster.nodes[0].seen if frame[0] == wire.SETTLE]
    assert [frame[4] for frame in settles] == [[[1, 50]]]


async def test_a_delivery_tells_what_the_broker_knows(cluster: FakeCluster, client: quorate.Client):
    await client.declare("orders")
    await client.publish("orders", b"1", key="k", headers={"a": 1}, meta={"message_id": "m"})
    async with client.consume("orders") as consumer:
        first = await anext(consumer)
        await first.return_()
        again = await anext(consumer)

        assert (first.position, first.redelivered, first.delivery_count) == (1, False, 0)
        assert (first.key, first.headers, first.meta["message_id"]) == ("k", {"a": 1}, "m")
        assert first.deaths == []
        assert again.position == 1
        assert again.redelivered
        assert again.token > first.token


async def test_each_answer_reaches_the_queue(cluster: FakeCluster, client: quorate.Client):
    await filled(cluster, client, 4)
    async with client.consume("orders", credit=4) as consumer:
        settled, discarded, extended, _ = await take(consumer, 4)
        await settled.settle(wait=True)
        await discarded.discard(wait=True)
        await extended.extend(5_000, wait=True)

    queue = cluster.queue("orders")
    assert (queue.settled, queue.discarded) == ([1], [2])
    assert queue.ready == [3, 4]  # what was not answered goes back when the consumer ends
    assert [frame[4:] for frame in cluster.nodes[0].seen if frame[0] == wire.EXTEND] == [
        [[[3, 3]], 5_000]
    ]


async def test_batches_hold_what_is_here_and_settle_at_once(
    cluster: FakeCluster, client: quorate.Client
):
    await filled(cluster, client, 100)
    sizes: list[int] = []
    async with client.consume_batches("orders", credit=40, count_max=25) as consumer:
        async for batch in consumer:
            assert len(batch) == len(batch.bodies) == len(list(batch.deliveries))
            sizes.append(len(batch))
            await batch.settle()
            if sum(sizes) == 100:
                break
        await consumer.flush()

    assert max(sizes) == 25
    assert cluster.queue("orders").settled == list(range(1, 101))


async def test_after_a_lost_connection_only_what_is_lacking_comes_again(
    cluster: FakeCluster, client: quorate.Client
):
    await filled(cluster, client, 10)
    async with client.consume("orders", credit=10) as consumer:
        held = await take(consumer, 6)
        cluster.nodes[0].cut()
        rest = await take(consumer, 4)
        for delivery in [*held, *rest]:
            await delivery.settle()
        await consumer.flush()

    assert [delivery.position for delivery in [*held, *rest]] == list(range(1, 11))
    assert cluster.queue("orders").settled == list(range(1, 11))


async def test_a_repeated_delivery_is_dropped_by_its_token(
    cluster: FakeCluster, client: quorate.Client
):
    await filled(cluster, client, 3)
    async with client.consume("orders", credit=3) as consumer:
        await take(consumer, 3)
        node, queue = cluster.nodes[0], cluster.queue("orders")
        key, (_, socket) = next(iter(queue.where.items()))
        token = queue.held[key][2]
        await node.send(socket, [wire.DELIVER, "orders", key, [queue.chunk(2, token)]])
        await client.publish("orders", b"next")
        queue.credits[key] = 10
        await client.publish("orders", b"now")

        assert [delivery.position for delivery in await take(consumer, 2)] == [4, 5]


async def test_a_settle_whose_answer_was_lost_is_sent_again(
    cluster: FakeCluster, client: quorate.Client
):
    await filled(cluster, client, 5)
    node = cluster.nodes[0]
    async with client.consume("orders", credit=5) as consumer:
        deliveries = await take(consumer, 5)
        swallowed: list[object] = []
        node.script = lambda frame: (
            (swallowed.append(frame), [])[1] if frame[0] == wire.SETTLE else None
        )
        for delivery in deliveries:
            await delivery.settle()
        await until(lambda: bool(swallowed))
        node.script = None
        node.cut()
        await consumer.flush()

    assert cluster.queue("orders").settled == [1, 2, 3, 4, 5]
    held = [frame[3]["held"] for frame in node.seen if frame[0] == wire.SUBSCRIBE]
    assert [[row[:2] for row in rows] for rows in held] == [[], [[n, n] for n in range(1, 6)]]


async def test_a_consumer_follows_the_leader(cluster: FakeCluster, client: quorate.Client):
    await filled(cluster, client, 3)
    async with client.consume("orders", credit=10) as consumer:
        held = await take(consumer, 3)
        await cluster.lead(cluster.nodes[1])
        for delivery in held:
            await delivery.settle()
        await client.publish("orders", b"new")
        delivery = await anext(consumer)
        await delivery.settle()
        await consumer.flush()

    assert delivery.position == 4
    assert cluster.queue("orders").settled == [1, 2, 3, 4]


async def test_a_session_that_ended_makes_old_deliveries_anothers(
    cluster: FakeCluster, client: quorate.Client
):
    await filled(cluster, client, 4)
    async with client.consume("orders", credit=4) as consumer:
        old = await take(consumer, 2)
        cluster.queue("orders").end(client.session)
        cluster.nodes[0].cut()
        await until(lambda: bool(consumer._key) and consumer._key != old[0]._key)
        again = await take(consumer, 4)

        assert [delivery.position for delivery in again] == [1, 2, 3, 4]
        with pytest.raises(quorate.Refused, match="unknown_delivery"):
            await old[0].settle(wait=True)
        await again[0].settle(wait=True)


async def test_a_refused_settle_is_told_by_flush(cluster: FakeCluster, client: quorate.Client):
    await filled(cluster, client, 1)
    async with client.consume("orders") as consumer:
        delivery = await anext(consumer)
        for held in cluster.queue("orders").held.values():
            held.clear()
        await delivery.settle()

        with pytest.raises(quorate.Refused, match="unknown_delivery"):
            await consumer.flush()


async def test_one_lost_delivery_does_not_keep_others_from_being_settled(
    cluster: FakeCluster, client: quorate.Client
):
    await filled(cluster, client, 5)
    async with client.consume("orders") as consumer:
        deliveries = await take(consumer, 5)
        for held in cluster.queue("orders").held.values():
            del held[2], held[5]
        outcomes = await asyncio.gather(
            *(delivery.settle(wait=True) for delivery in deliveries), return_exceptions=True
        )

    refused = [isinstance(outcome, quorate.Refused) for outcome in outcomes]
    assert refused == [False, True, False, False, True]
    assert cluster.queue("orders").settled == [1, 3, 4]


async def test_a_consumer_that_the_node_ends_says_why(cluster: FakeCluster, client: quorate.Client):
    await filled(cluster, client, 1)
    consumer = client.consume("orders")
    await anext(consumer)
    key, (node, socket) = next(iter(cluster.queue("orders").where.items()))

    await node.send(socket, [wire.ENDED, "orders", key, "queue_deleted"])

    with pytest.raises(quorate.ConsumerEnded, match="declare"):
        await anext(consumer)


async def test_subscribing_to_an_unknown_queue_is_refused(client: quorate.Client):
    with pytest.raises(quorate.Refused, match="no_queue"):
        async for _ in client.consume("nowhere"):
            pass


async def test_a_consumer_without_a_cluster_gives_up_in_time():
    async with quorate.connect("127.0.0.1:1", timeout=0.2) as client:
        with pytest.raises(quorate.Unreachable):
            await anext(client.consume("orders"))


async def test_messages_settled_on_delivery_need_no_answer(
    cluster: FakeCluster, client: quorate.Client
):
    await filled(cluster, client, 20)
    async with client.consume("orders", auto_settle=True) as consumer:
        deliveries = await take(consumer, 20)
        await deliveries[0].settle()

    assert not [frame for frame in cluster.nodes[0].seen if frame[0] == wire.SETTLE]


async def test_a_slow_reader_of_settled_messages_is_not_flooded(
    cluster: FakeCluster, client: quorate.Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("quorate.subscription.BUFFER_BYTES_MAX", 100)
    await client.declare("orders")
    async with client.consume("orders", auto_settle=True) as consumer:
        await client.publish_many("orders", [bytes(60)] * 5)
        await until(lambda: not cluster.queue("orders").where)
        await client.publish("orders", b"later")
        first = await take(consumer, 5)
        last = await anext(consumer)

    assert [delivery.position for delivery in [*first, last]] == [1, 2, 3, 4, 5, 6]


async def test_a_return_that_is_sent_again_leaves_a_later_delivery_alone(
    cluster: FakeCluster, client: quorate.Client
):
    await filled(cluster, client, 1)
    node = cluster.nodes[0]
    async with client.consume("orders") as consumer:
        first = await anext(consumer)
        node.mute = {wire.RETURN}
        await first.return_(failed=True)
        again = await anext(consumer)
        node.mute = set()
        node.cut()
        await consumer.flush()

        assert len([frame for frame in node.seen if frame[0] == wire.RETURN]) == 2
        await again.settle(wait=True)

    assert (cluster.queue("orders").settled, cluster.queue("orders").ready) == ([1], [])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate.subscription.CLOSE_TIMEOUT_S", 0.05)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lost", [wire.CANCEL, wire.SETTLE, wire.SUBSCRIBE])
@pytest.mark.parametrize("done", [True, False])
async def test_a_closed_consumer_is_cancelled_wherever_the_leader_is_by_then(
    cluster: FakeCluster, client: quorate.Client, lost: int, done: bool
):
    """Whether the node that did not answer had done it or not; nothing stays with the consumer."""
    await filled(cluster, client, 3)
    node, queue = cluster.nodes[0], cluster.queue("orders")
    consumer = client.consume("orders")
    if lost != wire.SUBSCRIBE:
        (first, *_) = await take(consumer, 3)
        await first.settle()
        if lost == wire.CANCEL:
            await consumer.flush()
    if done:
        node.mute = {lost}
    else:
        node.script = lambda frame: [] if frame[0] == lost else None
    starting = asyncio.ensure_future(consumer.start())
    await until(lambda: any(frame[0] == lost for frame in node.seen) or lost == wire.CANCEL)

    await consumer.aclose()
    await asyncio.gather(starting, return_exceptions=True)
    assert queue.ready == ([1, 2, 3] if lost == wire.SUBSCRIBE and not done else [])
    await cluster.lead(cluster.nodes[1])
    node.cut()

    settled = [] if lost == wire.SUBSCRIBE else [1]
    await until(lambda: queue.settled == settled and len(queue.ready) == 3 - len(settled))
    await until(lambda: not queue.consumers)
    with pytest.raises(StopAsyncIteration):
        await anext(consumer)


@pytest.mark.usefixtures("impatient")
async def test_a_later_consumer_with_the_same_tag_is_not_cancelled_for_the_earlier(
    cluster: FakeCluster, client: quorate.Client
):
    await filled(cluster, client, 1)
    node, queue = cluster.nodes[0], cluster.queue("orders")
    earlier = client.consume("orders", tag="t")
    await anext(earlier)
    node.script = lambda frame: [] if frame[0] == wire.CANCEL else None
    await earlier.aclose()
    later = client.consume("orders", tag="t")
    delivered = asyncio.ensure_future(anext(later))
    await asyncio.sleep(0)
    node.script = None
    node.cut()

    await (await delivered).settle(wait=True)
    assert queue.consumers[client.session, "t"] not in queue.cancelled
    await later.aclose()
    assert not queue.consumers


async def test_a_reader_of_a_consumer_that_is_closed_ends(
    cluster: FakeCluster, client: quorate.Client
):
    await client.declare("orders")
    consumer = client.consume("orders")
    await consumer.start()
    reading = asyncio.ensure_future(anext(consumer))
    await asyncio.sleep(0)

    await consumer.aclose()

    with pytest.raises(StopAsyncIteration):
        await reading


async def test_get_takes_what_is_ready(cluster: FakeCluster, client: quorate.Client):
    await filled(cluster, client, 3)

    first, second = await client.get("orders", 2)
    await first.settle()
    await second.return_()

    assert cluster.queue("orders").settled == [1]
    assert [delivery.position for delivery in await client.get("orders", 5)] == [2, 3]
    assert await client.get("orders") == []


async def test_a_get_whose_answer_is_lost_is_unknown(cluster: FakeCluster, client: quorate.Client):
    await filled(cluster, client, 1)
    node = cluster.nodes[0]
    node.mute = {wire.GET}
    getting = asyncio.create_task(client.get("orders"))
    await until(lambda: any(frame[0] == wire.GET for frame in node.seen))
    node.cut()

    with pytest.raises(quorate.OutcomeUnknown):
        await getting
