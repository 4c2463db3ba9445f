"""Reading a stream: from a place that the program keeps, or by a cursor that the cluster keeps."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections import deque
from types import TracebackType
from typing import Any, Self

from quorate import wire
from quorate.answers import Answers
from quorate.connection import ConnectFailed, Connection
from quorate.consumer import Batches
from quorate.core import Core
from quorate.delivery import Batch, Chunk, Delivery, Range
from quorate.errors import ClientClosed, OutcomeUnknown, QuorateError, Refused, Unreachable
from quorate.routes import Backoff

log = logging.getLogger("quorate")

#: Where to begin: "first", "last", "next", a sequence, or a point in time.
Start = str | int | dt.datetime

#: A read waits so long at a node, and is asked again.
WAIT_MS = 20_000
#: So much that was read and not taken yet holds up the next read.
AHEAD_BYTES_MAX = 4 * 1024 * 1024
CLOSE_TIMEOUT_S = 5.0


class Reader:
    """`async for message in reader`; with a cursor each is settled, returned, discarded or extended
    as deliveries of a queue are. It goes on where it was when connections and leaders change.
    """

    def __init__(
        self,
        core: Core,
        stream: str,
        *,
        start: Start = "next",
        cursor: str | None = None,
        count_max: int = wire.READ_COUNT_MAX,
    ) -> None:
        if not 1 <= count_max <= wire.READ_COUNT_MAX:
            raise ValueError(f"count_max is from 1 to {wire.READ_COUNT_MAX}")
        self.queue = stream
        self.cursor = cursor
        self._core = core
        self._count_max = count_max
        self._place = _place(start)
        self._have = 0  # the last one that came
        self._chunks: deque[Chunk] = deque()
        self._chunk: Chunk | None = None
        self._offset = 0
        self._held_count = self._held_bytes = 0  # read, and not taken yet
        self._answers = Answers(self)
        self._connection: Connection | None = None
        self._mending: asyncio.Task[None] | None = None  # answers that no node has confirmed
        self._closing = False
        self._failure: QuorateError | None = None
        self._ready: asyncio.Future[None] | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin; returns when a node has said where that is. Raises Refused, Unreachable."""
        if self._task is None:
            deadline_s = self._core.deadline_s(None)
            self._ready = asyncio.get_running_loop().create_future()
            self._task = self._core.spawn(self._run(deadline_s))
        assert self._ready is not None
        await asyncio.shield(self._ready)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Send the last answers; what was read by a cursor and not taken goes back. Idempotent."""
        task = self._task
        if task is None or self._closing:
            return
        self._closing = True
        self._give_back()
        if self.cursor is not None and self._connection is not None:
            with_cursor = [self.queue, self.cursor, True]
            cancel = [wire.CANCEL, self._connection.next_request(), *with_cursor]
            self._connection.send(wire.encode(cancel))
        else:
            task.cancel()
        self._room.set()
        self._news.set()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.wait({task})
                await self._answers.idle_here()
        except TimeoutError:
            task.cancel()
        finally:
            self._fail(ClientClosed("the reader was closed"))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every answer so far is confirmed. Raises Refused, OutcomeUnknown."""
        try:
            async with asyncio.timeout_at(self._core.deadline_s(timeout)):
                await self._answers.idle()
        except TimeoutError:
            raise OutcomeUnknown("answers to deliveries are not confirmed yet") from None

    # --- reading ----------------------------------------------------------------------------------

    async def _run(self, deadline_s: float | None) -> None:
        try:
            await self._read_on(deadline_s)
        except QuorateError as error:
            self._fail(error)
        finally:
            if not self._closing:
                self._fail(ClientClosed("the client was closed"))

    async def _read_on(self, deadline_s: float | None) -> None:
        backoff = Backoff()
        reason = "no node was asked yet"
        while not self._closing:
            await self._room_for_more()
            if self._closing:
                return
            try:
                async with asyncio.timeout_at(deadline_s):
                    connection = await self._core.routes.connection(self.queue)
                    self._connected(connection)
                    frame = await connection.call(wire.READ, self.queue, self._options())
            except ConnectFailed as error:
                reason = str(error)
            except TimeoutError:
                raise Unreachable(f"stream {self.queue!r} cannot be read: {reason}") from None
            else:
                opcode: int = frame[0]
                if opcode == wire.MESSAGES:
                    backoff.reset()
                    deadline_s = None  # from now on it never gives up
                    self._read(frame[3], frame[4])
                    continue
                if opcode == wire.ERROR and frame[2] not in wire.PASSING:
                    raise Refused(frame[2], frame[3])
                reason = "the connection was lost"
                if opcode == wire.ERROR:
                    reason = f"{frame[2]}: {frame[3]}"
                elif opcode == wire.REDIRECT:
                    reason = f"stream {self.queue!r} has no leader now"
                self._core.routes.forget(self.queue)
            self._disconnected()
            await asyncio.sleep(backoff.next_s())

    def _options(self) -> dict[str, Any]:
        if self.cursor is not None:
            place: dict[str, Any] = {"cursor": self.cursor, "have": self._have}
        else:
            place = {"from": self._place}
        return {**place, "count": self._count_max, "wait_ms": self._wait_ms}

    @property
    def _wait_ms(self) -> int:
        """The first answer comes at once: it says that the cursor or the place is there."""
        return 0 if self._ready is not None and not self._ready.done() else WAIT_MS

    def _read(self, following: int, rows: list[list[Any]]) -> None:
        if self.cursor is None:
            self._place = following
        for chunk in map(Chunk, rows):
            self._chunks.append(chunk)
            self._have = chunk.last
            self._held_count += len(chunk.bodies)
            self._held_bytes += sum(map(len, chunk.bodies))
        if self._closing:
            self._give_back()
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)
        self._news.set()

    async def _room_for_more(self) -> None:
        while not self._closing and (
            self._held_count * 2 > self._count_max or self._held_bytes > AHEAD_BYTES_MAX
        ):
            self._room.clear()
            await self._room.wait()

    def _connected(self, connection: Connection) -> None:
        if self._connection is not connection:
            self._connection = connection
            if self.cursor is not None:
                self._answers.connected(connection, self.cursor)

    def _disconnected(self) -> None:
        self._connection = None
        self._answers.disconnected()

    def _give_back(self) -> None:
        """What was read by the cursor, and nobody took."""
        chunks, self._chunks = self._chunks, deque()
        if self._chunk is not None:
            first = self._chunk.first + self._offset
            chunks.appendleft(self._chunk.part(first, self._chunk.last))
            self._chunk = None
        if self.cursor is not None:
            for chunk in chunks:
                ranges = [(chunk.first, chunk.last)]
                self._answers.add(wire.RETURN, ranges, 0, (False, None), None)

    def _fail(self, error: QuorateError) -> None:
        if self._failure is None:
            self._failure = error
            self._answers.forget(error)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()
        self._news.set()

    # --- what the answers call --------------------------------------------------------------------

    def answer_done(self, opcode: int, ranges: list[list[int]], token: int) -> None: ...

    def answer_refused(self, refused: Refused) -> None:
        log.warning("%s: an answer to a delivery was refused: %s", self.queue, refused)

    def resubscribe(self) -> None:
        """Answers are sent again, also while nothing is read."""
        self._answers.disconnected()
        self._core.routes.forget(self.queue)
        if self._mending is None or self._mending.done():
            self._mending = self._core.spawn(self._mend())

    async def _mend(self) -> None:
        backoff = Backoff()
        while self.cursor is not None and self._failure is None and self._answers.waiting:
            await asyncio.sleep(backoff.next_s())
            try:
                connection = await self._core.routes.connection(self.queue)
            except ConnectFailed:
                continue
            except QuorateError:
                return  # the client is closed
            self._answers.connected(connection, self.cursor)
            await self._answers.idle_here()

    # --- what the user's side calls ---------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """The next message. Raises Refused; StopAsyncIteration once closed."""
        if self._chunk is None:
            self._chunk, self._offset = await self._next_chunk(), 0
        chunk, offset = self._chunk, self._offset
        self._offset = offset + 1
        if self._offset == len(chunk.bodies):
            self._chunk = None
        self._took(1, len(chunk.bodies[offset]))
        return Delivery(self, 0, chunk, offset)

    def batches(self) -> Batches:
        """The same in batches: all that is here, at least one message."""
        return Batches(self._next_batch)

    async def _next_batch(self) -> Batch:
        chunk, self._chunk = self._chunk, None
        if chunk is None:
            chunk = await self._next_chunk()
        elif self._offset:
            chunk = chunk.part(chunk.first + self._offset, chunk.last)
        chunks = [chunk, *self._chunks]
        self._chunks.clear()
        for each in chunks:
            self._took(len(each.bodies), sum(map(len, each.bodies)))
        return Batch(self, 0, chunks)

    async def _next_chunk(self) -> Chunk:
        if self._task is None:
            await self.start()
        while not self._chunks:
            if self._failure is not None:
                if isinstance(self._failure, ClientClosed):
                    raise StopAsyncIteration
                raise self._failure
            self._news.clear()
            await self._news.wait()
        return self._chunks.popleft()

    def _took(self, count: int, size: int) -> None:
        self._held_count -= count
        self._held_bytes -= size
        self._room.set()

    def may_commit(self, key: int) -> None:
        """See `delivery.Keeper`."""
        raise ValueError("what was read from a stream is no part of a transaction")

    def committed(self, ranges: list[Range], token: int) -> None:
        """See `delivery.Keeper`."""

    async def finish(
        self,
        opcode: int,
        key: int,
        ranges: list[Range],
        token: int,
        arguments: tuple[Any, ...],
        wait: bool,
    ) -> None:
        """Answer deliveries; see `delivery`. Without a cursor there is nobody to be told."""
        if self.cursor is None:
            return
        if self._failure is not None:
            if wait:
                raise self._failure
            return
        if not wait:
            self._answers.add(opcode, ranges, token, arguments, None)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers.add(opcode, ranges, token, arguments, waiter)
        try:
            async with asyncio.timeout_at(self._core.deadline_s(None)):
                await waiter
        except TimeoutError:
            raise OutcomeUnknown("the answer to a delivery was not confirmed in time") from None


def _place(start: Start) -> Any:
    if isinstance(start, dt.datetime):
        return {"time": max(0, int(start.timestamp() * 1000))}
    if isinstance(start, str):
        if start not in ("first", "last", "next"):
            raise ValueError(f"start is first, last, next, a sequence or a datetime, not {start!r}")
        return start
    if start < 1:
        raise ValueError(f"sequences begin at 1, not {start}")
    return start
