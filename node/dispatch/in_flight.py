"""Published, and without an outcome yet: over a limit, publishers are read no further."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from node.errors import Refused

#: What a message weighs besides its body and its properties, so that empty ones count too.
MESSAGE_OVERHEAD_BYTES = 64
#: How long a publish by HTTP waits for others.
ROOM_S_MAX = 10.0


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


class HttpPublishRoom:
    """The same for all publishes of a node that each have their own answer, by HTTP: any number of
    connections may bring one at a time, so one that finds no room waits, and in the end is refused.
    """

    def __init__(self, bytes_max: int) -> None:
        self._free = asyncio.Event()
        self._free.set()
        self._in_flight = InFlight(bytes_max, pause=self._free.clear, resume=self._free.set)

    async def free(self) -> None:
        """Wait until there is room. Raises Refused after ROOM_S_MAX."""
        try:
            async with asyncio.timeout(ROOM_S_MAX):
                while not self._free.is_set():  # another one that waited may have been faster
                    await self._free.wait()
        except TimeoutError:
            reason = "too much is being published by HTTP: try again later"
            raise Refused("overloaded", reason) from None

    @asynccontextmanager
    async def of(self, size_bytes: int) -> AsyncGenerator[None]:
        """For what is here: what a client only says that it sends keeps no room from others."""
        await self.free()
        self._in_flight.add(size_bytes)
        try:
            yield
        finally:
            self._in_flight.done(size_bytes)
