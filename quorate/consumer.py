"""What a user iterates over: a subscription's deliveries one by one, or in batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

from quorate.delivery import Batch, Chunk, Delivery
from quorate.subscription import Subscription

#: Messages of a batch handed to the user, unless one chunk is larger.
BATCH_COUNT_MAX = 1_000


class Consumer(Subscription):
    """Deliveries one by one: `async for delivery in consumer`."""

    _chunk: Chunk | None = None
    _offset = 0
    _source: Subscription

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """The next message. Raises ConsumerEnded, Refused; StopAsyncIteration once closed."""
        chunk = self._chunk
        if chunk is None:
            self._source, self._chunk = await self._next_chunk()
            chunk, self._offset = self._chunk, 0
        offset = self._offset
        delivery = Delivery(self._source, self._source.key, chunk, offset)
        self._offset = offset + 1
        if self._offset == len(chunk.bodies):
            self._chunk = None
        return delivery

    def batches(self, count_max: int = BATCH_COUNT_MAX) -> Batches:
        """The same deliveries in batches; see `Client.consume_batches`."""
        return Batches(lambda: self._next_batch(count_max))

    def _reset_reading(self, source: Subscription) -> None:
        if self._chunk is not None and self._source is source:
            self._chunk = None


class BatchConsumer(Subscription):
    """Deliveries as they came, together: `async for batch in consumer`."""

    count_max = BATCH_COUNT_MAX

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        """All that is here, up to about `count_max` messages. Raises as `Consumer` does."""
        return await self._next_batch(self.count_max)


class Batches:
    """A consumer's deliveries in batches, as an iterator that survives a cancelled wait."""

    def __init__(self, following: Callable[[], Awaitable[Batch]]) -> None:
        self._following = following

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        return await self._following()
