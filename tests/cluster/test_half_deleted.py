"""A deletion ends between its two steps: the group has dropped the queue, the catalog has not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.cluster_node import ClusterNode
from cluster.machine import QueueMachine
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import DeleteQueue, RemoveQueue
from cluster.machine.replies import Declared
from cluster.types import CATALOG_GROUP, QueueId
from tests.cluster.world import World, delete_half, enqueue

pytestmark = pytest.mark.virtual_time

STREAM = {"x-queue-type": "stream", "x-stream": {"name": "q", "subjects": ["q"]}}
KINDS: list[dict[str, Any]] = [
    {"arguments": {}},
    {"arguments": STREAM},
    {"arguments": {}, "auto_delete": True},
    {"arguments": {}, "transient": True, "exclusive": True, "owner": "me"},
]
every_kind = pytest.mark.parametrize(
    "kind", KINDS, ids=["queue", "stream", "auto-delete", "transient"]
)


async def declared(node: ClusterNode, kind: dict[str, Any]) -> Declared:
    outcome = await node.declare_queue("/", "q", **kind)
    assert isinstance(outcome.reply, Declared), outcome
    return outcome.reply


def known(world: World) -> list[QueueInfo]:
    found = [node.queue_info("/", "q") for node in world.nodes.values()]
    return [info for info in found if info is not None]


def fenced(world: World) -> list[int]:
    machines = [g.machine for node in world.nodes.values() for g in node.groups.values()]
    machines += [node.transient.own.machine for node in world.nodes.values() if node.transient.own]
    return [queue for m in machines if isinstance(m, QueueMachine) for queue in m.fenced()]


@every_kind
async def test_it_is_finished_and_the_queue_is_not_made_again(
    world: World, kind: dict[str, Any]
) -> None:
    node = world["n1"]
    made = await declared(node, kind)
    await delete_half(node)
    assert known(world)
    while known(world):
        outcome = await node.ask(made.group, enqueue(made.queue, b"x"))
        assert outcome.code == "no_queue", "confirmed, and lost with the queue"
        await asyncio.sleep(0.05)
    await world.until(lambda: not fenced(world))


@every_kind
async def test_what_is_declared_meanwhile_is_another_queue(
    world: World, kind: dict[str, Any]
) -> None:
    node = world["n1"]
    before = await declared(node, kind)
    await delete_half(node)
    after = await declared(node, kind)
    assert after.created
    assert after.queue > before.queue

    assert (await node.ask(after.group, enqueue(after.queue, b"x"))).kind == "ok"
    await asyncio.sleep(12)
    info = node.queue_info("/", "q")
    assert info is not None
    assert info.queue == after.queue
    group = node.group(after.group)
    assert group is not None
    assert group.machine.queues() == [after.queue]  # type: ignore[attr-defined]
    assert not fenced(world)


async def test_an_empty_queue_that_gets_a_message_while_it_is_deleted_keeps_it(
    world: World,
) -> None:
    """It was judged to be empty before, and its deleter goes on after."""
    deleter, other = world["n1"], world["n2"]
    before = await declared(deleter, {"arguments": {}})
    await delete_half(deleter, if_empty=True)
    after = await declared(other, {"arguments": {}})
    assert (await other.ask(after.group, enqueue(after.queue, b"x"))).kind == "ok"
    assert (await deleter.ask(CATALOG_GROUP, RemoveQueue("/", "q", before.queue))).kind == "ok"
    await asyncio.sleep(12)
    info = other.queue_info("/", "q")
    assert info is not None
    assert info.queue == after.queue


async def test_it_is_finished_when_the_deleter_and_the_leader_of_the_catalog_are_gone(
    world: World,
) -> None:
    node = world[world.leading() or ""]
    await declared(node, {"arguments": STREAM})
    await delete_half(node)
    world.kill(node.node)
    await world.until(lambda: not known(world))
    await world.until(lambda: not fenced(world))


async def test_who_declares_by_a_copy_from_before_a_deletion_catches_up_and_makes_the_queue(
    world: World,
) -> None:
    """The group was told of a deletion by one that knew more of the catalog."""
    node = world["n1"]
    before = await declared(node, {"arguments": {}})
    term, index = node.catalog_machine.as_of
    ahead = term, index + 4
    await node.ask(before.group, DeleteQueue(QueueId(before.queue + 5), as_of=ahead))
    group = node.groups[before.group].name
    outcome = await node.declare_queue("/", "next", {"x-queue-group": group})
    assert isinstance(outcome.reply, Declared), outcome
    assert (await node.ask(before.group, enqueue(outcome.reply.queue, b"x"))).kind == "ok"
    assert node.catalog_machine.as_of >= ahead


async def test_who_finishes_deletions_by_such_a_copy_catches_up_too(world: World) -> None:
    node = world["n1"]
    before = await declared(node, {"arguments": {}})
    term, index = node.catalog_machine.as_of
    await node.ask(before.group, DeleteQueue(before.queue, as_of=(term, index + 4)))
    outcome = await node.names.finish_deletions([("/", "q")])
    assert outcome.kind == "ok", outcome
    assert (await node.ask(before.group, enqueue(before.queue, b"x"))).kind == "ok"


@pytest.mark.parametrize("half", [False, True])
async def test_what_may_be_half_deleted_is_no_reason_to_wait_for_a_group_without_a_leader(
    world: World, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the copy here says that it is."""
    node = world["n1"]
    made = await declared(node, {"arguments": {}})
    if half:
        monkeypatch.setattr("cluster.members.maintenance.commands_for", lambda *_: [])
        await delete_half(node)
        machine: Any = node.groups[made.group].machine
        await world.until(machine.fenced)
    for links in world.links.values():
        links.drop = lambda peer, message: message[0] == made.group
    await world.until(lambda: node.leader_of(made.group) is None)

    outcome = await node.names.finish_deletions([("/", "q")])

    assert (outcome.kind == "ok") is not half, outcome
