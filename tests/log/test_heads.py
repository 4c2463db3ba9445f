"""What a start reads in the place of a sealed segment: it says the same, or it is passed over."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from cluster.log import Log, LogCorrupt
from cluster.log import format as fmt
from tests.log.memory_disk import MemoryFile
from tests.log.support import FOLDER, World, command, contents, fill, save


def heads(world: World) -> list[str]:
    return [name for name in world.disk.list_dir(FOLDER) if name.endswith(fmt.HEADS_SUFFIX)]


async def written(seed: int) -> World:
    """Sealed segments with records of all kinds, and some that were rewritten."""
    dice, world = Random(seed), World(segment_bytes=4_000)
    log = await world.open()
    for round_ in range(60):
        for group in (1, 2, 3):
            journal = log.journal(group)
            fill(journal, dice.randint(0, 5), term=1 + round_ // 9, size=dice.randint(12, 300))
        journal = log.journal(dice.randint(1, 3))
        match dice.randint(0, 7):
            case 0:
                journal.set_term(1 + round_ // 9, "n2")
            case 1:
                last = journal.last_index + 1
                journal.add(fmt.MEMBERSHIP + command(last, 1), last, 1 + round_ // 9)
            case 2 if journal.last_index > journal.base_index + 3:
                journal.truncate_from(journal.last_index - 1)
            case 3:
                journal.set_commit(journal.last_index)
            case 4:
                log.note(34, 0, 0, 0, b"a note")
            case 5:
                journal.force(b"members" if dice.random() < 0.5 else b"")
            case 6:
                journal.diverge(dice.random() < 0.5)
            case _:
                pass
        await save(log)
        if dice.random() < 0.2 and journal.last_index > journal.base_index:
            last, term = journal.last_index, journal.last_term
            live = [(each, each) for each in range(2, last, 3) if journal.holds(each)]
            await journal.save_snapshot(last, term, b"state", live)
        await log.maintain()
    await log.close()
    return world


def state(log: Log) -> dict[str, Any]:
    """All that recovery found."""
    segments = {
        number: (each.size, each.groups, each.resets, each.last_wall_ns, each.live_bytes)
        for number, each in log.wal.segments.items()
        if each is not log.wal.active and each.size > each.start
    }
    journals = {
        group: (
            contents(each),
            (each.base_index, each.last_index, each.last_term, each.last_hash, each.commit_index),
            (each.current_term, each.voted_for, each.forced, each.diverged, each.memberships),
            (each.mark, list(each.tail.offsets), list(each.tail.lengths), list(each.old.indexes)),
        )
        for group, each in log.journals.items()
    }
    return {"segments": segments, "journals": journals, "records": log.recovered_records}


async def reopened(world: World, *, with_heads: bool) -> dict[str, Any]:
    copy = World()
    copy.disk, copy.options = world.disk.after_crash(), world.options
    for name in heads(copy):
        if not with_heads:
            copy.disk.remove(f"{FOLDER}/{name}")
    log = await copy.open()
    found = state(log)
    await log.close()
    return found


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Segments that are read as a whole."""
    read: list[str] = []
    before = MemoryFile.read

    def counting(self: MemoryFile, offset: int, size: int) -> bytes:
        if offset == 0 and size == self.size() and self._path.endswith(".log"):
            read.append(self._path)
        return before(self, offset, size)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFile, "read", counting)
        yield read


@pytest.mark.parametrize("seed", range(8))
async def test_a_start_finds_the_same_with_heads_and_without(seed: int) -> None:
    world = await written(seed)
    assert len(heads(world)) > 2

    assert await reopened(world, with_heads=True) == await reopened(world, with_heads=False)


async def test_a_segment_with_heads_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await written(1)
    last = f"{FOLDER}/{world.files()[-1]}"
    for name in heads(world)[:1]:
        world.disk.remove(f"{FOLDER}/{name}")
        without = f"{FOLDER}/{name.replace('.idx', '.log')}"

    with counted(monkeypatch) as read:
        await world.open()

    assert read == [without, last]
    with counted(monkeypatch) as read:  # it got them when it was read
        await world.open()
    assert without not in read


@pytest.mark.parametrize("how", ["cut", "bit", "empty", "other", "longer"])
async def test_heads_that_are_not_whole_or_of_another_segment_are_passed_over(how: str) -> None:
    world = await written(2)
    expected = await reopened(world, with_heads=False)
    first, second, *_ = heads(world)
    content = world.content(first)
    match how:
        case "cut":
            del content[-10:]
        case "bit":
            content[len(content) // 2] ^= 4
        case "empty":
            content.clear()
        case "other":
            content[:] = world.content(second)
        case _:
            content += b"more"

    assert await reopened(world, with_heads=True) == expected


async def test_heads_that_the_disk_cannot_read_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await written(2)
    expected = await reopened(world, with_heads=False)
    before = MemoryFile.read

    def broken(self: MemoryFile, offset: int, size: int) -> bytes:
        if self._path.endswith(fmt.HEADS_SUFFIX):
            raise OSError(errno.EIO, "input/output error")
        return before(self, offset, size)

    monkeypatch.setattr(MemoryFile, "read", broken)

    assert await reopened(world, with_heads=True) == expected


async def test_what_was_not_read_at_the_start_is_verified_afterwards() -> None:
    world = await written(3)
    name = world.files()[0]
    world.content(name)[-30] ^= 1
    log = await world.open()

    with pytest.raises(LogCorrupt, match=name):
        await log.maintain()

    world = await written(3)
    log = await world.open()
    assert any(each.unverified for each in log.wal.segments.values())
    for _ in range(len(log.wal.segments)):
        await log.maintain()
    assert not any(each.unverified for each in log.wal.segments.values())


async def test_heads_go_with_their_segment_and_none_are_left_over() -> None:
    world = await written(4)
    numbers = {name.removesuffix(".log") for name in world.files()}
    assert {name.removesuffix(".idx") for name in heads(world)} <= numbers
    world.disk.open(f"{FOLDER}/000000009999.idx", create=True).append([b"x"])

    await world.open()

    assert "000000009999.idx" not in heads(world)


async def test_a_small_segment_has_none() -> None:
    world = World(segment_bytes=4_000, heads_bytes_min=1 << 20)
    log = await world.open()
    fill(log.journal(1), 300, size=100)
    await save(log)
    await log.wal.roll()

    assert not heads(world)
