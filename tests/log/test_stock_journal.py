"""What PySyncObj's own journal does where ours must do better: the same steps, on both."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from pysyncobj.journal import FIRST_RECORD_OFFSET, FileJournal

from cluster.log import Log, LogCorrupt, LogIdentity, LogOptions, RealDisk, SystemClock

IDENTITY = LogIdentity("n1", "test")


class Syncs:
    """Counts what reaches the device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, real):
        def sync(fd: int) -> None:
            self.count += 1
            real(fd)

        return sync


async def open_log(path: Path) -> Log:
    return await Log.open(str(path), disk=RealDisk(), clock=SystemClock(), identity=IDENTITY)


async def test_the_stock_journal_never_syncs_and_ours_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = FileJournal(str(tmp_path / "stock"))
    log = await open_log(tmp_path / "ours")
    syncs = Syncs(monkeypatch)
    stock.add(b"\0entry", 1, 1)
    stock.setCurrentTerm(5, "n2")
    stock.onOneSecondTimer()
    assert syncs.count == 0
    log.journal(1).add(b"\0entry", 2, 1)
    log.journal(1).set_term(5, "n2")
    assert log.write()
    await log.sync()
    assert syncs.count == 1
    await log.close()


async def test_the_stock_journal_returns_damaged_entries_and_ours_refuses(tmp_path: Path) -> None:
    stock = FileJournal(str(tmp_path / "stock"))
    stock.add(b"\0balance: 100", 1, 1)
    stock._destroy()
    log = await open_log(tmp_path / "ours")
    log.journal(1).add(b"\0balance: 100", 2, 1)
    await log.close()
    for path in (tmp_path / "stock", tmp_path / "ours" / "000000000001.log"):
        path.write_bytes(path.read_bytes().replace(b"balance: 100", b"balance: 900"))
    assert FileJournal(str(tmp_path / "stock"))[0] == (b"\0balance: 900", 1, 1)
    with pytest.raises(LogCorrupt):
        await open_log(tmp_path / "ours")


def test_the_stock_journal_cannot_count_beyond_4_gib(tmp_path: Path) -> None:
    stock = FileJournal(str(tmp_path / "stock"))
    stock._FileJournal__currentOffset = FIRST_RECORD_OFFSET  # type: ignore[attr-defined]
    with pytest.raises(struct.error):
        stock._FileJournal__setLastRecordOffset(1 << 32)  # type: ignore[attr-defined]


async def test_compacting_the_stock_journal_writes_over_its_only_copy(tmp_path: Path) -> None:
    """It declares the file empty, then adds what stays: a crash in between loses all of it."""
    path = tmp_path / "stock"
    stock = FileJournal(str(path))
    for index in range(1, 6):
        stock.add(b"\0entry %d" % index, index, 1)
    crashes = list[bytes]()
    real = stock.add

    def add(command: bytes, idx: int, term: int) -> None:
        stock.flush()
        crashes.append(path.read_bytes())
        real(command, idx, term)

    stock.add = add  # type: ignore[method-assign]
    stock.deleteEntriesTo(2)
    (tmp_path / "crashed").write_bytes(crashes[0])
    assert len(FileJournal(str(tmp_path / "crashed"))) == 0

    log = await open_log(tmp_path / "ours")
    journal = log.journal(1)
    for index in range(2, 7):
        journal.add(b"\0entry %d" % index, index, 1)
    await journal.save_snapshot(3, 1, b"state", [])
    log.wal.close()  # as if killed
    log = await open_log(tmp_path / "ours")
    assert [e[1] for e in log.journal(1).entries(4)] == [4, 5, 6]
    await log.close()


async def test_the_stock_journal_holds_every_entry_in_memory_and_ours_the_newest(
    tmp_path: Path,
) -> None:
    stock = FileJournal(str(tmp_path / "stock"))
    log = await Log.open(
        str(tmp_path / "ours"),
        disk=RealDisk(),
        clock=SystemClock(),
        identity=IDENTITY,
        options=LogOptions(hot_bytes=1 << 20),
    )
    journal = log.journal(1)
    bodies = [b"\0" + os.urandom(64 << 10) for _ in range(64)]
    for index, body in enumerate(bodies, start=2):
        stock.add(body, index, 1)
        journal.add(body, index, 1)
    log.write()
    await log.sync()

    assert [entry[0] for entry in stock._FileJournal__journal] == bodies  # type: ignore[attr-defined]
    assert log._hot.bytes <= 1 << 20
    assert [journal.read(index) for index in range(2, 66)] == bodies
    await log.close()


def test_a_large_first_record_does_not_break_the_stock_journal(tmp_path: Path) -> None:
    """It was said to raise; of this version it is not true."""
    stock = FileJournal(str(tmp_path / "stock"))
    body = os.urandom(8 << 20)
    stock.add(body, 1, 1)
    stock._destroy()

    assert FileJournal(str(tmp_path / "stock"))[0] == (body, 1, 1)
