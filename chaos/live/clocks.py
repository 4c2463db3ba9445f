"""A wall clock that is wrong by what a small file says, and whoever writes that file.

The offset is a fault of the harness alone: the node asks the clock that it was given.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

#: Signed milliseconds by which the wall clock is ahead.
OFFSET = struct.Struct("<q")


class ClockFile:
    """The writing end: the harness. It stays what it is when the node starts anew."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(OFFSET.pack(0))
        self._map = _map(path, mmap.ACCESS_WRITE)

    def set(self, offset_ms: int) -> None:
        self._map[:] = OFFSET.pack(offset_ms)

    def close(self) -> None:
        self._map.close()


class SkewedClock:
    """The reading end: a node's clock. Monotonic time is the machine's."""

    def __init__(self, path: Path) -> None:
        self._map = _map(path, mmap.ACCESS_READ)

    def wall_ms(self) -> int:
        return self.wall_ns() // 1_000_000

    def wall_ns(self) -> int:
        (offset_ms,) = OFFSET.unpack_from(self._map)
        return time.time_ns() + offset_ms * 1_000_000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


def _map(path: Path, access: int) -> mmap.mmap:
    with path.open("r+b" if access == mmap.ACCESS_WRITE else "rb") as file:
        return mmap.mmap(file.fileno(), OFFSET.size, access=access)
