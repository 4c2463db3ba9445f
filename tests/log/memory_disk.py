"""A disk in memory that forgets what was not synced: for tests.

The promises are those of a real one. Bytes that were not synced may be lost, cut anywhere, or
missing in whole sectors (reading as zeros) when the power fails; so may names that were created,
renamed or removed since the last sync of their directory. What was synced stays.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from cluster.log.format import SECTOR


class PowerLost(Exception):
    """The disk stopped in the middle of the run; only `after_crash` may be used from here on."""


@dataclass(eq=False, slots=True)
class Inode:
    """Content as seen now, and what is on the platter."""

    content: bytearray = field(default_factory=bytearray)
    durable: int = 0  # bytes of `content` that are synced
    cut: bytes = b""  # synced bytes behind those, cut off by a truncate that is not synced

    def after_crash(self, random: Random | None) -> Inode:
        safe = bytes(self.content[: self.durable])
        if self.cut and (random is None or random.random() < 0.5):
            return Inode(bytearray(safe + self.cut), self.durable + len(self.cut))
        content = bytearray(safe)
        if random is not None and len(self.content) > self.durable:
            kept = random.choice(
                (self.durable, random.randint(self.durable, len(self.content)), len(self.content))
            )
            content = self.content[:kept]
            if random.random() < 0.5:
                _punch_holes(content, self.durable, random)
        return Inode(content, len(content))


def _punch_holes(content: bytearray, start: int, random: Random) -> None:
    at = start
    while at < len(content):
        end = min(at - at % SECTOR + SECTOR, len(content))
        if random.random() < 0.3:
            content[at:end] = bytes(end - at)
        at = end


class MemoryFile:
    """An open file of a MemoryDisk."""

    def __init__(self, disk: MemoryDisk, inode: Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        self._disk.step("append", self._path)
        offset = len(self._inode.content)
        disk = self._disk
        if disk.capacity is not None and sum(map(len, buffers)) > disk.free_bytes(self._path):
            raise OSError(errno.ENOSPC, "no space left", self._path)
        for buffer in buffers:
            self._inode.content += buffer
        return offset

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._inode.content[offset : offset + size])

    async def fetch(self, offset: int, size: int) -> bytes:
        await self._disk.wait_to_read(self._path)
        return self.read(offset, size)

    def size(self) -> int:
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        self._disk.step("truncate", self._path)
        inode = self._inode
        if size < inode.durable:
            inode.cut = bytes(inode.content[size : inode.durable]) + inode.cut
            inode.durable = size
        del inode.content[size:]

    async def sync(self) -> None:
        size = len(self._inode.content)
        await self._disk.wait("sync", self._path)
        self._inode.durable = min(size, len(self._inode.content))
        self._inode.cut = b""

    def close(self) -> None:
        pass


class MemoryDisk:
    """See the module. `steps_left` stops it for good after that many changing operations."""

    def __init__(
        self,
        *,
        free: int = 1 << 40,
        capacity: int | None = None,
        pause: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.names: dict[str, Inode | None] = {}  # None: a directory
        self.durable_names: dict[str, Inode | None] = {}
        self.free = free  # always, unless there is a capacity
        self.capacity = capacity  # of all files and what is taken; over it writes fail
        self.taken = 0  # by others
        self.failing: set[str] = set()  # operations that raise OSError: "append", "sync", ...
        self.steps_left: int | None = None
        self._pause = pause

    def step(self, operation: str, path: str) -> None:
        if self.steps_left is not None:
            if self.steps_left <= 0:
                raise PowerLost(f"before {operation} of {path}")
            self.steps_left -= 1
        if operation in self.failing:
            raise OSError(errno.EIO, f"{operation} fails", path)

    async def wait(self, operation: str, path: str) -> None:
        if self._pause is not None:
            await self._pause(operation)
        self.step(operation, path)

    async def wait_to_read(self, path: str) -> None:
        if self._pause is not None:
            await self._pause("read")
        if "read" in self.failing:
            raise OSError(errno.EIO, "read fails", path)

    def after_crash(self, random: Random | None = None) -> MemoryDisk:
        """What is found after the power failed; without dice the worst: everything unsynced is
        gone.
        """
        disk = MemoryDisk(free=self.free, capacity=self.capacity, pause=self._pause)
        disk.taken = self.taken
        names = dict(self.durable_names)
        if random is not None:
            for path in sorted(self.names.keys() | self.durable_names.keys()):
                if random.random() < 0.5 and self.names.get(path) is not names.get(path):
                    if path in self.names:
                        names[path] = self.names[path]
                    else:
                        names.pop(path, None)
        inodes = dict[int, Inode]()
        for path, inode in names.items():
            if inode is not None and id(inode) not in inodes:
                inodes[id(inode)] = inode.after_crash(random)
            disk.names[path] = inodes[id(inode)] if inode is not None else None
        disk.durable_names = dict(disk.names)
        return disk

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        path = os.path.normpath(path)
        inode = self.names.get(path)
        if inode is None:
            if not create or path in self.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            if os.path.dirname(path) not in self.names:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            self.step("create", path)
            inode = self.names[path] = Inode()
        return MemoryFile(self, inode, path)

    def exists(self, path: str) -> bool:
        return os.path.normpath(path) in self.names

    def list_dir(self, path: str) -> list[str]:
        path = os.path.normpath(path)
        return sorted(
            os.path.basename(name) for name in self.names if os.path.dirname(name) == path
        )

    def make_dir(self, path: str) -> None:
        self.step("make_dir", path)
        path = os.path.normpath(path)
        while path not in self.names and path not in ("", "/"):
            # Durable at once: where the data folder lies is the operator's doing, not the log's.
            self.names[path] = self.durable_names[path] = None
            path = os.path.dirname(path)

    def rename(self, source: str, target: str) -> None:
        self.step("rename", source)
        self.names[os.path.normpath(target)] = self.names.pop(os.path.normpath(source))

    def remove(self, path: str) -> None:
        self.step("remove", path)
        del self.names[os.path.normpath(path)]

    async def sync_dir(self, path: str) -> None:
        await self.wait("sync_dir", path)
        self._sync_names(path)

    def _sync_names(self, path: str) -> None:
        path = os.path.normpath(path)
        for name in self.names.keys() | self.durable_names.keys():
            if os.path.dirname(name) == path:
                if name in self.names:
                    self.durable_names[name] = self.names[name]
                else:
                    self.durable_names.pop(name, None)

    def free_bytes(self, path: str) -> int:
        if self.capacity is None:
            return self.free
        inodes = {id(inode): inode for inode in self.names.values() if inode is not None}
        used = sum(len(inode.content) for inode in inodes.values())
        return max(0, self.capacity - self.taken - used)

    def total_bytes(self, path: str) -> int:
        return 1 << 40 if self.capacity is None else self.capacity
