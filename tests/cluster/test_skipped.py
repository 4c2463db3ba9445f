"""A command at which the machine raises: every copy leaves it out alike, and the group goes on."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
from structlog.testing import capture_logs

from cluster.groups.group import Group
from cluster.log.dump import dump
from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import Pause, Purge, PutEntry
from cluster.machine.effects import Applied
from cluster.types import CATALOG_GROUP, GroupId, QueueId, Stamp
from tests.cluster.world import MakeWorld, World, enqueue
from tests.testkit.nesting import nested

pytestmark = pytest.mark.virtual_time


class Buggy(QueueMachine):
    """Leaves its state in ruins when it is to pause a queue."""

    def apply(self, stamp: Stamp, command: Any) -> Applied:
        if isinstance(command, Pause):
            self._queues.clear()
            self.now_ms += 77
            raise KeyError("a bug")
        return super().apply(stamp, command)


async def made(make_world: MakeWorld, **config: Any) -> tuple[World, QueueId]:
    world = make_world(default_groups=1, machines=(CatalogMachine, Buggy), **config)
    await world.born()
    queue = await world.declare("q")
    for number in range(30):
        await world.publish("q", b"%d" % number)
    return world, queue


def copies(world: World) -> list[Group]:
    return [node.groups[GroupId(1)] for node in world.nodes.values()]


async def equal(world: World) -> None:
    """All copies are at the same entry, in the same state, and sound."""
    await world.until(lambda: len({copy.applied_index for copy in copies(world)}) == 1)
    assert len({copy.machine.digest() for copy in copies(world)}) == 1
    assert [copy.poisoned for copy in copies(world)] == [None] * len(world.nodes)


async def test_it_is_refused_and_changes_nothing_and_what_comes_with_it_is_done(
    make_world: MakeWorld,
) -> None:
    world, queue = await made(make_world)
    leader = world.group(1)
    told: list[Any] = []
    with capture_logs() as lines:
        # One entry: what is before it stays, what is behind it is done.
        for command in (enqueue(queue, b"before"), Pause(queue, True), enqueue(queue, b"after")):
            leader.propose(command, told.append)
        await world.until(lambda: len(told) == 3)
        await equal(world)
    assert [(each.kind, each.code) for each in told] == [
        ("ok", None),
        ("refused", "command_skipped"),
        ("ok", None),
    ]
    assert told[0].stamp.index == told[2].stamp.index
    await equal(world)
    assert {world.ready("q", name) for name in world.names} == {32}
    assert {copy.status()["skipped"] for copy in copies(world)} == {1}
    said = [line for line in lines if line["event"] == "command_skipped"]
    assert sorted(line["node"] for line in said) == world.names
    assert {line["log_level"] for line in said} == {"critical"}


async def test_no_restart_and_no_snapshot_makes_it_happen(make_world: MakeWorld) -> None:
    world, queue = await made(make_world, snapshot_entries=25)
    for _ in range(3):
        assert (await world.group(1).ask(Pause(queue, True))).code == "command_skipped"
        await world.publish("q", b"x")
    for name in world.names:
        world.kill(name)
        await world.start(name)
        await world.settled()
        await world.publish("q", b"y")
    await equal(world)
    assert {world.ready("q", name) for name in world.names} == {36}
    assert (await world.group(1).ask(Purge(queue))).kind == "ok"
    await equal(world)


async def test_it_is_noted_with_its_bytes(make_world: MakeWorld) -> None:
    world, queue = await made(make_world)
    await world.group(1).ask(Pause(queue, True))
    await world.stop()
    out = io.StringIO()
    dump("/data", out=out, kinds=["skipped"], disk=world.disks["n1"])
    (line,) = [each for each in out.getvalue().splitlines() if "KeyError" in each]
    assert "a bug" in line
    assert "13" + f"{queue:02x}" + "f5" in line, "tag 19, the queue, true"


@pytest.mark.parametrize(
    ("value", "why"),
    [("\ud800", "surrogates not allowed"), (nested(397), "nested"), (nested(900), "nested")],
)
async def test_what_cannot_be_written_or_read_is_refused_and_costs_nothing_else(
    world: World, value: Any, why: str
) -> None:
    bad = PutEntry("vhosts", ("bad",), {"description": value})
    whole = PutEntry("vhosts", ("whole",), {"description": "in the same batch"})
    leader = world.group(CATALOG_GROUP)
    follower = world.other_than(leader.node)

    here = await asyncio.gather(leader.ask(bad), leader.ask(whole))
    there = await follower.ask(CATALOG_GROUP, bad)

    assert [each.kind for each in here] == ["refused", "ok"]
    for refused in (here[0], there):
        assert (refused.kind, refused.code) == ("refused", "bad_argument")
        assert why in (refused.reason or "")
    assert world.group(CATALOG_GROUP) is leader
    assert [node.catalog.poisoned for node in world.nodes.values()] == [None] * len(world.nodes)
