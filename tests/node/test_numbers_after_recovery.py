"""A survivor that lagged decides and dead-letters anew: what it numbers then is news to every other
group, which may have heard of more than it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.cluster_node import ClusterNode
from cluster.machine import QueueMachine
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Command, Enqueue
from cluster.machine.versions import MACHINE_VERSION
from cluster.types import GroupId, NodeId
from node.broker.dead_letters import DeadLetters
from node.errors import Elsewhere, OutcomeUnknown
from node.tasks import Tasks
from tests.cluster.test_lost_majority import order
from tests.cluster.world import MakeWorld, World, enqueue
from tests.node.test_transactions import Cluster

pytestmark = pytest.mark.virtual_time


async def lose_all_but(world: World, survivor: str, lost: Sequence[str]) -> None:
    groups = list(world[survivor].groups)
    for name in list(world.nodes):
        world.kill(name)
    await order(world, survivor, *lost)
    await world.start(survivor)
    await world.until(lambda: all(world.leading(group) == survivor for group in groups))


async def led_by(world: World, name: str) -> None:
    for group in list(world.any.groups):
        await world.until(lambda g=group: world.leading(g) is not None)
        while world.leading(group) != name:
            world.group(group).transfer(NodeId(name))
            await asyncio.sleep(0.3)


async def risen(world: World) -> None:
    """Every machine has the newest version."""
    await world.until(
        lambda: all(
            group.machine.version == MACHINE_VERSION
            for node in world.nodes.values()
            for group in node.groups.values()
        )
    )


def hears_nothing_of(world: World, name: str, group: GroupId) -> None:
    for links in world.links.values():
        links.drop = lambda peer, message: peer == name and message[0] == group


async def test_transactions_that_are_decided_anew_are_all_carried_out() -> None:
    world = await Cluster().with_queues()
    await risen(world)
    source, target = sorted("ab", key=world.group_of)  # the lower group decides
    await led_by(world, "n1")
    for number in range(3):
        await world.transactions["n1"].commit(
            world.publishes(**{source: [b"s%d" % number], target: [b"t%d" % number]})
        )
    await world.until(lambda: world.ready(source, "n3") == 3)
    hears_nothing_of(world, "n3", world.group_of(source))
    for number in range(3, 8):
        await world.transactions["n1"].commit(
            world.publishes(**{source: [b"s%d" % number], target: [b"t%d" % number]})
        )
    await world.until(lambda: world.ready(target, "n3") == 8)

    await lose_all_but(world, "n3", ["n1", "n2"])
    assert (world.ready(source, "n3"), world.ready(target, "n3")) == (3, 8)
    for number in range(8):
        await world.transactions["n3"].commit(
            world.publishes(**{source: [b"S%d" % number], target: [b"T%d" % number]})
        )
    await world.until(world.is_over)

    assert (await world.bodies(target))[8:] == [b"T%d" % number for number in range(8)]


class Carriers(DeadLetters):
    """Of one node, with the names of queues as keys."""

    def __init__(self, node: ClusterNode, tasks: Tasks) -> None:
        broker: Any = type("Broker", (), {})()
        broker.cluster = node
        broker.ask, broker.catch_up = self._ask_group, node.names.barrier
        broker.cut_off = False
        broker.led, broker.machine = self._led, lambda group: self._led(group).machine
        metrics: Any = type("Counts", (), {"dead_letters_moved": 0, "dead_letters_dropped": 0})()
        no_bodies: Any = None
        super().__init__(broker, tasks, metrics, no_bodies)
        self._node = node

    def _led(self, group: GroupId) -> Any:
        found = self._node.groups[group]
        if not found.ready:
            raise Elsewhere(None)
        return found

    async def _ask_group(self, group: GroupId, command: Command) -> None:
        outcome = await self._node.ask(group, command)
        if outcome.kind != "ok":
            raise OutcomeUnknown(outcome.reason)

    def route(
        self, vhost: str, exchange: str, keys: Sequence[str], meta: Any
    ) -> tuple[QueueInfo, ...]:
        info = self._node.queue_info(vhost, keys[0])
        return () if info is None else (info,)


async def dead(world: World, carriers: Carriers, source: QueueInfo, *bodies: bytes) -> None:
    """These die in the source; all that waits there is carried."""
    await world.any.ask(source.group, enqueue(source.queue, *bodies))
    machine = world.group(source.group).machine
    assert isinstance(machine, QueueMachine)
    await world.until(lambda: machine.dead_letters(source.queue))
    carriers.ready(source.group, source.queue)
    await world.until(lambda: not machine.dead_letters(source.queue))


async def test_letters_that_are_numbered_anew_all_arrive(make_world: MakeWorld) -> None:
    world = await make_world(default_groups=3).born()
    await risen(world)
    await world.declare("target")
    ttl: dict[str, Any] = {"message_ttl": 0, "dead_letter_exchange": ""}
    await world.declare("source", dead_letter_routing_key="target", **ttl)
    source, target = [await world.any.names.find("/", name) for name in ("source", "target")]
    assert isinstance(source, QueueInfo)
    assert isinstance(target, QueueInfo)
    assert source.group != target.group
    await led_by(world, "n1")
    carriers = Carriers(world["n1"], Tasks())
    await dead(world, carriers, source, *[b"%d" % number for number in range(3)])
    await world.until(lambda: world.ready("target", "n3") == 3)
    machine = world["n3"].groups[source.group].machine
    assert isinstance(machine, QueueMachine)
    await world.until(lambda: not machine.dead_letters(source.queue))
    hears_nothing_of(world, "n3", source.group)
    await dead(world, carriers, source, *[b"%d" % number for number in range(3, 6)])
    await world.until(lambda: world.ready("target", "n3") == 6)

    await lose_all_but(world, "n3", ["n1", "n2"])
    carriers = Carriers(world["n3"], Tasks())
    await dead(world, carriers, source, *[b"N%d" % number for number in range(8)])

    assert world.ready("target", "n3") == 6 + 8
    again = Enqueue(target.queue, f"dlx:{source.queue}", 1, [b"0"])
    reply: Any = (await world["n3"].ask(target.group, again)).reply
    assert (reply.stored, reply.duplicates) == (0, 1), "what came before is known"
