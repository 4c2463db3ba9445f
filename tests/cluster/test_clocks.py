"""Wall clocks of a cluster that are days off: nothing expires for it, and log time comes back."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from cluster.agreed_time import CLOCK_CONFIRM_MS
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Enqueue
from cluster.machine.replies import Enqueued
from cluster.types import GroupId
from tests.cluster.world import MakeWorld, World

pytestmark = pytest.mark.virtual_time

DAY_MS = 86_400_000
JUMP_MS = 8 * DAY_MS
QUEUE = "daily"


async def a_world(make_world: MakeWorld, count: int = 3) -> World:
    world = await make_world(count, default_groups=1).born()
    await world.declare(QUEUE, message_ttl=DAY_MS)
    assert await publish(world, 1) == 1
    await asyncio.sleep(1.5)  # the clocks were compared
    return world


async def publish(world: World, number: int) -> int:
    """As a publisher that may send the same again; how many were stored of one."""
    info = await world.any.names.find("/", QUEUE)
    assert isinstance(info, QueueInfo)
    outcome = await world.any.ask(info.group, Enqueue(info.queue, "p", number, [b"m"]))
    assert outcome.kind == "ok", outcome
    assert isinstance(outcome.reply, Enqueued)
    return outcome.reply.stored


def skew(world: World, ms: int, *names: str | None) -> None:
    for name in names or world.names:
        assert name is not None
        world.nodes[name]._clock.skew_ms = ms  # type: ignore[attr-defined]


def group_of(world: World) -> GroupId:
    return world.group_of(QUEUE)


def alarms(world: World) -> dict[str, list[str]]:
    return {name: node.status()["clock"]["alarms"] for name, node in world.nodes.items()}


def true_ms(world: World) -> int:
    return 1_700_000_000_000 + world.loop.ns // 1_000_000


def ahead_ms(world: World) -> list[int]:
    """Of the true time, the log time of each copy."""
    group, now = group_of(world), true_ms(world)
    return [node.groups[group].machine.now_ms - now for node in world.nodes.values()]  # type: ignore[union-attr]


async def nothing_happened(world: World, numbers: int) -> None:
    assert [await publish(world, number) for number in range(1, numbers + 1)] == [0] * numbers
    await asyncio.sleep(1)
    assert [world.ready(QUEUE, name) for name in world.names] == [numbers] * len(world.names)
    assert all(-2_000 < each < 100 for each in ahead_ms(world))


async def test_clocks_are_compared_also_while_the_disk_keeps_the_log_waiting(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await a_world(make_world)
    node, asked = world.any, list[object]()
    monkeypatch.setattr(node, "ask_clocks", asked.append)
    monkeypatch.setattr(node.log, "maintain", asyncio.Event().wait)
    await asyncio.sleep(2.5)
    assert asked


async def test_a_leader_whose_clock_jumps_for_one_entry(make_world: MakeWorld) -> None:
    world = await a_world(make_world)
    leader = world.leading(group_of(world))
    skew(world, JUMP_MS, leader)
    assert await publish(world, 2) == 1
    skew(world, 0, leader)
    await nothing_happened(world, 2)


async def test_a_leader_whose_clock_stays_days_ahead_gives_its_leaderships_away(
    make_world: MakeWorld,
) -> None:
    world = await a_world(make_world)
    wrong = world.leading(group_of(world))
    assert wrong is not None
    skew(world, JUMP_MS, wrong)
    assert await publish(world, 2) == 1
    await world.until(lambda: world.leading(group_of(world)) not in (None, wrong), 10)
    await world.until(lambda: world.leading() not in (None, wrong), 10)
    assert "8.0 days ahead" in alarms(world)[wrong][0]
    assert all(f"node {wrong}" in alarms(world)[name][0] for name in world.names)
    await asyncio.sleep(120)
    assert wrong not in {world.leading(group_of(world)), world.leading()}
    await nothing_happened(world, 2)
    skew(world, 0, wrong)
    await asyncio.sleep(3)
    assert not any(alarms(world).values())
    await nothing_happened(world, 2)


async def test_a_leader_without_another_goes_on_by_the_time_of_its_follower(
    make_world: MakeWorld,
) -> None:
    """One of three is down: of two clocks that differ nobody knows which is right."""
    world = await a_world(make_world)
    wrong = world.leading(group_of(world))
    assert wrong is not None
    down = next(name for name in world.names if name != wrong)
    world.kill(down)
    await asyncio.sleep(5)
    skew(world, JUMP_MS, wrong)
    assert await publish(world, 2) == 1
    await asyncio.sleep(60)
    assert await publish(world, 3) == 1
    await asyncio.sleep(1)
    assert all(-2_000 < each < 100 for each in ahead_ms(world))


async def test_a_follower_whose_clock_jumps_leads_with_the_time_of_the_others(
    make_world: MakeWorld,
) -> None:
    world = await a_world(make_world)
    group = group_of(world)
    leader = world.leading(group)
    follower = next(name for name in world.names if name != leader)
    skew(world, JUMP_MS, follower)
    world.group(group).transfer(world.nodes[follower].node)
    await world.until(lambda: world.leading(group) == follower)
    assert await publish(world, 2) == 1
    await world.until(lambda: world.leading(group) not in (None, follower))
    await nothing_happened(world, 2)


async def test_clocks_that_jump_together_for_a_moment(make_world: MakeWorld) -> None:
    await jump_for_a_moment(await a_world(make_world, 3))


async def test_the_only_clock_jumps_for_a_moment(make_world: MakeWorld) -> None:
    await jump_for_a_moment(await a_world(make_world, 1))


async def jump_for_a_moment(world: World) -> None:
    for lasts_s in (0.2, 1.5, CLOCK_CONFIRM_MS / 1000 - 1):
        skew(world, JUMP_MS)
        sent = asyncio.create_task(publish(world, 2))
        await asyncio.sleep(lasts_s)
        skew(world, 0)
        await sent
        await nothing_happened(world, 2)


async def test_clocks_that_jump_together_and_stay_are_taken_for_right(
    make_world: MakeWorld,
) -> None:
    await jump_for_good(await a_world(make_world, 3))


async def test_the_only_clock_is_taken_for_right_when_it_stays(make_world: MakeWorld) -> None:
    await jump_for_good(await a_world(make_world, 1))


async def jump_for_good(world: World) -> None:
    """As after a suspension: what was published while it was in doubt was stamped afterwards."""
    skew(world, JUMP_MS)
    await asyncio.sleep(2.5)  # by now each node has heard it of the others
    sent = asyncio.create_task(world.publish(QUEUE, b"m"))
    await asyncio.sleep(1)
    assert not sent.done()
    await asyncio.wait_for(sent, CLOCK_CONFIRM_MS / 1000 + 2)
    await asyncio.sleep(1)
    assert [world.ready(QUEUE, name) for name in world.names] == [1] * len(world.names)
    assert not any(alarms(world).values())


async def test_log_time_of_an_old_log_that_is_ahead_comes_back(make_world: MakeWorld) -> None:
    world = await a_world(make_world)
    group = world.group(group_of(world))
    group._time.saw(true_ms(world) + 60_000)  # as if an earlier leader had stamped so
    behind: list[int] = []
    for _ in range(14):
        await world.publish(QUEUE, b"m")
        await asyncio.sleep(1)
        behind.append(max(ahead_ms(world)))
        await asyncio.sleep(9)
    assert all(now <= max(then - 4_000, 0) for then, now in pairwise(behind)), behind
    assert behind[0] > 50_000
    assert min(ahead_ms(world)) + 9_000 > -2_000


async def test_a_clock_far_behind_does_not_hold_up_time(make_world: MakeWorld) -> None:
    world = await a_world(make_world)
    leader = world.leading(group_of(world))
    skew(world, -JUMP_MS, leader)
    for _ in range(3):
        await world.publish(QUEUE, b"m")
        await asyncio.sleep(1)
    assert all(-3_000 < each < 100 for each in ahead_ms(world))


async def test_a_cluster_that_starts_with_one_wrong_clock_goes_by_the_others(
    make_world: MakeWorld,
) -> None:
    world = await a_world(make_world)
    for name in list(world.names):
        world.kill(name)
    await asyncio.sleep(3600)
    for name in world.names:
        node = world.make(name)
        if name == "n1":
            node._clock.skew_ms = JUMP_MS  # type: ignore[attr-defined]
        await node.start()
        world.nodes[name] = node
    await world.settled()
    await nothing_happened(world, 1)


async def test_log_time_that_is_ahead_goes_on_after_all_started_from_snapshots(
    make_world: MakeWorld,
) -> None:
    world = await a_world(make_world)
    group = group_of(world)
    world.group(group)._time.saw(true_ms(world) + 60_000)  # as if an earlier leader had stamped so
    assert await publish(world, 2) == 1
    await asyncio.sleep(1)
    for node in world.nodes.values():
        node.groups[group].take_snapshot()
    await asyncio.sleep(1)
    for name in world.names:
        copy = world[name].groups[group]
        assert copy.status()["base"] == copy.last_index
    for name in world.names:
        world.kill(name)
    await world.start()
    await world.settled()
    before = ahead_ms(world)
    assert min(before) > 50_000

    await asyncio.sleep(10)
    assert await publish(world, 3) == 1
    await asyncio.sleep(1)

    # At half its speed: it neither stood still nor went at full speed.
    assert all(3_000 < was - now < 8_000 for was, now in zip(before, ahead_ms(world), strict=True))
