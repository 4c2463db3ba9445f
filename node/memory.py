"""How this process asks the system for memory, and how much of it there is."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

# Names and numbers of glibc's mallopt(3).
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
#: Free memory at the top of the heap up to this is kept, not given back and faulted in again.
KEPT_BYTES_MAX = 64 << 20
#: Blocks below this come from the heap: the largest that glibc allows, above any entry.
HEAP_BLOCK_BYTES_MAX = 32 << 20


def keep_freed_memory() -> bool:
    """Frames and entries of a megabyte come and go all the time. By default glibc gives each back
    to the system, which then clears every page of the next one: with bodies of 64 KiB that was a
    quarter of a leader's CPU. False where the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(
        mallopt(M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES_MAX)
        and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
    )


#: Objects made and not freed before the youngest are looked at; and how many times that before
#: those that survived it are looked at once more.
YOUNG_OBJECTS_MAX = 5_000
YOUNG_ROUNDS = 4
#: All are looked at when there are so many times as many as there were the last time.
GROWTH = 2


class CollectWhatIsNew:
    """Full garbage collections look only at what is new since the one before: what has survived one
    counts as permanent. With 10,000 queues the usual ones took 300 ms of the event loop each, and
    came though nothing was ever found, since messages come and go.

    Circles of objects that were permanent are found when everything is looked at, which happens
    when the objects have doubled.
    """

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        self._alive = gc.get_freeze_count()  # when all were looked at
        self._new = 0  # permanent since then; some may be freed by now
        self._looks_at_all = False

    def begin(self) -> None:
        gc.set_threshold(YOUNG_OBJECTS_MAX, YOUNG_ROUNDS)
        gc.callbacks.append(self._collects)

    def _collects(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            if self._new > (GROWTH - 1) * self._alive:
                self._look_at_all_if_due()
            return
        self._new += len(gc.get_objects())
        gc.freeze()
        if self._looks_at_all:
            self._looks_at_all = False
            self._new, self._alive = 0, gc.get_freeze_count()

    def _look_at_all_if_due(self) -> None:
        permanent = gc.get_freeze_count()  # counts one by one
        if permanent > GROWTH * self._alive:
            self._looks_at_all = True
            gc.unfreeze()
        else:
            self._new = max(0, permanent - self._alive)


# --- how much there is, and how much this process has ---------------------------------------------

#: What a control group says that has no limit of its own (version 1), or more.
_NO_LIMIT_BYTES = 1 << 60
_CGROUP_FILES = ("memory.max", "memory/memory.limit_in_bytes")


def available_bytes(cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory of this machine, or of this process's control group when that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in [cgroups / part for part in ("", *_own_groups())]:
        for name in _CGROUP_FILES:
            with suppress(OSError, ValueError):  # "max", or there is no such file
                limit = int((folder / name).read_text())
                if 0 < limit < _NO_LIMIT_BYTES:
                    total = min(total, limit)
    return total


def _own_groups() -> list[str]:
    """Where the limits of this process may be: its group and all above it (version 2)."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                path = PurePosixPath(line.removeprefix("0::/"))
                return [str(part) for part in (path, *path.parents)]
    return []


def resident_bytes() -> int:
    """What this process has in memory now. 0 where the system does not say: no alarm comes."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
