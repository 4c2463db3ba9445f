"""Nodes of several releases in one cluster: a group does what all of its members can run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.catalog.upgrading import HOLD
from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import PutEntry, UpgradeMachine
from cluster.raft.member import Role
from cluster.types import GroupId, NodeId
from tests.cluster.world import MakeWorld, World

pytestmark = pytest.mark.virtual_time


def release(version: int) -> dict[str, Any]:
    """What a node is configured with that runs machines up to this version."""
    catalog = type("Catalog", (CatalogMachine,), {"newest": version})
    queues = type("Queues", (QueueMachine,), {"newest": version})
    return {"machines": (catalog, queues)}


NOW, OLDER, NEWER = release(MACHINE_VERSION), release(1), release(MACHINE_VERSION + 1)


def versions(world: World) -> set[int]:
    """Of every copy of every group."""
    return {
        group.machine.version for node in world.nodes.values() for group in node.groups.values()
    }


async def mixed(make_world: MakeWorld) -> World:
    """A cluster of the older release, two thirds rolled."""
    world = make_world()
    await world.start(**OLDER)
    await world.settled()
    for name in ("n1", "n2"):
        await rolled(world, name, NOW)
    await asyncio.sleep(5)
    return world


async def rolled(world: World, name: str, release: dict[str, Any]) -> None:
    await world.nodes.pop(name).stop()
    await world.start(name, **release)
    await world.settled()


async def held(world: World, version: int) -> None:
    hold = PutEntry("parameters", HOLD, {"value": version})
    assert (await world.any.change(hold)).kind == "ok"


async def test_a_new_cluster_runs_the_newest_version(world: World) -> None:
    await world.until(lambda: versions(world) == {MACHINE_VERSION})


async def test_no_machine_passes_what_every_member_can_run(make_world: MakeWorld) -> None:
    world = await mixed(make_world)
    assert versions(world) == {1}


async def test_what_an_older_member_cannot_run_is_refused_and_not_written(
    make_world: MakeWorld,
) -> None:
    world = await mixed(make_world)
    group = world.group(1)
    before = group.last_index

    outcome = await group.ask(UpgradeMachine(MACHINE_VERSION))

    assert (outcome.kind, outcome.code) == ("refused", "not_upgraded")
    assert f"needs machine version {MACHINE_VERSION}" in str(outcome.reason)
    assert group.last_index == before


async def test_the_version_rises_when_the_last_older_node_has_come_back_newer(
    make_world: MakeWorld,
) -> None:
    world = await mixed(make_world)
    led = [g for g in world["n1"].groups if world.leading(g) != "n3"]
    terms = {group: world.group(group).term for group in led}
    await rolled(world, "n3", NOW)

    await world.until(lambda: versions(world) == {MACHINE_VERSION})

    assert {group: world.group(group).term for group in led} == terms, "no election was needed"


async def test_an_operator_holds_the_version_until_he_lets_it_go(world: World) -> None:
    await world.until(lambda: versions(world) == {MACHINE_VERSION})
    await held(world, MACHINE_VERSION)
    for name in world.names:
        await rolled(world, name, NEWER)
    await asyncio.sleep(5)
    assert versions(world) == {MACHINE_VERSION}

    await held(world, MACHINE_VERSION + 1)

    await world.until(lambda: versions(world) == {MACHINE_VERSION + 1})


async def test_nodes_are_rolled_to_a_newer_release_and_back_as_long_as_one_is_older(
    world: World,
) -> None:
    await world.declare("q")
    for name in ("n1", "n2"):
        await rolled(world, name, NEWER)
        await world.publish("q", name.encode())
    await asyncio.sleep(5)
    assert versions(world) == {MACHINE_VERSION}
    for name in ("n1", "n2"):
        await rolled(world, name, NOW)
        await world.publish("q", name.encode())
    assert world.ready("q", str(world.leading(world.group_of("q")))) == 4


# --- what is beyond a release


async def outgrown(make_world: MakeWorld) -> World:
    """All but n3, which is down, run the newer release and its machine version."""
    world = await make_world().born()
    await world.declare("q")
    await world.publish("q", b"1")
    for name in ("n1", "n2"):
        await rolled(world, name, NEWER)
    await world.nodes.pop("n3").stop()
    await world.start("n3", **NEWER)
    await world.until(lambda: versions(world) == {MACHINE_VERSION + 1})
    await world.nodes.pop("n3").stop()
    await world.settled()
    await world.publish("q", b"2")
    return world


async def failed(world: World, name: str) -> str:
    """Why the node ended, which takes itself out."""
    node = world[name]
    await world.until(lambda: node.failed is not None)
    await world.nodes.pop(name).stop()
    return str(node.failed)


def stopped(world: World, name: str) -> bool:
    """Its copy of the group of queues."""
    group = world[name].groups.get(GroupId(1))
    return group is not None and group.poisoned is not None


async def test_an_older_release_ends_before_a_newer_catalog_and_the_newer_one_goes_on(
    make_world: MakeWorld,
) -> None:
    world = await outgrown(make_world)
    await world.start("n3", **NOW)

    assert f"needs machine version {MACHINE_VERSION + 1}" in await failed(world, "n3")

    await world.start("n3", **NEWER)
    await world.until(lambda: world.ready("q", "n3") == 2)


async def test_a_copy_neither_applies_nor_acknowledges_what_a_later_release_wrote(
    make_world: MakeWorld,
) -> None:
    """Only the group of queues has risen: the node stays, and says which copy stopped."""
    world = make_world(default_groups=1)
    await world.start("n1", "n2", machines=(NOW["machines"][0], NEWER["machines"][1]))
    await world.start("n3", **NOW)
    await world.settled()
    await world.declare("q")
    await world.publish("q", b"1")
    await world.until(lambda: all(world.ready("q", name) == 1 for name in world.names))
    copy = world["n3"].groups[GroupId(1)]
    leader = world.group(1)
    if leader.node == "n3":
        leader.transfer(NodeId("n1"))
        await world.until(lambda: world.leading(1) == "n1")
        leader = world.group(1)
    before, applied = copy.last_index, copy.applied_index

    leader.version_of_members = lambda: MACHINE_VERSION + 1
    leader.upgrade_machine()
    await world.until(lambda: leader.machine.version == MACHINE_VERSION + 1)
    await world.publish("q", b"2")
    await world.until(lambda: copy.poisoned is not None)
    await asyncio.sleep(3)

    assert copy.status()["needs_version"] == MACHINE_VERSION + 1
    assert (copy.last_index, copy.applied_index) == (before, applied)
    assert leader.lag()[NodeId("n3")] == leader.last_index - before
    assert world.ready("q", "n3") == 1
    assert world["n3"].failed is None
    assert copy.role is Role.FOLLOWER

    await world.nodes.pop("n3").stop()
    await world.start("n3", machines=(NOW["machines"][0], NEWER["machines"][1]))
    await world.until(lambda: world.ready("q", "n3") == 2)


async def test_a_snapshot_of_a_later_release_stops_the_copy_and_not_the_node(
    make_world: MakeWorld,
) -> None:
    newer = (NOW["machines"][0], NEWER["machines"][1])
    world = make_world(default_groups=1, snapshot_entries=20)
    await world.start("n1", "n2", machines=newer)
    await world.start("n3", **NOW)
    await world.settled()
    await world.declare("q")
    await world.nodes.pop("n3").stop()
    await world.settled()
    leader = world.group(1)
    leader.version_of_members = lambda: MACHINE_VERSION + 1
    leader.upgrade_machine()
    for number in range(60):
        await world.publish("q", b"%d" % number)
    await world.until(lambda: leader.journal.base_index > 20)

    await world.start("n3", **NOW)
    await world.until(lambda: stopped(world, "n3"))
    await asyncio.sleep(5)
    status = world["n3"].groups[GroupId(1)].status()
    assert status["needs_version"] == MACHINE_VERSION + 1
    assert world["n3"].failed is None

    for release in (newer, NOW["machines"], newer):  # back again: it has the snapshot on its disk
        await world.nodes.pop("n3").stop()
        await world.start("n3", machines=release)
        if release is newer:
            await world.until(lambda: world.ready("q", "n3") == 60)
        else:
            await world.until(lambda: stopped(world, "n3"))
            await asyncio.sleep(5)
            assert world["n3"].failed is None
