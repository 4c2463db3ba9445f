"""A copy whose state is not that of the others: who is right, and what the other may not do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from cluster.groups import group as group_module
from cluster.groups.group import Group
from cluster.machine.commands import MoveGroup
from cluster.raft.messages import DIGESTED
from cluster.types import NodeId
from tests.cluster.world import MakeWorld, World

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "DIGEST_ENTRIES", 10)


def spoil(group: Group) -> None:
    """As if this copy had once stored another message."""
    machine: Any = group.machine
    machine._queues[next(iter(machine._queues))].messages.store.chain ^= 1


async def written(world: World, count: int) -> None:
    for number in range(count):
        await world.publish("q", b"%d" % number)


async def made(
    make_world: MakeWorld, nodes: int = 3, **config: Any
) -> tuple[World, Group, dict[str, Group]]:
    world = make_world(nodes, default_groups=1, **config)
    await world.born()
    await world.declare("q")
    await written(world, 3)
    leader = world.group(world.group_of("q"))
    others = {
        name: node.groups[leader.id]
        for name, node in world.nodes.items()
        if name != leader.node and leader.id in node.groups
    }
    return world, leader, others


async def test_a_follower_that_differs_from_the_majority_does_not_come_to_lead(
    make_world: MakeWorld,
) -> None:
    world, leader, others = await made(make_world)
    bad, good = others
    spoil(others[bad])
    await written(world, 12)
    await world.until(lambda: others[bad].member.diverged)
    assert not others[good].member.diverged
    assert others[bad].status()["diverged"]
    assert not world[bad].sound

    leader.transfer(NodeId(bad))
    await asyncio.sleep(5)
    assert world.leading(leader.id) != bad
    world.kill(str(leader.node))
    await world.until(lambda: world.leading(leader.id) == good)
    await asyncio.sleep(10)
    assert others[bad].member.elections.stood == 0


async def test_a_leader_that_differs_from_all_others_steps_down(make_world: MakeWorld) -> None:
    world, leader, others = await made(make_world)
    before = leader.node
    with capture_logs() as lines:
        spoil(leader)
        await written(world, 9)
        await world.until(lambda: leader.member.diverged)
        await world.until(lambda: world.leading(leader.id) not in (None, before))
    assert not any(copy.member.diverged or copy.diverged for copy in others.values())
    said = [line for line in lines if line["event"] == "state_diverged"]
    assert said[-1]["node"] == before
    assert f"quorate group rebuild {leader.name} {before}" in said[-1]["next"]

    await written(world, 30)
    assert world.leading(leader.id) != before
    assert leader.member.diverged


async def test_while_nobody_can_say_who_is_right_the_leader_is(make_world: MakeWorld) -> None:
    world, leader, others = await made(make_world, 2)
    (bad,) = others.values()
    spoil(leader)
    await written(world, 12)
    await world.until(lambda: bad.member.diverged)
    assert not leader.member.diverged
    assert leader.ready


async def test_members_that_do_not_answer_are_not_waited_for(make_world: MakeWorld) -> None:
    """A release that has digests, and does not know these answers."""
    world, leader, others = await made(make_world)
    bad, silent = others
    world.links[silent].drop = lambda _peer, message: message[1] == DIGESTED
    spoil(others[bad])
    await written(world, 25)
    await world.until(lambda: others[bad].member.diverged)
    assert leader.ready


async def test_a_restart_does_not_end_it(make_world: MakeWorld) -> None:
    """The state is read again from a snapshot that the copy took when it had gone wrong."""
    world, leader, others = await made(make_world, snapshot_entries=8)
    bad, good = others
    spoil(others[bad])
    await written(world, 12)
    await world.until(lambda: others[bad].member.diverged)
    await world.until(lambda: others[bad].journal.base_index > 12)
    for power in (False, True):
        world.kill(bad, power=power)
        await world.start(bad)
        await world.settled()
        assert world[bad].groups[leader.id].member.diverged
        assert not world[bad].sound

    world.kill(str(leader.node))
    await world.until(lambda: world.leading(leader.id) == good)
    await asyncio.sleep(10)
    assert world[bad].groups[leader.id].member.elections.stood == 0
    await world.start(str(leader.node))
    leader = world.group(leader.id)

    await held_by(world, leader, [name for name in world.names if name != bad])
    await world.until(lambda: leader.id not in world[bad].groups)
    await held_by(world, leader, world.names)
    world.kill(bad)
    await world.start(bad)
    await written(world, 12)
    assert world[bad].sound


async def test_a_state_that_agrees_again_ends_it_for_good(make_world: MakeWorld) -> None:
    """What went wrong was in memory only: the log leads to the right state."""
    world, leader, others = await made(make_world)
    bad = next(iter(others))
    spoil(others[bad])
    await written(world, 12)
    await world.until(lambda: others[bad].member.diverged)
    for _ in range(2):
        world.kill(bad, power=True)
        await world.start(bad)
        await world.settled()
        await written(world, 12)
        await world.until(lambda: not world[bad].groups[leader.id].member.diverged)
    assert world[bad].sound


async def held_by(world: World, leader: Group, names: list[str]) -> None:
    members = [NodeId(name) for name in names]
    assert (await world.any.change(MoveGroup(leader.id, members))).kind == "ok"
    await world.until(lambda: set(leader.configuration.voters) == set(members), 60)


async def test_a_copy_that_was_made_anew_is_sound_again(make_world: MakeWorld) -> None:
    world, leader, others = await made(make_world)
    bad = next(iter(others))
    spoil(others[bad])
    await written(world, 12)
    await world.until(lambda: others[bad].member.diverged)

    await held_by(world, leader, [name for name in world.names if name != bad])
    await world.until(lambda: leader.id not in world[bad].groups)
    await held_by(world, leader, world.names)
    copy = world[bad].groups[leader.id]
    await written(world, 12)

    assert copy is not others[bad]
    await world.until(lambda: copy.machine.digest() == leader.machine.digest())
    assert world[bad].sound
