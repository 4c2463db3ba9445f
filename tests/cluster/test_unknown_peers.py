"""A node that was removed from the cluster, and cannot know it, is told by the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from cluster.agreed_time import CLOCK_CONFIRM_MS
from cluster.machine.commands import AddNode, RemoveNode
from cluster.seams import Down
from cluster.types import CATALOG_GROUP, NodeId
from tests.cluster.test_lost_majority import order
from tests.cluster.test_membership import changed, join, voters
from tests.cluster.world import MakeWorld, World
from tests.log.memory_disk import MemoryDisk

pytestmark = pytest.mark.virtual_time


async def without(make_world: MakeWorld, name: str) -> World:
    """A cluster of which this node was removed while it was down."""
    world = await make_world(default_groups=1).born()
    await join(world, "n4")
    world.kill(name)
    await changed(world, RemoveNode(NodeId(name)))
    await world.until(lambda: state(world, name) == {"removed"}, 60)
    await world.until(lambda: all(NodeId(name) not in n.links.peers() for n in others(world)))
    return world


def state(world: World, name: str) -> set[str | None]:
    infos = [node.catalog_machine.node(NodeId(name)) for node in others(world)]
    return {None if info is None else info.state for info in infos}


def others(world: World) -> list[Any]:
    return list(world.nodes.values())


@pytest.mark.parametrize("folder", ["kept", "empty"])
@pytest.mark.parametrize("name", ["n1", "n3"])
async def test_a_node_that_was_removed_while_it_was_down_is_told_when_it_starts(
    make_world: MakeWorld, name: str, folder: str
) -> None:
    """Simulator seed 668054348: on an empty folder it waited for a majority for ever."""

    world = await without(make_world, name)
    if folder == "empty":
        world.disks[name] = MemoryDisk()
    with capture_logs() as logs:
        await world.start(name)
        await world.until(lambda: world[name].left, 60)
    assert [line["node"] for line in logs if line["event"] == "removed_from_cluster"] == [name]

    # And it was a guest: nobody counts it, nor what it said.
    await world.nodes.pop(name).stop()
    world.links.pop(name)
    await asyncio.sleep(20)
    assert state(world, name) == {"removed"}
    for node in others(world):
        assert name not in node.links.peers()
        assert name not in node.peers.states
        assert name not in node.catalog.members


async def test_a_member_that_lags_tells_nobody_that_it_was_removed(make_world: MakeWorld) -> None:
    """n2 does not hear that n1 was let in again."""
    world = await without(make_world, "n1")
    world.cut = {frozenset(("n2", "n3")), frozenset(("n2", "n4"))}
    for other in ("n3", "n4"):
        world.break_link("n2", other, Down.SILENT)
    await world.until(lambda: world["n3"].catalog.ready or world["n4"].catalog.ready, 60)
    outcome = await world["n3"].change(AddNode(NodeId("n1"), {"peer": "n1:70"}))
    assert outcome.kind == "ok", outcome
    lagging = world["n2"].catalog_machine.node(NodeId("n1"))
    assert lagging is not None
    assert lagging.state == "removed"

    world.cut |= {frozenset(("n1", "n3")), frozenset(("n1", "n4"))}
    await world.start_empty("n1")
    await world.until(lambda: NodeId("n2") in world.links["n1"].up)
    for _ in range(1_000):
        await asyncio.sleep(0.02)
        assert not world["n1"].unknown_peers.removal_heard
    world.heal()
    await world.until(lambda: "n1" in voters(world, CATALOG_GROUP), 60)
    await world.until(lambda: world.links["n1"].up.keys() == {"n2", "n3", "n4"}, 60)
    assert not world["n1"].unknown_peers.removal_heard
    assert not world["n1"].left


async def test_a_removed_node_that_is_to_join_waits_to_be_let_in_again(
    make_world: MakeWorld,
) -> None:
    world = await without(make_world, "n3")
    with capture_logs() as logs:
        world.disks["n3"] = MemoryDisk()
        world.founders.remove("n3")
        await world.start("n3")
        await world.until(lambda: world["n3"].unknown_peers.removal_heard, 60)
        await asyncio.sleep(40)
    assert not world["n3"].left
    waits = [line["reason"] for line in logs if line["event"] == "waiting_to_be_let_in"]
    assert waits[-1] == (
        "it was removed from the cluster; the others wait for `quorate node add n3 n3:70`"
    )
    await changed(world, AddNode(NodeId("n3"), {"peer": "n3:70"}))
    await world.until(lambda: "n3" in voters(world, CATALOG_GROUP), 60)
    assert not world["n3"].left


async def test_a_removed_node_that_was_declared_lost_is_not_told_that_others_have_what_it_had(
    make_world: MakeWorld,
) -> None:
    world = await make_world(default_groups=1).born()
    await world.declare("q")
    await world.publish("q", b"one")
    group = world.group_of("q")
    for name in ("n1", "n2", "n3"):
        world.kill(name)
    await order(world, "n2", "n1", "n3")
    await world.start("n2")
    await world.until(lambda: world.leading(group) == "n2")
    await changed(world, RemoveNode(NodeId("n1")))
    await world.until(lambda: state(world, "n1") == {"removed"}, 60)
    await world.until(lambda: NodeId("n1") not in world.links["n2"].peers())
    await world.start("n1")
    await world.until(lambda: world["n1"].failed is not None or world["n1"].left, 60)
    assert "declared lost" in str(world["n1"].failed)
    assert not world["n1"].left

    # With an empty folder there is nothing to be kept.
    await world.nodes.pop("n1").stop(transfer=False)
    world.links.pop("n1")
    await world.start_empty("n1")
    await world.until(lambda: world["n1"].failed is not None or world["n1"].left, 60)
    assert world["n1"].left


async def test_the_clock_of_a_guest_is_not_missed(make_world: MakeWorld) -> None:
    """Two of three members agree, whoever calls beside them."""
    world = await without(make_world, "n3")
    world.kill("n4")
    for name in ("n1", "n2"):
        world[name]._clock.skew_ms = 3_600_000  # type: ignore[attr-defined]
    await world.start("n3")
    await world.until(lambda: NodeId("n3") in world.links["n1"].peers())
    await asyncio.sleep(CLOCK_CONFIRM_MS / 1000 + 3)
    assert NodeId("n3") in world.links["n1"].up
    assert not any(world[name].time.out_of_bounds for name in ("n1", "n2"))


async def test_what_a_guest_knows_of_a_stop_of_all_is_not_waited_for(make_world: MakeWorld) -> None:
    world = await without(make_world, "n3")
    for name in ("n1", "n2", "n4"):
        world.kill(name)
    await world.start("n1", "n2", "n4")
    await world.until(lambda: NodeId("n3") not in world.links["n1"].peers())
    await world.start("n3")
    began_s = world.loop.time()
    await world.until(
        lambda: all(world[name].continuity.continuous for name in ("n1", "n2", "n4")), 60
    )
    assert world.loop.time() - began_s < 5
