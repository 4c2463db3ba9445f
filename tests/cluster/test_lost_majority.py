"""Two of three disks are gone for good: a person may order the rest to go on."""

from __future__ import annotations

import asyncio
from typing import Any

from cluster.log import Identity, Log
from cluster.log.disk import SystemClock
from cluster.log.memory_disk import MemoryDisk
from cluster.lost_majority import examine, give_up
from cluster.machine.commands import MoveGroup, RemoveNode
from cluster.types import CATALOG_GROUP, NodeId
from tests.cluster.test_membership import changed, join, moved, voters
from tests.cluster.world import World, in_world

NODES = ("n1", "n2", "n3")


async def order(world: World, node: str, *lost: str) -> list[str]:
    """As the command does it; the groups that were in need."""
    founders = [NodeId(name) for name in world.founders]
    identity = Identity(node, "test")
    log = await Log.open("/data", disk=world.disks[node], clock=SystemClock(), identity=identity)
    gone = [NodeId(each) for each in lost]
    catalog, found = examine(log, founders, gone)
    give_up(log, found, catalog, NodeId(node), gone)
    log.write()
    await log.sync()
    await log.close()
    return [each.name for each in found]


@in_world
async def test_the_only_survivor_goes_on_with_what_it_has() -> None:
    world = await World(default_groups=2).born()
    await world.declare("q")
    for number in range(20):
        await world.publish("q", b"%d" % number)
    await world.until(lambda: all(world.ready("q", name) == 20 for name in NODES))
    group = world.group_of("q")
    for name in NODES:
        world.kill(name)
    needy = await order(world, "n2", "n1", "n3")
    assert sorted(needy) == ["catalog", "default-1", "default-2"]

    await world.start("n2")
    await world.until(lambda: world.leading(group) == "n2")
    assert world.ready("q", "n2") == 20
    await world.publish("q", b"more")

    # The others come back with empty disks, and are members again by themselves.
    for name in ("n1", "n3"):
        world.disks[name] = MemoryDisk()
        await world.start(name)
    await world.until(lambda: world.ready("q", "n1") == 21 and world.ready("q", "n3") == 21)
    await world.until(lambda: set(voters(world, group)) == {"n1", "n2", "n3"}, 60)
    await world.until(lambda: set(voters(world, CATALOG_GROUP)) == {"n1", "n2", "n3"}, 60)
    await world.stop()


@in_world
async def test_of_two_survivors_the_one_that_has_more_leads() -> None:
    world = World(5, default_groups=1, replication=5)
    await world.born()
    await world.declare("q")
    await world.publish("q", b"1")
    group = world.group_of("q")
    await world.until(lambda: all(world.ready("q", name) == 1 for name in world.names))
    behind = next(name for name in world.names if name != world.leading(group))
    world.kill(behind)
    ahead = next(n for n in world.names if n not in (behind, world.leading(group)))
    for number in range(5):
        await world.publish("q", b"%d" % number)
    await world.until(lambda: world.ready("q", ahead) == 6)
    for name in list(world.nodes):
        world.kill(name)
    lost = [name for name in world.names if name not in (ahead, behind)]
    for name in (ahead, behind):
        await order(world, name, *lost)

    await world.start(ahead, behind)
    await world.until(lambda: world.leading(group) is not None)
    await world.until(lambda: world.ready("q", behind) == 6)
    for name in lost:
        await changed(world, RemoveNode(NodeId(name)))
    await world.until(lambda: set(voters(world, CATALOG_GROUP)) == {ahead, behind}, 60)
    await world.until(lambda: set(voters(world, group)) == {ahead, behind}, 60)
    await world.publish("q", b"more")
    await world.stop()


@in_world
async def test_the_lost_may_leave_though_the_survivor_never_heard_who_the_last_members_were() -> (
    None
):
    world = await World(default_groups=1).born()
    await world.declare("q")
    for name in ("n4", "n5"):
        await join(world, name)
    group = world.group_of("q")
    await moved(world, group, *world.names)

    def to_survivor(peer: str, message: list[Any]) -> bool:
        return peer == "n5" and message[:2] in ([group, "ae"], [group, "si"])

    for links in world.links.values():
        links.drop = to_survivor
    last = world["n5"].groups[group].last_index
    for _ in range(40):
        await world.publish("q", b"lost")
    await changed(world, MoveGroup(group, [NodeId(name) for name in ("n1", "n2", "n3", "n5")]))
    await world.until(lambda: world["n5"].catalog_machine.group(group).held_at > last)  # type: ignore[union-attr]
    await asyncio.sleep(1)
    for name in list(world.nodes):
        world.kill(name)
    await order(world, "n5", "n1", "n2", "n3", "n4")

    await world.start("n5")
    await world.until(lambda: world.leading(group) == "n5")
    for name in ("n1", "n2", "n3", "n4"):
        await changed(world, RemoveNode(NodeId(name)))
    await asyncio.sleep(10)
    for _ in range(60):
        await world.publish("q", b"more")
    await world.until(
        lambda: [info.node for info in world.any.catalog_machine.nodes()] == ["n5"], 60
    )
    await world.stop()
