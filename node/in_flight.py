"""Published, and without an outcome yet: over a limit, who publishes it is read no further."""

from __future__ import annotations

from collections.abc import Callable

#: What a message weighs besides its body and its properties, so that empty ones count too.
MESSAGE_OVERHEAD_BYTES = 64


class InFlight:
    """Of one connection. `pause` is called over the limit, `resume` below half of it."""

    __slots__ = ("_bytes_max", "_pause", "_resume", "bytes", "full")

    def __init__(
        self, bytes_max: int, pause: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        self.bytes = 0
        self.full = False
        self._bytes_max = bytes_max
        self._pause = pause
        self._resume = resume

    def add(self, size_bytes: int) -> None:
        self.bytes += size_bytes
        if self.bytes > self._bytes_max and not self.full:
            self.full = True
            self._pause()

    def done(self, size_bytes: int) -> None:
        """It has its outcome, whatever that is."""
        self.bytes -= size_bytes
        if self.full and self.bytes * 2 <= self._bytes_max:
            self.full = False
            self._resume()
