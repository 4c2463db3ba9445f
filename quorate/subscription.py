"""A subscription that outlives connections and leaders: deliveries in, answers out as ranges."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from types import TracebackType
from typing import Any, Self

from quorate import wire
from quorate.answers import Answers
from quorate.connection import ConnectFailed, Connection
from quorate.core import Core
from quorate.delivery import Batch, Chunk, Range
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
#: How long `aclose` waits until a node has answered all.
CLOSE_TIMEOUT_S = 5.0
#: A shard that is not there yet, or not any more, is asked again after this.
SHARD_AGAIN_S = 1.0
#: Who says nothing of a time limit may have one of this, in ms, by the queue's: see `_hold_on`.
LIMIT_MS_MIN = 60_000


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
        self._known = False  # a node may have it registered
        self._unsure = False  # perhaps under another key than ours
        self._closing = False
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
        # Of a queue that is split: over what, and one subscription to each shard, which brings its
        # messages here. Together they hand out no more than the credit.
        self._split: list[str] = []
        self._shards: dict[str, Subscription] = {}
        self._whole: Subscription | None = None  # of a shard's
        self._turn = 0
        self._holding_on: asyncio.Task[None] | None = None

    @property
    def key(self) -> int:
        """By which the node knows it now."""
        return self._key

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Subscribe now; returns when the node has. Raises Refused, Unreachable."""
        if self._task is None:
            self._begin(self._core.deadline_s(None))
        assert self._subscribed is not None
        await asyncio.shield(self._subscribed)

    def _begin(self, deadline_s: float | None) -> None:
        self._subscribed = asyncio.get_running_loop().create_future()
        self._task = self._core.spawn(self._keep(deadline_s))
        self._task.add_done_callback(lambda _: self._wake())

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
        """Send the last answers, cancel, and give back what was not settled. Idempotent.

        It returns soon in any case; what no node has answered by then is said again in the
        background, wherever the leader is, while the client is open.
        """
        await asyncio.gather(self._aclose(), *(each._aclose() for each in self._leave_shards()))

    async def _aclose(self) -> None:
        task = self._task
        if task is None or self._closing:
            return
        self._closing = True
        if self._known:
            self._leave(task)
        else:
            task.cancel()
        self._moved.set()
        self._wake()
        try:
            await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S)
        finally:
            self._fail(ClientClosed("the consumer was closed"))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every answer so far is confirmed. Raises Refused, OutcomeUnknown."""
        try:
            async with asyncio.timeout_at(self._core.deadline_s(timeout)):
                for each in self._sources():
                    await each._answers.idle()
        except TimeoutError:
            raise OutcomeUnknown("answers to deliveries are not confirmed yet") from None

    async def set_credit(self, credit: int) -> None:
        """How many unsettled deliveries it may hold from now on. 0: no limit."""
        for each in self._sources():
            each._options["credit"] = credit
            if each._key:
                await self._core.ask(each.queue, wire.CREDIT, each._key, credit)

    # --- following the leader ---------------------------------------------------------------------

    async def _keep(self, deadline_s: float | None) -> None:
        """Subscribed for as long as it lives, and then cancelled, wherever the leader is."""
        try:
            await self._follow(deadline_s)
            if self._known:
                await self._end()
        finally:
            self._fail(ClientClosed(f"the {'consumer' if self._closing else 'client'} was closed"))
            assert self._failure is not None
            self._answers.forget(self._failure)
            if self._connection is not None:
                self._connection.detach(self.queue, self._key)
            if not self._core.closed:
                for shard in self._leave_shards():
                    self._core.spawn(shard._aclose())
            if self._core.ending.get((self.queue, self.tag)) is asyncio.current_task():
                del self._core.ending[self.queue, self.tag]

    async def _follow(self, deadline_s: float | None) -> None:
        backoff = Backoff()
        reason = "no node was asked yet"
        while self._failure is None and not self._closing:
            try:
                async with asyncio.timeout_at(deadline_s):
                    earlier = self._core.ending.get((self.queue, self.tag))
                    if earlier is not None:
                        reason = "an earlier consumer with its tag is not cancelled yet"
                        await asyncio.wait({earlier})
                    connection = await self._core.routes.connection(self.queue)
                    frame = await self._subscribe(connection)
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

    async def _subscribe(self, connection: Connection) -> list[Any]:
        before = self._known, self._unsure
        self._known = self._unsure = True  # whatever becomes of the answer
        held = {**self._options, "held": self._holdings.rows()}
        frame = await connection.subscribe(self.queue, held)
        if frame[0] == wire.SUBSCRIBED:
            self._unsure = False
        elif frame[0] != wire.LOST:
            self._known, self._unsure = before
        return frame

    def _connected(self, connection: Connection, key: int) -> None:
        """This node leads, and the consumer is known there as `key`."""
        if key != self._key:
            # A new registration: what the old one held went back to the queue.
            self._holdings.clear()
            self._chunks.clear()
            (self._whole or self)._reset_reading(self)
        self._core.routes.used(self.queue, connection)
        self._moved.clear()
        self._key, self._connection = key, connection
        self._answers.connected(connection, key)
        connection.attach(self.queue, key, self)
        if connection.lost:
            self.disturbed()

    async def _attached(self, connection: Connection, key: int, active: bool) -> None:
        self.active = active
        self._connected(connection, key)
        if self._subscribed is not None and not self._subscribed.done():
            self._subscribed.set_result(None)
        if self._closing:
            return
        await self._moved.wait()
        if self._closing and self._connection is connection:
            return  # the end is said there
        self._answers.disconnected()
        self._connection = None
        connection.detach(self.queue, key)
        if self._overfull:
            await self._drained(connection)

    async def _end(self) -> None:
        """Cancelled, and nothing left with it: said to whoever leads until it is answered."""
        task = asyncio.current_task()
        assert task is not None
        self._leave(task)
        backoff = Backoff()
        while self._known:
            try:
                connection = self._connection
                if connection is None:
                    connection = await self._core.routes.connection(self.queue)
                if await self._end_at(connection):
                    return
            except ConnectFailed:
                pass
            except QuorateError:
                return  # the client is closed, and its sessions end with it
            if self._connection is not None:
                self._connection.detach(self.queue, self._key)
            self.disturbed()
            await asyncio.sleep(backoff.next_s())

    async def _end_at(self, connection: Connection) -> bool:
        """Whether this node has done it, or there is nothing to do."""
        key = self._key
        if self._unsure:
            # Perhaps it was registered anew, under a key that we have not heard.
            frame = await self._subscribe(connection)
            if frame[0] != wire.SUBSCRIBED:
                return self._is_over(frame)
            key = frame[2]
        if self._connection is not connection or key != self._key:
            self._connected(connection, key)
        frame = await connection.call(wire.CANCEL, self.queue, key, False)
        # Perhaps cancelled before, and the answer was lost: its deliveries may still be with it.
        if not self._is_over(frame) or not await self._answers.idle_here():
            return False
        return self._is_over(await connection.call(wire.CANCEL, self.queue, key, True))

    def _is_over(self, frame: list[Any]) -> bool:
        if frame[0] == wire.ERROR and frame[2] in wire.PASSING:
            self._core.routes.forget(self.queue)
            return False
        return frame[0] in (wire.OK, wire.ERROR)

    def _leave(self, task: asyncio.Task[None]) -> None:
        """Until then nobody may subscribe under its tag: it would be cancelled, too."""
        self._core.ending[self.queue, self.tag] = task

    async def _drained(self, connection: Connection) -> None:
        """Deliveries came faster than they were taken: none for a while."""
        await connection.call(wire.CANCEL, self.queue, self._key)
        while self._buffered_bytes * 2 > BUFFER_BYTES_MAX and not self._closing:
            self._moved.clear()
            await self._moved.wait()
        self._overfull = False

    def _fail(self, error: QuorateError) -> None:
        if self._failure is None:
            self._failure = error
            if not self._closing:
                self._answers.forget(error)
        if self._subscribed is not None and not self._subscribed.done():
            self._subscribed.set_exception(error)
            self._subscribed.exception()
        if self._whole is not None:
            self._whole._shard_failed(self, error)
        self._wake()

    # --- shards -----------------------------------------------------------------------------------

    def split_over(self, shards: list[str]) -> None:
        """So it is now, says a node; none: it is one queue."""
        if self._whole is not None or self._closing or self._failure is not None:
            return
        self._split = shards
        for gone in [name for name in self._shards if name not in shards]:
            self._core.spawn(self._shards.pop(gone)._aclose())
        for name in shards:
            if name not in self._shards:
                self._add_shard(name)
        if self._shards and self._holding_on is None:
            self._holding_on = self._core.spawn(self._hold_on())

    def _add_shard(self, name: str) -> None:
        shard = Subscription(self._core, name, **self._options)
        shard._whole = self
        self._shards[name] = shard
        shard._begin(None)

    def _shard_failed(self, shard: Subscription, error: QuorateError) -> None:
        if self._shards.get(shard.queue) is not shard:
            return
        del self._shards[shard.queue]
        if isinstance(error, ClientClosed):
            return
        is_gone = isinstance(error, ConsumerEnded) and error.reason == "queue_deleted"
        if not is_gone and not (isinstance(error, Refused) and error.code == "no_queue"):
            self._fail(error)
        elif not self._core.closed:
            self._core.spawn(self._add_again(shard.queue))

    async def _add_again(self, name: str) -> None:
        """Unless it was joined: a node is about to say so."""
        await asyncio.sleep(SHARD_AGAIN_S)
        if name in self._split and name not in self._shards:
            self.split_over(self._split)

    def _leave_shards(self) -> list[Subscription]:
        shards, self._shards, self._split = list(self._shards.values()), {}, []
        if self._holding_on is not None:
            self._holding_on.cancel()
            self._holding_on = None
        return shards

    def _sources(self) -> list[Subscription]:
        return [self, *self._shards.values()]

    def _room(self) -> int:
        """How many more messages the user may be given. Each shard assigns as many as the credit:
        the rest waits here.
        """
        credit = self._options["credit"]
        if not credit or self._auto_settle:
            return wire.BATCH_COUNT_MAX
        return credit - sum(
            each._holdings.count - sum(len(chunk.bodies) for chunk in each._chunks)
            for each in self._sources()
        )

    async def _hold_on(self) -> None:
        """What waits here for its turn is not too late when that comes."""
        timeout_ms = self._options["timeout_ms"]
        while not self._auto_settle:
            await asyncio.sleep((timeout_ms or LIMIT_MS_MIN) / 3000)
            for each in self._sources():
                for chunk in each._chunks:
                    ranges = [(chunk.first, chunk.last)]
                    each._answers.add(wire.EXTEND, ranges, chunk.token, (timeout_ms,), None)

    # --- what the connection calls ----------------------------------------------------------------

    def delivered(self, chunks: list[list[Any]]) -> None:
        if self._closing:
            return  # given back with all else
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
        self._known = False
        self._fail(ConsumerEnded(self.queue, reason))
        self._moved.set()

    def active_changed(self, active: bool, token: int) -> None:
        self.active = active
        self.token = token

    def disturbed(self) -> None:
        self._connection = None
        self._answers.disconnected()
        self._moved.set()

    # --- what the answers call --------------------------------------------------------------------

    def answer_done(self, opcode: int, ranges: list[list[int]], token: int) -> None:
        if opcode != wire.EXTEND:
            for first, last in ranges:
                self._holdings.remove(first, last, token)
            if self._shards or self._whole is not None:
                self._wake()  # there is room for more

    def answer_refused(self, refused: Refused) -> None:
        log.warning("%s: a delivery was answered too late: %s", self.queue, refused)

    def resubscribe(self) -> None:
        self.disturbed()

    # --- what the user's side calls ---------------------------------------------------------------

    def may_commit(self, key: int) -> None:
        """See `delivery.Keeper`."""
        if self._auto_settle:
            raise ValueError("with auto_settle, deliveries are settled already")
        if self._failure is not None:
            raise self._failure
        if key != self._key:
            raise Refused("unknown_delivery", "the session had ended: the message was returned")

    def committed(self, ranges: list[Range], token: int) -> None:
        """See `delivery.Keeper`."""
        self.answer_done(wire.SETTLE, [list(pair) for pair in ranges], token)

    async def finish(
        self,
        opcode: int,
        key: int,
        ranges: list[Range],
        token: int,
        arguments: tuple[Any, ...],
        wait: bool,
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
            self._answers.add(opcode, ranges, token, arguments, None)
            return
        deadline_s = self._core.deadline_s(None)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers.add(opcode, ranges, token, arguments, waiter)
        try:
            async with asyncio.timeout_at(deadline_s):
                await waiter
        except TimeoutError:
            raise OutcomeUnknown("the answer to a delivery was not confirmed in time") from None

    async def _next_chunk(self) -> tuple[Subscription, Chunk]:
        """And who can answer it."""
        while (found := self._take_chunk()) is None:
            if self._failure is not None:
                if isinstance(self._failure, ClientClosed):
                    raise StopAsyncIteration
                raise self._failure
            if self._task is None:
                await self.start()
                continue
            if self._closing or self._core.closed or self._task.done():
                raise StopAsyncIteration
            self._arrived = asyncio.get_running_loop().create_future()
            try:
                await self._arrived
            finally:
                self._arrived = None
        return found

    def _take_chunk(self) -> tuple[Subscription, Chunk] | None:
        if not self._shards:
            return (self, self._pop(None)) if self._chunks else None
        sources = self._sources()
        for turn in range(len(sources)):
            source = sources[(self._turn + turn) % len(sources)]
            if source._chunks:
                room = self._room()
                if room <= 0:
                    return None
                self._turn += turn + 1
                return source, source._pop(room)
        return None

    def _pop(self, room: int | None) -> Chunk:
        chunk = self._chunks.popleft()
        if room is not None and len(chunk.bodies) > room:
            self._chunks.appendleft(chunk.part(chunk.first + room, chunk.last))
            chunk = chunk.part(chunk.first, chunk.first + room - 1)
        if self._auto_settle:
            self._buffered_bytes -= sum(map(len, chunk.bodies))
            if self._overfull:
                self._moved.set()
        return chunk

    async def _next_batch(self, count_max: int) -> Batch:
        source, chunk = await self._next_chunk()
        chunks, count = [chunk], len(chunk.bodies)
        while source._chunks and count + len(source._chunks[0].bodies) <= count_max:
            if self._shards and len(source._chunks[0].bodies) > self._room():
                break
            chunks.append(source._pop(None))
            count += len(chunks[-1].bodies)
        return Batch(source, source.key, chunks)

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        if self._whole is not None:
            self._whole._wake()

    def _reset_reading(self, source: Subscription) -> None:
        """Forget what is half read: it will be delivered again."""
