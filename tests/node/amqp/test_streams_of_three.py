"""Streams on several nodes: read at any of them, through the end of their leader, beside NATS."""

# pyright: basic
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import nats
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from nats.js.client import JetStreamContext

from node.node import Node
from tests.node.management.api import api_of
from tests.node.nodes import Nodes, until
from tests.testkit.waiting import WAIT_S


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    """Of four, one has no copy of a stream."""
    async with Nodes(tmp_path, 4, nats="127.0.0.1:0") as nodes:
        yield nodes


@asynccontextmanager
async def channel_at(node: Node, **options: Any) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(f"amqp://guest:guest@{node.amqp.address}/") as connection:
        yield await connection.channel(**options)


@asynccontextmanager
async def jetstream_at(node: Node) -> AsyncIterator[JetStreamContext]:
    assert node.nats is not None
    client = await nats.connect(f"nats://{node.nats.address}", user="guest", password="guest")
    try:
        yield client.jetstream(timeout=WAIT_S)
    finally:
        await client.close()


class Reader:
    """What came, in order; each is acknowledged."""

    def __init__(self) -> None:
        self.found: list[AbstractIncomingMessage] = []

    async def _take(self, message: AbstractIncomingMessage) -> None:
        self.found.append(message)
        await message.ack()

    async def read(self, channel: AbstractChannel, name: str, **arguments: Any) -> None:
        await channel.set_qos(prefetch_count=20)
        queue = await channel.get_queue(name, ensure=False)
        given = {f"x-stream-{key}": value for key, value in arguments.items()}
        await queue.consume(self._take, arguments=given)

    @property
    def offsets(self) -> list[Any]:
        return [each.headers["x-stream-offset"] for each in self.found]


async def declare(channel: AbstractChannel, name: str) -> None:
    await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})


async def publish(channel: AbstractChannel, name: str, first: int, last: int) -> None:
    for number in range(first, last):
        message = aio_pika.Message(b"%d" % number)
        await channel.default_exchange.publish(message, routing_key=name)


async def test_every_node_reads_it_and_goes_on_when_its_leader_ends(nodes: Nodes):
    async with channel_at(nodes.one) as channel:
        await declare(channel, "s")
        await publish(channel, "s", 0, 100)
    info = nodes.one.broker.locate("/", "s")
    assert info is not None
    leader = await nodes.leader("s")
    copies = [n for n, node in nodes.nodes.items() if info.group in node.cluster.groups]
    assert len(copies) == 3
    others = [node for name, node in nodes.nodes.items() if name != leader]
    readers = [Reader() for _ in others]
    async with (
        channel_at(others[0]) as first,
        channel_at(others[1]) as second,
        channel_at(others[2]) as third,
    ):
        for channel, reader in zip((first, second, third), readers, strict=True):
            await reader.read(channel, "s", offset="first")
        await until(lambda: all(len(each.found) == 100 for each in readers))
        publishing = asyncio.create_task(publish(second, "s", 100, 300))
        await until(lambda: len(readers[2].found) > 120)

        await nodes.stop(leader, transfer=False)

        await publishing
        await until(lambda: all(len(each.found) >= 300 for each in readers))
    for reader in readers:
        assert reader.offsets == list(range(300))
        assert [int(each.body) for each in reader.found] == list(range(300))


async def test_a_filter_counts_at_the_node_that_reads(nodes: Nodes):
    async with channel_at(nodes.one) as channel:
        await declare(channel, "s")
        for number in range(20):
            headers: dict[str, Any] = {
                "x-stream-filter-value": "even" if number % 2 == 0 else "odd"
            }
            message = aio_pika.Message(b"%d" % number, headers=headers)
            await channel.default_exchange.publish(message, routing_key="s")
    readers = []
    for node in nodes.nodes.values():
        async with channel_at(node) as channel:
            reader = Reader()
            readers.append(reader)
            await reader.read(channel, "s", offset="first", filter="odd")
            await until(lambda reader=reader: len(reader.found) == 10)
    assert {tuple(each.offsets) for each in readers} == {tuple(range(1, 20, 2))}


async def test_what_natss_clients_publish_is_read_by_amqps_with_its_headers(nodes: Nodes):
    async with jetstream_at(nodes.one) as js:
        await js.add_stream(name="S", subjects=["s.>"])
        await js.publish("s.a", b"plain")
        await js.publish("s.b", b"more", headers={"Colour": "red", "x-stream-filter-value": "v"})
    async with channel_at(nodes.nodes["n2"]) as channel:
        await declare(channel, "S")  # which it is
        reader, filtered = Reader(), Reader()
        await reader.read(channel, "S", offset="first")
        await filtered.read(channel, "S", offset="first", filter=["v"])
        await until(lambda: len(reader.found) == 2 and len(filtered.found) == 1)
    first, second = reader.found
    assert (first.body, first.exchange, first.routing_key) == (b"plain", "", "s.a")
    assert (first.headers, second.body) == ({"x-stream-offset": 0}, b"more")
    assert second.headers == {
        "Colour": "red",
        "x-stream-filter-value": "v",
        "x-stream-offset": 1,
    }
    assert filtered.offsets == [1]


async def test_what_amqps_clients_publish_is_read_by_natss_with_its_headers(nodes: Nodes):
    async with channel_at(nodes.one) as channel:
        await declare(channel, "S")
        headers = {"Colour": "żółty", "number": 5, "odd: name": "x", "lines": "a\r\nb"}
        message = aio_pika.Message(b"body", headers=headers, content_type="text/plain")
        await channel.default_exchange.publish(message, routing_key="S")
        await publish(channel, "S", 0, 1)
    async with jetstream_at(nodes.nodes["n2"]) as js:
        config = (await js.stream_info("S")).config
        assert (config.name, config.subjects or []) == ("S", [])
        await js.add_consumer("S", durable_name="d", ack_policy="explicit")
        subscription = await js.pull_subscribe_bind("d", "S")
        first, second = await subscription.fetch(2, timeout=WAIT_S)
    assert first.data == b"body"
    headers = dict(first.headers or {})
    assert len(headers.pop("Message-Id")) == 32  # aio-pika's own
    assert headers == {"Colour": "żółty", "number": "5", "Content-Type": "text/plain"}
    assert (second.data, list(second.headers or {})) == (b"0", ["Message-Id"])


async def test_a_routing_key_among_the_subjects_of_a_stream_is_the_subject(nodes: Nodes):
    async with jetstream_at(nodes.one) as js:
        await js.add_stream(name="KEYED", subjects=["orders.*", "vip.urgent.>"])
    properties: dict[str, Any] = {
        "message_id": "m1",
        "correlation_id": "c1",
        "app_id": "shop",
        "type": "order",
    }
    async with channel_at(nodes.nodes["n2"]) as channel:
        queue = await channel.get_queue("KEYED", ensure=False)
        exchange = await channel.declare_exchange("shop", "topic")
        await queue.bind(exchange, "#")
        for key in ("orders.new", "orders.new.more", "orders.*", "vip.urgent.now", "a b"):
            message = aio_pika.Message(key.encode(), **properties)
            await exchange.publish(message, routing_key=key)
        await channel.default_exchange.publish(aio_pika.Message(b"direct"), routing_key="KEYED")
        dead = {"x-dead-letter-exchange": "shop", "x-dead-letter-routing-key": "orders.dead"}
        await channel.declare_queue("dying", durable=True, arguments={**dead, "x-message-ttl": 0})
        await channel.default_exchange.publish(aio_pika.Message(b"dead"), routing_key="dying")
    by_hand = {"routing_key": "orders.hand", "payload": "hand", "payload_encoding": "string"}
    reply = await api_of(nodes.one).ask(
        "POST", "exchanges/%2F/shop/publish", {**by_hand, "properties": {}}
    )
    assert reply.status == 200

    async with jetstream_at(nodes.nodes["n3"]) as js:
        await js.add_consumer("KEYED", durable_name="all", ack_policy="none")
        bound = await js.pull_subscribe_bind("all", "KEYED")
        found = list[tuple[str, str]]()
        while len(found) < 8:
            found += [
                (each.subject, each.data.decode()) for each in await bound.fetch(1, timeout=WAIT_S)
            ]
        assert sorted(found[6:]) == [("orders.dead", "dead"), ("orders.hand", "hand")]
        assert found[:6] == [
            ("orders.new", "orders.new"),
            ("KEYED", "orders.new.more"),
            ("KEYED", "orders.*"),
            ("vip.urgent.now", "vip.urgent.now"),
            ("KEYED", "a b"),
            ("KEYED", "direct"),
        ]
        await js.add_consumer(
            "KEYED", durable_name="some", filter_subject="orders.>", ack_policy="none"
        )
        bound = await js.pull_subscribe_bind("some", "KEYED")
        message = (await bound.fetch(1, timeout=WAIT_S))[0]
        assert message.headers == {
            "Message-Id": "m1",
            "Correlation-Id": "c1",
            "App-Id": "shop",
            "Type": "order",
        }
        assert (await js.get_last_msg("KEYED", "vip.urgent.*")).data == b"vip.urgent.now"


async def test_headers_of_nats_that_amqp_has_properties_for_are_these(nodes: Nodes):
    async with jetstream_at(nodes.one) as js:
        await js.add_stream(name="PROPERTIES", subjects=["p"])
        headers = {"Content-Type": "text/plain", "Message-Id": "m", "Reply-To": "x" * 256}
        await js.publish("p", b"body", headers=headers)
    async with channel_at(nodes.nodes["n2"]) as channel:
        reader = Reader()
        await reader.read(channel, "PROPERTIES", offset="first")
        await until(lambda: len(reader.found) == 1)
    (message,) = reader.found
    assert (message.content_type, message.message_id) == ("text/plain", "m")
    assert message.reply_to is None
    assert message.headers == {**headers, "x-stream-offset": 0}
