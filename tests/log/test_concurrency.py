"""Syncs, snapshots and the cleaner at the same time, every disk call taking a while."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from cluster.log import Journal, Log, SnapshotRefused
from cluster.log.reader import CORRUPT, read
from tests.log.memory_disk import PowerLost
from tests.log.support import FOLDER, World, command, contents, fill

GROUPS = (1, 2, 3)


class Busy:
    """A node that does everything at once until the power fails."""

    def __init__(self, world: World, log: Log, random: Random) -> None:
        self.world = world
        self.log = log
        self.random = random
        self.live: dict[int, set[int]] = {group: set() for group in GROUPS}
        self.base = dict.fromkeys(GROUPS, 1)

    async def rounds(self) -> None:
        while True:
            for group in GROUPS:
                if self.random.random() < 0.7:
                    fill(self.log.journal(group), self.random.randint(1, 4), size=80)
            self.log.note(34, 0, 0, 0, b"")
            self.log.write()
            await self.log.sync()
            await asyncio.sleep(0)

    async def cleaning(self) -> None:
        while True:
            await self.log.maintain()
            await asyncio.sleep(0)

    async def snapshots(self) -> None:
        while True:
            await asyncio.sleep(0)
            group = self.random.choice(GROUPS)
            journal = self.log.journal(group)
            if journal.synced_index < journal.base_index + 5:
                continue
            index = journal.synced_index - 2
            readable = [i for i in range(2, index + 1) if journal.read(i) is not None]
            live = {i for i in readable if self.random.random() < 0.3}
            self.live[group] &= live
            await journal.save_snapshot(index, 1, b"%d" % index, [(i, i) for i in sorted(live)])
            self.live[group], self.base[group] = live, index

    async def run(self) -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await self.together()
        assert caught.group_contains(PowerLost), caught.value

    async def together(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for work in (self.rounds(), self.cleaning(), self.snapshots()):
                tasks.create_task(work)


def check(journal: Journal, synced: int, base: int, live: set[int]) -> None:
    found = contents(journal)
    assert journal.last_index >= synced
    assert journal.base_index >= base
    assert live <= found.keys()
    assert {i for i in found if i > journal.base_index} == set(
        range(journal.base_index + 1, journal.last_index + 1)
    )
    assert all(body == command(i, 1, 80) for i, body in found.items())


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_runs_together_nothing_synced_is_lost(seed: int) -> None:
    random = Random(seed)
    world = World(segment_bytes=2500, hot_bytes=1000)

    async def pause(_: str) -> None:
        for _ in range(random.randint(0, 3)):
            await asyncio.sleep(0)

    world.disk._pause = pause
    busy = Busy(world, await world.open(), random)
    for _ in range(3):
        world.disk.steps_left = random.randint(5, 150)
        await busy.run()
        synced = {g: busy.log.journals[g].synced_index for g in GROUPS if g in busy.log.journals}
        world.crash(random if seed % 2 else None)
        assert [r for r in read(FOLDER, disk=world.disk) if r.kind == CORRUPT] == []
        try:
            busy.log = await world.open()
        except PowerLost:
            raise AssertionError("a new disk has power") from None
        for group, index in synced.items():
            check(busy.log.journal(group), index, busy.base[group], busy.live[group])
            busy.base[group] = busy.log.journal(group).base_index
            busy.live[group] = {
                i for i in contents(busy.log.journal(group)) if i <= busy.base[group]
            }


async def test_a_cancelled_sync_is_made_up_for() -> None:
    world = World(segment_bytes=300)
    log = await world.open()
    for number in range(1, 12):
        fill(log.journal(1), 3)
        log.write()
        hold = asyncio.Event()
        world.disk._pause = lambda _, hold=hold: hold.wait()
        syncing = asyncio.create_task(log.sync())
        for _ in range(number):
            await asyncio.sleep(0)
        syncing.cancel()
        hold.set()
        await asyncio.gather(syncing, return_exceptions=True)
        world.disk._pause = None
        log.write()
        await log.sync()
        assert log.journal(1).synced_index == 1 + 3 * number
    world.crash()
    assert (await world.open()).journal(1).last_index == 34


async def test_a_snapshot_of_its_own_does_not_undo_an_install_that_came_first() -> None:
    world = World()
    log = await world.open()
    journal = log.journal(1)
    fill(journal, 20)
    await log.sync()
    hold = asyncio.Event()
    world.disk._pause = lambda _: hold.wait()
    saving = asyncio.create_task(journal.save_snapshot(10, 1, b"own", []))
    await asyncio.sleep(0)
    world.disk._pause = None
    digest = journal.hash_at(10)
    assert digest is not None
    journal.begin_install(30, 1, b"H" * 16, b"theirs", [(10, 10)])
    journal.add_live(10, 1, command(10, 1), digest)
    await journal.finish_install()
    hold.set()
    with pytest.raises(SnapshotRefused):
        await saving
    assert journal.base_index == 30
    world.crash()
    snapshot = (await world.open()).journal(1).load_snapshot()
    assert snapshot is not None
    assert snapshot.data == b"theirs"
