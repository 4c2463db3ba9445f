"""Consumers that crash: only what was handed to the network was delivered, wherever they are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.machine.consumers import UNLIMITED_CREDIT
from cluster.machine.interface import Row
from tests.node.nodes import Client, Nodes, machine_of, until

MESSAGES = 6_000
LARGE = b"x" * 20_000
SMALL = b"x" * 100


def rows(nodes: Nodes, queue: str) -> Sequence[Row]:
    number, machine = machine_of(nodes, queue)
    return machine.browse(number, 1, MESSAGES)


async def fill(nodes: Nodes, queue: str, body: bytes, count: int) -> None:
    async with Client(nodes.url(await nodes.leader(queue))) as client:
        for _ in range(count // 200):
            await client.publish(queue, *[body] * 200)


async def crash(client: Client) -> None:
    """Reset, with much unread."""
    connection = client.socket._response.connection
    assert connection is not None
    assert connection.transport is not None
    connection.transport.abort()
    await client._http.close()


async def take_one_and_crash(nodes: Nodes, url: str, queue: str, **hello: Any) -> None:
    client = await Client(url, **hello).__aenter__()
    await client.ask(20, 2, queue, {"credit": 0})
    await client.expect(24)
    await crash(client)
    number, machine = machine_of(nodes, queue)
    await until(lambda: not machine.queue(number).consumers)


async def test_what_never_left_is_as_new(tmp_path: Path) -> None:
    """40 MB were assigned, of which the network took a part."""
    async with Nodes(tmp_path) as nodes:
        await nodes.declare("large", delivery_limit=1)
        await fill(nodes, "large", LARGE, 3_000)

        for _ in range(3):
            await take_one_and_crash(nodes, nodes.url("n1"), "large")

        left = rows(nodes, "large")
        new = [row for row in left if not row.chunk.acquired_count and not row.chunk.delivery_count]
        # Three times what fits into the buffers of two kernels and a frame or two.
        assert len(new) > 1_500
        assert {row.state for row in left} == {"ready"}


async def test_a_loop_of_crashes_leaves_the_backlog(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        await nodes.declare("small", delivery_limit=2)
        await fill(nodes, "small", SMALL, MESSAGES)

        for _ in range(3):
            await take_one_and_crash(nodes, nodes.url("n1"), "small")

        assert len(rows(nodes, "small")) >= MESSAGES - UNLIMITED_CREDIT


async def test_the_node_of_the_client_tells_it_to_the_leader(tmp_path: Path) -> None:
    """A consumer whose queue is led elsewhere: what the leader sent to its node may not have left
    that node.
    """
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("far", delivery_limit=1)
        leader = await nodes.leader("far")
        other = next(name for name in nodes.nodes if name != leader)
        await fill(nodes, "far", LARGE, 3_000)

        for _ in range(3):
            await take_one_and_crash(nodes, nodes.url(other), "far", forward=True)

        left = rows(nodes, "far")
        new = [row for row in left if not row.chunk.acquired_count and not row.chunk.delivery_count]
        assert len(new) > 1_500


async def test_who_settles_nothing_gets_all_of_a_queue_without_a_delivery_limit(
    tmp_path: Path,
) -> None:
    async with Nodes(tmp_path) as nodes:
        await nodes.declare("all", queue_type="classic")
        await fill(nodes, "all", SMALL, MESSAGES)
        async with Client(nodes.url("n1")) as client:
            await client.ask(20, 2, "all", {"credit": 0})
            got = await client.deliveries(MESSAGES)
        assert [position for position, _ in got] == list(range(1, MESSAGES + 1))


async def test_who_resumes_elsewhere_gets_on_after_a_window(tmp_path: Path) -> None:
    """The next leader was told nothing yet of what the last one sent."""
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("moves", queue_type="classic")
        leader = await nodes.leader("moves")
        other = next(name for name in nodes.nodes if name != leader)
        await fill(nodes, "moves", SMALL, 1_000)
        async with Client(nodes.url(other), forward=True) as client:
            await client.ask(20, 2, "moves", {"credit": 0})
            await client.deliveries(1_000)
            group = nodes.one.broker.locate("/", "moves").group  # type: ignore[union-attr]
            nodes.nodes[leader].cluster.groups[group].transfer(None)
            await until(lambda: nodes.nodes[other].cluster.leader_of(group) not in (leader, None))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fill(nodes, "moves", SMALL, 5_000))
                got = await client.deliveries(5_000)
        assert [position for position, _ in got] == list(range(1_001, MESSAGES + 1))
