"""The client against real nodes on loopback: what only a whole queue can show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import quorate
from tests.node.nodes import Nodes, until


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path) as nodes:
        yield nodes


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("orders")
        yield nodes


async def take(consumer: quorate.Consumer, count: int) -> list[quorate.Delivery]:
    async with asyncio.timeout(60):
        return [await anext(consumer) for _ in range(count)]


async def test_when_the_single_active_consumer_leaves_the_next_one_gets_what_it_held_and_the_rest(
    one: Nodes,
):
    await one.declare("orders", single_active_consumer=True)
    url = one.url("n1")
    async with quorate.connect(url) as first, quorate.connect(url) as second:
        await first.publish_many("orders", [b"%d" % number for number in range(6)])
        leading = first.consume("orders", credit=2)
        waiting = second.consume("orders", credit=10)
        await leading.start()
        await waiting.start()
        assert (leading.active, waiting.active) == (True, False)

        done, held = await take(leading, 2)
        await done.settle(wait=True)
        assert not held.redelivered
        await first.close()

        rest = await take(waiting, 5)
        await until(lambda: waiting.active)
        assert [delivery.body for delivery in rest] == [b"1", b"2", b"3", b"4", b"5"]
        assert [delivery.redelivered for delivery in rest[:2]] == [True, True]
        assert waiting.token >= max(delivery.token for delivery in (done, held))
        for delivery in rest:
            await delivery.settle()
        await waiting.flush()
        assert (await second.info("orders"))["messages"] == 0


async def test_a_consumer_of_higher_priority_is_served_first_while_it_has_credit(one: Nodes):
    await one.declare("orders")
    url = one.url("n1")
    async with quorate.connect(url) as low, quorate.connect(url) as high:
        behind = low.consume("orders", credit=10)
        ahead = high.consume("orders", credit=2, priority=5)
        await behind.start()
        await ahead.start()
        await low.publish_many("orders", [b"1", b"2", b"3", b"4"])

        preferred = await take(ahead, 2)
        others = await take(behind, 2)
        assert [delivery.body for delivery in preferred] == [b"1", b"2"]
        assert [delivery.body for delivery in others] == [b"3", b"4"]

        await preferred[0].settle(wait=True)
        await low.publish_many("orders", [b"5", b"6"])
        assert [delivery.body for delivery in await take(ahead, 1)] == [b"5"]
        assert [delivery.body for delivery in await take(behind, 1)] == [b"6"]


async def test_an_exclusive_consumer_keeps_others_out_until_it_leaves(one: Nodes):
    await one.declare("orders")
    url = one.url("n1")
    async with quorate.connect(url) as first, quorate.connect(url) as second:
        async with first.consume("orders", exclusive=True):
            with pytest.raises(quorate.Refused) as refused:
                await second.consume("orders").start()
            assert refused.value.code == "exclusive_use"

        async with second.consume("orders"):
            with pytest.raises(quorate.Refused) as refused:
                await first.consume("orders", exclusive=True).start()
            assert refused.value.code == "exclusive_use"


async def test_a_deferred_message_waits_until_it_is_fetched_whatever_the_leader(three: Nodes):
    async with quorate.connect(three.url("n1")) as client:
        await client.publish_many("orders", [b"a", b"b", b"c"])
        async with client.consume("orders") as consumer:
            a, b, c = await take(consumer, 3)
            await a.defer(wait=True)
            await b.defer(wait=True)
            await c.settle(wait=True)
        assert await client.get("orders") == []
        info = three.one.broker.locate("/", "orders")
        assert info is not None
        await three.led_by("n2", info.group)

        (fetched,) = await client.fetch("orders", a.position)
        assert (fetched.body, fetched.redelivered, fetched.delivery_count) == (b"a", True, 0)
        assert await client.fetch("orders", [a.position, 77]) == []
        await fetched.settle()
        assert await client.retime("orders", b.position, in_ms=3_600_000) == 1
        assert await client.retime("orders", [a.position, b.position], in_ms=0) == 1
        for wrong in (-1, 10**20):
            with pytest.raises(ValueError, match="milliseconds"):
                await client.retime("orders", b.position, in_ms=wrong)
            with pytest.raises(ValueError, match="no position"):
                await client.fetch("orders", wrong)
        (ready,) = await client.get("orders")
        assert ready.position == b.position
        with pytest.raises(quorate.Refused) as caught:
            await client.withdraw("orders", b.position)
        assert (caught.value.code, caught.value.detail) == ("unknown_delivery", b.position)
        await ready.defer(3_600_000)
        assert await client.withdraw("orders", b.position) == 1
        assert (await client.info("orders"))["messages"] == 0
        with pytest.raises(ValueError, match="one of"):
            await client.retime("orders", 1)


async def test_many_leases_are_extended_at_once(one: Nodes):
    await one.declare("orders")
    async with quorate.connect(one.url("n1")) as client:
        await client.publish_many("orders", [b"%d" % each for each in range(50)])
        async with client.consume_batches("orders", timeout_ms=60_000) as consumer:
            batch = await anext(consumer)
            before = await client.peek("orders", count=50, state="unsettled")
            await batch.extend(3_600_000, wait=True)
            after = await client.peek("orders", count=50, state="unsettled")
    assert len(before) == len(after) == 50
    longer = [new["due_ms"] - old["due_ms"] for old, new in zip(before, after, strict=True)]
    assert min(longer) >= 3_600_000 - 60_000


async def test_plain_calls_do_what_the_asyncio_client_does(one: Nodes):
    def program(url: str) -> None:
        with quorate.connect_sync(url) as client:
            assert client.declare("orders", {"x-max-length": 5, "x-overflow": "reject-publish"})
            assert client.publish("orders", b"0", key="k").position == 1
            assert client.publish_many("orders", [b"1", b"2", b"3"]).stored == 3
            with pytest.raises(quorate.Refused, match="queue_full"):
                client.publish_many("orders", [b"4", b"over"])

            (first,) = client.get("orders")
            assert (first.body, first.key) == (b"0", "k")
            first.return_(wait=True)

            bodies: list[bytes] = []
            for delivery in client.consume("orders"):
                bodies.append(delivery.body)
                delivery.settle(wait=True)
                if len(bodies) == 3:
                    break
            assert bodies == [b"0", b"1", b"2"]
            for batch in client.consume_batches("orders"):
                assert batch.bodies == [b"3", b"4"]
                batch.settle(wait=True)
                break

            assert client.info("orders")["messages"] == 0
            client.pause("orders")
            client.publish("orders", b"5", deliver_at_ms=time.time_ns() // 1_000_000 + 86_400_000)
            (row,) = client.peek("orders", state="delayed")
            assert row["body"] == b"5"
            assert client.peek("orders", state="ready") == []
            assert client.purge("orders") == 1
            client.delete("orders")
            with pytest.raises(quorate.Refused, match="no_queue"):
                client.info("orders")

    async with asyncio.timeout(120):
        await asyncio.to_thread(program, one.url("n1"))


async def test_a_forwarding_client_works_through_a_follower_alone(three: Nodes):
    leader = await three.leader("orders")
    follower = next(name for name in three.nodes if name != leader)
    bodies = [b"%d" % number for number in range(500)]
    async with quorate.connect(three.url(follower), forward=True) as client:
        publisher = client.publisher("orders", name="shop")
        assert (await publisher.publish_many(bodies, batch=20)).stored == 500
        async with client.consume("orders", credit=50) as consumer:
            got: list[bytes] = []
            while len(got) < len(bodies):
                (delivery,) = await take(consumer, 1)
                got.append(delivery.body)
                await delivery.settle()
            await consumer.flush()
        assert got == bodies
        assert (await client.info("orders"))["messages"] == 0


async def test_what_a_named_publisher_confirmed_is_stored_once_over_changes_of_leader(
    three: Nodes,
):
    bodies = [b"%d" % number for number in range(4_000)]
    urls = [three.url(name) for name in three.nodes]
    async with quorate.connect(urls, timeout=120) as client:
        publishing = asyncio.create_task(
            client.publisher("orders", name="shop").publish_many(bodies, batch=5)
        )
        for _ in range(3):
            node = three.nodes[await three.leader("orders")]
            info = node.broker.locate("/", "orders")
            assert info is not None
            await asyncio.sleep(0.05)
            node.cluster.groups[info.group].transfer(None)
        confirmed = await publishing
        stored = [row["body"] for row in await client.peek("orders", count=1_000)]
        ready = (await client.info("orders"))["ready"]

    assert (confirmed.count, ready) == (4_000, 4_000)
    assert stored == bodies[:1_000]
