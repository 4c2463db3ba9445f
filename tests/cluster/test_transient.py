"""Transient queues: each on one node, reached through all, and gone with its process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.machine.commands import (
    DeleteQueue,
    DropEntry,
    Get,
    NodeDown,
    OpenSession,
    PutEntry,
    Settle,
    Subscribe,
)
from cluster.machine.effects import ConsumerEnded, Deliver, Effect, QueueExpired, SessionEnded
from cluster.machine.replies import Declared, Got, Subscribed
from cluster.seams import GONE_AFTER_S
from cluster.types import TRANSIENT_GROUPS, SessionId
from tests.cluster.world import World, enqueue

pytestmark = pytest.mark.virtual_time

SESSION = SessionId("s")


async def declare(world: World, name: str, at: str, vhost: str = "/", **flags: Any) -> Declared:
    outcome = await world[at].declare_queue(vhost, name, {}, durable=False, transient=True, **flags)
    assert isinstance(outcome.reply, Declared), outcome
    return outcome.reply


def effects_at(world: World, name: str) -> list[Effect]:
    told: list[Effect] = []
    world[name].on_effects.append((None, lambda group, stamp, effects: told.extend(effects)))
    return told


def everybody_lacks(world: World, name: str) -> bool:
    return all(node.queue_info("/", name) is None for node in world.nodes.values())


async def test_every_node_reaches_it_at_once(world: World) -> None:
    told = effects_at(world, "n1")
    declared = await declare(world, "q", "n1")
    for node in world.nodes.values():
        info = node.queue_info("/", "q")
        assert info is not None
        assert (info.group, info.node, info.durable) == (declared.group, "n1", False)
        assert node.leader_of(info.group) == "n1"
        assert (node.group(info.group) is None) == (node.node != "n1")
    assert declared.group > TRANSIENT_GROUPS

    n2, n3 = world["n2"], world["n3"]
    await n3.ask(declared.group, OpenSession(SESSION, n3.node, n3.links.incarnation))
    subscribed = (await n3.ask(declared.group, Subscribe(declared.queue, SESSION, "t", 9))).reply
    assert isinstance(subscribed, Subscribed)
    assert (await n2.ask(declared.group, enqueue(declared.queue, b"hello"))).kind == "ok"
    await world.until(lambda: any(isinstance(effect, Deliver) for effect in told))
    deliver = next(effect for effect in told if isinstance(effect, Deliver))
    own = world["n1"].group(declared.group)
    assert own is not None
    assert own.read_bodies(deliver.chunks[0].bodies) == [(b"hello", None)]
    settle = Settle(declared.queue, subscribed.consumer, [(1, 1)])
    assert (await n3.ask(declared.group, settle)).kind == "ok"


async def test_it_is_gone_when_its_node_dies_and_does_not_come_back(world: World) -> None:
    await declare(world, "q", "n1")
    durable = await world["n2"].declare_queue("/", "durable", {})
    assert durable.kind == "ok"
    world.kill("n1")
    await world.until(lambda: everybody_lacks(world, "q"), seconds=GONE_AFTER_S + 2)

    await world.start("n1")
    await world.settled()
    again = await declare(world, "q", "n1")
    assert again.created
    assert world["n2"].queue_info("/", "durable") is not None


async def test_a_restart_that_nobody_noticed_ends_it(world: World) -> None:
    await declare(world, "q", "n1")
    world.kill("n1")
    await world.start("n1")
    await world.until(lambda: everybody_lacks(world, "q"), seconds=10)


async def test_a_silent_node_loses_it_late_and_hears_of_it_when_it_is_back(world: World) -> None:
    # The leader stays in the majority.
    name = next(n for n in world.names if n != world.leading())
    declared = await declare(world, "q", name)
    node = world[name]
    told = effects_at(world, name)
    await node.ask(declared.group, OpenSession(SESSION, node.node, node.links.incarnation))
    await node.ask(declared.group, Subscribe(declared.queue, SESSION, "t", 9))
    world.isolate(name)
    others = [each for each in world.nodes.values() if each is not node]
    await asyncio.sleep(30)
    assert all(each.queue_info("/", "q") is not None for each in others)
    await world.until(lambda: all(each.queue_info("/", "q") is None for each in others), seconds=60)
    assert told == []

    world.heal()
    await world.until(lambda: told, seconds=10)
    assert [type(effect) for effect in told] == [ConsumerEnded]
    own = node.transient.own
    assert own is not None
    assert own.machine.queues() == []


async def test_anybody_removes_it(world: World) -> None:
    declared = await declare(world, "q", "n1")
    assert (await world["n3"].remove_queue("/", "q")).kind == "ok"
    assert everybody_lacks(world, "q")
    own = world["n1"].transient.own
    assert own is not None
    assert own.machine.find(declared.queue) is None


async def test_it_can_be_removed_and_is_not_declared_while_its_node_is_down(world: World) -> None:
    name = next(n for n in world.names if n != world.leading())
    await declare(world, "q", name)
    world.isolate(name)
    other = world.other_than(name)
    outcome = await other.declare_queue("/", "q", {}, durable=False, transient=True)
    assert (outcome.kind, outcome.code) == ("refused", "no_leader")
    assert (await other.remove_queue("/", "q")).kind == "ok"
    assert other.queue_info("/", "q") is None


async def test_one_that_another_node_has_is_found_by_declaring_it(world: World) -> None:
    first = await declare(world, "q", "n1")
    second = await declare(world, "q", "n2")
    assert second == Declared(first.queue, first.group, created=False)


async def test_its_vhost_takes_it_along(world: World) -> None:
    about = {"description": "", "tags": [], "default_queue_type": None}
    assert (await world["n2"].change(PutEntry("vhosts", ("v",), about))).kind == "ok"
    declared = await declare(world, "q", "n1", vhost="v")
    assert (await world["n3"].change(DropEntry("vhosts", ("v",)))).kind == "ok"
    own = world["n1"].transient.own
    assert own is not None
    await world.until(lambda: own.machine.find(declared.queue) is None, seconds=2)


async def test_sessions_of_other_nodes_end_with_their_nodes(world: World) -> None:
    declared = await declare(world, "q", "n1")
    told = effects_at(world, "n1")
    n2 = world["n2"]
    await n2.ask(declared.group, OpenSession(SESSION, n2.node, n2.links.incarnation))
    await n2.ask(declared.group, enqueue(declared.queue, b"a"))
    got = (await n2.ask(declared.group, Get(declared.queue, SESSION, 1))).reply
    assert isinstance(got, Got)
    world.kill("n2")
    await world.until(lambda: SessionEnded(SESSION, "node_gone") in told)
    own = world["n1"].transient.own
    assert own is not None
    view = own.machine.queue(declared.queue)
    assert view is not None
    assert view.ready_count == 1
    # A session of a process that was gone before is not let in.
    own.propose(NodeDown(n2.node, n2.links.incarnation, True))


async def test_an_auto_delete_queue_reports_that_it_was_left(world: World) -> None:
    declared = await declare(world, "q", "n1", auto_delete=True)
    told = effects_at(world, "n1")
    n1 = world["n1"]
    await n1.ask(declared.group, OpenSession(SESSION, n1.node, n1.links.incarnation))
    await n1.ask(declared.group, Subscribe(declared.queue, SESSION, "t", 9))
    await asyncio.sleep(1)
    assert told == []
    await n1.ask(declared.group, NodeDown(n1.node, n1.links.incarnation, True))
    assert QueueExpired(declared.queue) in told


async def test_what_a_machine_has_and_the_catalog_has_not_is_put_right(world: World) -> None:
    declared = await declare(world, "q", "n1")
    own = world["n1"].transient.own
    assert own is not None
    await own.ask(DeleteQueue(declared.queue))
    await world.until(lambda: own.machine.find(declared.queue) is not None, seconds=15)
