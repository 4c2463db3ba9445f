"""From nothing to a cluster that serves."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from cluster.catalog.placement import preferred_leader
from cluster.groups.group import Role
from cluster.machine.catalog import QueueInfo
from cluster.types import CATALOG_GROUP
from tests.cluster.world import MakeWorld, World

pytestmark = pytest.mark.virtual_time


async def test_three_nodes_that_meet_make_the_default_groups_once(make_world: MakeWorld) -> None:
    world = await make_world(default_groups=5).born()
    for node in world.nodes.values():
        groups = node.catalog_machine.groups()
        assert [g.name for g in groups] == [f"default-{i}" for i in range(1, 6)]
        assert all(g.default for g in groups)
    await asyncio.sleep(5)
    assert len(world.any.catalog_machine.groups()) == 5


async def test_every_group_has_one_leader_and_every_node_knows_it(world: World) -> None:
    for group in world.any.groups:
        leads = [n for n, node in world.nodes.items() if node.groups[group].role is Role.LEADER]
        assert len(leads) == 1
        assert {node.leader_of(group) for node in world.nodes.values()} == set(leads)


async def test_leaderships_are_spread_evenly_after_a_while(make_world: MakeWorld) -> None:
    world = await make_world(default_groups=6, balance_after_s=1.0, care_period_s=0.1).born()
    await world.until(
        lambda: all(
            world.leading(group.id) == preferred_leader(group.id, group.members)
            for group in world.any.groups.values()
        )
    )
    leads = Counter(world.leading(group) for group in world.any.groups if group != CATALOG_GROUP)
    assert leads == {"n1": 2, "n2": 2, "n3": 2}


async def test_two_of_three_are_enough_and_the_third_may_come_later(make_world: MakeWorld) -> None:
    world = make_world()
    await world.start("n1", "n3")
    await world.until(world.calm)
    queue = await world.declare("orders", at="n3")
    await world.start("n2")
    await world.settled()
    info = await world["n2"].names.find("/", "orders")
    assert isinstance(info, QueueInfo)
    assert info.queue == queue
    await world.until(lambda: world.ready("orders", "n2") == 0)


async def test_a_single_node_is_a_cluster(make_world: MakeWorld) -> None:
    world = await make_world(1).born()
    await world.declare("orders")
    await world.publish("orders", b"one", b"two")
    assert world.ready("orders", "n1") == 2


async def test_a_queue_declared_before_the_default_groups_are_made_waits_for_them(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    await world.start()
    outcomes = await asyncio.gather(
        *(node.declare_queue("/", f"q-{name}", {}) for name, node in world.nodes.items())
    )
    assert [o.kind for o in outcomes] == ["ok"] * 3


async def test_a_named_group_made_first_does_not_take_the_default_ones_away(
    make_world: MakeWorld,
) -> None:
    """The very first command of a cluster may be the declare of a queue with a group of its own."""
    world = make_world()
    for name in world.names:
        node = world.make(name)
        node._maintenance._make_default_groups = lambda: None  # not yet
        await node.start()
        world.nodes[name] = node
    await world.until(lambda: world.leading() is not None)
    await world.declare("billing", queue_group="billing")
    for node in world.nodes.values():
        del node._maintenance._make_default_groups
    await world.settled()
    names = {g.name for g in world.any.catalog_machine.groups()}
    assert names == {"billing", "default-1", "default-2", "default-3"}
    await world.declare("orders")


async def test_nodes_register_with_their_addresses(world: World) -> None:
    await world.until(
        lambda: all(
            world["n1"].address_of(node.node, "http") == f"{name}:80"
            for name, node in world.nodes.items()
        )
    )
    assert world["n1"].address_of(world["n2"].node, "smtp") is None


async def test_status_tells_nodes_and_groups(world: World) -> None:
    await world.until(lambda: world["n1"].address_of(world["n3"].node, "http"))
    status = world["n1"].status()
    assert [(n["node"], n["up"]) for n in status["nodes"]] == [
        ("n1", True),
        ("n2", True),
        ("n3", True),
    ]
    assert [g["name"] for g in status["groups"]] == ["catalog"] + [
        f"default-{i}" for i in range(1, 4)
    ]
    assert all(g["leader"] for g in status["groups"])
