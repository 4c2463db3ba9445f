"""Space is given back, and never a byte that someone needs."""

from __future__ import annotations

import io
from random import Random

import pytest

from cluster.log import FatalDiskError, Log, cleaner
from cluster.log.dump import dump
from cluster.log.reader import Record, read_snapshot
from tests.log.memory_disk import MemoryFile, PowerLost
from tests.log.support import FOLDER, World, command, contents, fill, save

LIVE = [(3, 3), (40, 41), (77, 77), (160, 160)]
EXPECTED = {3, 40, 41, 77, 160}


async def aged(world: World, log: Log) -> None:
    """Many segments, of which a snapshot leaves a few live entries; a second group has its tail in
    the first one.
    """
    fill(log.journal(2), 3)
    log.journal(2).set_term(7, "n2")
    for _ in range(10):
        fill(log.journal(1), 20)
        await save(log)
    await log.journal(1).save_snapshot(190, 1, b"state", LIVE)


async def clean(log: Log) -> None:
    for _ in range(6):
        await log.maintain()


def check(log: Log) -> None:
    one, two = log.journal(1), log.journal(2)
    assert contents(one) == {i: command(i, 1) for i in EXPECTED | set(range(191, 202))}
    assert contents(two) == {i: command(i, 1) for i in (2, 3, 4)}
    assert (two.current_term, two.voted_for) == (7, "n2")
    assert (one.base_index, one.last_index, two.last_index) == (190, 201, 4)


async def test_sparse_segments_are_rewritten_and_dead_ones_dropped() -> None:
    world = World(segment_bytes=1500)
    log = await world.open()
    await aged(world, log)
    before = len(world.files())
    await clean(log)
    check(log)
    assert len(world.files()) <= 4 < 8 < before
    assert all(s.live_bytes > 0 for s in log.wal.segments.values() if s.sealed)
    world.crash()
    log = await world.open()
    check(log)
    out = io.StringIO()
    assert dump(FOLDER, out=out, disk=world.disk) == 0, out.getvalue()


async def test_what_stays_is_parted_from_what_comes_and_goes_and_copied_once() -> None:
    """A stream among the traffic of a queue: in the end it lies by itself and in order."""
    world = World(segment_bytes=4000)
    log = await world.open()
    kept, passing = log.journal(1), log.journal(2)
    for _ in range(40):
        fill(kept, 2, size=100)
        fill(passing, 10, size=100)
        await save(log)
        await passing.save_snapshot(passing.last_index, 1, b"", [])
        await log.maintain()
    await clean(log)
    stays = [s for s in log.wal.segments.values() if s.groups == {1}]
    assert len(stays) >= 3
    assert all(s.live_bytes > 0.9 * s.size > 2000 for s in stays)
    places = [kept.tail.place(slot) for slot in range(len(kept.tail)) if kept.tail.segments[slot]]
    alone = [place for place in places if place.segment in {s.number for s in stays}]
    assert len(alone) > 0.7 * len(places)
    assert alone == sorted(alone)
    before = contents(kept)
    world.crash()
    assert contents((await world.open()).journal(1)) == before


async def test_what_is_replaced_or_removed_while_it_is_copied_stays_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cleaner, "REWRITE_BYTES_MAX", 300)
    world = World(segment_bytes=4000, hot_bytes=0)
    log = await world.open()
    for _ in range(5):
        for group, size in ((1, 40), (2, 40), (3, 400)):
            fill(log.journal(group), 5, size=size)
        await save(log)
        await log.wal.roll()
    await log.journal(3).save_snapshot(26, 1, b"", [])
    await log.maintain()
    assert any(name.endswith(".tmp") for name in world.disk.list_dir(FOLDER)), "it is under way"
    log.journal(1).truncate_from(4)
    fill(log.journal(1), 10, term=2)
    log.remove_group(2)
    fill(log.journal(2), 3, term=3)
    await save(log)
    before = {group: contents(log.journal(group)) for group in log.groups()}
    for _ in range(20):
        await clean(log)
    assert {group: contents(log.journal(group)) for group in log.groups()} == before
    world.crash()
    log = await world.open()
    assert {group: contents(log.journal(group)) for group in log.groups()} == before


async def test_a_segment_of_copies_that_is_not_complete_is_removed() -> None:
    world = World(segment_bytes=1500)
    log = await world.open()
    await aged(world, log)
    world.disk.failing = {"rename"}
    with pytest.raises(FatalDiskError):
        await clean(log)
    assert any(name.endswith(".tmp") for name in world.disk.list_dir(FOLDER))
    world.crash()
    log = await world.open()
    assert not any(name.endswith(".tmp") for name in world.disk.list_dir(FOLDER))
    await clean(log)
    check(log)


async def test_the_cleaner_loses_nothing_wherever_the_power_fails() -> None:
    steps = 0
    finished = False
    while not finished:
        world = World(segment_bytes=1500, archive_dir="/archive")
        log = await world.open()
        await aged(world, log)
        world.disk.steps_left = steps
        try:
            await clean(log)
            finished = True
        except PowerLost:
            pass
        for dice in (None, Random(steps), Random(-steps)):
            crashed = World(segment_bytes=1500)
            crashed.clock.ns = world.clock.ns
            crashed.disk = world.disk.after_crash(dice)
            check(await crashed.open())
        steps += 1
    assert steps > 30


async def test_a_truncate_still_holds_when_its_segment_is_gone() -> None:
    """Another group keeps the first segment, with the truncated entries, alive."""
    world = World(segment_bytes=2000)
    log = await world.open()
    fill(log.journal(2), 10, size=100)
    fill(log.journal(1), 30)
    await save(log)
    log.journal(1).truncate_from(10)
    await log.wal.roll()
    fill(log.journal(3), 30, size=100)
    await save(log)
    await clean(log)
    world.crash()
    log = await world.open()
    assert log.journal(1).last_index == 9


async def test_a_group_stays_removed_when_the_record_of_it_is_gone() -> None:
    world = World(segment_bytes=2000)
    log = await world.open()
    fill(log.journal(2), 10, size=200)
    fill(log.journal(1), 5)
    await save(log)
    log.remove_group(1)
    await log.wal.roll()
    await clean(log)
    await log.wal.roll()
    await clean(log)
    world.crash()
    log = await world.open()
    assert log.groups() == [2]


async def test_forced_members_and_divergence_stay_and_end_though_the_record_is_gone() -> None:
    for ended in (False, True):
        world = World(segment_bytes=1500)
        log = await world.open()
        for group in (1, 2):
            log.journal(group).force(b"survivors")
            log.journal(group).diverge(True)
        await save(log)
        await aged(world, log)
        if ended:
            log.journal(1).force(b"")
            log.journal(1).diverge(False)
            log.remove_group(2)  # and begins another life
            log.journal(2).set_term(1, None)
            await save(log)
        await clean(log)
        await clean(log)
        world.crash()
        log = await world.open()
        assert log.journal(1).forced == (b"" if ended else b"survivors")
        assert log.journal(2).forced == (b"" if ended else b"survivors")
        assert log.journal(1).diverged is not ended
        assert log.journal(2).diverged is not ended


async def test_dead_segments_are_retained_up_to_a_size() -> None:
    world = World(segment_bytes=1500, retain_bytes=6000)
    log = await world.open()
    await aged(world, log)
    await clean(log)
    dead = [s for s in log.wal.segments.values() if s.sealed and s.live_bytes == 0]
    assert 3000 < sum(s.size for s in dead) <= 6000
    check(log)
    world.disk.free = 0
    await clean(log)
    assert not [s for s in log.wal.segments.values() if s.sealed and s.live_bytes == 0]


async def test_dead_segments_are_retained_for_hours() -> None:
    world = World(segment_bytes=1500, retain_hours=1)
    log = await world.open()
    await aged(world, log)
    await clean(log)
    count = len(world.files())
    assert count > 10
    world.clock.ns += int(3601e9)
    await clean(log)
    assert len(world.files()) < 6
    world.crash()
    check(await world.open())


async def test_sealed_segments_are_archived_before_they_go() -> None:
    world = World(segment_bytes=1500, archive_dir="/archive")
    log = await world.open()
    await aged(world, log)
    await clean(log)
    await log.wal.roll()
    await clean(log)
    names = [name for name in world.disk.list_dir("/archive/n1") if name.endswith(".log")]
    assert [int(name[:12]) for name in names] == list(range(1, len(names) + 1))
    assert len(names) > len(world.files())
    out = io.StringIO()
    assert dump("/archive/n1", out=out, disk=world.disk, group=1, kinds=["entry"]) == 0
    assert out.getvalue().count("\nentry ") == 200


async def test_snapshots_are_archived_and_stay_when_newer_ones_replace_them() -> None:
    world = World(segment_bytes=1500, archive_dir="/archive")
    log = await world.open()
    await aged(world, log)
    await clean(log)
    for index in (195, 201):
        await log.journal(1).save_snapshot(index, 1, b"later", LIVE)
        await log.maintain()
    world.crash()
    await (await world.open()).maintain()

    folder = "/archive/n1/snapshots"
    assert world.disk.list_dir(folder) == ["1-190.snap", "1-195.snap", "1-201.snap"]
    for name, data in (("1-190.snap", b"state"), ("1-201.snap", b"later")):
        found = read_snapshot(f"{folder}/{name}", disk=world.disk)
        assert not isinstance(found, Record)
        assert (found[0], found[1].data, found[1].live) == (1, data, LIVE)
    assert len(world.disk.list_dir(f"{FOLDER}/snapshots")) == 2


async def test_a_failing_archive_keeps_segments_but_not_the_node_from_working() -> None:
    world = World(segment_bytes=1500, archive_dir="/archive")
    log = await world.open()
    await aged(world, log)
    before = len(world.files())
    world.disk.failing = {"make_dir"}
    await log.cleaner._archive("/archive")
    world.disk.failing = set()
    assert "make_dir fails" in (log.cleaner.archive_error or "")
    assert len(world.files()) == before
    await clean(log)
    assert log.cleaner.archive_error is None
    assert len(world.files()) < before


async def test_segments_that_many_restarts_leave_are_merged() -> None:
    world = World()
    for _ in range(15):
        log = await world.open()
        fill(log.journal(1), 2)
        await save(log)
        await log.close()
    assert len(world.files()) == 15
    log = await world.open()
    await clean(log)
    assert len(world.files()) < 3
    assert log.journal(1).last_index == 31
    world.crash()
    assert sorted(contents((await world.open()).journal(1))) == list(range(2, 32))


async def test_what_is_rewritten_or_archived_was_read_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched = set[tuple[int, int]]()  # file and byte, by the thousand
    unread = list[tuple[int, int]]()
    read = MemoryFile.read

    def within(offset: int, size: int) -> range:
        return range(offset // 1000, (offset + size - 1) // 1000 + 1)

    def on_loop(file: MemoryFile, offset: int, size: int) -> bytes:
        here = [(id(file._inode), part) for part in within(offset, size)]
        unread.extend(part for part in here if part not in fetched)
        return read(file, offset, size)

    async def fetch(file: MemoryFile, offset: int, size: int) -> bytes:
        fetched.update((id(file._inode), part) for part in within(offset, size))
        return read(file, offset, size)

    world = World(segment_bytes=4000, archive_dir="/archive", hot_bytes=0)
    log = await world.open()
    journal = log.journal(1)
    for _ in range(10):
        fill(journal, 20)
        await save(log)
    before = contents(journal)
    await journal.save_snapshot(200, 1, b"state", [(n, n) for n in range(2, 200, 10)])
    monkeypatch.setattr(MemoryFile, "read", on_loop)
    monkeypatch.setattr(MemoryFile, "fetch", fetch)
    await log.maintain()
    monkeypatch.undo()
    assert unread == []
    assert fetched
    assert journal.old.segments[0] == log.wal.active.number - 1, "the oldest was copied"
    assert [journal.read(n) for n in range(2, 200, 10)] == [before[n] for n in range(2, 200, 10)]
