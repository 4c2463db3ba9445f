"""A disk that forgets what was not synced, as disks do.

What a power loss may do here, and which real thing does it:
- bytes appended since the last fsync are lost from some point on: the page cache was in memory;
- the record at that point is torn: a page or a sector was the last to be written back;
- the file keeps its new length and some of its sectors read as zeros: the size was journaled, the
  data was not (XFS, ext4 with delayed allocation);
- where the disk writes back in any order, each sector is as it was in memory at some moment since
  the last sync, so a later write may be there without an earlier one: an elevator, an SSD's cache;
- names made, renamed or removed since the last fsync of their directory come back as they were,
  from some point on: directory operations are journaled in order. A kill of the process alone loses
  nothing: the page cache belongs to the kernel. fsync takes as long as the seed says.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.simulator.loop import Process

SECTOR = 512

Buffer = bytes | bytearray | memoryview


def _key(path: str) -> str:
    """Paths are relative to the root of the platter: "" is the root itself."""
    key = posixpath.normpath(path).strip("/")
    return "" if key == "." else key


@dataclass
class DiskOptions:
    """How one node's disk behaves; the nemesis may change it in the middle of a run."""

    sync_ms_typical: float = 0.5
    read_ms_typical: float = 0.2  # off the loop; a stall is as long as one of a sync
    sync_ms_stall: float = (
        50.0  # a queue in front of us, a garbage collection in the SSD, a cloud volume's throttle
    )
    stall_share: float = 0.002
    free_bytes: int = 1 << 40
    lies: bool = (
        False  # fsync returns at once and promises nothing: eatmydata, a volatile write cache
    )
    fails: bool = False  # fsync raises EIO: a dying disk
    fails_next: bool = False  # once: what a program that tries again takes for success
    full: bool = False  # no room is left: a write is cut short
    write_back: bool = False  # in any order: see the module


@dataclass(eq=False)
class Inode:
    """The bytes of one file: as the page cache has them, and as the platter has them."""

    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[bytes | int] = field(
        default_factory=list["bytes | int"]
    )  # appended bytes, or a cut to a size
    settled: int = 0  # changes that are durable; pending[0] is change number settled + 1

    @property
    def changes(self) -> int:
        return self.settled + len(self.pending)

    def append(self, data: bytes) -> int:
        offset = len(self.cached)
        self.cached += data
        self.pending.append(data)
        return offset

    def truncate(self, size: int) -> None:
        del self.cached[size:]
        self.pending.append(size)

    def make_durable(self, changes: int) -> None:
        """Everything up to change number `changes` reached the platter."""
        count = max(0, changes - self.settled)
        for change in self.pending[:count]:
            if isinstance(change, int):
                del self.durable[change:]
            else:
                self.durable += change
        del self.pending[:count]
        self.settled += count

    def lose_power(self, dice: random.Random, *, any_order: bool) -> None:
        """Keep a prefix of what was pending, torn at its end; or any part of it."""
        if any_order:
            self._scatter(dice)
            return
        kept = dice.choice((0, len(self.pending), dice.randint(0, len(self.pending))))
        torn = self.pending[kept] if kept < len(self.pending) else None
        self.make_durable(self.settled + kept)
        self.pending.clear()
        if isinstance(torn, bytes):
            way = dice.choice(("lost", "cut", "sectors"))
            if way == "cut":
                self.durable += torn[: dice.randint(0, len(torn))]
            elif way == "sectors":
                self._tear_sectors(torn, dice)
        self.cached = bytearray(self.durable)

    def _scatter(self, dice: random.Random) -> None:
        """Each sector as it was in memory at some moment since the last sync, which is when it was
        written back: behind what was appended by then it is zeros.
        """
        cuts = [number for number, change in enumerate(self.pending) if isinstance(change, int)]
        if cuts:  # a cut is journaled
            self.make_durable(self.settled + cuts[-1] + 1)
        start = len(self.durable)
        ends = [start]  # of the file, after each append
        for change in self.pending:
            assert isinstance(change, bytes)
            self.durable += change
            ends.append(len(self.durable))
        at = start - start % SECTOR
        last = start  # where anything was written back
        while at < len(self.durable):
            end = min(at + SECTOR, len(self.durable))
            written = min(max(dice.choice((start, ends[-1], dice.choice(ends))), at), end)
            self.durable[written:end] = bytes(end - written)
            last = max(last, written if written > at else 0)
            at += SECTOR
        if dice.random() < 0.5:  # the size was journaled for all of it, or for what is there
            del self.durable[max(last, start) :]
        self.settled += len(self.pending)
        self.pending.clear()
        self.cached = bytearray(self.durable)

    def _tear_sectors(self, torn: bytes, dice: random.Random) -> None:
        """The length made it into the journal, some of the sectors did not reach their place."""
        start = len(self.durable)
        self.durable += torn
        at = start
        while at < len(self.durable):
            end = min(at - at % SECTOR + SECTOR, len(self.durable))
            if dice.random() < 0.5:
                self.durable[at:end] = bytes(end - at)
            at = end


@dataclass
class Directory:
    """Names of one directory, as seen now and as they would be after a power loss."""

    names: dict[str, Inode | None] = field(
        default_factory=dict[str, Inode | None]
    )  # None: a directory
    durable: dict[str, Inode | None] = field(default_factory=dict[str, Inode | None])
    pending: list[dict[str, Inode | None]] = field(
        default_factory=list[dict[str, Inode | None]]
    )  # the names after each change
    settled: int = 0  # changes that are durable

    @property
    def changes(self) -> int:
        return self.settled + len(self.pending)

    def changed(self) -> None:
        self.pending.append(dict(self.names))

    def make_durable(self, changes: int) -> None:
        count = changes - self.settled
        if count > 0:
            self.durable = self.pending[count - 1]
            del self.pending[:count]
            self.settled += count

    def lose_power(self, dice: random.Random) -> None:
        self.make_durable(self.settled + dice.randint(0, len(self.pending)))
        self.pending.clear()
        self.names = dict(self.durable)


class Platter:
    """What survives the processes that use it: one machine's disk."""

    def __init__(self, dice: random.Random, options: DiskOptions | None = None) -> None:
        self.options = options or DiskOptions()
        self.directories: dict[str, Directory] = {"": Directory()}
        self.syncs = 0
        self.failures = 0  # fsyncs that raised
        self.syncing = 0  # fsyncs under way right now: a moment that a nemesis waits for
        self._dice = dice
        self._read_dice = random.Random("reads")  # so that reads change nothing else that is drawn

    def lose_power(self) -> None:
        """Everything that was not synced is at the mercy of the dice."""
        seen: set[int] = set()
        for directory in self.directories.values():
            for inode in [*directory.names.values(), *directory.durable.values()]:
                if inode is not None and id(inode) not in seen:
                    seen.add(id(inode))
                    any_order = self.options.write_back and self._dice.random() < 0.7
                    inode.lose_power(self._dice, any_order=any_order)
        for path, directory in list(self.directories.items()):
            if path in self.directories:
                directory.lose_power(self._dice)
        self._drop_unnamed_directories()
        self.syncing = 0

    def _drop_unnamed_directories(self) -> None:
        for path in sorted(self.directories):
            parent, _, name = path.rpartition("/")
            if path and (
                parent not in self.directories or name not in self.directories[parent].names
            ):
                del self.directories[path]

    def cut_short(self, size: int) -> int:
        """A write to a full disk: a part of it was written. As grave as a sync that failed."""
        self.failures += 1
        return self._dice.randrange(size) if size else 0

    def sync_seconds(self) -> float:
        options = self.options
        if self._dice.random() < options.stall_share:
            return self._dice.uniform(0.3, 1.0) * options.sync_ms_stall / 1e3
        return self._dice.uniform(0.5, 2.0) * options.sync_ms_typical / 1e3

    def read_seconds(self) -> float:
        options, dice = self.options, self._read_dice
        if dice.random() < 10 * options.stall_share:
            return dice.uniform(0.3, 1.0) * options.sync_ms_stall / 1e3
        return dice.uniform(0.5, 2.0) * options.read_ms_typical / 1e3


class SimFile:
    """An open file of a simulated process."""

    def __init__(self, disk: SimDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode

    def append(self, buffers: Sequence[Buffer]) -> int:
        self._disk.check()
        data = b"".join(buffers)
        room = self._disk.room_for(len(data))
        offset = self._inode.append(data[:room])
        if room < len(data):
            raise OSError(errno.ENOSPC, "no space left on device")
        return offset

    def read(self, offset: int, size: int) -> bytes:
        self._disk.check()
        return bytes(self._inode.cached[offset : offset + size])

    async def fetch(self, offset: int, size: int) -> bytes:
        await self._disk.wait_to_read()
        return self.read(offset, size)

    def size(self) -> int:
        self._disk.check()
        return len(self._inode.cached)

    def truncate(self, size: int) -> None:
        self._disk.check()
        self._inode.truncate(size)

    async def sync(self) -> None:
        changes = self._inode.changes  # what is written while it syncs is not covered
        if await self._disk.wait_for_platter():
            self._inode.make_durable(changes)

    def close(self) -> None:
        """Closing syncs nothing, as on Linux."""


class SimDisk:
    """A process's access to its machine's platter (`cluster.seams.Disk`)."""

    def __init__(self, platter: Platter, process: Process) -> None:
        self._platter = platter
        self._process = process

    def check(self) -> None:
        if not self._process.alive:
            raise OSError(errno.EIO, "the process is dead")

    def room_for(self, size: int) -> int:
        """How much of a write finds room."""
        platter = self._platter
        return platter.cut_short(size) if platter.options.full else size

    async def wait_to_read(self) -> None:
        self.check()
        await asyncio.sleep(self._platter.read_seconds())

    async def wait_for_platter(self) -> bool:
        """False: this disk lies."""
        self.check()
        platter = self._platter
        platter.syncs += 1
        if platter.options.lies:
            return False
        platter.syncing += 1
        await asyncio.sleep(platter.sync_seconds())
        platter.syncing -= 1
        if platter.options.fails or platter.options.fails_next:
            platter.options.fails_next = False
            platter.failures += 1
            raise OSError(errno.EIO, "fsync failed")
        self.check()
        return True

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = _key(path).rpartition("/")
        directory = self._platter.directories.get(parent)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", parent)
        return directory, name

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.check()
        directory, name = self._parent(path)
        inode = directory.names.get(name)
        if inode is None:
            if name in directory.names:
                raise IsADirectoryError(errno.EISDIR, "is a directory", path)
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            inode = Inode()
            directory.names[name] = inode
            directory.changed()
        return SimFile(self, inode)

    def exists(self, path: str) -> bool:
        self.check()
        if _key(path) in self._platter.directories:
            return True
        try:
            directory, name = self._parent(path)
        except FileNotFoundError:
            return False
        return name in directory.names

    def list_dir(self, path: str) -> list[str]:
        self.check()
        directory = self._platter.directories.get(_key(path))
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return sorted(directory.names)

    def make_dir(self, path: str) -> None:
        self.check()
        parts = _key(path).split("/")
        for depth in range(len(parts)):
            parent, name = "/".join(parts[:depth]), parts[depth]
            directory = self._platter.directories[parent]
            if name not in directory.names:
                directory.names[name] = None
                directory.changed()
                self._platter.directories["/".join(parts[: depth + 1])] = Directory()

    def rename(self, source: str, target: str) -> None:
        self.check()
        old, old_name = self._parent(source)
        new, new_name = self._parent(target)
        if old_name not in old.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        new.names[new_name] = old.names.pop(old_name)
        old.changed()
        if new is not old:
            new.changed()

    def remove(self, path: str) -> None:
        self.check()
        directory, name = self._parent(path)
        if name not in directory.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if directory.names.pop(name) is None:
            self._platter.directories.pop(_key(path), None)
        directory.changed()

    async def sync_dir(self, path: str) -> None:
        directory = self._platter.directories.get(_key(path))
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        changes = directory.changes
        if await self.wait_for_platter():
            directory.make_durable(changes)

    def free_bytes(self, path: str) -> int:
        self.check()
        return 0 if self._platter.options.full else self._platter.options.free_bytes

    def total_bytes(self, path: str) -> int:
        self.check()
        return self._platter.options.free_bytes
