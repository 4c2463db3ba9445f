"""The real file system and clock behind the seams."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

#: Buffers that one vectored write may carry.
BUFFERS_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
#: Syncs that may run at the same time: the log's own, and one of a snapshot or an archive copy.
SYNC_THREADS = 2


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wall_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class RealFile:
    """An open file that grows at its end."""

    def __init__(self, fd: int, executor: ThreadPoolExecutor) -> None:
        self._fd = fd
        self._executor = executor
        self._size = os.fstat(fd).st_size

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        start = offset = self._size
        for first in range(0, len(buffers), BUFFERS_MAX):
            offset += self._write_all(list(buffers[first : first + BUFFERS_MAX]), offset)
        self._size = offset
        return start

    def _write_all(self, buffers: list[bytes | bytearray | memoryview], offset: int) -> int:
        total = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, offset)
        while written < total:  # a signal or a nearly full disk may cut a write short
            rest, skip = list[memoryview](), written
            for buffer in buffers:
                if skip < len(buffer):
                    rest.append(memoryview(buffer)[skip:])
                skip = max(0, skip - len(buffer))
            written += os.pwritev(self._fd, rest, offset + written)
        return total

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def size(self) -> int:
        return self._size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size

    async def sync(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, os.fdatasync, self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealDisk:
    """Files of this machine. Only syncs leave the event loop: they alone wait for the device."""

    def __init__(self, *, read_only: bool = False) -> None:
        self._read_only = read_only
        self._executor = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="quorate-sync")

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDONLY if self._read_only else os.O_RDWR | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags | os.O_CLOEXEC, 0o640), self._executor)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dir(self, path: str) -> None:
        os.makedirs(path, mode=0o750, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    async def sync_dir(self, path: str) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, _sync_dir, path)

    def free_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def close(self) -> None:
        """Ends the threads; for tests and tools. A node's disk lives as long as the process."""
        self._executor.shutdown()


def _sync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
