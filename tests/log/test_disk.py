"""The real disk does what the log asks; the one in memory forgets what it may."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random
from threading import Event

import pytest

from cluster.log import Log, LogIdentity, LogOptions, RealDisk, SystemClock
from cluster.log.disk import BUFFERS_MAX, DiskThreads
from tests.log.memory_disk import MemoryDisk
from tests.log.support import command, contents, fill, save


async def test_a_vectored_append_may_have_more_buffers_than_the_system_takes(
    tmp_path: Path,
) -> None:
    disk = RealDisk()
    file = disk.open(str(tmp_path / "f"), create=True)
    pieces = [b"%05d" % i for i in range(2 * BUFFERS_MAX + 7)]
    assert file.append([b"head"]) == 0
    assert file.append(pieces) == 4
    await file.sync()
    assert file.read(4, file.size()) == b"".join(pieces)
    assert file.read(file.size() - 2, 10) == pieces[-1][-2:]
    file.truncate(6)
    assert file.append([bytearray(b"!"), memoryview(b"?")]) == 6
    assert file.read(0, 10) == b"head00!?"
    file.close()
    disk.close()


async def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, bufs, at: real(fd, [b"".join(bufs)[:3]], at))
    disk = RealDisk()
    file = disk.open(str(tmp_path / "f"), create=True)
    file.append([b"abcd", b"", b"efgh", b"i"])
    assert file.read(0, 99) == b"abcdefghi"
    disk.close()


async def test_names_and_folders(tmp_path: Path) -> None:
    disk = RealDisk()
    folder = f"{tmp_path}/a/b"
    disk.make_dir(folder)
    disk.open(f"{folder}/one", create=True).close()
    disk.rename(f"{folder}/one", f"{folder}/two")
    await disk.sync_dir(folder)
    assert disk.list_dir(folder) == ["two"]
    assert disk.exists(f"{folder}/two")
    disk.remove(f"{folder}/two")
    assert not disk.exists(f"{folder}/two")
    assert disk.free_bytes(folder) > 0
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/none")
    disk.close()


async def test_a_log_on_a_real_disk_survives_rolls_snapshots_and_restarts(tmp_path: Path) -> None:
    disk, clock = RealDisk(), SystemClock()
    options = LogOptions(
        segment_bytes=20_000, hot_bytes=1000, archive_dir=str(tmp_path / "archive")
    )
    for life in range(4):
        log = await Log.open(
            str(tmp_path / "log"),
            disk=disk,
            clock=clock,
            identity=LogIdentity("n1", "test"),
            options=options,
        )
        journal = log.journal(1)
        assert journal.last_index == 1 + 100 * life
        if life:
            assert sorted(contents(journal))[:2] == [life * 100 - 50, life * 100 - 40]
        fill(journal, 100, size=500)
        await save(log)
        last = journal.last_index
        live = [(last - 51, last - 51), (last - 41, last - 41)]
        await journal.save_snapshot(last - 20, 1, b"state", live)
        await log.maintain()
        await log.maintain()
        assert journal.read(last) == command(last, 1, 500)
        await log.close()
    assert list((tmp_path / "archive" / "n1").iterdir())
    disk.close()


async def test_a_disk_in_memory_forgets_what_was_not_synced() -> None:
    disk = MemoryDisk()
    disk.make_dir("/d")
    file = disk.open("/d/f", create=True)
    file.append([b"safe"])
    await file.sync()
    assert not disk.after_crash().exists("/d/f")
    await disk.sync_dir("/d")
    file.append([b" lost"])
    assert disk.after_crash().open("/d/f").read(0, 99) == b"safe"
    seen = {disk.after_crash(Random(seed)).open("/d/f").read(0, 99) for seed in range(200)}
    assert {b"safe", b"safe lost", b"safe lo", b"safe\0\0\0\0\0"} <= seen
    file.truncate(2)
    assert disk.after_crash().open("/d/f").read(0, 99) == b"safe"
    await file.sync()
    assert disk.after_crash().open("/d/f").read(0, 99) == b"sa"
    disk.rename("/d/f", "/d/g")
    assert disk.after_crash().list_dir("/d") == ["f"]
    await disk.sync_dir("/d")
    disk.remove("/d/g")
    assert disk.after_crash().list_dir("/d") == ["g"]


async def test_an_error_of_a_sync_is_raised_where_it_is_awaited(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.open(str(tmp_path / "f"), create=True)
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        await file.sync()
    with pytest.raises(FileNotFoundError):
        await disk.sync_dir(str(tmp_path / "none"))
    disk.close()


async def test_a_sync_that_is_cancelled_does_not_disturb_the_next() -> None:
    threads = DiskThreads("test", 1)
    began, go_on, calls = Event(), Event(), list[str]()

    def slow(name: str) -> None:
        began.set()
        assert go_on.wait(60)
        calls.append(name)

    first = threads.start(slow, "first")
    while not began.is_set():
        await asyncio.sleep(0)
    second = threads.start(calls.append, "second")
    third = threads.start(calls.append, "third")
    first.cancel()
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    go_on.set()
    await third
    assert calls == ["first", "third"]
    threads.close()


async def test_a_log_may_be_closed_twice(tmp_path: Path) -> None:
    """A node whose start failed half-way does, and must still tell why it failed."""
    disk = RealDisk()
    about = LogIdentity("n1", "test")
    log = await Log.open(str(tmp_path / "log"), disk=disk, clock=SystemClock(), identity=about)
    await log.close()
    await log.close()
    disk.close()


async def test_a_file_that_is_closed_while_it_is_fetched_is_read_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next file would get its descriptor, and be read in its place."""
    disk = RealDisk()
    file = disk.open(str(tmp_path / "f"), create=True)
    file.append([b"right"])
    began, go_on, pread = Event(), Event(), os.pread

    def slow(fd: int, size: int, offset: int) -> bytes:
        began.set()
        assert go_on.wait(60)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", slow)
    fetching = asyncio.create_task(file.fetch(0, 5))
    cancelled = asyncio.create_task(file.fetch(0, 5))
    turns = 0
    while not began.is_set():
        await asyncio.sleep(0)
        turns += 1  # the loop turns meanwhile
    cancelled.cancel()
    file.close()
    os.remove(tmp_path / "f")
    other = disk.open(str(tmp_path / "other"), create=True)
    other.append([b"wrong"])
    go_on.set()
    assert await fetching == b"right"
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    other.close()
    disk.close()
    while file._reading:  # what the threads have said comes in turns of the loop
        await asyncio.sleep(0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file._fd)


async def test_what_lies_close_together_is_fetched_at_once_and_checked(tmp_path: Path) -> None:
    disk = RealDisk()
    log = await Log.open(
        str(tmp_path / "log"),
        disk=disk,
        clock=SystemClock(),
        identity=LogIdentity("n1", "test"),
        options=LogOptions(hot_bytes=0, segment_bytes=100_000, min_free_bytes=0),
    )
    one, two = log.journal(1), log.journal(2)
    for number in range(2, 400):
        for journal in (one, two):
            journal.add(b"\0%d" % number * 100, number, 1)
        if number % 50 == 0:
            log.write()
            await log.sync()
    assert len(one.near(2, 100)) == 1, "what is not committed is not brought along"
    for journal in (one, two):
        journal.set_commit(399)
    seen: list[int] = []
    index = 2
    while index < 400:
        near = one.near(index, 0)
        found = await one.fetch(near)
        assert found == [(i, one.read(i)) for i, _ in near]
        seen += [i for i, _ in found]
        index = seen[-1] + 1
    assert seen == list(range(2, 400))
    (few,) = {len(one.near(2, 0)), len(one.near(2, 100))}
    assert 1 < few < 398  # the rest is in another segment
    await log.close()
    disk.close()
