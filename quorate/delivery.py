"""What a consumer is given: one message, or a batch of them, with its ways to end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

from quorate import wire

Range = tuple[int, int]


class Keeper(Protocol):
    """Who can settle a delivery: its consumer, or the call that got it."""

    queue: str

    def may_commit(self, key: int) -> None:
        """Raises Refused, ValueError: deliveries under this key are no part of a transaction."""
        ...

    def committed(self, ranges: list[Range], token: int) -> None:
        """A transaction has answered them."""
        ...

    async def finish(
        self,
        opcode: int,
        key: int,
        ranges: list[Range],
        token: int,
        arguments: tuple[Any, ...],
        wait: bool,
    ) -> None:
        """`token`: the newest of these deliveries."""
        ...


class Chunk:
    """Messages of one delivery decision, consecutive positions."""

    __slots__ = ("acquired_count", "bodies", "deaths", "delivery_count", "first", "meta", "token")

    def __init__(self, row: list[Any]) -> None:
        self.first: int = row[0]
        self.token: int = row[1]
        self.delivery_count: int = row[2]
        self.acquired_count: int = row[3]
        self.bodies: list[bytes] = row[4]
        self.meta: Any = row[5] if len(row) > 5 else None
        self.deaths: Any = row[6] if len(row) > 6 else None

    @property
    def last(self) -> int:
        return self.first + len(self.bodies) - 1

    def part(self, first: int, last: int) -> Chunk:
        """The messages from `first` to `last` only."""
        low, high = first - self.first, last - self.first + 1
        meta: Any = self.meta
        if isinstance(meta, list):
            meta = cast("list[Any]", meta)[low:high]
        return Chunk(
            [
                first,
                self.token,
                self.delivery_count,
                self.acquired_count,
                self.bodies[low:high],
                meta,
                self.deaths,
            ]
        )

    def meta_at(self, offset: int) -> Mapping[str, Any]:
        meta: Any = self.meta
        if isinstance(meta, list):
            meta = cast("list[Any]", meta)[offset]
        return meta or {}


class _Finishing(ABC):
    """The ways to answer a delivery. Each returns at once; `wait=True` waits for the node to
    confirm it.

    Answers are sent together, as ranges, once per turn of the loop. Raises Refused
    (`unknown_delivery`: it is another's by now) and OutcomeUnknown only with `wait=True`;
    `Consumer.flush` waits for all at once.
    """

    __slots__ = ("_keeper", "_key")

    def __init__(self, keeper: Keeper, key: int) -> None:
        self._keeper = keeper
        self._key = key

    @property
    def queue(self) -> str:
        """Where its position counts: of a queue that is split, the shard that has it."""
        return self._keeper.queue

    @abstractmethod
    def _ranges(self) -> list[Range]: ...

    @abstractmethod
    def _newest(self) -> int: ...

    def step(self, opcode: int, *arguments: Any) -> tuple[Keeper, list[Any]]:
        """The same answer as a step of a transaction, and who is to be told once it is done."""
        self._keeper.may_commit(self._key)
        ranges = [list(pair) for pair in self._ranges()]
        token = self._newest()
        return self._keeper, [opcode, self._keeper.queue, self._key, ranges, *arguments, token]

    async def _finish(self, opcode: int, arguments: tuple[Any, ...], wait: bool) -> None:
        ranges, token = self._ranges(), self._newest()
        await self._keeper.finish(opcode, self._key, ranges, token, arguments, wait)

    async def settle(self, *, wait: bool = False) -> None:
        """Done: it leaves the queue."""
        await self._finish(wire.SETTLE, (), wait)

    async def return_(
        self, *, failed: bool = False, delay_ms: int | None = None, wait: bool = False
    ) -> None:
        """Give back, to its original place. `failed` counts towards the delivery limit."""
        await self._finish(wire.RETURN, (failed, delay_ms), wait)

    async def defer(self, for_ms: int | None = None, *, wait: bool = False) -> None:
        """Put it aside: it stays in the queue, and nobody is given it, until `client.fetch` asks
        for it by its position, or `for_ms` is over (None: ten years).
        """
        delay_ms = wire.DEFER_MS_DEFAULT if for_ms is None else for_ms
        await self._finish(wire.RETURN, (False, delay_ms), wait)

    async def discard(self, *, wait: bool = False) -> None:
        """Refuse for good: to the dead-letter exchange, or dropped when there is none."""
        await self._finish(wire.DISCARD, (), wait)

    async def extend(self, timeout_ms: int | None = None, *, wait: bool = False) -> None:
        """Still at work: its deadline starts again, `timeout_ms` from now (None: the consumer's
        timeout).
        """
        await self._finish(wire.EXTEND, (timeout_ms,), wait)


class Delivery(_Finishing):
    """One message handed to this consumer."""

    __slots__ = ("_chunk", "_offset", "body")

    def __init__(self, keeper: Keeper, key: int, chunk: Chunk, offset: int) -> None:
        self._keeper = keeper
        self._key = key
        self._chunk = chunk
        self._offset = offset
        self.body: bytes = chunk.bodies[offset]

    def __repr__(self) -> str:
        return f"<Delivery {self.position}, {len(self.body)} bytes, token {self.token}>"

    def _ranges(self) -> list[Range]:
        position = self._chunk.first + self._offset
        return [(position, position)]

    def _newest(self) -> int:
        return self._chunk.token

    @property
    def position(self) -> int:
        """The message's number in its queue."""
        return self._chunk.first + self._offset

    @property
    def token(self) -> int:
        """Fencing token: grows with every delivery decision of the queue."""
        return self._chunk.token

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the publisher sent beside the body: `key`, `headers`, `message_id`, ..."""
        return self._chunk.meta_at(self._offset)

    @property
    def key(self) -> str | None:
        return self.meta.get("key")

    @property
    def headers(self) -> Mapping[str, Any]:
        return self.meta.get("headers") or {}

    @property
    def delivery_count(self) -> int:
        """Failed deliveries so far."""
        return self._chunk.delivery_count

    @property
    def redelivered(self) -> bool:
        """Whether it was handed out before, to anyone."""
        return self._chunk.acquired_count > 0

    @property
    def deaths(self) -> list[Any]:
        """Its x-death records, newest first; empty when it never was dead-lettered."""
        return self._chunk.deaths or []


class Batch(_Finishing):
    """Messages handed over together; settle them at once, or one by one through `deliveries`."""

    __slots__ = ("_chunks",)

    def __init__(self, keeper: Keeper, key: int, chunks: list[Chunk]) -> None:
        super().__init__(keeper, key)
        self._chunks = chunks

    def __len__(self) -> int:
        return sum(len(chunk.bodies) for chunk in self._chunks)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)}, positions {self.ranges}>"

    def _ranges(self) -> list[Range]:
        return self.ranges

    def _newest(self) -> int:
        return max(chunk.token for chunk in self._chunks)

    @property
    def ranges(self) -> list[Range]:
        """Positions, as `(first, last)` pairs."""
        return [(chunk.first, chunk.last) for chunk in self._chunks]

    @property
    def bodies(self) -> list[bytes]:
        """All bodies, in order."""
        if len(self._chunks) == 1:
            return self._chunks[0].bodies
        return [body for chunk in self._chunks for body in chunk.bodies]

    @property
    def redelivered(self) -> bool:
        """Whether any of them was handed out before."""
        return any(chunk.acquired_count for chunk in self._chunks)

    @property
    def chunks(self) -> list[Chunk]:
        """Runs of messages that share token and counts."""
        return self._chunks

    @property
    def deliveries(self) -> Iterator[Delivery]:
        """One by one."""
        for chunk in self._chunks:
            for offset in range(len(chunk.bodies)):
                yield Delivery(self._keeper, self._key, chunk, offset)
