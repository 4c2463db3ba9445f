"""A node that was removed is let in again, with the folder that it had or an empty one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cluster.groups.group import Role
from cluster.log.reader import detail, read
from cluster.machine.commands import AddNode, MoveGroup, OpenSession, RemoveNode
from cluster.types import CATALOG_GROUP, NodeId, SessionId
from tests.cluster.test_membership import changed, holders, join, moved, voters
from tests.cluster.world import MakeWorld, World
from tests.log.memory_disk import MemoryDisk

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("folder", ["kept", "empty"])
@pytest.mark.parametrize("died", [False, True])
async def test_a_removed_node_comes_back_and_takes_its_group_again(
    make_world: MakeWorld, folder: str, died: bool
) -> None:
    world = await make_world(default_groups=1).born()
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


async def test_copies_that_begin_anew_elect_nobody_among_themselves_after_a_restart_either(
    make_world: MakeWorld,
) -> None:
    """The founders of a group dropped their copies and get it again. What they know until they hear
    of more is that they founded it.
    """
    world = await make_world(default_groups=1).born()
    await world.declare("q")
    await world.publish("q", b"1")
    for name in ("n4", "n5", "n6"):
        await join(world, name)
    group = world.group_of("q")
    await moved(world, group, "n4", "n5", "n6")

    def to_founders(peer: str, message: list[Any]) -> bool:
        return message[:2] in ([group, "ae"], [group, "si"]) and peer in world.founders

    for name in ("n4", "n5", "n6"):
        world.links[name].drop = to_founders
    await changed(world, MoveGroup(group, [NodeId(name) for name in world.founders]))
    await world.until(lambda: {"n1", "n2"} <= holders(world, group))
    await asyncio.sleep(1)
    for name in ("n1", "n2"):
        world.kill(name)
        world.cut |= {frozenset((name, other)) for other in ("n3", "n4", "n5", "n6")}
    await world.start("n1", "n2")
    await asyncio.sleep(10)
    assert not any(world[name].groups[group].ready for name in ("n1", "n2"))

    for name in ("n4", "n5", "n6"):
        world.links[name].drop = lambda _peer, _message: False
    world.heal()
    await world.until(lambda: set(voters(world, group)) == {"n1", "n2", "n3"}, 60)
    await world.until(lambda: world.ready("q", "n1") == 1)


async def test_a_node_that_comes_back_waits_for_the_others_before_it_says_that_it_left(
    make_world: MakeWorld,
) -> None:
    """What its own folder says last is that it leaves; that it was let in again is news."""
    world = await make_world(default_groups=1).born()
    await join(world, "n4")
    await changed(world, RemoveNode(NodeId("n1")))
    await world.until(lambda: world["n1"].left, 60)
    await world.nodes.pop("n1").stop()
    world.links.pop("n1")
    await world.until(
        lambda: all(info.node != "n1" for info in world.any.catalog_machine.nodes()), 60
    )
    await changed(world, AddNode(NodeId("n1"), {"peer": "n1:70"}))
    world.cut |= {frozenset(("n1", other)) for other in ("n2", "n3", "n4")}
    await world.start("n1")
    for _ in range(300):
        await asyncio.sleep(0.01)
        assert not world["n1"].left
    world.heal()
    await world.until(lambda: "n1" in voters(world, CATALOG_GROUP), 60)
    assert not world["n1"].left


async def test_who_drops_the_copy_that_it_led_tells_its_clients(make_world: MakeWorld) -> None:
    world = await make_world(default_groups=1).born()
    await world.declare("q")
    group = world.group_of("q")
    leader = world[world.leading(group) or ""]
    told: list[Role] = []
    leader.on_role.append(lambda _group, role, _term: told.append(role))
    leader.drop_group(group)
    assert told == [Role.FOLLOWER]


@pytest.mark.parametrize("folder", ["kept", "empty"])
async def test_a_node_whose_clock_had_been_ahead_is_known_by_a_higher_number_than_before(
    make_world: MakeWorld, folder: str
) -> None:
    """Starts are numbered by the clock when the folder does not know better."""

    def incarnation(world: World) -> int:
        info = world.any.catalog_machine.node(NodeId("n3"))
        return 0 if info is None else info.incarnation

    world = make_world(default_groups=1)
    world._starts = 1_000
    await world.born()
    await world.declare("q")
    await world.publish("q", b"1")
    before = world["n3"].links.incarnation
    await world.until(lambda: incarnation(world) == before)
    world.kill("n3")
    if folder == "empty":
        world.disks["n3"] = MemoryDisk()
    world._starts = 0
    for _ in range(2):
        await world.start("n3")
        await world.until(lambda: world.ready("q", "n3") == 1)
        await world.until(lambda before=before: incarnation(world) > before)
        now = world["n3"].links.incarnation
        assert incarnation(world) == now
        await world.until(lambda: set(world.any.peers.states) == {"n1", "n2", "n3"})
        assert world.any.peers.states[NodeId("n3")].incarnation == now
        opened = OpenSession(SessionId(f"s-{now}"), NodeId("n3"), now)
        outcome = await world["n3"].ask(world.group_of("q"), opened)
        assert outcome.kind == "ok", outcome
        noted = [r for r in read("/data", disk=world.disks["n3"]) if r.kind == "started"]
        start, *_ = cast("list[int]", detail(noted[-1]))
        assert start == now
        outcome = await world["n3"].declare_queue(
            "/", f"t-{now}", {}, durable=False, transient=True, owner="c"
        )
        assert outcome.kind == "ok", outcome
        world.kill("n3")
        before = now
