"""The real file system and clock behind the seams."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

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


class SyncThread:
    """One thread, and the calls that it is given."""

    def __init__(self, name: str) -> None:
        self.waiting = 0  # calls that have not ended
        self._calls = SimpleQueue[tuple[asyncio.Future[None], Callable[[Any], None], Any] | None]()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, call: Callable[[Any], None], argument: Any) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting += 1
        done.add_done_callback(self._ended)
        self._calls.put((done, call, argument))
        await done

    def _ended(self, _: asyncio.Future[None]) -> None:
        self.waiting -= 1

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            done, call, argument = item
            if done.cancelled():
                continue
            error: Exception | None = None
            try:
                call(argument)
            except Exception as raised:  # noqa: BLE001 -- it is raised where the call is awaited
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                done.get_loop().call_soon_threadsafe(_settle, done, error)

    def close(self) -> None:
        """Ends the thread, after the calls that wait."""
        self._calls.put(None)
        self._thread.join()


class SyncThreads:
    """Calls that wait for the device. A busy node makes one every round, so each thread has a
    queue of its own: idle ones that share a queue all wake for every call, and an executor has
    more locks than that.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads: list[SyncThread] = []

    async def run(self, call: Callable[[Any], None], argument: Any) -> None:
        """Waits; raises what the call raises. A cancelled wait does not stop a call that began."""
        await self._freest().run(call, argument)

    def _freest(self) -> SyncThread:
        freest = min(self._threads, key=lambda thread: thread.waiting, default=None)
        if freest is not None and (not freest.waiting or len(self._threads) == self._count):
            return freest
        thread = SyncThread(f"quorate-sync-{len(self._threads)}")
        self._threads.append(thread)
        return thread

    def close(self) -> None:
        for thread in self._threads:
            thread.close()
        self._threads = []


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


class RealFile:
    """An open file that grows at its end."""

    def __init__(self, fd: int, threads: SyncThreads) -> None:
        self._fd = fd
        self._threads = threads
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
        await self._threads.run(os.fdatasync, self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealDisk:
    """Files of this machine. Only syncs leave the event loop: they alone wait for the device."""

    def __init__(self, *, read_only: bool = False) -> None:
        self._read_only = read_only
        self._threads = SyncThreads(SYNC_THREADS)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDONLY if self._read_only else os.O_RDWR | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags | os.O_CLOEXEC, 0o600), self._threads)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dir(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    async def sync_dir(self, path: str) -> None:
        await self._threads.run(_sync_dir, path)

    def free_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def total_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_blocks * state.f_frsize

    def close(self) -> None:
        """Ends the threads; for tests and tools. A node's disk lives as long as the process."""
        self._threads.close()


def _sync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
