"""A queue that the catalog lost with a majority, and another one that has its name since."""

from __future__ import annotations

from pathlib import Path

from cluster.machine.commands import CreateQueue, Enqueue, QueueConfig
from cluster.types import QueueId
from tests.node.nodes import Nodes, machine_of
from tests.testkit.waiting import stays, until


async def test_when_it_expires_the_other_one_stays(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        await nodes.declare("q")
        cluster = nodes.one.cluster
        info = cluster.queue_info("/", "q")
        assert info is not None
        await cluster.ask(info.group, Enqueue(info.queue, None, 0, [b"x"]))
        lost = QueueId(info.queue + 1_000)
        config = QueueConfig(expires_ms=1)
        await cluster.ask(info.group, CreateQueue(lost, "/", "q", config))

        _, machine = machine_of(nodes, "q")
        await until(lambda: machine.find(lost).lifetime.reported_ms is not None)
        await stays(lambda: cluster.queue_info("/", "q") == info)
        assert machine.queue(info.queue).ready_count == 1
