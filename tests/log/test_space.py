"""Marks of a volume, and what the log does near them."""

from __future__ import annotations

import pytest

from cluster.log import SnapshotRefused
from cluster.log.snapshots import SPARE_BYTES
from cluster.log.space import measured
from tests.log.support import World, contents, fill, save

MIB = 1 << 20


@pytest.mark.parametrize(
    ("total_mib", "limit_mib", "segment_mib"),
    [(10, 2, 1), (64, 12, 4), (300, 60, 18), (1024, 204, 64), (20 << 10, 256, 64)],
)
def test_limit_and_segments_suit_the_volume(
    total_mib: int, limit_mib: int, segment_mib: int
) -> None:
    space = measured(total_mib * MIB, total_mib * MIB, None, refused=False)
    assert space.limit_bytes // MIB == limit_mib
    assert space.segment_bytes(64 * MIB) // MIB == segment_mib
    assert space.segment_bytes(100_000) == 100_000
    assert not space.near
    assert measured(20 << 30, 20 << 30, 5, refused=False).limit_bytes == 5


def test_publishers_go_on_a_little_above_where_they_had_to_stop() -> None:
    def refused(free: int, *, before: bool) -> bool:
        return measured(free, 10_000, 1000, refused=before).refuse_publishes

    assert [refused(free, before=False) for free in (1000, 999)] == [False, True]
    assert [refused(free, before=True) for free in (1099, 1100)] == [True, False]


async def test_the_active_segment_is_sealed_when_space_is_short_and_it_is_mostly_dead() -> None:
    world = World(min_free_bytes=8 * MIB)
    world.disk.capacity = 16 * MIB
    log = await world.open()
    journal = log.journal(1)
    fill(journal, 100, size=10_000)
    await save(log)
    await log.maintain()
    assert len(world.files()) == 1  # all of it is needed
    await journal.save_snapshot(95, 1, b"state", [(7, 7)])
    await log.maintain()
    kept = contents(journal)
    assert set(kept) == {7, *range(96, 102)}
    assert sum(len(world.content(name)) for name in world.files()) < 100_000
    world.crash()
    assert contents((await world.open()).journal(1)) == kept


async def test_nothing_is_rewritten_that_would_take_the_reserve() -> None:
    world = World(min_free_bytes=MIB)
    world.disk.capacity = 8 * MIB
    log = await world.open()
    journal = log.journal(1)
    fill(journal, 100, size=20_000)
    await save(log)
    await log.wal.roll()
    await journal.save_snapshot(100, 1, b"state", [(index, index) for index in range(2, 100, 2)])
    size = log.wal.segments[1].size
    assert 0.4 < log.wal.segments[1].live_bytes / size < 0.6
    world.disk.taken = world.disk.free_bytes("") - MIB  # half a MiB less than it would take
    space = log.space()
    assert space.near
    assert log.cleaner.reclaimable_bytes(space) < 1000
    await log.maintain()
    assert 1 in log.wal.segments
    assert world.disk.free_bytes("") > MIB * 0.9
    world.disk.taken -= MIB
    assert log.cleaner.reclaimable_bytes(log.space()) > MIB * 0.9
    for _ in range(3):
        await log.maintain()
    assert 1 not in log.wal.segments


async def test_a_snapshot_without_room_is_refused_and_no_failure_of_the_disk() -> None:
    world = World(min_free_bytes=0)
    world.disk.capacity = 4 * MIB
    log = await world.open()
    journal = log.journal(1)
    fill(journal, 10)
    await save(log)
    with pytest.raises(SnapshotRefused, match="no room"):
        await journal.save_snapshot(5, 1, bytes(5 * MIB), [])
    # The room goes between the look and the write.
    free = world.disk.free_bytes
    world.disk.free_bytes = lambda path: free(path) if path.endswith(".tmp") else 1 << 40
    with pytest.raises(SnapshotRefused, match="no room"):
        await journal.save_snapshot(5, 1, bytes(5 * MIB), [])
    assert not [name for name in world.disk.names if name.endswith(".tmp")]
    fill(journal, 1)
    await save(log)
    world.disk.free_bytes = free
    await journal.save_snapshot(5, 1, bytes(3 * MIB - SPARE_BYTES), [])
    assert journal.base_index == 5


async def test_the_volume_is_looked_at_before_much_was_written() -> None:
    world = World(min_free_bytes=2 * MIB)
    world.disk.capacity = 10 * MIB
    log = await world.open()
    told = list[bool]()
    log.on_space = lambda: told.append(True)
    for _ in range(88):
        fill(log.journal(1), 1, size=100_000)
        await save(log)
    assert told == [True]
    for _ in range(3):
        fill(log.journal(1), 1, size=100_000)
        await save(log)
    assert log.room_bytes() == world.disk.free_bytes("") - MIB
