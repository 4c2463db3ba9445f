from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from chaos.simulator.disk import SECTOR, DiskOptions, Platter, SimDisk
from chaos.simulator.loop import Process, World
from cluster.log import Log, LogIdentity, SystemClock

LOSSES = 200


def _after(
    work: Callable[[SimDisk], Coroutine[Any, Any, None]], seed: int, **options: Any
) -> tuple[Platter, SimDisk]:
    """The platter after the work was done and its machine lost power, and a new process's disk."""
    world = World()
    platter = Platter(random.Random(seed), DiskOptions(**options))
    process = Process(world, "before")
    process.spawn(work(SimDisk(platter, process)))
    world.run(10)
    assert process.crashes == []
    process.kill()
    platter.lose_power()
    return platter, SimDisk(platter, Process(world, "after"))


async def _write_twice(disk: SimDisk) -> None:
    disk.make_dir("d")
    await disk.sync_dir("")
    file = disk.open("d/f", create=True)
    await disk.sync_dir("d")
    file.append([b"safe"])
    await file.sync()
    file.append([b"x" * SECTOR, b"y" * SECTOR])


def test_what_was_synced_survives_and_the_rest_may_be_lost_or_torn() -> None:
    contents = {
        bytes(_after(_write_twice, seed)[1].open("d/f").read(0, 1 << 20)) for seed in range(LOSSES)
    }

    whole = b"safe" + b"x" * SECTOR + b"y" * SECTOR
    assert all(content.startswith(b"safe") for content in contents)
    assert b"safe" in contents
    assert whole in contents
    assert any(len(content) == len(whole) and b"\0" in content for content in contents)
    assert len(contents) > 10


async def _write_thrice(disk: SimDisk) -> None:
    await _write_twice(disk)
    file = disk.open("d/f")
    for letter in b"uvw":
        file.append([bytes([letter]) * SECTOR])


def test_written_back_in_any_order_a_later_write_may_be_there_without_an_earlier_one() -> None:
    def contents(**how: Any) -> set[bytes]:
        return {
            bytes(_after(_write_thrice, seed, **how)[1].open("d/f").read(0, 1 << 20))
            for seed in range(LOSSES)
        }

    def overtaken(content: bytes) -> bool:
        return b"w" in content and b"v" not in content

    assert all(content.startswith(b"safe") for content in contents(write_back=True))
    assert any(map(overtaken, contents(write_back=True)))
    assert not any(map(overtaken, contents()))


def test_a_name_that_was_not_synced_may_be_gone_or_there() -> None:
    async def make(disk: SimDisk) -> None:
        disk.make_dir("d")
        await disk.sync_dir("")
        disk.open("d/f", create=True)

    assert {_after(make, seed)[1].exists("d/f") for seed in range(50)} == {True, False}


def test_a_rename_that_was_not_synced_shows_the_old_name_or_the_new_one() -> None:
    async def rename(disk: SimDisk) -> None:
        disk.make_dir("d")
        await disk.sync_dir("")
        file = disk.open("d/old", create=True)
        file.append([b"1"])
        await file.sync()
        await disk.sync_dir("d")
        disk.rename("d/old", "d/new")

    names = {tuple(_after(rename, seed)[1].list_dir("d")) for seed in range(50)}

    assert names == {("old",), ("new",)}


def test_what_is_written_during_a_sync_is_not_covered_by_it() -> None:
    async def race(disk: SimDisk) -> None:
        import asyncio

        file = disk.open("f", create=True)
        await disk.sync_dir("")
        file.append([b"a"])
        sync = asyncio.ensure_future(file.sync())
        await asyncio.sleep(0)
        file.append([b"b"])
        await sync

    contents = {bytes(_after(race, seed)[1].open("f").read(0, 9)) for seed in range(50)}

    assert b"a" in contents
    assert all(content.startswith(b"a") for content in contents)


def test_a_kill_of_the_process_loses_nothing() -> None:
    world = World()
    platter = Platter(random.Random(1))
    process = Process(world, "before")
    SimDisk(platter, process).open("f", create=True).append([b"unsynced"])
    process.kill()

    assert SimDisk(platter, Process(world, "after")).open("f").read(0, 99) == b"unsynced"


def test_a_dead_process_writes_nothing() -> None:
    process = Process(World(), "p")
    file = SimDisk(Platter(random.Random(1)), process).open("f", create=True)
    process.kill()

    with pytest.raises(OSError, match="dead"):
        file.append([b"late"])


def test_a_disk_that_lies_loses_what_it_said_it_had() -> None:
    contents = {_after(_write_twice, seed, lies=True)[1].exists("d/f") for seed in range(50)}

    assert False in contents


def test_a_sync_takes_time_and_a_failing_one_says_so() -> None:
    world = World()
    platter = Platter(random.Random(1), DiskOptions(sync_ms_typical=10, stall_share=0))
    process = Process(world, "p")
    disk = SimDisk(platter, process)
    took: list[float] = []

    async def work() -> None:
        file = disk.open("f", create=True)
        await file.sync()
        took.append(world.now_s)
        platter.options.fails = True
        await file.sync()

    process.spawn(work())
    world.run(1)

    assert 0.005 <= took[0] <= 0.020
    assert [type(crash) for crash in process.crashes] == [OSError]


async def _begun_and_killed(disk: SimDisk) -> None:
    """The process before was killed when it had made the folder, and before that was synced."""
    disk.make_dir("data")
    log = await Log.open("data", disk=disk, clock=SystemClock(), identity=LogIdentity("n1", "c"))
    log.journal(1).set_term(7, "n2")
    log.write()
    await log.sync()


@pytest.mark.parametrize("seed", range(20))
def test_a_log_whose_folder_was_there_unsynced_survives_a_power_loss(seed: int) -> None:
    _, disk = _after(_begun_and_killed, seed)

    names = disk.list_dir("data") if disk.exists("data") else []
    assert [name for name in names if name.endswith(".log")]
