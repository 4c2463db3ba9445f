"""A virtual host that holds all it may takes no more; its neighbours notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import aiormq
import pytest
from aiormq.exceptions import ChannelPreconditionFailed, DeliveryError

from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import PutEntry, UpgradeMachine
from cluster.types import Stamp
from node.errors import Refused
from node.node import Node
from tests.node.management.api import Api, api_of
from tests.node.nodes import Client, Nodes, until

BODY = bytes(10_000)
MAX_BYTES = 100_000


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, 2, replication=1) as nodes:
        api = api_of(nodes.one)
        for vhost in ("small", "other"):
            await api.put(f"vhosts/{vhost}")
            await api.put(f"permissions/{vhost}/guest", configure=".*", write=".*", read=".*")
            for number in range(4):  # led by different nodes
                await api.queue(f"q{number}", vhost)
        yield nodes


async def connected(node: Node, vhost: str) -> Any:
    return await aiormq.connect(f"amqp://guest:guest@{node.amqp.address}/{vhost}")


async def fill(connection: Any, *, most: int = 1_000) -> int:
    """Confirmed publishes until one is not."""
    channel = await connection.channel()
    for count in range(most):
        try:
            await channel.basic_publish(BODY, routing_key=f"q{count % 4}")
        except DeliveryError:
            await channel.close()
            return count
        await asyncio.sleep(0.02)
    raise AssertionError("it was never full")


async def drain(node: Node, vhost: str, count: int) -> None:
    connection = await connected(node, vhost)
    channel = await connection.channel()
    got = 0
    while got < count:
        for number in range(4):
            while (await channel.basic_get(f"q{number}", no_ack=True)).body:
                got += 1
    await connection.close()


async def test_it_is_refused_there_alone_at_every_node_and_door_until_something_is_consumed(
    nodes: Nodes,
) -> None:
    api: Api = api_of(nodes.one)
    await api.put("vhost-limits/small/max-bytes", value=MAX_BYTES)
    assert (await api.get("vhost-limits/small"))[0]["value"] == {"max-bytes": MAX_BYTES}
    connections = [await connected(node, "small") for node in nodes.nodes.values()]
    count = await fill(connections[0])
    assert count >= MAX_BYTES // len(BODY)
    await until(lambda: all(node.quotas.full for node in nodes.nodes.values()))
    for node, connection in zip(nodes.nodes.values(), connections, strict=True):
        channel = await connection.channel()
        with pytest.raises(DeliveryError):
            await channel.basic_publish(BODY, routing_key="q1")
        unconfirmed = await connection.channel(publisher_confirms=False)
        await unconfirmed.basic_publish(BODY, routing_key="q1")
        with pytest.raises(ChannelPreconditionFailed, match="may hold 100000"):
            await unconfirmed.basic_qos(prefetch_count=1)
        info = node.broker.locate("small", "q1")
        assert info is not None
        with pytest.raises(Refused, match="may hold 100000") as caught:
            node.broker.ingress.batch(None, info, None, 0, [BODY], None, None)
        assert caught.value.code == "vhost_full"
        about = {"routing_key": "q1", "payload": "x", "payload_encoding": "string"}
        path = "exchanges/small/amq.default/publish"
        refused = await api_of(node).post(path, **about, properties={})
        assert (refused.status, refused.value["error"]) == (507, "insufficient_storage")
        neighbour = await connected(node, "other")
        for _ in range(5):
            await (await neighbour.channel()).basic_publish(BODY, routing_key="q2")
        await neighbour.close()

    await until(lambda: nodes.one.quotas.bytes_of("small") == count * len(BODY))
    await drain(nodes.one, "small", count)
    await until(lambda: not any(node.quotas.full for node in nodes.nodes.values()))
    assert await fill(connections[1]) >= MAX_BYTES // len(BODY)
    assert await api.delete("vhost-limits/small/max-bytes") == 204
    await until(lambda: not any(node.quotas.full for node in nodes.nodes.values()))
    for connection in connections:
        await (await connection.channel()).basic_publish(BODY, routing_key="q1")
        await connection.close()


async def test_queues_that_name_no_limit_of_bytes_have_that_of_their_virtual_host(
    nodes: Nodes,
) -> None:
    api: Api = api_of(nodes.one)
    await api.queue("own", "small", max_length_bytes=10 * len(BODY))
    await api.put("vhost-limits/small/max-queue-bytes", value=2 * len(BODY))
    connection = await connected(nodes.one, "small")
    channel = await connection.channel()

    async def taken(queue: str) -> int:
        for count in range(20):
            try:
                await channel.basic_publish(BODY, routing_key=queue)
            except DeliveryError:
                return count
        return 20

    def configured() -> bool:
        for node in nodes.nodes.values():
            machine = node.cluster.catalog_machine
            info = machine.queue("small", "q0")
            group = None if info is None else node.cluster.group(info.group)
            if info is not None and group is not None and group.ready:
                view = cast("QueueMachine", group.machine).queue(info.queue)
                return view is not None and view.config.max_length_bytes == 2 * len(BODY)
        return False

    await until(configured)
    assert await taken("q0") == 2
    assert await taken("own") == 20  # the oldest go, as it says itself
    await connection.close()


def test_before_that_version_of_the_machine_there_are_no_such_limits() -> None:
    catalog = CatalogMachine()
    stamps = iter(range(1, 100))

    def apply(command: Any) -> Any:
        return catalog.apply(Stamp(next(stamps), 1, 0, 0, 0), command)[0]

    for name in ("max-bytes", "max-queue-bytes"):
        put = PutEntry("vhost_limits", ("/",), {name: 5})
        refused = apply(put)
        assert "max-connections, max-queues; not" in refused.reason
    apply(UpgradeMachine(2))
    apply(PutEntry("vhost_limits", ("/",), {"max-queue-bytes": 5}))
    assert catalog.entry("vhost_limits", ("/",)) == {"max-queue-bytes": 5}


async def test_parts_of_bodies_that_are_not_published_yet_count(nodes: Nodes) -> None:
    api: Api = api_of(nodes.one)
    await api.put("vhost-limits/small/max-bytes", value=MAX_BYTES)
    async with Client(nodes.url("n1"), forward=True, vhost="small") as client:
        for number in range(500):
            request, upload = number + 1, f"u{number % 3}"
            answer = await client.ask(12, request, f"q{number % 4}", upload, number // 12, BODY)
            if answer[0] == 4:
                assert answer[2] == "vhost_full"
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError("it was never full")
        assert number >= MAX_BYTES // len(BODY)
