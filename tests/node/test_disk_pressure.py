"""Nodes on small volumes, real file systems: what is full of what nobody needs any more is emptied,
and publishing goes on by itself.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.catalog.placement import preferred_leader
from cluster.cluster_node import ClusterNode
from tests.node.nodes import Client, Nodes, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system: needs root")

MIB = 1 << 20
BODY = bytes(range(256)) * 256  # 64 KiB
#: What an operator has who sets nothing.
BY_DEFAULT: dict[str, Any] = {"log.min_free_bytes": None}


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Volumes in memory of so many MB; gone with the test."""
    mounted = list[Path]()

    def mount(megabytes: int) -> Path:
        folder = tmp_path / f"volume-{len(mounted)}"
        folder.mkdir()
        size = f"size={megabytes}M"
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True, timeout=60
        )
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=60)


class Publisher:
    """Publishes and consumes over one connection, with numbers of its own."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._request = 0
        self._consumers: dict[str, int] = {}

    def request(self) -> int:
        self._request += 1
        return self._request

    async def publish(self, queue: str) -> bool:
        """False: the disk is full."""
        answer = await self.client.publish(queue, BODY, request=self.request())
        assert answer[0] == 11 or answer[2] == "disk_full", answer
        return answer[0] == 11

    async def fill(self, *queues: str, most: int = 10_000) -> int:
        """One to each in turn until it is refused; how many were taken."""
        for count in range(most):
            if not await self.publish(queues[count % len(queues)]):
                return count
        raise AssertionError("the volume never was full")

    async def drain(self, queue: str, count: int) -> None:
        """Consume and settle so many."""
        if queue not in self._consumers:
            options = {"tag": queue, "credit": 100}
            answer = await self.client.ask(20, self.request(), queue, options)
            self._consumers[queue] = answer[2]
        consumer, taken = self._consumers[queue], 0
        while taken < count:
            got = await self.client.deliveries(1)
            assert all(body == BODY for _, body in got)
            settled = [[got[0][0], got[-1][0]]]
            answer = await self.client.ask(30, self.request(), queue, consumer, settled)
            assert answer[0] == 3, answer
            taken += len(got)


def preferred(cluster: ClusterNode) -> bool:
    """Its groups are led by who is to lead them, so leaderships stay where they are."""
    groups = cluster.groups.values()
    return all(g.leader == preferred_leader(g.id, g.configuration.voters) for g in groups)


async def publishes_again(nodes: Nodes, publisher: Publisher, queue: str) -> None:
    await until(lambda: not any(node.alarms.blocked for node in nodes.nodes.values()))
    assert await publisher.publish(queue)


@pytest.mark.parametrize("megabytes", [50, 70])
async def test_a_volume_that_was_full_takes_publishes_again_each_time_it_is_consumed(
    volume: Callable[[int], Path], megabytes: int
):
    async with Nodes(volume(megabytes), **BY_DEFAULT) as nodes:
        await nodes.declare("orders")
        async with Client(nodes.url("n1")) as client:
            publisher = Publisher(client)
            for turn in range(3):
                count = await publisher.fill("orders")
                assert turn or count * len(BODY) > megabytes * MIB * 0.6
                await publisher.drain("orders", count)
                await publishes_again(nodes, publisher, "orders")
                await publisher.drain("orders", 1)


@pytest.mark.parametrize("how", ["purge", "delete"])
async def test_so_it_does_when_its_queues_are_purged_or_deleted(
    volume: Callable[[int], Path], how: str
):
    queues = [f"q{number}" for number in range(12)]
    async with Nodes(volume(64), **BY_DEFAULT) as nodes:
        for queue in queues:
            await nodes.declare(queue, queue_group="dedicated")
        async with Client(nodes.url("n1")) as client:
            publisher = Publisher(client)
            await publisher.fill(*queues)
            broker = nodes.one.broker
            for queue in queues[1:]:
                if how == "purge":
                    await broker.purge(await broker.find("/", queue))
                else:
                    await broker.delete("/", queue, if_unused=False, if_empty=False)
            await publishes_again(nodes, publisher, queues[0])


async def test_a_node_that_stopped_with_its_volume_full_starts_and_is_emptied(
    volume: Callable[[int], Path],
):
    folder = volume(64)
    async with Nodes(folder, **BY_DEFAULT) as nodes:
        await nodes.declare("orders")
        async with Client(nodes.url("n1")) as client:
            count = await Publisher(client).fill("orders")
        left = os.statvfs(folder)  # of that, others take all but a MiB
        (folder / "others").write_bytes(bytes(left.f_bavail * left.f_frsize - MIB))
        for _ in range(5):  # each start takes some room
            await nodes.stop("n1")
            await nodes.start("n1")
            await until(nodes.settled)
        assert nodes.one.alarms.blocked
        async with Client(nodes.url("n1")) as client:
            publisher = Publisher(client)
            await publisher.drain("orders", count)
            await publishes_again(nodes, publisher, "orders")


async def test_every_node_makes_room_on_its_own_volume(
    volume: Callable[[int], Path], tmp_path: Path
):
    """Three volumes of different sizes; the smallest makes publishers wait."""
    folders = {f"n{number}": volume(size) for number, size in enumerate((50, 64, 90), start=1)}
    for name, folder in folders.items():
        (tmp_path / name).symlink_to(folder)
    async with Nodes(tmp_path, 3, balance_after_s=0.5, **BY_DEFAULT) as nodes:
        queues = ["a", "b", "c"]
        for queue in queues:
            await nodes.declare(queue)
        await until(lambda: all(preferred(node.cluster) for node in nodes.nodes.values()))
        for _ in range(2):
            for queue in queues:
                async with Client(nodes.url(await nodes.leader(queue))) as client:
                    publisher = Publisher(client)
                    count = await publisher.fill(queue)
                    await publisher.drain(queue, count)
                    await publishes_again(nodes, publisher, queue)
                    await publisher.drain(queue, 1)
