"""How this process asks the system for memory."""

from __future__ import annotations

import ctypes

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
