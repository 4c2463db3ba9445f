"""A semaphore that is fair between addresses: many requests from one do not delay another's."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from node.errors import Refused


class FairSemaphore:
    """`at_once` have one at a time; the next is the first of the address that waits longest for
    its turn.
    """

    def __init__(self, at_once: int, *, waiting_max: int, waiting_per_address_max: int) -> None:
        self._free = at_once
        self._waiting_max = waiting_max
        self._per_address_max = waiting_per_address_max
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._waiting = 0

    @asynccontextmanager
    async def acquire(self, address: str) -> AsyncGenerator[None]:
        """Raises Refused: too many wait already."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(address)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, address: str) -> None:
        queue = self._queues.get(address, ())
        if self._waiting >= self._waiting_max or len(queue) >= self._per_address_max:
            raise Refused("overloaded", "too many logins wait for their check: try again")
        future = asyncio.get_running_loop().create_future()
        self._queues.setdefault(address, deque()).append(future)
        self._waiting += 1
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._next()  # it was given the turn that it does not take
            raise

    def _next(self) -> None:
        while self._queues:
            address, queue = self._queues.popitem(last=False)
            future = queue.popleft()
            self._waiting -= 1
            if queue:
                self._queues[address] = queue  # behind the others
            if not future.done():
                future.set_result(None)
                return
        self._free += 1
