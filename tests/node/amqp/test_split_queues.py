"""A queue that is split: one name for publishers and consumers, several queues behind it."""

# pyright: basic
from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aio_pika
import aiohttp
import aiormq
import cbor2
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from yarl import URL

import quorate
from cluster.catalog.placement import preferred_leader
from cluster.catalog.reconcile import commands_for, queues_to_compare
from cluster.machine.commands import DeleteQueue
from node.dispatch.outgoing import Ended
from node.node import Node
from quorate import wire
from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes, until

SHARDS = 3
NAMES = [f"jobs.{number}" for number in range(1, SHARDS + 1)]


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, 3) as nodes:
        yield nodes


@asynccontextmanager
async def channel_at(node: Node, prefetch: int = 0, **options: Any) -> AsyncIterator[Any]:
    async with await aio_pika.connect(f"amqp://guest:guest@{node.amqp.address}/") as connection:
        channel = await connection.channel(**options)
        if prefetch:
            await channel.set_qos(prefetch_count=prefetch)
        yield channel


async def declared(channel: AbstractChannel, **arguments: Any) -> None:
    """With an exchange that gives it all keys."""
    queue = await channel.declare_queue("jobs", durable=True, arguments=arguments)
    exchange = await channel.declare_exchange("in", "topic", durable=True)
    await queue.bind(exchange, "#")


async def publish(channel: AbstractChannel, *numbers: int) -> None:
    """The key of each is its number, less the tens."""
    exchange = await channel.get_exchange("in", ensure=False)
    for number in numbers:
        await exchange.publish(aio_pika.Message(b"%d" % number), routing_key=f"k{number % 10}")


async def split(api: Api, shards: int = SHARDS) -> list[str]:
    return (await api.post("queues/%2F/jobs/split", shards=shards)).value["shards"]


async def joined(api: Api) -> list[str]:
    return (await api.post("queues/%2F/jobs/join")).value["shards"]


async def lengths(api: Api) -> dict[str, int]:
    rows = await api.get("queues/%2F")
    return {row["name"]: row.get("messages", 0) for row in rows}


async def has_in_all(api: Api, count: int) -> bool:
    return sum((await lengths(api)).values()) == count


async def consumers(api: Api) -> dict[str, int]:
    rows = await api.get("queues/%2F")
    return {row["name"]: row.get("consumers", 0) for row in rows}


class Reader:
    """What came; acknowledged at once, or when `settle` is called."""

    def __init__(self, *, holds: bool = False) -> None:
        self.found: list[AbstractIncomingMessage] = []
        self.holds = holds
        self.tag = ""

    async def _take(self, message: AbstractIncomingMessage) -> None:
        self.found.append(message)
        if not self.holds:
            await message.ack()

    async def read(self, channel: AbstractChannel, **options: Any) -> None:
        queue = await channel.get_queue("jobs", ensure=False)
        self.tag = await queue.consume(self._take, **options)

    @property
    def numbers(self) -> list[int]:
        return [int(each.body) for each in self.found]


def in_order_of_keys(numbers: list[int]) -> bool:
    by_key: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        by_key[number % 10].append(number)
    return all(each == sorted(each) for each in by_key.values())


async def test_what_comes_again_under_an_id_is_stored_once_whatever_its_way(nodes: Nodes):
    """As from a shovel, which publishes to the queue by its name: it has no key then."""
    api = api_of(nodes.one)
    async with channel_at(nodes.nodes["n2"]) as channel, quorate.connect(api.url) as client:
        await declared(channel)
        await split(api)
        for _ in range(2):
            for number in range(20):
                headers = {"x-once-id": f"amqp {number}"}
                message = aio_pika.Message(b"%d" % number, headers=headers)
                await channel.default_exchange.publish(message, routing_key="jobs")
                body = {
                    "properties": {"headers": {"x-once-id": f"http {number}"}},
                    "routing_key": "jobs",
                    "payload": "x",
                    "payload_encoding": "string",
                }
                await api.post("exchanges/%2F/amq.default/publish", **body)
                headers = {"x-once-id": f"native {number}"}
                await client.publish_to("", b"x", key="jobs", headers=headers)
        held = await lengths(api)
        assert sum(held.values()) == 60
        assert all(held[name] for name in NAMES)


async def test_publishers_and_consumers_use_one_name_and_keys_keep_their_order(nodes: Nodes):
    api = api_of(nodes.one)
    async with channel_at(nodes.nodes["n2"]) as channel, channel_at(nodes.nodes["n3"]) as other:
        await declared(channel)
        assert await split(api) == NAMES
        assert await split(api) == NAMES, "it may be repeated"
        catalog = nodes.one.cluster.catalog_machine
        groups = [catalog.group(catalog.queue("/", name).group) for name in NAMES]
        assert len({preferred_leader(each.id, each.members) for each in groups}) == 3
        await publish(channel, *range(200))
        await until(lambda: has_in_all(api, 200))
        held = await lengths(api)
        assert held.pop("jobs") == 0
        assert all(0 < each < 200 for each in held.values())
        counted = await channel.declare_queue("jobs", durable=True, passive=True)
        assert counted.declaration_result.message_count == 200
        # Under the queue's own name, and to it: to any shard.
        for number in range(200, 230):
            await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), "jobs")
        await until(lambda: has_in_all(api, 230))
        grown = await lengths(api)
        assert all(grown[name] > held[name] for name in NAMES)

        reader = Reader()
        await reader.read(other)
        await until(lambda: len(reader.found) >= 230)
        assert sorted(reader.numbers) == list(range(230))
        assert in_order_of_keys([each for each in reader.numbers if each < 200])
        keys = {each.routing_key for each in reader.found}
        assert keys == {"jobs", *[f"k{number}" for number in range(10)]}
        await until(lambda: has_consumers(api, 1))

        queue = await other.get_queue("jobs", ensure=False)
        await queue.cancel(reader.tag)
        await until(lambda: has_consumers(api, 0))


async def test_a_consumer_from_before_follows_when_a_queue_is_split_and_joined(nodes: Nodes):
    api = api_of(nodes.one)
    async with channel_at(nodes.nodes["n2"], prefetch=5) as channel:
        await declared(channel)
        reader = Reader()
        await reader.read(channel)
        await publish(channel, *range(10))
        await split(api)
        await until(lambda: has_consumers(api, 1))
        await publish(channel, *range(10, 60))
        await until(lambda: len(reader.found) >= 60)
        assert await joined(api) == NAMES
        await publish(channel, *range(60, 70))
        await until(lambda: len(reader.found) >= 70)
        await until(lambda: is_empty(api))
        for name in NAMES:
            assert await api.delete(f"queues/%2F/{name}?if-empty=true") == 204
        assert await joined(api) == []
        await publish(channel, *range(70, 80))
        await until(lambda: len(reader.found) >= 80)
    assert reader.numbers[:60][:10] == list(range(10))
    assert sorted(reader.numbers) == list(range(80))
    assert list(await lengths(api)) == ["jobs"]


async def has_consumers(api: Api, count: int) -> bool:
    return set((await consumers(api)).values()) == {count}


async def is_empty(api: Api) -> bool:
    return not any((await lengths(api)).values())


async def test_the_prefetch_is_shared_and_what_is_beyond_it_goes_back_with_the_consumer(
    nodes: Nodes,
):
    api = api_of(nodes.one)
    async with (
        channel_at(nodes.nodes["n2"], prefetch=2) as channel,
        channel_at(nodes.nodes["n3"], publisher_confirms=False) as other,
    ):
        await declared(channel)
        await split(api)
        await publish(channel, *range(40))
        slow = Reader(holds=True)
        await slow.read(channel)
        await until(lambda: len(slow.found) == 2)
        # All that its four queues let it have is assigned, and no more of it was sent.
        await until(lambda: is_held(api, 6))
        assert len(slow.found) == 2
        await slow.found[0].ack()
        await until(lambda: len(slow.found) == 3)
        await slow.found[1].nack(requeue=True)
        await until(lambda: len(slow.found) == 4)
        queue = await channel.get_queue("jobs", ensure=False)
        await queue.cancel(slow.tag)
        rest = Reader()
        await rest.read(other)
        await until(lambda: len(rest.found) >= 37)
        for message in slow.found[2:]:
            await message.ack()
        await until(lambda: is_empty(api))
        settled = [slow.numbers[0], *slow.numbers[2:]]
        assert sorted([*settled, *rest.numbers]) == list(range(40))
        assert [each for each in rest.found if each.redelivered and int(each.body) in settled] == []


async def is_held(api: Api, count: int) -> bool:
    rows = await api.get("queues/%2F")
    return sum(row.get("messages_unacknowledged", 0) for row in rows) == count


async def test_what_a_prefetch_holds_back_takes_no_time_to_be_settled(nodes: Nodes):
    """Each shard has assigned a message, and the client is given one after the other."""
    api = api_of(nodes.one)
    async with channel_at(nodes.nodes["n2"], prefetch=1) as channel:
        await declared(channel, **{"x-consumer-timeout": 1_500})
        await split(api)
        await publish(channel, *range(10))
        found: list[int] = []

        async def work(message: AbstractIncomingMessage) -> None:
            await asyncio.sleep(0.7)
            found.append(int(message.body))
            await message.ack()

        queue = await channel.get_queue("jobs", ensure=False)
        await queue.consume(work)
        await until(lambda: _are(len(found), 6))
        assert not channel.is_closed


async def test_a_single_active_consumer_has_all_shards_until_it_goes(nodes: Nodes):
    api = api_of(nodes.one)
    async with channel_at(nodes.nodes["n2"], prefetch=3) as channel:
        await declared(channel, **{"x-single-active-consumer": True})
        await split(api)
        async with channel_at(nodes.nodes["n3"], prefetch=3) as leaving:
            first, second = Reader(), Reader()
            await first.read(leaving)
            await second.read(channel)
            await publish(channel, *range(50))
            await until(lambda: len(first.found) >= 50)
            assert second.found == []
        await publish(channel, *range(50, 100))
        await until(lambda: len(second.found) >= 50)
    assert in_order_of_keys(first.numbers)
    assert in_order_of_keys(second.numbers)


async def test_get_purge_and_delete_mean_all_of_it(nodes: Nodes):
    api = api_of(nodes.one)
    async with channel_at(nodes.nodes["n2"]) as channel:
        await declared(channel)
        await split(api)
        await publish(channel, *range(30))
        queue = await channel.get_queue("jobs", ensure=False)
        found = [await queue.get() for _ in range(30)]
        assert sorted(int(each.body) for each in found) == list(range(30))
        assert await queue.get(fail=False) is None
        for message in found:
            await message.reject(requeue=True)
        await until(lambda: is_held(api, 0))
        purged = await queue.purge()
        assert purged.message_count == 30
        with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed, match="join it first"):
            await queue.delete(if_empty=False, if_unused=False)
    assert (await api.ask("DELETE", "queues/%2F/jobs")).status == 400
    assert sorted(await lengths(api)) == ["jobs", *NAMES]


async def test_a_purge_by_the_one_name_drops_all_and_by_a_shards_name_that_shard(nodes: Nodes):
    """By each way there is."""
    api = api_of(nodes.one)
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address) as client,
    ):
        await declared(channel)
        await split(api)
        await publish(channel, *range(30))
        assert await client.purge("jobs") == 30
        await publish(channel, *range(30))
        assert await api.delete("queues/%2F/jobs/contents") == 204
        await until(lambda: has_in_all(api, 0))
        await publish(channel, *range(30))
        assert (await posted(nodes, "jobs", "purge"))["count"] == 30
        await publish(channel, *range(30))
        await until(lambda: has_in_all(api, 30))
        held = await lengths(api)
        assert await client.purge("jobs.2") == held["jobs.2"]
        await until(lambda: has_in_all(api, 30 - held["jobs.2"]))
        assert (await lengths(api))["jobs.1"] == held["jobs.1"]


async def posted(
    nodes: Nodes, queue: str, what: str, user: str = "guest", password: str = "guest", **body: Any
) -> dict[str, Any]:
    """Over HTTP under /v1, at the queue's leader; `status` is in the answer."""
    headers = {"Authorization": aiohttp.encode_basic_auth(user, password)}
    url = f"http://{nodes.one.http_address}/v1/queues/%2F/{queue}/{what}"
    async with aiohttp.ClientSession(headers=headers) as http:
        while True:
            async with http.post(
                URL(url, encoded=True), json=body, allow_redirects=False
            ) as response:
                if response.status != 307:
                    return {**await response.json(), "status": response.status}
                url = response.headers["Location"]


async def test_a_pause_by_the_one_name_holds_for_all_shards(nodes: Nodes):
    api = api_of(nodes.one)
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address) as client,
    ):
        await declared(channel)
        await split(api)
        await client.pause("jobs")
        for name in ("jobs", *NAMES):
            assert (await client.info(name))["paused"]
        assert await api.delete("queues/%2F/jobs/pause") == 204
        for name in ("jobs", *NAMES):
            assert not (await client.info(name))["paused"]


async def test_a_get_of_the_management_api_draws_from_all_shards(nodes: Nodes):
    api = api_of(nodes.one)

    async def got(count: int, mode: str) -> list[dict[str, Any]]:
        reply = await api.post("queues/%2F/jobs/get", count=count, ackmode=mode, encoding="auto")
        assert reply.status == 200, reply
        return reply.value

    async with channel_at(nodes.nodes["n2"]) as channel:
        await declared(channel)
        await publish(channel, 100)
        async with channel_at(nodes.nodes["n3"]) as other:  # what waited is in the queue itself
            queue = await other.get_queue("jobs", ensure=False)
            await split(api)
            await publish(channel, *range(30))
            shown = await got(31, "ack_requeue_true")
            assert {int(each["payload"]) for each in shown} == {*range(30), 100}
            assert await got(1, "reject_requeue_true")
            await until(lambda: has_in_all(api, 31))
            taken = await got(20, "ack_requeue_false")
            assert taken[0]["payload"] == "100"
            assert [each["message_count"] for each in taken] == list(range(30, 10, -1))
            assert len(await got(100, "reject_requeue_false")) == 11
            assert await got(5, "ack_requeue_true") == []
            assert await queue.get(fail=False) is None


async def test_join_waits_for_what_consumers_hold(nodes: Nodes):
    api = api_of(nodes.one)
    async with channel_at(nodes.nodes["n2"]) as channel:
        await declared(channel)
        await split(api)
        await publish(channel, *range(30))
        async with channel_at(nodes.nodes["n3"]) as other:
            reader = Reader(holds=True)
            await reader.read(other)
            await until(lambda: len(reader.found) >= 30)
            assert await joined(api) == NAMES
            for name in NAMES:
                refused = await api.ask("DELETE", f"queues/%2F/{name}?if-empty=true")
                assert refused.status == 400, "a consumer holds messages of it"
        await until(lambda: has_in_all(api, 30))
        again = Reader()
        await again.read(channel)
        await until(lambda: len(again.found) >= 30)
        assert sorted(again.numbers) == list(range(30))
        await until(lambda: is_empty(api))
        for name in NAMES:
            await until(lambda: is_removed(api, name))  # noqa: B023 -- awaited here
        assert await joined(api) == []


async def published_before_a_join(
    nodes: Nodes, stack: AsyncExitStack, count: int
) -> list[AbstractChannel]:
    """Channels, each in a transaction with a message to a shard that goes and to another queue."""
    api = api_of(nodes.one)
    channels = [
        await stack.enter_async_context(channel_at(nodes.nodes["n2"], publisher_confirms=False))
        for _ in range(count)
    ]
    await declared(channels[0])
    arguments = {"x-queue-group": "default-1"}
    every = await channels[0].declare_queue("every", durable=True, arguments=arguments)
    await every.bind("in", "#")
    await split(api)
    for number, channel in enumerate(channels):
        await channel.transaction().select()
        await publish(channel, number)
    assert await joined(api) == NAMES
    return channels


async def test_a_transaction_from_before_a_join_is_refused_whole(nodes: Nodes):
    """What it has published was routed to a shard, and that is gone when it is committed. Another
    queue that takes part is in the group that decides.
    """
    api = api_of(nodes.one)
    async with AsyncExitStack() as stack:
        channels = await published_before_a_join(nodes, stack, 10)
        for name in NAMES:
            await until(lambda: is_removed(api, name))  # noqa: B023 -- awaited here
        assert await joined(api) == []
        for channel in channels:
            underlay = await channel.get_underlay_channel()
            with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="publish again"):
                await underlay.tx_commit()
        assert await lengths(api) == {"every": 0, "jobs": 0}
    async with (
        channel_at(nodes.nodes["n2"], publisher_confirms=False) as channel,
        channel.transaction(),
    ):
        await publish(channel, *range(10))
    await until(lambda: has_in_all(api, 20))


async def test_a_transaction_is_refused_whole_when_a_shard_goes_while_it_is_committed(nodes: Nodes):
    """From its group already, and not from the catalog yet."""
    api, cluster = api_of(nodes.one), nodes.one.cluster
    async with AsyncExitStack() as stack:
        channels = await published_before_a_join(nodes, stack, 6)
        shards = [cluster.catalog_machine.queue("/", name) for name in NAMES]
        for info in shards:
            deleted = await cluster.retries.ask(
                info.group, DeleteQueue(info.queue, False, True, True)
            )
            assert deleted.kind == "ok"
        for channel in channels:
            underlay = await channel.get_underlay_channel()
            with pytest.raises(
                aiormq.exceptions.ChannelPreconditionFailed, match=r"joined|no queue"
            ):
                await underlay.tx_commit()
        assert (await lengths(api))["every"] == 0
        for info in shards:  # nor are they made anew
            group = nodes.nodes[cluster.leader_of(info.group)].cluster.groups[info.group]
            known = cluster.catalog_machine, group.machine, info.group
            assert commands_for(*known, queues_to_compare(*known)) == []


async def test_a_shard_goes_with_its_queue_only(nodes: Nodes):
    api = api_of(nodes.one)
    await api.queue("jobs")
    await split(api)
    refused = await api.ask("DELETE", "queues/%2F/jobs.2")
    assert refused.status == 400
    assert "queue 'jobs.2' in vhost '/' is a shard of queue 'jobs'" in refused.value["reason"]
    async with channel_at(nodes.one) as channel:
        with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="is a shard of"):
            await channel.queue_delete("jobs.2")
    async with quorate.connect(nodes.one.http_address) as client:
        with pytest.raises(quorate.Refused, match="quorate queue join jobs"):
            await client.delete("jobs.2", if_empty=True)
    await api.queue("alone", shard_of="jobs")  # says so itself
    await api.delete("queues/%2F/alone")
    await joined(api)
    await api.delete("queues/%2F/jobs.2?if-empty=true")


async def test_nothing_is_lost_when_it_is_split_and_joined_while_leaders_end(nodes: Nodes):
    """Publishers with confirms, consumers with acks, and each node ends once."""
    api = api_of(nodes.nodes["n1"])
    confirmed: list[int] = []
    done = asyncio.Event()

    async def publishing() -> None:
        number = 0
        async with channel_at(nodes.nodes["n1"]) as channel:
            exchange = await channel.get_exchange("in", ensure=False)
            while not done.is_set():
                message = aio_pika.Message(b"%d" % number)
                await exchange.publish(message, routing_key=f"k{number % 10}")
                confirmed.append(number)
                number += 1

    async with channel_at(nodes.nodes["n1"], prefetch=20) as channel:
        await declared(channel)
        await publish(channel, *range(1_000_000, 1_000_300))
        reader = Reader()
        await reader.read(channel)
        work = asyncio.create_task(publishing())
        await split(api)
        for name in ("n2", "n3"):
            before = len(confirmed)
            await nodes.stop(name, transfer=False)
            await until(lambda: len(confirmed) > before + 100)  # noqa: B023 -- awaited here
            await nodes.start(name)
            await until(nodes.settled)
        assert await joined(api) == NAMES
        before = len(confirmed)
        await until(lambda: len(confirmed) > before + 100)
        for name in NAMES:
            await until(lambda: is_removed(api, name))  # noqa: B023 -- awaited here
        assert await joined(api) == []
        done.set()
        await work
        wanted = {*confirmed, *range(1_000_000, 1_000_300)}
        await until(lambda: wanted <= set(reader.numbers))
        await until(lambda: is_empty(api))


async def is_removed(api: Api, name: str) -> bool:
    return await api.delete(f"queues/%2F/{name}?if-empty=true") in (204, 404)


async def test_what_ends_twice_ends_once(nodes: Nodes):
    """The end of a queue, or of a shard, is told while the consumer is just leaving it."""
    api = api_of(nodes.one)
    async with channel_at(nodes.nodes["n2"], prefetch=5) as channel:
        await declared(channel)
        await split(api)
        await Reader().read(channel)
        (deliveries,) = (each.deliveries for each in nodes.nodes["n2"].amqp.open_channels())
        (consumer,) = deliveries.consumers.values()
        await until(lambda: _are(len(consumer.family.members), SHARDS))

        # Both shards are to be left at once, and the other one is gone first.
        left = deliveries._leave

        async def leave(member: Any) -> None:
            for other in list(consumer.family.members.values()):
                deliveries.send(Ended(other.info.name, other.key, "queue_deleted"))
            await left(member)

        deliveries._leave = leave
        deliveries._shards = lambda _: {}
        await deliveries._follow(consumer)
        assert not consumer.family.members

        deliveries._leave = left
        cancelling = asyncio.create_task(deliveries.cancel(consumer.tag))
        await asyncio.sleep(0)
        deliveries.send(Ended("jobs", consumer.key, "queue_deleted"))
        await cancelling


async def _are(count: int, wanted: int) -> bool:
    return count == wanted


async def settled(consumer: Any, count: int) -> list[tuple[str, int]]:
    """From which queue, and which."""
    found: list[tuple[str, int]] = []
    while len(found) < count:
        delivery = await anext(consumer)
        found.append((delivery.queue, int(delivery.body)))
        await delivery.settle(wait=True)
    return found


async def test_a_native_consumer_gets_from_all_shards_and_follows_a_split_and_a_join(nodes: Nodes):
    api = api_of(nodes.one)
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address) as client,
    ):
        await declared(channel)
        async with client.consume("jobs", credit=4) as before:
            await split(api)
            await publish(channel, *range(40))
            found = await settled(before, 40)
            assert sorted(number for _, number in found) == list(range(40))
            assert in_order_of_keys([number for _, number in found])
            assert len({queue for queue, _ in found}) >= 2
            assert {queue for queue, _ in found} <= set(NAMES)
            await client.publish("jobs", b"40")
            [(shard, number)] = await settled(before, 1)
            assert (shard in NAMES, number) == (True, 40)
            await until(lambda: has_in_all(api, 0))

            async with client.consume_batches("jobs", credit=4) as after:
                await publish(channel, *range(40))
                both = [before, after]
                numbers: list[int] = []
                reading = [asyncio.ensure_future(anext(each)) for each in both]
                while len(numbers) < 40:
                    await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
                    for which, task in enumerate(reading):
                        if task.done():
                            got = task.result()
                            numbers += map(int, getattr(got, "bodies", None) or [got.body])
                            await got.settle()
                            reading[which] = asyncio.ensure_future(anext(both[which]))
                assert sorted(numbers) == list(range(40))
                for task in reading:
                    task.cancel()

            assert await joined(api) == NAMES
            await until(lambda: has_in_all(api, 0))
            for name in NAMES:
                await api.delete(f"queues/%2F/{name}?if-empty=true")
            assert await joined(api) == []
            await publish(channel, 7)
            assert await settled(before, 1) == [("jobs", 7)]


async def test_a_native_consumers_credit_is_for_all_shards_together(nodes: Nodes):
    api = api_of(nodes.one)
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address, forward=True) as client,
    ):
        await declared(channel)
        await split(api)
        await publish(channel, *range(30))
        async with client.consume("jobs", credit=3, timeout_ms=1_500) as consumer:
            held = [await anext(consumer) for _ in range(3)]
            another = asyncio.ensure_future(anext(consumer))
            # Others wait at the client, for longer than they may be held.
            deadline = asyncio.get_running_loop().time() + 3
            while asyncio.get_running_loop().time() < deadline:
                await asyncio.wait({another}, timeout=0.3)
                for each in held:
                    await each.extend()
            assert not another.done()
            await held[0].defer(wait=True)
            held[0] = await another
            for each in held:
                await each.settle(wait=True)
            [aside] = [row for name in NAMES for row in await api.get(f"queues/%2F/{name}/delayed")]
            assert len(await settled(consumer, 26)) == 26
        found = [each for name in NAMES for each in await client.fetch(name, aside["position"])]
        assert [each.body.decode() for each in found] == [aside["payload"]]


async def test_what_waits_in_shards_is_got_natively(nodes: Nodes):
    api = api_of(nodes.one)
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address) as client,
    ):
        await declared(channel)
        await split(api)
        assert await client.get("jobs") == []
        await client.publish("jobs", b"10")
        await publish(channel, *range(10))
        found: set[int] = set()
        while len(found) < 11:
            for each in await client.get("jobs", 3):
                found.add(int(each.body))
                await each.settle()
        assert found == set(range(11))
        assert await client.get("jobs") == []


async def test_a_get_over_http_draws_from_all_shards_and_its_answer_says_where_to_settle(
    nodes: Nodes,
):
    api = api_of(nodes.one)
    async with channel_at(nodes.nodes["n2"]) as channel:
        await declared(channel)
        await publish(channel, 10)
        await split(api)
        await publish(channel, *range(10))
        found: list[int] = []
        queues: list[str] = []
        while len(found) < 11:
            got = await posted(nodes, "jobs", "get", count=2)
            assert got["status"] == 200, got
            assert got["messages"]
            queues.append(got["queue"])
            found += [int(each["body"]) for each in got["messages"]]
            assert got["ready"] == 11 - len(found)
            held = {
                "consumer": got["consumer"],
                "ranges": [[each["position"]] * 2 for each in got["messages"]],
            }
            extended = await posted(nodes, got["queue"], "settle", outcome="extend", **held)
            assert extended["outcome"] == "ok"
            settled = await posted(nodes, got["queue"], "settle", **held)
            assert settled["count"] == len(got["messages"])
        assert queues[0] == "jobs"
        assert set(queues[1:]) == set(NAMES)
        assert sorted(found) == list(range(11))
        waiting = asyncio.create_task(
            posted(nodes, "jobs", "get", wait_ms=30_000, auto_settle=True)
        )
        assert (await posted(nodes, "jobs", "get"))["messages"] == []
        await publish(channel, 12)
        assert [each["body"] for each in (await waiting)["messages"]] == ["12"]
        await until(lambda: has_in_all(api, 0))


async def test_who_may_use_a_queue_may_settle_in_its_shards_over_http(nodes: Nodes):
    api = api_of(nodes.one)
    await api.put("users/reader", password="secret", tags="")
    rights = {"configure": "^$", "write": "^$", "read": "^jobs$"}
    await api.put("permissions/%2F/reader", **rights)
    async with channel_at(nodes.one) as channel:
        await declared(channel)
        await api.queue("jobs.4", shard_of="jobs")  # says so itself
        await split(api)
        await publish(channel, 1)
        as_reader = {"user": "reader", "password": "secret"}
        got = await posted(nodes, "jobs", "get", **as_reader)
        assert got["queue"] in NAMES
        held = {"consumer": got["consumer"], "ranges": [[got["messages"][0]["position"]] * 2]}
        assert (await posted(nodes, got["queue"], "settle", **held, **as_reader))["count"] == 1
        assert (await posted(nodes, "jobs.4", "get", **as_reader))["status"] == 403


async def test_a_native_client_that_knows_no_shards_is_told_to_consume_them(nodes: Nodes):
    api = api_of(nodes.one)
    await api.queue("jobs")
    await split(api)
    async with quorate.connect(nodes.one.http_address) as client:
        client._core.routes._hello["shards"] = False
        with pytest.raises(quorate.Refused, match=r"consume each of jobs\.1, jobs\.2, jobs\.3"):
            async with client.consume("jobs") as consumer:
                await anext(consumer)


async def test_who_may_read_a_queue_may_read_its_shards_natively(nodes: Nodes):
    api = api_of(nodes.one)
    await api.put("users/reader", password="secret", tags="")
    rights = {"configure": "^$", "write": "^$", "read": "^jobs$"}
    await api.put("permissions/%2F/reader", **rights)
    await api.queue("jobs")
    await api.queue("jobs.4", shard_of="jobs")  # says so itself
    await split(api)
    async with channel_at(nodes.one) as channel:
        exchange = await channel.declare_exchange("in", "topic", durable=True)
        await (await channel.get_queue("jobs", ensure=False)).bind(exchange, "#")
        await publish(channel, *range(10))
    options = {"user": "reader", "password": "secret"}
    async with quorate.connect(nodes.one.http_address, **options) as client:
        async with client.consume("jobs") as consumer:
            assert len(await settled(consumer, 10)) == 10
        with pytest.raises(quorate.Refused, match="refused"):
            await client.get("jobs.4")


async def shard_of_key(api: Api, key: str) -> dict[str, str]:
    """By body, where the messages of this key are."""
    found: dict[str, str] = {}
    for name in ("jobs", *NAMES):
        for row in await api.get(f"queues/%2F/{name}/peek?count=1000"):
            if row["routing_key"] == key:
                found[row["payload"]] = name
    return found


async def test_what_native_publishers_give_the_one_name_goes_to_the_shards_as_amqps(nodes: Nodes):
    api = api_of(nodes.one)
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address) as client,
    ):
        await declared(channel)
        before = client.publisher("jobs")
        await before.publish(b"1000", key="k0")
        named = client.publisher("jobs", name="loader")
        await named.publish(b"1001", key="k1")
        await split(api)
        await publish(channel, *range(10))
        await asyncio.gather(
            *[client.publish("jobs", b"%d" % n, key=f"k{n % 10}") for n in range(10, 60)]
        )
        confirmed = await before.publish_many(
            [b"%d" % n for n in range(60, 160)],
            meta=[{"key": f"k{n % 10}"} for n in range(60, 160)],
        )
        assert (confirmed.count, confirmed.stored, confirmed.duplicates) == (100, 100, 0)
        for n in range(160, 200):
            await named.publish(b"%d" % n, key=f"k{n % 10}")
        # Without a key any shard is taken.
        await client.publish_many("jobs", [b"%d" % n for n in range(200, 230)])
        await until(lambda: has_in_all(api, 232))
        held = await lengths(api)
        assert held["jobs"] == 2, "from before the split"
        for number in range(10):
            places = await shard_of_key(api, f"k{number}")
            assert len(places) >= 20
            assert len({at for body, at in places.items() if int(body) < 1000}) == 1
        async with client.consume("jobs", credit=20) as consumer:
            found = [number for _, number in await settled(consumer, 232)]
        assert sorted(found) == [*range(230), 1000, 1001]
        assert in_order_of_keys([number for number in found if number < 200])


async def test_what_http_publishes_to_the_one_name_goes_to_the_shards(nodes: Nodes):
    api = api_of(nodes.one)
    headers = {"Authorization": aiohttp.encode_basic_auth("guest", "guest")}
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        aiohttp.ClientSession(headers=headers) as http,
    ):
        await declared(channel)
        await split(api)
        await publish(channel, *range(10))
        url = URL(f"http://{nodes.one.http_address}/v1/queues/%2F/jobs/messages", encoded=True)

        async def post(body: bytes, **given: str) -> tuple[int, Any]:
            async with http.post(url, data=body, headers=given) as response:
                return response.status, await response.json()

        for number in range(10, 20):
            key = f"k{number % 10}"
            status, answer = await post(b"%d" % number, **{"X-Quorate-Key": key})
            assert (status, answer["stored"]) == (200, 1)
        batch = {
            "bodies": [b"%d" % number for number in range(20, 40)],
            "meta": [{"key": f"k{number % 10}"} for number in range(20, 40)],
        }
        as_cbor = {"Content-Type": "application/cbor"}
        status, answer = await post(cbor2.dumps(batch), **as_cbor)
        assert (status, answer["stored"], answer["refused"]) == (200, 20, [])
        for number in range(10):
            places = await shard_of_key(api, f"k{number}")
            assert len(places) == 4
            assert len(set(places.values())) == 1
        numbered = {"X-Quorate-Publisher": "p", "X-Quorate-Seqno": "1", "X-Quorate-Key": "k3"}
        status, answer = await post(b"x", **numbered)
        assert (status, answer["code"]) == (409, "split_queue")
        assert answer["detail"] == list(set((await shard_of_key(api, "k3")).values()))
        assert "publish to its shards under their names" in answer["reason"]
        await until(lambda: has_in_all(api, 40))


async def test_a_publisher_that_counts_by_itself_is_told_the_shards(nodes: Nodes):
    """Its numbers are of one queue; under the name of a shard they go on."""
    api = api_of(nodes.one)
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address) as client,
    ):
        await declared(channel)
        await split(api)
        counting = client.publisher("jobs", name="meter", next_seqno=1)
        with pytest.raises(quorate.Refused, match="publish to its shards") as refused:
            await counting.publish(b"1", key="k1")
        assert refused.value.code == "split_queue"
        [shard] = refused.value.detail
        counting = client.publisher(shard, name="meter", next_seqno=1)
        assert not (await counting.publish(b"1", key="k1")).duplicate
        again = client.publisher(shard, name="meter", next_seqno=1)
        assert (await again.publish(b"1", key="k1")).duplicate
        await publish(channel, 11)
        assert set((await shard_of_key(api, "k1")).values()) == {shard}


async def test_keys_keep_their_order_when_native_publishers_lose_their_connections(nodes: Nodes):
    """Each message once, before, while and after the queue is split."""
    api = api_of(nodes.one)
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address) as client,
    ):
        await declared(channel)
        publisher = client.publisher("jobs", name="loader")
        sent: list[asyncio.Task[Any]] = []

        def send(count: int) -> None:
            for number in range(len(sent), len(sent) + count):
                body, key = b"%d" % number, f"k{number % 10}"
                sent.append(asyncio.create_task(publisher.publish(body, key=key, timeout=60)))

        async def cut() -> None:
            native = [
                row["name"] for row in await api.get("connections") if row["protocol"] == "Quorate"
            ]
            assert native
            for name in native:
                assert await api.delete(f"connections/{quote(name, safe='')}") == 204

        send(300)
        await asyncio.gather(*sent)
        await split(api)
        for _ in range(5):
            send(300)
            while not sent[-200].done():
                await asyncio.sleep(0)
            await cut()
        await asyncio.gather(*sent)
        assert not any(task.result().duplicate for task in sent[:300])
        rows: list[dict[str, Any]] = []
        for name in NAMES:
            found = await api.get(f"queues/%2F/{name}/peek?count=1000")
            assert in_order_of_keys([int(row["payload"]) for row in found])
            rows += found
        assert sorted(int(row["payload"]) for row in rows) == list(range(300, len(sent)))


async def test_frames_without_numbers_and_transactions_go_to_the_shards(nodes: Nodes):
    api = api_of(nodes.one)
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address) as client,
    ):
        await declared(channel)
        await split(api)
        connection = await client._core.routes.connection()
        metas = [{"key": f"k{number % 10}"} for number in range(20)]
        bodies = [b"%d" % number for number in range(20)]
        frame = await connection.call(wire.PUBLISH, "jobs", None, 0, bodies, metas, None)
        assert frame[1:] == [0, 20, 0, []]
        async with client.transaction() as together:
            for number in range(20, 40):
                together.publish("jobs", b"%d" % number, key=f"k{number % 10}")
        await until(lambda: has_in_all(api, 40))
        assert (await lengths(api))["jobs"] == 0
        for number in range(10):
            assert len(set((await shard_of_key(api, f"k{number}")).values())) == 1


async def test_publishers_are_told_which_messages_full_shards_refused(nodes: Nodes):
    api = api_of(nodes.one)
    limits = {"x-max-length": 3, "x-overflow": "reject-publish"}
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address) as client,
    ):
        await declared(channel, **limits)
        await split(api)
        bodies = [b"%d" % number for number in range(40)]
        metas = [{"key": f"k{number % 10}"} for number in range(40)]

        async def waiting() -> set[int]:
            rows = await api.get("queues/%2F/jobs/peek?count=1000")
            return {int(row["payload"]) for row in rows}

        with pytest.raises(quorate.Refused) as refused:
            await client.publish_many("jobs", bodies, meta=metas, batch=7)
        over = {at for low, high in refused.value.ranges for at in range(low, high + 1)}
        assert (refused.value.code, refused.value.confirmed) == ("queue_full", 9)
        assert await waiting() == set(range(40)) - over
        assert len(over) == 31
        await client.purge("jobs")
        connection = await client._core.routes.connection()
        frame = await connection.call(wire.PUBLISH, "jobs", None, 0, bodies, metas, None)
        over = {at for low, high in frame[4] for at in range(low, high + 1)}
        assert frame[1:4] == [0, 9, 0]
        assert await waiting() == set(range(40)) - over


async def test_what_is_sent_again_from_before_a_split_is_not_stored_twice(nodes: Nodes):
    api = api_of(nodes.one)
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address) as client,
    ):
        await declared(channel)
        publisher = client.publisher("jobs", name="p")
        await publisher.publish(b"1", key="k1")
        await publisher.publish(b"2", key="k1")
        connection = await client._core.routes.connection("jobs")
        await split(api)

        async def again(seqno: int, *bodies: bytes) -> list[Any]:
            meta = {"key": "k1"}
            return await connection.call(wire.PUBLISH, "jobs", "p", seqno, [*bodies], meta, None)

        assert (await again(1, b"1", b"2"))[1:] == [0, 0, 2, []]
        for seqno, bodies in ((2, (b"2", b"3")), (3, (b"3",)), (0, (b"3",))):
            refused = await again(seqno, *bodies)
            assert refused[2] == "split_queue"
            assert len(refused[4]) == len(bodies)
        http = f"http://{nodes.one.http_address}/v1/queues/%2F/jobs/messages"
        headers = {
            "Authorization": aiohttp.encode_basic_auth("guest", "guest"),
            "X-Quorate-Publisher": "p",
            "X-Quorate-Seqno": "2",
        }
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(URL(http, encoded=True), data=b"2") as response,
        ):
            assert (response.status, (await response.json())["duplicates"]) == (200, 1)
        assert await has_in_all(api, 2)


async def test_a_deduplication_id_holds_without_a_key(nodes: Nodes):
    api = api_of(nodes.one)
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address) as client,
    ):
        await declared(channel, **{"x-dedup-window": 600_000})
        await split(api)
        ids = [f"order-{number}" for number in range(20)]
        bodies = [b"%d" % number for number in range(20)]
        assert (await client.publish_many("jobs", bodies, dedup_ids=ids)).stored == 20
        again = await client.publish_many("jobs", bodies, dedup_ids=ids)
        assert (again.stored, again.duplicates) == (0, 20)
        assert (await client.publish("jobs", b"0", dedup_id=ids[0])).duplicate


async def test_a_large_body_goes_in_parts_to_its_shard(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wire, "WHOLE_BODY_BYTES_MAX", 1 << 20)
    api = api_of(nodes.one)
    body = bytes(3 << 20)
    async with (
        channel_at(nodes.nodes["n2"]) as channel,
        quorate.connect(nodes.one.http_address) as client,
    ):
        await declared(channel)
        before = client.publisher("jobs")
        await split(api)
        await before.publish(body, key="k1", timeout=60)
        await publish(channel, 1)
        await until(lambda: has_in_all(api, 2))
        assert sorted((await lengths(api)).values()) == [0, 0, 0, 2]
        async with client.consume("jobs") as consumer:
            delivery = await anext(consumer)
            assert len(delivery.body) == len(body)
            await delivery.settle()


async def test_what_is_moved_copied_or_replayed_to_the_one_name_goes_where_its_key_belongs(
    nodes: Nodes,
):
    api = api_of(nodes.one)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    async with channel_at(nodes.nodes["n2"]) as channel:
        await declared(channel, **dead)
        for name in ("dead", "aside"):
            await api.queue(name)
        await split(api)
        await publish(channel, *range(20))
        shards = {f"k{n}": set((await shard_of_key(api, f"k{n}")).values()) for n in range(10)}
        reader = Reader(holds=True)
        await reader.read(channel)
        await until(lambda: _are(len(reader.found), 20))
        for message in reader.found:
            await message.reject(requeue=False)
        queue = await channel.get_queue("jobs", ensure=False)
        await queue.cancel(reader.tag)
        await until(lambda: is_held(api, 0))

        async def all_of(source: str, how: str, **given: Any) -> None:
            found = await api.post(f"queues/%2F/{source}/select", where={}, start=1, count=1000)
            named = found.value["positions"]
            reply = await api.post(f"queues/%2F/{source}/{how}", positions=named, **given)
            assert (reply.status, reply.value["done"]) == (200, 20), reply

        async def are_in_place(count: int) -> None:
            assert (await lengths(api))["jobs"] == 0
            for key, places in shards.items():
                found = await shard_of_key(api, key)
                assert len(found) == 2
                assert set(found.values()) == places
            await until(lambda: has_in_all(api, count))

        async def here(name: str) -> bool:
            return (await lengths(api))[name] == 20

        await until(lambda: here("dead"))
        await all_of("dead", "move")  # back to where each has died
        await are_in_place(20)
        assert await client_purge(nodes, "jobs") == 20

        await publish(channel, *range(20))
        await gather_in(api, "aside")
        await until(lambda: here("aside"))
        await all_of("aside", "copy", to="jobs", operation="a")
        await all_of("aside", "copy", to="jobs", operation="a")
        await are_in_place(40)
        assert await client_purge(nodes, "jobs") == 20
        await all_of("aside", "move", to="jobs")
        await are_in_place(20)
        refused = await api.ask(
            "POST", "queues/%2F/jobs.1/move", {"positions": [[1, 1]], "to": "jobs"}
        )
        assert refused.status == 400
        assert "`quorate queue join jobs`" in refused.value["reason"]


async def client_purge(nodes: Nodes, queue: str) -> int:
    return (await posted(nodes, queue, "purge"))["count"]


async def gather_in(api: Api, target: str) -> None:
    """All that waits in shards."""
    for name in NAMES:
        found = await api.post(f"queues/%2F/{name}/select", where={}, start=1, count=1000)
        named = found.value["positions"]
        reply = await api.post(f"queues/%2F/{name}/move", positions=named, to=target)
        assert reply.status == 200, reply


async def test_native_publishers_go_on_while_a_queue_is_split_and_joined_and_leaders_end(
    nodes: Nodes,
):
    """Each message once, and each key in its order as long as the queue is split."""
    api = api_of(nodes.nodes["n1"])
    done = asyncio.Event()
    confirmed: list[int] = []

    async def publishing(publisher: Any) -> None:
        while not done.is_set():
            number = len(confirmed)
            confirmed.append(number)
            await publisher.publish(b"%d" % number, key=f"k{number % 10}", timeout=60)

    async with (
        channel_at(nodes.nodes["n1"]) as channel,
        quorate.connect(nodes.nodes["n1"].http_address) as client,
    ):
        await declared(channel)
        publishers = [client.publisher("jobs"), client.publisher("jobs", name="loader")]
        work = [asyncio.create_task(publishing(each)) for each in publishers]

        async def further() -> None:
            before = len(confirmed)
            await until(lambda: _are(len(confirmed) > before + 200, True))

        await further()
        await split(api)
        await further()
        await nodes.stop("n2", transfer=False)
        await further()
        await nodes.start("n2")
        await until(nodes.settled)
        assert await joined(api) == NAMES
        await further()
        for name in NAMES:
            rows = await api.post(f"queues/%2F/{name}/select", where={}, start=1, count=1000)
            while rows.value["positions"]:
                named = rows.value["positions"]
                await api.post(f"queues/%2F/{name}/move", positions=named, to="jobs")
                rows = await api.post(f"queues/%2F/{name}/select", where={}, start=1, count=1000)
            await until(lambda: is_removed(api, name))  # noqa: B023 -- awaited here
        assert await joined(api) == []
        await further()
        done.set()
        await asyncio.gather(*work)
        found: list[int] = []
        async with client.consume("jobs", credit=500) as consumer:
            found = [number for _, number in await settled(consumer, len(confirmed))]
        assert sorted(found) == list(range(len(confirmed)))
        await until(lambda: is_empty(api))


async def test_what_a_queue_and_its_shards_have_together_is_told_once(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    api = api_of(nodes.one)
    await api.queue("jobs")
    await split(api)
    low = "node n1 is low on memory"
    monkeypatch.setattr("node.management.situation._alarms", lambda _: [low])
    told = [(each["code"], each.get("shard")) for each in await why(api, "jobs")]
    assert told == [("alarm", None)]
    assert [each["code"] for each in await why(api, "jobs.1")] == ["alarm"]


async def why(api: Api, queue: str) -> list[dict[str, Any]]:
    return (await api.get(f"queues/%2F/{queue}/why"))["findings"]


async def test_what_cannot_be_split_is_refused(nodes: Nodes):
    api = api_of(nodes.nodes["n1"])
    path = "queues/%2F/jobs/split"
    assert (await api.ask("POST", path, {"shards": 3})).status == 404
    await api.queue("jobs")
    for wrong in ({}, {"shards": 1}, {"shards": 65}, {"shards": "a"}):
        assert (await api.ask("POST", path, wrong)).status == 400
    await api.queue("jobs.2")
    refused = await api.ask("POST", path, {"shards": 3})
    assert refused.status == 400
    assert "another queue has that name" in refused.value["reason"]
    await api.delete("queues/%2F/jobs.2")
    assert await split(api) == NAMES
    assert (await api.ask("POST", path, {"shards": 4})).status == 400
    assert (await api.ask("POST", "queues/%2F/jobs.1/split", {"shards": 3})).status == 400
    await api.queue("goes", expires=60_000)
    refused = await api.ask("POST", "queues/%2F/goes/split", {"shards": 3})
    assert refused.status == 400
    assert "queue 'goes' in vhost '/' goes when nobody uses it" in refused.value["reason"]
    for wrong in ({"shards": []}, {"shards": ["a", "a"]}, {"shards": ["a"], "joining": 1}, 5):
        reply = await api.ask("PUT", "parameters/split-queue/%2F/x", {"value": wrong})
        assert reply.status == 400
