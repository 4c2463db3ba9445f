"""The real file system and clock behind the seams."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")

#: Buffers that one vectored write may carry.
BUFFERS_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
#: Syncs that may run at the same time: the log's own, and one of a snapshot or an archive copy.
SYNC_THREADS = 2
#: Reads off the event loop that may run at the same time; others wait in line.
READ_THREADS = 2


_waiting = attrgetter("waiting")


class SystemClock:
    """The machine's clocks."""

    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class DiskThread:
    """One thread, and the calls that it is given."""

    def __init__(self, name: str) -> None:
        self.waiting = 0  # calls that have not ended
        self.calls = SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], Any] | None]()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _settle(self, done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        self.waiting -= 1
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def _work(self) -> None:
        while (item := self.calls.get()) is not None:
            done, call, arguments = item
            result: Any = None
            error: Exception | None = None
            try:
                if not done.cancelled():
                    result = call(*arguments)
            except Exception as raised:  # noqa: BLE001 -- it is raised where the call is awaited
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                done.get_loop().call_soon_threadsafe(self._settle, done, result, error)

    def close(self) -> None:
        """Ends the thread, after the calls that wait."""
        self.calls.put(None)
        self._thread.join()


class DiskThreads:
    """Calls that wait for the device. A busy node makes one in every iteration of its drive
    loop, so each thread has a queue of its own: idle ones that share a queue all wake for every
    call, and an executor has more locks than that.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._threads: list[DiskThread] = []

    def start(self, call: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        """Its result, or what it raises. Who cancels the future does not stop a call that began."""
        thread = min(self._threads, key=_waiting, default=None)
        if thread is None or (thread.waiting and len(self._threads) < self._count):
            thread = DiskThread(f"quorate-{self._name}-{len(self._threads)}")
            self._threads.append(thread)
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        thread.waiting += 1
        thread.calls.put((done, call, arguments))
        return done

    def close(self) -> None:
        for thread in self._threads:
            thread.close()
        self._threads = []


class RealFile:
    """An open file that grows at its end."""

    def __init__(self, fd: int, disk: RealDisk) -> None:
        self._fd = fd
        self._disk = disk
        self._reading = 0  # calls of the threads: they need the descriptor
        self._closed = False
        self._size = os.fstat(fd).st_size

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        start = offset = self._size
        for first in range(0, len(buffers), BUFFERS_MAX):
            some = buffers[first : first + BUFFERS_MAX]
            total = sum(map(len, some))
            written = os.pwritev(self._fd, some, offset)
            if written < total:
                self._write_rest(some, offset, written, total)
            offset += total
        self._size = offset
        return start

    def _write_rest(
        self,
        buffers: Sequence[bytes | bytearray | memoryview],
        offset: int,
        written: int,
        total: int,
    ) -> None:
        """A signal or a nearly full disk may cut a write short."""
        while written < total:
            rest, skip = list[memoryview](), written
            for buffer in buffers:
                if skip < len(buffer):
                    rest.append(memoryview(buffer)[skip:])
                skip = max(0, skip - len(buffer))
            written += os.pwritev(self._fd, rest, offset + written)

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    async def fetch(self, offset: int, size: int) -> bytes:
        done = self._disk.reads.start(self.read, offset, size)
        self._reading += 1
        done.add_done_callback(self._read_ended)
        # The thread reads on when nobody waits any more, so its future is never cancelled.
        return await asyncio.shield(done)

    def _read_ended(self, done: asyncio.Future[bytes]) -> None:
        self._reading -= 1
        done.exception()  # somebody has seen it, or nobody waits
        if self._closed and not self._reading:
            os.close(self._fd)

    def size(self) -> int:
        return self._size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size

    async def sync(self) -> None:
        start_ns = time.monotonic_ns()
        await self._disk.syncs.start(os.fdatasync, self._fd)
        self._disk.on_sync((time.monotonic_ns() - start_ns) / 1e9)

    def close(self) -> None:
        assert not self._closed
        self._closed = True
        if not self._reading:  # else a later file would get the number, and a thread read that
            os.close(self._fd)


class RealDisk:
    """Files of this machine. Syncs and fetches wait for the device: off the event loop."""

    def __init__(self, *, read_only: bool = False) -> None:
        self._read_only = read_only
        self.syncs = DiskThreads("sync", SYNC_THREADS)
        self.reads = DiskThreads("read", READ_THREADS)
        #: Told the seconds that each sync of a file took.
        self.on_sync: Callable[[float], object] = lambda _: None

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDONLY if self._read_only else os.O_RDWR | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags | os.O_CLOEXEC, 0o600), self)

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
        await self.syncs.start(_sync_dir, path)

    def free_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def total_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_blocks * state.f_frsize

    def close(self) -> None:
        """Ends the threads; for tests and tools. A node's disk lives as long as the process."""
        self.syncs.close()
        self.reads.close()


def _sync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
