"""A log on a disk in memory, under a clock that moves only when read."""

from __future__ import annotations

from random import Random
from typing import Any

from cluster.log import Journal, Log, LogIdentity, LogOptions
from tests.log.memory_disk import MemoryDisk
from tests.testkit.clocks import FakeClock

IDENTITY = LogIdentity("n1", "test")
FOLDER = "/data/log"


class World:
    """Disk, clock, options; opens and crashes the log."""

    def __init__(self, **options: Any) -> None:
        self.disk = MemoryDisk()
        self.clock = FakeClock(step_ns=1_000)
        self.options = LogOptions(**{"heads_bytes_min": 0, **options})

    async def open(self, identity: LogIdentity = IDENTITY) -> Log:
        return await Log.open(
            FOLDER, disk=self.disk, clock=self.clock, identity=identity, options=self.options
        )

    def crash(self, random: Random | None = None) -> None:
        self.disk = self.disk.after_crash(random)

    def files(self) -> list[str]:
        return [name for name in self.disk.list_dir(FOLDER) if name.endswith(".log")]

    def content(self, name: str) -> bytearray:
        inode = self.disk.names[f"{FOLDER}/{name}"]
        assert inode is not None
        return inode.content

    def tear(self, name: str, size: int) -> None:
        """Cut a file as if its end never reached the platter."""
        inode = self.disk.names[f"{FOLDER}/{name}"]
        assert inode is not None
        del inode.content[size:]
        inode.durable = len(inode.content)


def fill(journal: Journal, count: int, *, term: int = 1, size: int = 40) -> None:
    """Add entries that differ from each other."""
    for _ in range(count):
        index = journal.last_index + 1
        journal.add(command(index, term, size), index, term)


def command(index: int, term: int, size: int = 40) -> bytes:
    return (f"\0{index}/{term}/".encode() + b"abcdefghij" * (size // 10 + 1))[: max(size, 12)]


async def save(log: Log) -> None:
    log.write()
    await log.sync()


def contents(journal: Journal) -> dict[int, bytes]:
    """All that the journal can read."""
    found = {i: journal.read(i) for i in range(1, journal.last_index + 1)}
    return {i: body for i, body in found.items() if body is not None}
