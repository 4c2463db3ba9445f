"""The leader of a group is cut off from that of the catalog, so that its copy of it lags behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.machine import QueueMachine
from cluster.machine.commands import PutEntry
from cluster.machine.replies import Declared, Enqueued, Ok
from cluster.members import maintenance
from cluster.seams import Down
from cluster.types import GroupId, QueueId
from tests.cluster.world import World, enqueue

pytestmark = pytest.mark.virtual_time


def stream(most: int) -> dict[str, Any]:
    config = {"name": "q", "subjects": ["q"], "max_msgs": most}
    return {"x-queue-type": "stream", "x-stream": config}


def limit(most: int) -> PutEntry:
    value = {"pattern": "", "definition": {"max-length": most}}
    return PutEntry("policies", ["/", "p"], value)


async def cut_off(world: World) -> tuple[str, str]:
    """The leader of the queue's group, without a link to that of the catalog; and the third."""
    catalog, group = world.leading() or "", world.group_of("q")
    leader, third = (name for name in world.names if name != catalog)
    if world.leading(group) != leader:
        world.group(group).transfer(world[leader].node)
        await world.until(lambda: world.leading(group) == leader)
    world.cut.add(frozenset((leader, catalog)))
    world.break_link(leader, catalog, Down.CLOSED)
    return leader, third


def held(world: World, group: GroupId, queue: QueueId) -> int:
    machine = world.group(group).machine
    assert isinstance(machine, QueueMachine)
    kind = machine.find(queue)
    assert kind is not None
    return kind.message_count


async def confirmed(world: World, at: str, group: GroupId, queue: QueueId) -> int:
    """Of ten messages."""
    retries, count = world[at].retries, 0
    for _ in range(10):
        outcome = await retries.ask(group, enqueue(queue, b"x"))
        count += isinstance(outcome.reply, Enqueued) and outcome.reply.stored
    return count


async def test_a_stream_that_was_told_to_keep_all_drops_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "COMPARE_PERIODS", 1)
    declared = await world.any.declare_queue("/", "q", stream(2))
    assert isinstance(declared.reply, Declared)
    queue, group = declared.reply.queue, declared.reply.group
    _, third = await cut_off(world)
    info = world[third].catalog_machine.queue_by_id(queue)
    assert info is not None
    assert (await world[third].change_stream(info, stream(-1))).kind == "ok"
    assert await confirmed(world, third, group, queue) == 10

    for _ in range(50):
        await asyncio.sleep(0.1)
        assert held(world, group, queue) == 10


async def test_a_policy_that_was_taken_back_is_not_applied_again(world: World) -> None:
    """By a leader that has seen of it what those before it have seen overtaken."""
    queue = await world.declare("q")
    group = world.group_of("q")
    assert isinstance((await world.any.names.change(limit(2))).reply, Ok)
    await asyncio.sleep(2)
    leader, third = await cut_off(world)
    world.group(group).transfer(world[third].node)
    await world.until(lambda: world.leading(group) == third)
    assert world[leader].catalog_machine.entry("policies", ("/", "p"))

    assert isinstance((await world[third].names.change(limit(99))).reply, Ok)
    await asyncio.sleep(1.5)
    assert await confirmed(world, third, group, queue) == 10
    world.group(group).transfer(world[leader].node)
    for _ in range(50):
        await asyncio.sleep(0.1)
        if world.leading(group) is not None:
            assert held(world, group, queue) == 10
