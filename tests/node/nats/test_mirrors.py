"""Streams that follow others, through the end of who leads either."""

# pyright: basic, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import nats
import pytest
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import DeliveryError
from nats.js.client import JetStreamContext

from node.broker.bodies import PARTED_OVER_BYTES
from node.node import Node
from tests.cluster.world import delete_half
from tests.node.nats.test_jetstream import api
from tests.node.nodes import Nodes, until
from tests.testkit.waiting import WAIT_S

#: So many lie in a few batches.
MANY = 5_000


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    """Of four, one has no copy of a stream."""
    async with Nodes(tmp_path, 4, nats="127.0.0.1:0") as nodes:
        yield nodes


@asynccontextmanager
async def jetstream_at(node: Node) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(f"nats://{node.nats.address}", user="guest", password="guest")
    try:
        yield client.jetstream(timeout=WAIT_S)
    finally:
        await client.close()


def rows(nodes: Nodes, name: str) -> list[tuple[int, bytes, int, int]]:
    """Sequences, subjects, sizes and times at the node that leads the stream."""
    info = nodes.one.broker.locate("/", name)
    for node in nodes.nodes.values():
        copy = node.cluster.groups.get(info.group)
        stream = None if copy is None or not copy.ready else copy.machine.stream(info.queue)
        if stream is not None:
            return [
                (found.sequence, found.subject, found.size, found.stored_ms)
                for first, last in stream.retained.extents()
                for found in map(stream.find, range(first, last + 1))
            ]
    return []


async def make(js: JetStreamContext, name: str, **more: Any) -> None:
    answer = await api(js, f"STREAM.CREATE.{name}", name=name, **more)
    assert "error" not in answer, answer


async def lead(nodes: Nodes, name: str, *but: str) -> str:
    """Another node leads the stream than these."""
    group = nodes.one.broker.locate("/", name).group
    members = nodes.one.cluster.catalog_machine.group(group).members
    wanted = next(each for each in sorted(members) if each not in but)
    await nodes.led_by(wanted, group)
    return wanted


async def test_a_mirror_and_a_source_miss_nothing_when_those_who_lead_end(nodes: Nodes):
    async with jetstream_at(nodes.one) as js:
        await make(js, "S", subjects=["s.*"])
        await make(js, "M", mirror={"name": "S"})
        await make(js, "A", sources=[{"name": "S", "filter_subject": "s.1"}])
    leads = await lead(nodes, "S")
    mirrors = await lead(nodes, "M", leads)
    await lead(nodes, "A", leads, mirrors)
    at = next(name for name in nodes.nodes if name not in (leads, mirrors))

    async with jetstream_at(nodes.nodes[at]) as js:
        confirmed: list[int] = []

        async def publish(first: int, last: int) -> None:
            work = [js.publish(f"s.{n % 3}", b"%d" % n) for n in range(first, last)]
            confirmed.extend(ack.seq for ack in await asyncio.gather(*work))

        await publish(0, MANY)
        await nodes.stop(leads, transfer=False)
        await publish(MANY, MANY + 100)
        await nodes.start(leads)
        await until(nodes.settled)
        mirrors = await lead(nodes, "M", at)
        publishing = asyncio.create_task(publish(MANY + 100, MANY + 1_000))
        await nodes.stop(mirrors, transfer=False)
        await publishing

        assert sorted(confirmed) == list(range(1, MANY + 1_001))
        await until(lambda: len(rows(nodes, "M")) == MANY + 1_000)
        assert rows(nodes, "M") == rows(nodes, "S")
        wanted = [size for _, subject, size, _ in rows(nodes, "S") if subject == b"s.1"]
        await until(lambda: len(rows(nodes, "A")) >= len(wanted))
        assert {subject for _, subject, _, _ in rows(nodes, "A")} == {b"s.1"}
        assert len(rows(nodes, "A")) == len(wanted)


async def test_large_bodies_are_followed_part_by_part(nodes: Nodes):
    bodies = [b"small", bytes(range(256)) * (3 * PARTED_OVER_BYTES // 256), b"behind"]
    async with jetstream_at(nodes.one) as js:
        for name, more in (("S", {"subjects": ["s"]}), ("M", {"mirror": {"name": "S"}})):
            await make(js, name, **more)
    address = nodes.nodes["n4"].amqp.address
    async with await aio_pika.connect(f"amqp://guest:guest@{address}/") as connection:
        channel = await connection.channel()
        for body in bodies:
            await channel.default_exchange.publish(aio_pika.Message(body), routing_key="S")
        await until(lambda: len(rows(nodes, "M")) == 3)

        found: list[bytes] = []

        async def take(message: AbstractIncomingMessage) -> None:
            found.append(message.body)
            await message.ack()

        await channel.set_qos(prefetch_count=2)
        queue = await channel.get_queue("M", ensure=False)
        await queue.consume(take, arguments={"x-stream-offset": "first"})
        await until(lambda: len(found) == 3)
        assert found == bodies
        with pytest.raises(DeliveryError):
            await channel.default_exchange.publish(aio_pika.Message(b"x"), routing_key="M")


async def test_a_source_misses_nothing_of_a_stream_whose_deletion_ended_half_way(nodes: Nodes):
    """Made again under the same id, it would begin at 1: what the source has taken already."""
    async with jetstream_at(nodes.one) as js:
        await make(js, "S", subjects=["s"])
        await make(js, "A", sources=[{"name": "S"}])
        for _ in range(5):
            await js.publish("s", b"before")
        await until(lambda: len(rows(nodes, "A")) == 5)

        await delete_half(nodes.one.cluster, "S")
        await until(lambda: nodes.one.broker.locate("/", "S") is None or rows(nodes, "S") == [])
        await asyncio.sleep(2)
        answer = await api(js, "STREAM.CREATE.S", name="S", subjects=["s"])
        assert "error" not in answer, answer
        for _ in range(4):
            await js.publish("s", b"after it")
        await until(lambda: len(rows(nodes, "A")) == 9)
