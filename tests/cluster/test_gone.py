"""Reset is not death: what a node has ends when it is gone, and not before."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from cluster.cluster_node import ClusterNode
from cluster.machine import QueueMachine
from cluster.machine.commands import OpenSession, Settle, Subscribe
from cluster.machine.effects import Effect, SessionEnded
from cluster.machine.replies import Declared, Ok, Subscribed
from cluster.seams import GONE_AFTER_S
from cluster.types import SessionId
from tests.cluster.world import World, enqueue

pytestmark = pytest.mark.virtual_time

SESSION = SessionId("s")


async def consumer_of(world: World, at: ClusterNode, declared: Declared) -> Subscribed:
    """A client of that node that holds the only message."""
    opened = await at.ask(declared.group, OpenSession(SESSION, at.node, at.links.incarnation))
    assert opened.kind == "ok"
    subscribed = (await at.ask(declared.group, Subscribe(declared.queue, SESSION, "t", 9))).reply
    assert isinstance(subscribed, Subscribed)
    assert (await at.ask(declared.group, enqueue(declared.queue, b"held"))).kind == "ok"
    return subscribed


async def shared_queue(world: World) -> tuple[Declared, ClusterNode]:
    """A queue with copies, and a node that does not lead it, nor the catalog."""
    outcome = await world.any.declare_queue("/", "shared", {"x-queue-group": "dedicated"})
    assert isinstance(outcome.reply, Declared)
    await world.settled()
    leaders = (world.leading(outcome.reply.group), world.leading())
    return outcome.reply, next(n for name, n in world.nodes.items() if name not in leaders)


def ready_count(world: World, declared: Declared) -> int:
    view = cast(QueueMachine, world.group(declared.group).machine).queue(declared.queue)
    assert view is not None
    return view.ready_count


def seen_by_all(world: World) -> list[Effect]:
    told: list[Effect] = []
    for node in world.nodes.values():
        node.on_effects.append((None, lambda group, stamp, effects: told.extend(effects)))
    return told


async def test_resets_for_three_seconds_end_nothing_of_a_living_node(world: World) -> None:
    shared, node = await shared_queue(world)
    outcome = await node.declare_queue("/", "own", {}, durable=False, transient=True)
    assert isinstance(outcome.reply, Declared)
    other = world.other_than(node.node)
    guest = SessionId("guest")
    opened = OpenSession(guest, other.node, other.links.incarnation)
    assert (await other.ask(outcome.reply.group, opened)).kind == "ok"
    subscribed = await consumer_of(world, node, shared)
    told = seen_by_all(world)

    world.refuse(node.node)
    await asyncio.sleep(3)
    world.heal()
    await world.settled()
    await asyncio.sleep(5)

    assert not [each for each in told if isinstance(each, SessionEnded)]
    assert all(each.queue_info("/", "own") is not None for each in world.nodes.values())
    own = node.transient.own
    assert own is not None
    assert own.machine.has_session(guest)
    settled = await node.ask(shared.group, Settle(shared.queue, subscribed.consumer, [(1, 1)]))
    assert settled.reply == Ok(1)


async def test_what_a_dead_process_held_is_returned_once_it_was_refused_for_long_enough(
    world: World,
) -> None:
    shared, node = await shared_queue(world)
    await node.declare_queue("/", "own", {}, durable=False, transient=True)
    await consumer_of(world, node, shared)
    world.kill(node.node)
    await asyncio.sleep(GONE_AFTER_S - 1)
    assert world.any.queue_info("/", "own") is not None
    assert ready_count(world, shared) == 0
    await world.until(lambda: ready_count(world, shared) == 1, seconds=3)
    await world.until(lambda: world.any.queue_info("/", "own") is None, seconds=3)


async def test_a_new_process_of_the_node_ends_at_once_what_the_old_one_held(world: World) -> None:
    shared, node = await shared_queue(world)
    await consumer_of(world, node, shared)
    world.kill(node.node)
    await asyncio.sleep(1)
    assert ready_count(world, shared) == 0
    await world.start(node.node)
    await world.until(lambda: ready_count(world, shared) == 1, seconds=2)


async def test_a_node_that_says_that_it_ends_is_gone_at_once(world: World) -> None:
    shared, node = await shared_queue(world)
    await node.declare_queue("/", "own", {}, durable=False, transient=True)
    await consumer_of(world, node, shared)
    await world.nodes.pop(node.node).stop()
    await world.until(lambda: ready_count(world, shared) == 1, seconds=2)
    await world.until(lambda: world.any.queue_info("/", "own") is None, seconds=3)
