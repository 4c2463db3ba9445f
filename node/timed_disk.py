"""A disk that tells how long its syncs take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.seams import Clock, Disk, File


class TimedFile:
    """Passes everything on."""

    def __init__(self, file: File, clock: Clock, observe: Callable[[float], None]) -> None:
        self._file = file
        self._clock = clock
        self._observe = observe

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        return self._file.append(buffers)

    def read(self, offset: int, size: int) -> bytes:
        return self._file.read(offset, size)

    async def fetch(self, offset: int, size: int) -> bytes:
        return await self._file.fetch(offset, size)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    async def sync(self) -> None:
        start_ns = self._clock.monotonic_ns()
        await self._file.sync()
        self._observe((self._clock.monotonic_ns() - start_ns) / 1e9)

    def close(self) -> None:
        self._file.close()


class TimedDisk:
    """Any disk; the files it opens are timed."""

    def __init__(self, disk: Disk, clock: Clock, observe: Callable[[float], None]) -> None:
        self._disk = disk
        self._clock = clock
        self._observe = observe

    def open(self, path: str, *, create: bool = False) -> TimedFile:
        return TimedFile(self._disk.open(path, create=create), self._clock, self._observe)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def list_dir(self, path: str) -> list[str]:
        return self._disk.list_dir(path)

    def make_dir(self, path: str) -> None:
        self._disk.make_dir(path)

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(source, target)

    def remove(self, path: str) -> None:
        self._disk.remove(path)

    async def sync_dir(self, path: str) -> None:
        await self._disk.sync_dir(path)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._disk.total_bytes(path)
