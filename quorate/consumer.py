"""A subscription that outlives connections and leaders: deliveries in, answers out as ranges."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from quorate import wire
from quorate.answers import Answers
from quorate.connection import ConnectFailed, Connection
from quorate.core import Core
from quorate.delivery import Batch, Chunk, Delivery, Range
from quorate.errors import (
    ClientClosed,
    ConsumerEnded,
    OutcomeUnknown,
    QuorateError,
    Refused,
    Unreachable,
)
from quorate.holdings import Holdings
from quorate.routes import Backoff

log = logging.getLogger("quorate")

#: Deliveries settled when delivered know no credit: above this many bytes not yet taken, the
#: consumer is cancelled, and subscribes again when half of it was.
BUFFER_BYTES_MAX = 16 * 1024 * 1024
#: Messages of a batch handed to the user, unless one chunk is larger.
BATCH_COUNT_MAX = 1_000
#: How long `aclose` waits for the last answers.
CLOSE_TIMEOUT_S = 5.0


class Subscription:
    """What `Consumer` and `BatchConsumer` share. Begins with the first message asked for, or with
    `async with`.
    """

    def __init__(
        self,
        core: Core,
        queue: str,
        *,
        tag: str | None,
        credit: int,
        priority: int,
        exclusive: bool,
        auto_settle: bool,
        timeout_ms: int | None,
    ) -> None:
        self.queue = queue
        self.tag = tag or f"c-{secrets.token_hex(6)}"
        self.active = False  # false: behind another, where one single consumer is active
        self.token = 0  # fencing token of the last change of `active`
        self._core = core
        self._auto_settle = auto_settle
        self._options: dict[str, Any] = {
            "tag": self.tag,
            "credit": credit,
            "priority": priority,
            "exclusive": exclusive,
            "auto_settle": auto_settle,
            "timeout_ms": timeout_ms,
        }
        self._key = 0
        self._connection: Connection | None = None
        self._answers = Answers(self)
        self._holdings = Holdings()
        self._chunks: deque[Chunk] = deque()
        self._buffered_bytes = 0  # counted with auto_settle only
        self._overfull = False
        self._arrived: asyncio.Future[None] | None = None
        self._moved = asyncio.Event()
        self._subscribed: asyncio.Future[None] | None = None
        self._failure: QuorateError | None = None
        self._task: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Subscribe now; returns when the node has. Raises Refused, Unreachable."""
        if self._task is None:
            deadline_s = self._core.deadline_s(None)
            self._subscribed = asyncio.get_running_loop().create_future()
            self._task = self._core.spawn(self._keep(deadline_s))
            self._task.add_done_callback(lambda _: self._wake())
        assert self._subscribed is not None
        await asyncio.shield(self._subscribed)

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
        """Send the last answers, cancel, and give back what was not settled. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        try:
            if not self._core.closed and self._connection is not None:
                with contextlib.suppress(QuorateError, TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await self._connection.call(wire.CANCEL, self.queue, self._key)
                        await self._answers.idle()
                        if rest := [(first, last) for first, last, _ in self._holdings.rows()]:
                            self._answers.add(wire.RETURN, rest, (False, None), None)
                            await self._answers.idle()
        finally:
            self._fail(ClientClosed("the consumer was closed"))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if self._connection is not None:
                self._connection.detach(self.queue, self._key)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every answer so far is confirmed. Raises Refused, OutcomeUnknown."""
        try:
            async with asyncio.timeout_at(self._core.deadline_s(timeout)):
                await self._answers.idle()
        except TimeoutError:
            raise OutcomeUnknown("answers to deliveries are not confirmed yet") from None

    async def set_credit(self, credit: int) -> None:
        """How many unsettled deliveries it may hold from now on. 0: no limit."""
        self._options["credit"] = credit
        if self._key:
            await self._core.ask(self.queue, wire.CREDIT, self._key, credit)

    async def _keep(self, deadline_s: float | None) -> None:
        """Subscribed for as long as it lives, wherever the leader is."""
        backoff = Backoff()
        reason = "no node was asked yet"
        while self._failure is None:
            try:
                async with asyncio.timeout_at(deadline_s):
                    connection = await self._core.routes.connection(self.queue)
                    frame = await connection.subscribe(
                        self.queue, {**self._options, "held": self._holdings.rows()}
                    )
                opcode: int = frame[0]
                if opcode == wire.SUBSCRIBED:
                    backoff.reset()
                    deadline_s = None  # from now on it never gives up
                    await self._attached(connection, frame[2], bool(frame[3]))
                    continue
                if opcode == wire.ERROR:
                    if frame[2] not in wire.PASSING:
                        self._fail(Refused(frame[2], frame[3]))
                        return
                    reason = f"{frame[2]}: {frame[3]}"
                    self._core.routes.forget(self.queue)
                elif opcode == wire.REDIRECT:
                    reason = f"queue {self.queue!r} has no leader now"
                    if frame[3]:
                        continue
                else:
                    reason = "the connection was lost"
            except ConnectFailed as error:
                reason = str(error)
            except TimeoutError:
                self._fail(Unreachable(f"not subscribed to {self.queue!r} in time: {reason}"))
                return
            except QuorateError as error:
                self._fail(error)
                return
            await asyncio.sleep(backoff.next_s())

    async def _attached(self, connection: Connection, key: int, active: bool) -> None:
        if key != self._key:
            # A new registration: what the old one held went back to the queue.
            self._holdings.clear()
            self._chunks.clear()
            self._reset_reading()
        self._core.routes.used(self.queue, connection)
        self._moved.clear()
        self._key, self._connection, self.active = key, connection, active
        self._answers.connected(connection, key)
        connection.attach(self.queue, key, self)
        if connection.lost:
            self._moved.set()
        if self._subscribed is not None and not self._subscribed.done():
            self._subscribed.set_result(None)
        try:
            await self._moved.wait()
        finally:
            self._answers.disconnected()
        self._connection = None
        connection.detach(self.queue, key)
        if self._overfull:
            await self._drained(connection)

    async def _drained(self, connection: Connection) -> None:
        """Deliveries came faster than they were taken: none for a while."""
        await connection.call(wire.CANCEL, self.queue, self._key)
        while self._buffered_bytes * 2 > BUFFER_BYTES_MAX:
            self._moved.clear()
            await self._moved.wait()
        self._overfull = False

    def _fail(self, error: QuorateError) -> None:
        if self._failure is None:
            self._failure = error
            self._answers.forget(error)
        if self._subscribed is not None and not self._subscribed.done():
            self._subscribed.set_exception(error)
            self._subscribed.exception()
        self._wake()

    # --- what the connection calls ----------------------------------------------------------------

    def delivered(self, chunks: list[list[Any]]) -> None:
        for row in chunks:
            chunk = Chunk(row)
            if self._auto_settle:
                self._buffered_bytes += sum(map(len, chunk.bodies))
                self._chunks.append(chunk)
                continue
            first, last = chunk.first, chunk.last
            news = self._holdings.add(first, last, chunk.token)
            if news == [(first, last)]:
                self._chunks.append(chunk)
            else:
                self._chunks.extend(chunk.part(*part) for part in news)
        if self._buffered_bytes > BUFFER_BYTES_MAX and not self._overfull:
            self._overfull = True
            self._moved.set()
        self._wake()

    def ended(self, reason: str) -> None:
        self._fail(ConsumerEnded(self.queue, reason))

    def active_changed(self, active: bool, token: int) -> None:
        self.active = active
        self.token = token

    def disturbed(self) -> None:
        self._answers.disconnected()
        self._moved.set()

    # --- what the answers call --------------------------------------------------------------------

    def answer_done(self, opcode: int, ranges: list[list[int]]) -> None:
        if opcode != wire.EXTEND:
            for first, last in ranges:
                self._holdings.remove(first, last)

    def answer_refused(self, refused: Refused) -> None:
        log.warning("%s: a delivery was answered too late: %s", self.queue, refused)

    def resubscribe(self) -> None:
        self.disturbed()

    # --- what the user's side calls ---------------------------------------------------------------

    async def finish(
        self, opcode: int, key: int, ranges: list[Range], arguments: tuple[Any, ...], wait: bool
    ) -> None:
        """Answer deliveries; see `delivery`."""
        if self._auto_settle:
            return
        error = self._failure
        if error is None and key != self._key:
            error = Refused("unknown_delivery", "the session had ended: the message was returned")
        if error is not None:
            if wait:
                raise error
            return
        if not wait:
            self._answers.add(opcode, ranges, arguments, None)
            return
        deadline_s = self._core.deadline_s(None)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers.add(opcode, ranges, arguments, waiter)
        try:
            async with asyncio.timeout_at(deadline_s):
                await waiter
        except TimeoutError:
            raise OutcomeUnknown("the answer to a delivery was not confirmed in time") from None

    async def _next_chunk(self) -> Chunk:
        while not self._chunks:
            if self._failure is not None:
                if isinstance(self._failure, ClientClosed):
                    raise StopAsyncIteration
                raise self._failure
            if self._task is None:
                await self.start()
                continue
            if self._core.closed or self._task.done():
                raise StopAsyncIteration
            self._arrived = asyncio.get_running_loop().create_future()
            try:
                await self._arrived
            finally:
                self._arrived = None
        chunk = self._chunks.popleft()
        if self._auto_settle:
            self._buffered_bytes -= sum(map(len, chunk.bodies))
            if self._overfull:
                self._moved.set()
        return chunk

    async def _next_batch(self, count_max: int) -> Batch:
        chunks = [await self._next_chunk()]
        count = len(chunks[0].bodies)
        while self._chunks and count + len(self._chunks[0].bodies) <= count_max:
            chunks.append(await self._next_chunk())
            count += len(chunks[-1].bodies)
        return Batch(self, self._key, chunks)

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _reset_reading(self) -> None:
        """Forget what is half read: it will be delivered again."""


class Consumer(Subscription):
    """Deliveries one by one: `async for delivery in consumer`."""

    _chunk: Chunk | None = None
    _offset = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """The next message. Raises ConsumerEnded, Refused; StopAsyncIteration once closed."""
        chunk = self._chunk
        if chunk is None:
            self._chunk = chunk = await self._next_chunk()
            self._offset = 0
        offset = self._offset
        delivery = Delivery(self, self._key, chunk, offset)
        self._offset = offset + 1
        if self._offset == len(chunk.bodies):
            self._chunk = None
        return delivery

    def batches(self, count_max: int = BATCH_COUNT_MAX) -> Batches:
        """The same deliveries in batches; see `Client.consume_batches`."""
        return Batches(lambda: self._next_batch(count_max))

    def _reset_reading(self) -> None:
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
