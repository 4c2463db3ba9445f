"""Snapshots move the base, keep live entries, and are installed whole or not at all."""

from __future__ import annotations

from random import Random

import pytest

from cluster.log import Log, LogCorrupt, SnapshotRefused
from cluster.log.snapshots import Snapshot, decode_snapshot, encode_snapshot
from tests.log.memory_disk import PowerLost
from tests.log.support import FOLDER, World, command, contents, fill, save

SNAPSHOTS = f"{FOLDER}/snapshots"


async def saved(world: World) -> Log:
    """Group 1: entries to 41, snapshot at 21 with 5..7 and 21 live, snapshot at 31 with 6 and 25
    live.
    """
    log = await world.open()
    journal = log.journal(1)
    fill(journal, 40)
    await save(log)
    await journal.save_snapshot(21, 1, b"at 21", [(5, 7), (21, 21), (25, 25)])
    await journal.save_snapshot(31, 1, b"at 31", [(6, 6), (25, 25)])
    return log


async def test_entries_below_the_base_are_readable_only_while_live() -> None:
    world = World()
    log = await saved(world)
    for _ in range(2):
        journal = log.journal(1)
        assert sorted(contents(journal)) == [6, 25, *range(32, 42)]
        assert journal.read(6) == command(6, 1)
        assert (journal.base_index, journal.base_term) == (31, 1)
        assert (journal.term_at(31), journal.term_at(30), journal.hash_at(6)) == (
            1,
            None,
            journal.hash_at(6),
        )
        assert journal.entries(31, 1)[0][1:] == (31, 1)
        snapshot = journal.load_snapshot()
        assert snapshot is not None
        assert (snapshot.data, snapshot.live) == (b"at 31", [(6, 6), (25, 25)])
        world.crash()
        log = await world.open()


async def test_the_newest_two_snapshots_are_kept() -> None:
    world = World()
    log = await saved(world)
    await log.journal(1).save_snapshot(35, 1, b"at 35", [])
    assert world.disk.list_dir(SNAPSHOTS) == ["1-31.snap", "1-35.snap"]


async def test_a_snapshot_must_be_of_an_entry_above_the_base() -> None:
    log = await saved(World())
    for index, term in ((31, 1), (42, 1), (35, 2)):
        with pytest.raises(SnapshotRefused):
            await log.journal(1).save_snapshot(index, term, b"", [])


async def test_damage_to_the_newest_snapshot_falls_back_while_the_log_covers_the_gap() -> None:
    world = World()
    log = await saved(world)
    digest = log.journal(1).last_hash
    inode = world.disk.names[f"{SNAPSHOTS}/1-31.snap"]
    assert inode is not None
    inode.content[-1] ^= 1
    for _ in range(2):
        world.crash()
        journal = (await world.open()).journal(1)
        assert (journal.base_index, journal.last_index, journal.last_hash) == (21, 41, digest)
        assert sorted(contents(journal)) == [5, 6, 7, *range(21, 42)]
    assert world.disk.list_dir(SNAPSHOTS) == ["1-21.snap", "1-31.snap.corrupt"]


async def test_without_the_entries_between_damage_to_the_newest_snapshot_is_fatal() -> None:
    world = World(segment_bytes=600)
    log = await saved(world)
    for _ in range(4):
        await log.maintain()
    await log.close()
    inode = world.disk.names[f"{SNAPSHOTS}/1-31.snap"]
    assert inode is not None
    inode.content[-1] ^= 1
    with pytest.raises(LogCorrupt, match="snapshot's checksum is wrong"):
        await world.open()


async def test_a_missing_snapshot_is_noticed() -> None:
    world = World()
    log = await world.open()
    fill(log.journal(1), 5)
    await log.journal(1).save_snapshot(4, 1, b"", [])
    await log.close()
    world.disk.remove(f"{SNAPSHOTS}/1-4.snap")
    with pytest.raises(LogCorrupt, match="snapshot is missing"):
        await world.open()


def test_a_snapshot_file_survives_the_round_trip_and_no_flipped_bit() -> None:
    snapshot = Snapshot(9, 2, b"h" * 16, b"data", [(1, 3), (5, 5)])
    data, crc = encode_snapshot(7, snapshot, 123)
    assert decode_snapshot(data, "f") == (7, snapshot, crc)
    for at in range(len(data)):
        with pytest.raises(LogCorrupt):
            decode_snapshot(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "f")


async def begin(log: Log) -> None:
    """A follower with entries of an old term receives a snapshot at 50."""
    journal = log.journal(1)
    fill(journal, 20)
    journal.set_term(3, None)
    await save(log)
    journal.begin_install(50, 3, b"H" * 16, b"at 50", [(10, 11), (45, 45)])
    for index in (45, 10, 11, 12):
        journal.add_live(index, 2, command(index, 2), b"%016d" % index)
    log.write()


async def test_an_installed_snapshot_replaces_everything() -> None:
    world = World()
    log = await world.open()
    await begin(log)
    await log.journal(1).finish_install()
    for _ in range(2):
        journal = log.journal(1)
        assert (journal.base_index, journal.last_index, journal.last_term) == (50, 50, 3)
        assert (journal.last_hash, journal.hash_at(45)) == (b"H" * 16, b"%016d" % 45)
        assert contents(journal) == {i: command(i, 2) for i in (10, 11, 45)}
        assert (journal.synced_index, journal.commit_index) == (50, 50)
        world.crash()
        log = await world.open()
    fill(log.journal(1), 3, term=4)
    assert log.journal(1).last_index == 53


async def test_an_install_is_atomic_whenever_the_power_fails() -> None:
    seen = set[int]()
    for steps in range(12):
        world = World()
        log = await world.open()
        await begin(log)
        world.disk.steps_left = steps
        try:
            await log.journal(1).finish_install()
            seen.add(99)
        except PowerLost:
            pass
        for dice in (None, Random(steps), Random(-steps)):
            crashed = World()
            crashed.disk = world.disk.after_crash(dice)
            journal = (await crashed.open()).journal(1)
            seen.add(journal.last_index)
            if journal.last_index == 21:
                assert sorted(contents(journal)) == list(range(2, 22))
                assert journal.load_snapshot() is None
            else:
                assert (journal.last_index, sorted(contents(journal))) == (50, [10, 11, 45])
    assert seen == {21, 50, 99}


async def test_an_install_waits_for_all_live_entries() -> None:
    log = await World().open()
    await begin(log)
    journal = log.journal(1)
    journal.begin_install(60, 3, b"H" * 16, b"", [(10, 12)])
    journal.add_live(11, 2, b"x")
    assert journal.missing_live() == [(10, 10), (12, 12)]
    with pytest.raises(SnapshotRefused, match="have not arrived"):
        await journal.finish_install()
    assert journal.last_index == 21


async def test_an_aborted_install_leaves_the_journal_and_no_live_bytes() -> None:
    log = await World().open()
    fill(log.journal(1), 20)
    before = log.wal.active.live_bytes
    journal = log.journal(1)
    journal.begin_install(50, 3, b"H" * 16, b"", [(10, 10)])
    journal.add_live(10, 2, b"x")
    journal.add_live(10, 2, b"x")
    journal.abort_install()
    assert log.wal.active.live_bytes == before
    assert (journal.last_index, journal.install) == (21, None)
