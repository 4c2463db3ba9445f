"""Nodes of several releases in one cluster: a group does what all of its members can run."""

from __future__ import annotations

import asyncio
from typing import Any

from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import PutEntry, UpgradeMachine
from cluster.upgrading import HOLD
from tests.cluster.world import World, in_world


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


async def mixed() -> World:
    """A cluster of the older release, two thirds rolled."""
    world = World()
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


@in_world
async def test_a_new_cluster_runs_the_newest_version() -> None:
    world = await World().born()
    await world.until(lambda: versions(world) == {MACHINE_VERSION})
    await world.stop()


@in_world
async def test_no_machine_passes_what_every_member_can_run() -> None:
    world = await mixed()
    assert versions(world) == {1}
    await world.stop()


@in_world
async def test_what_an_older_member_cannot_run_is_refused_and_not_written() -> None:
    world = await mixed()
    group = world.group(1)
    before = group.last_index

    outcome = await group.ask(UpgradeMachine(MACHINE_VERSION))

    assert (outcome.kind, outcome.code) == ("refused", "not_upgraded")
    assert f"needs machine version {MACHINE_VERSION}" in str(outcome.reason)
    assert group.last_index == before
    await world.stop()


@in_world
async def test_the_version_rises_when_the_last_older_node_has_come_back_newer() -> None:
    world = await mixed()
    led = [g for g in world["n1"].groups if world.leading(g) != "n3"]
    terms = {group: world.group(group).term for group in led}
    await rolled(world, "n3", NOW)

    await world.until(lambda: versions(world) == {MACHINE_VERSION})

    assert {group: world.group(group).term for group in led} == terms, "no election was needed"
    await world.stop()


@in_world
async def test_an_operator_holds_the_version_until_he_lets_it_go() -> None:
    world = await World().born()
    await world.until(lambda: versions(world) == {MACHINE_VERSION})
    await held(world, MACHINE_VERSION)
    for name in world.names:
        await rolled(world, name, NEWER)
    await asyncio.sleep(5)
    assert versions(world) == {MACHINE_VERSION}

    await held(world, MACHINE_VERSION + 1)

    await world.until(lambda: versions(world) == {MACHINE_VERSION + 1})
    await world.stop()


@in_world
async def test_nodes_are_rolled_to_a_newer_release_and_back_as_long_as_one_is_older() -> None:
    world = await World().born()
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
    await world.stop()
