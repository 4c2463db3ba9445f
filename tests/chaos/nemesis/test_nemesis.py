"""Every kind of fault, once, on three real nodes that take messages meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import quorate
from chaos.history import History
from chaos.live import disks, networks
from chaos.live.live_cluster import EXIT_DAMAGED, LiveCluster
from chaos.live.loop_disks import SETTINGS
from chaos.live.whole import until_whole, why_not_whole
from chaos.nemesis.episodes import Episode, Pace, Target
from chaos.nemesis.mixes import MIXES, VARIANTS
from chaos.nemesis.nemesis import Nemesis
from chaos.nemesis.watch import Watch
from cluster.types import NodeId
from tests.testkit.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.chaos, pytest.mark.timeout(300)]

NAMES = ("node-1", "node-2", "node-3")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    folder = tmp_path_factory.mktemp("nemesis")
    cluster = LiveCluster(
        folder, NAMES, networks.choose(), disks.choose(folder / "disks"), settings=SETTINGS
    )
    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.close()


@asynccontextmanager
async def under_load(cluster: LiveCluster) -> AsyncGenerator[tuple[Nemesis, History]]:
    """Messages flow while the body runs; afterwards every node is a full member again."""
    await cluster.until_ready()
    history = History()
    watch = Watch(cluster, history)
    nemesis = Nemesis(cluster, watch, history, seed=1, mix=MIXES["everything"])
    busy = [asyncio.create_task(watch.run()), asyncio.create_task(publish(cluster))]
    try:
        yield nemesis, history
        assert await nemesis.stop() == []
    finally:
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


async def publish(cluster: LiveCluster) -> None:
    """To a queue that is emptied now and then; whatever fails is tried again."""
    urls = [cluster.url(node) for node in cluster.nodes]
    async with quorate.connect(urls, user="guest", password="guest", timeout=5) as client:
        while True:
            with contextlib.suppress(quorate.QuorateError):
                await client.declare("load")
                await client.publish_many("load", [b"x" * 200] * 100, batch=5)
                await client.purge("load")


async def strike(
    cluster: LiveCluster, kind: str, *, target: Target = "one", variant: str = ""
) -> dict[str, Any]:
    """What the history says of it in the end."""
    async with under_load(cluster) as (nemesis, history):
        if kind in nemesis.not_tried:
            pytest.skip(nemesis.not_tried[kind])
        # Or nobody knows a leader to strike.
        await until(lambda: any(op.f == "leads" for op in history))
        name = f"{kind} {variant} of {target}"
        await nemesis.strike(Episode(name, kind, target, lasts_s=1.5, variant=variant))
        assert nemesis.findings == []
    begun, ended = (op for op in history if op.f == "fault")
    assert (begun.type, ended.type, ended.invoke) == ("invoke", "ok", begun.index)
    assert begun.value["kind"] == kind
    assert set(begun.value["nodes"]) <= set(cluster.nodes)
    return ended.value


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("kill", "leader"),
        ("kill", "all"),
        ("terminate", "leader"),
        ("pause", "leader"),
        ("pause", "majority"),
        ("storm", "all"),
        ("drain", "leader"),
        ("skew_clock", "all"),
        ("wrong_clock", "leader"),
        ("degrade", "all"),
        ("cut_clients", "one"),
        ("slow_disk", "leader"),
        ("lie_fsync", "leader"),
        ("low_disk", "leader"),
        ("fill_disk", "leader"),
        ("power_loss", "leader"),
        ("power_loss_all", "all"),
        ("wipe", "leader"),
        ("old_copy", "leader"),
    ],
)
async def test_nodes_come_back_from(cluster: LiveCluster, kind: str, target: Target):
    await strike(cluster, kind, target=target)


@pytest.mark.parametrize("shape", VARIANTS["partition"])
async def test_nodes_come_back_from_a_cut_of_any_shape(cluster: LiveCluster, shape: str):
    await strike(cluster, "partition", target="leader", variant=shape)


async def test_a_node_that_ends_by_itself_is_a_finding(cluster: LiveCluster):
    await cluster.until_ready()
    history = History()
    watch = Watch(cluster, history)
    pace = Pace(quiet_s=(60.0, 60.0))
    nemesis = Nemesis(cluster, watch, history, seed=1, mix=MIXES["clocks"], pace=pace)
    nemesis.start()
    cluster.kill(NodeId("node-2"))  # by nobody's order, as far as the nemesis knows

    assert await nemesis.stop() == []
    assert [text.partition(" ended")[0] for text in nemesis.findings] == ["by itself, node-2"]


async def test_a_node_ends_itself_when_its_disk_does_not_sync(cluster: LiveCluster):
    told = await strike(cluster, "fail_fsync")

    assert told["detail"]["exit_code"] == 1


async def test_a_flipped_bit_in_the_log_is_named_and_the_node_rebuilt(cluster: LiveCluster):
    told = await strike(cluster, "damage_log_bit")

    assert told["detail"]["place"] is not None
    assert told["detail"]["said"] == told["detail"]["place"]


@pytest.mark.parametrize("kind", ["damage_snapshot_bit", "damage_log_end"])
async def test_a_node_with_other_damage_becomes_a_full_member_again(
    cluster: LiveCluster, kind: str
):
    told = await strike(cluster, kind)

    assert told["detail"]["place"] is not None


async def test_a_segment_that_is_not_the_last_one_may_not_lose_its_end(cluster: LiveCluster):
    node = NodeId("node-2")
    await cluster.until_ready()
    cluster.kill(node)
    cluster.start(node)  # and so begins a new segment
    assert await until_whole(cluster, node) is None
    cluster.kill(node)
    segment = min(cluster.data_folder(node).glob("*.log"))
    left = segment.stat().st_size - 300
    with segment.open("r+b") as file:
        file.truncate(left)
    cluster.start(node)
    assert await cluster.until_ended(node, timeout_s=60)

    assert cluster.exit_code(node) == EXIT_DAMAGED
    assert f"{segment} at offset " in cluster.log_since_start(node)
    cluster.wipe(node)
    cluster.start(node)
    assert await until_whole(cluster, node) is None


async def test_a_crash_is_not_taken_for_damage(cluster: LiveCluster):
    await cluster.until_ready()
    cluster.kill(NodeId("node-1"))

    assert cluster.exit_code(NodeId("node-1")) == -9
    assert await why_not_whole(cluster, NodeId("node-1")) == "node-1 is down"
    cluster.start(NodeId("node-1"))
    assert await until_whole(cluster, NodeId("node-1")) is None


async def test_a_nemesis_that_is_stopped_leaves_all_nodes_whole(cluster: LiveCluster):
    history = History()
    watch = Watch(cluster, history)
    pace = Pace(quiet_s=(0.0, 0.1), lasts_s=(0.1, 0.5))
    nemesis = Nemesis(cluster, watch, history, seed=4, mix=MIXES["processes"], pace=pace)
    await cluster.until_ready()
    nemesis.start()
    await until(lambda: sum(op.f == "fault" and op.type == "invoke" for op in history) >= 3)
    left = await nemesis.stop()

    assert (left, nemesis.findings) == ([], [])
    assert len([op for op in history if op.type == "ok"]) == 3
    assert [await why_not_whole(cluster, node) for node in cluster.nodes] == [None] * 3


async def test_the_watch_says_who_leads(cluster: LiveCluster):
    async with under_load(cluster) as (_, history):
        await until(
            lambda: any(op.f == "leads" and op.value["group"] == "catalog" for op in history)
        )
    leads = [op.value for op in history if op.f == "leads"]

    assert {value["node"] for value in leads} <= set(cluster.nodes)
    assert all(value["term"] >= 1 for value in leads)
