"""When a socket is not read: for any of several reasons, and while others on the loop have their
turn.

When a read has filled uvloop's buffer it reads on at once, 32 times: a large body came in slices of
8 MB, each of which held up the loop for 20 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

#: A read of this much filled the buffer: more may follow in this turn.
FULL_READ_BYTES: Final = 250_000
#: Of one socket in one turn, or a little more. A window of small messages comes as one batch.
SLICE_BYTES: Final = 1 << 20


class ReadPauses:
    """Reasons not to read a transport; it is read again once none is left."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport  # set before the first pause; TLS brings another one
        self._reasons: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def pause(self, why: str) -> None:
        if not self._reasons and not self.transport.is_closing():
            self.transport.pause_reading()
        self._reasons.add(why)

    def resume(self, why: str) -> None:
        if why not in self._reasons:
            return
        self._reasons.discard(why)
        if not self._reasons and not self.transport.is_closing():
            self.transport.resume_reading()

    def resume_all(self) -> None:
        for why in list(self._reasons):
            self.resume(why)


class ReadSlices:
    """Of one socket."""

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause = pause
        self._resume = resume
        self._loop = asyncio.get_running_loop()
        self._bytes = 0  # by full reads in this turn

    def full_read(self, size_bytes: int) -> None:
        """By one call of `data_received`, of `FULL_READ_BYTES` or more: less is all there is."""
        before = self._bytes
        if not before:
            self._loop.call_soon(self._next_turn)
        self._bytes = before + size_bytes
        if before < SLICE_BYTES <= self._bytes:
            self._pause()

    def _next_turn(self) -> None:
        paused = self._bytes >= SLICE_BYTES
        self._bytes = 0
        if paused:
            self._resume()
