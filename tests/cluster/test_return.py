"""A node that was removed is let in again, with the folder that it had or an empty one."""

from __future__ import annotations

import pytest

from cluster.log.memory_disk import MemoryDisk
from cluster.machine.commands import AddNode, RemoveNode
from cluster.types import CATALOG_GROUP, NodeId
from tests.cluster.test_membership import changed, join, moved, voters
from tests.cluster.world import World, in_world


@pytest.mark.parametrize("folder", ["kept", "empty"])
@pytest.mark.parametrize("died", [False, True])
def test_a_removed_node_comes_back_and_takes_its_group_again(folder: str, died: bool) -> None:
    @in_world
    async def scenario() -> None:
        world = await World(default_groups=1).born()
        await world.declare("q")
        await world.publish("q", b"1")
        await join(world, "n4")
        if died:
            world.kill("n1")
            await world.until(lambda: world.leading(world.group_of("q")) is not None)
            await world.until(lambda: world.any.leader_of(world.group_of("q")) != "n1")
            await world.publish("q", b"2")
        await changed(world, RemoveNode(NodeId("n1")))
        await world.until(lambda: set(voters(world, CATALOG_GROUP)) == {"n2", "n3", "n4"}, 60)
        if not died:
            await world.until(lambda: world["n1"].left, 60)
            await world.nodes.pop("n1").stop()
            world.links.pop("n1")
            await world.publish("q", b"2")
        await world.until(
            lambda: all(info.node != "n1" for info in world.any.catalog_machine.nodes()), 60
        )
        if folder == "empty":
            world.disks["n1"] = MemoryDisk()

        await changed(world, AddNode(NodeId("n1"), {"peer": "n1:70"}))
        await world.start("n1")
        await world.until(lambda: "n1" in voters(world, CATALOG_GROUP), 60)
        await moved(world, world.group_of("q"), "n1", "n2", "n3")
        await world.publish("q", b"3")
        await world.until(lambda: world.ready("q", "n1") == 3)
        assert not world["n1"].left
        await world.stop()

    scenario()
