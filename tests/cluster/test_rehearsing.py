"""A log replayed by another release: what it comes to is compared with what the node noted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cluster.groups import group as group_module
from cluster.history import group_replay
from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.recovery.rehearsing import Rehearsed, rehearse
from tests.cluster.world import MakeWorld, World

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "DIGEST_ENTRIES", 10)


async def rehearsed(world: World) -> Sequence[Rehearsed]:
    return list(rehearse("/data", disk=world.disks["n1"]))


async def made(make_world: MakeWorld, **config: Any) -> World:
    world = make_world(default_groups=1, **config)
    await world.born()
    await world.declare("q")
    for number in range(45):
        await world.publish("q", b"%d" % number)
    return world


async def test_this_release_comes_to_the_states_that_it_noted_while_the_node_runs(
    make_world: MakeWorld,
) -> None:
    world = await made(make_world)
    catalog, queues = await rehearsed(world)
    assert (catalog.sound, queues.sound) == (True, True)
    assert queues.compared >= 4
    assert queues.last >= 40


async def test_it_also_begins_with_the_newest_snapshot_as_a_node_would(
    make_world: MakeWorld,
) -> None:
    world = await made(make_world, snapshot_entries=25)
    _, queues = await rehearsed(world)
    assert queues.sound
    assert (queues.first, queues.last // 10) == (1, 4)
    assert queues.compared >= 4 + 2, "10 to 40, and those behind the snapshot once more"


async def test_a_release_that_comes_to_another_state_is_told_where(
    make_world: MakeWorld,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Other(group_replay.RowRecorder):
        """Counts a message's time twice."""

        def __init__(self, group: Any) -> None:
            super().__init__(group)
            own = self.machine.digest
            self.machine.digest = lambda: own()[::-1]  # type: ignore[method-assign]

    world = await made(make_world)
    monkeypatch.setattr(group_replay, "RowRecorder", Other)
    _, queues = await rehearsed(world)
    assert not queues.sound
    assert queues.differing[:3] == [10, 20, 30]


async def test_a_log_of_a_later_release_is_a_problem_in_words(make_world: MakeWorld) -> None:
    newer = type("Newer", (QueueMachine,), {"newest": 9})
    world = make_world(default_groups=1, machines=(CatalogMachine, newer))
    await world.born()
    group = world.group(1)
    group.version_of_members = lambda: 9
    group.upgrade_machine()
    await world.until(lambda: group.machine.version == 9)
    await world.declare("q")  # how far is committed is noted with what is written next
    _, queues = await rehearsed(world)
    assert "needs machine version 9" in str(queues.problem)
