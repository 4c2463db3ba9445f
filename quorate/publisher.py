"""Publishing to one queue: numbered frames, many in flight, sent again under the same numbers until
confirmed.

The order of a publisher's messages is the order of the calls. Numbers are given when a frame is
first sent, so a message that was never sent can still be taken back and its fate is certain. Once
sent it stays in line until a node answers, also when its caller has given up: a gap would stop
everything behind it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quorate import wire
from quorate.batches import Batch, Confirmed, Meta, Published, Row, cut
from quorate.connection import ConnectFailed, Connection
from quorate.core import Core
from quorate.errors import ClientClosed, OutcomeUnknown, QuorateError, Refused, Unreachable
from quorate.publishing import Run, attrs_for, attrs_of, meta_of, metas_of
from quorate.routes import Backoff

#: A first number that no publisher reaches: asking to store it tells which number comes next.
_PROBE_SEQNO = 1 << 53


def generated_name() -> str:
    """For a publisher that nobody named: unique, so that its numbers are its own."""
    return f"~{secrets.token_hex(8)}"


class Publisher:
    """Publishes to one queue under one name. Made by `Client.publisher`; calls may run side by
    side.
    """

    def __init__(self, core: Core, queue: str, name: str | None, next_seqno: int | None) -> None:
        self.queue = queue
        self._core = core
        self._named = name is not None
        self._name = name or generated_name()
        self._next_seqno: int | None = next_seqno if self._named else 1
        self._connection: Connection | None = None
        self._waiting: deque[Batch] = deque()
        self._sent: deque[Batch] = deque()  # in the order of their numbers
        self._bytes = 0  # of bodies in both
        self._room: deque[asyncio.Future[None]] = deque()
        self._backoff = Backoff()
        self._seeking = False
        self._pumping = False  # a call of _pump is scheduled
        self._draining = False  # a number is free again: no sending until all in flight is answered
        self._free_from = 0  # while draining: numbers from here on were surely not stored
        self._last_error = "no node was asked yet"

    @property
    def name(self) -> str:
        """The name that numbers its messages; a generated one begins with `~`."""
        return self._name

    @property
    def unconfirmed_bytes(self) -> int:
        """Bytes of bodies given to this publisher and not yet answered."""
        return self._bytes

    # --- public -----------------------------------------------------------------------------------

    async def publish(
        self,
        body: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        meta: Meta | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        deliver_at_ms: int | None = None,
        dedup_id: str | None = None,
        timeout: float | None = None,
    ) -> Published:
        """One message; returns when it is safe. Raises Refused, OutcomeUnknown.

        Calls made while frames are in flight share the next frame. `deliver_at_ms` is a wall clock
        in ms since the epoch, `ttl_ms` a span, `timeout` seconds.
        """
        if not isinstance(body, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]  # for untyped callers
            raise TypeError("a message body must be bytes: encode text first, as in text.encode()")
        deadline_s = self._core.deadline_s(timeout)
        attrs = attrs_of(
            priority=priority, ttl_ms=ttl_ms, deliver_at_ms=deliver_at_ms, dedup_id=dedup_id
        )
        if self._bytes >= wire.WINDOW_BYTES_MAX:
            await self._wait_for_room(deadline_s)
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        batch = self._add_single(body, meta_of(meta, key, headers), attrs, waiter)
        try:
            async with asyncio.timeout_at(deadline_s):
                row, offset = await waiter
        except TimeoutError:
            raise self._gave_up(batch, waiter) from None
        except asyncio.CancelledError:
            self._take_back(batch, waiter)
            raise
        if row.refused and row.refuses(offset):
            raise Refused(
                "queue_full", f"queue {self.queue!r} is at its limit: consume, then retry"
            )
        return row.published(offset)

    async def publish_many(
        self,
        bodies: Iterable[bytes],
        *,
        meta: Meta | Sequence[Meta | None] | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        deliver_at_ms: int | None = None,
        dedup_ids: Sequence[str] | None = None,
        batch: int = wire.BATCH_COUNT_MAX,
        timeout: float | None = None,
    ) -> Confirmed:
        """Many messages, in frames of up to `batch`, many frames in flight; returns when all are
        safe.

        `meta`: one for all, or one a body. `timeout`: seconds that any one frame may take. Raises
        Refused or OutcomeUnknown, whose `ranges` are the indexes of the bodies concerned and
        `confirmed` counts the others.
        """
        span_s = self._core.timeout_s if timeout is None else timeout
        loop = asyncio.get_running_loop()
        run = Run(self.queue)
        shared = attrs_of(priority=priority, ttl_ms=ttl_ms, deliver_at_ms=deliver_at_ms)
        in_line: deque[tuple[Batch, asyncio.Future[Any], int, float]] = deque()

        async def finish_first() -> None:
            frame, waiter, first, deadline_s = in_line.popleft()
            try:
                if not waiter.done():
                    async with asyncio.timeout_at(deadline_s):
                        await waiter
                run.confirmed(waiter.result()[0], first, len(frame.bodies))
            except TimeoutError:
                run.failed(self._gave_up(frame, waiter), first, len(frame.bodies))
            except QuorateError as error:
                run.failed(error, first, len(frame.bodies))

        try:
            index = 0
            for piece, size in cut(iter(bodies), batch, wire.BATCH_BYTES_MAX):
                deadline_s = self._core.deadline_s(span_s)
                while in_line and (
                    in_line[0][1].done() or self._bytes + size > wire.WINDOW_BYTES_MAX
                ):
                    await finish_first()
                if run.error is not None:
                    break
                if self._bytes and self._bytes + size > wire.WINDOW_BYTES_MAX:
                    await self._wait_for_room(deadline_s)
                waiter = loop.create_future()
                frame = Batch(
                    piece,
                    metas_of(meta, index, len(piece)),
                    attrs_for(shared, dedup_ids, index, len(piece)),
                    size,
                    False,
                    [waiter],
                )
                self._append(frame)
                in_line.append((frame, waiter, index, loop.time() + span_s))
                index += len(piece)
            if run.error is not None:
                for frame, waiter, _, _ in in_line:
                    if self._take_back(frame, waiter):
                        waiter.set_exception(Refused("not_sent", "an earlier frame failed"))
            while in_line:
                await finish_first()
        finally:
            for frame, waiter, _, _ in in_line:
                self._take_back(frame, waiter)
                waiter.cancel()
        return run.result()

    # --- the line ---------------------------------------------------------------------------------

    def _add_single(self, body: bytes, meta: Any, attrs: Any, waiter: asyncio.Future[Any]) -> Batch:
        batch = self._waiting[-1] if self._waiting else None
        if (
            batch is None
            or not batch.single
            or batch.seqno
            or len(batch.bodies) >= wire.BATCH_COUNT_MAX
            or batch.size + len(body) > wire.BATCH_BYTES_MAX
        ):
            batch = Batch([], [], [], 0, True, [])
            self._append(batch)
        batch.bodies.append(body)
        batch.metas.append(meta)
        batch.attrs.append(attrs)
        batch.waiters.append(waiter)
        batch.size += len(body)
        self._bytes += len(body)
        return batch

    def _append(self, batch: Batch) -> None:
        self._waiting.append(batch)
        self._bytes += batch.size
        if not self._pumping:
            # Whatever else is published in this turn of the loop goes out with it.
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    async def _wait_for_room(self, deadline_s: float) -> None:
        while self._bytes >= wire.WINDOW_BYTES_MAX:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(room)
            try:
                async with asyncio.timeout_at(deadline_s):
                    await room
            except TimeoutError:
                raise Unreachable(
                    f"{self._bytes} bytes wait for their confirm and no more are taken:"
                    f" {self._last_error}"
                ) from None

    def _release(self, size: int) -> None:
        self._bytes -= size
        while self._room and self._bytes < wire.WINDOW_BYTES_MAX:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
                break

    def _gave_up(self, batch: Batch, waiter: asyncio.Future[Any]) -> QuorateError:
        """What the deadline means for this message: never sent is certain, sent is not."""
        if self._take_back(batch, waiter):
            return Unreachable(f"not sent before the deadline: {self._last_error}")
        return OutcomeUnknown(
            f"sent to queue {self.queue!r}, not confirmed before the deadline ({self._last_error}):"
            " it may be stored, now or later"
        )

    def _take_back(self, batch: Batch, waiter: asyncio.Future[Any]) -> bool:
        """Remove what was never sent. False: it was, and stays in line."""
        if batch.seqno or batch.done or waiter not in batch.waiters:
            return False
        if batch.single and len(batch.waiters) > 1:
            offset = batch.waiters.index(waiter)
            size = len(batch.bodies[offset])
            for column in (batch.waiters, batch.bodies, batch.metas, batch.attrs):
                del column[offset]
            batch.size -= size
        else:
            self._waiting.remove(batch)
            size = batch.size
        self._release(size)
        return True

    # --- sending ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what waits, as far as the node's window goes."""
        self._pumping = False
        if not self._waiting or self._draining:
            return
        connection = self._connection
        if connection is None or connection.lost or self._next_seqno is None:
            self._seek(0.0)
            return
        while self._waiting:
            batch = self._waiting[0]
            if not connection.has_room(batch.size):
                connection.when_room(self._pump)
                return
            self._send(self._waiting.popleft(), connection, self._next_seqno)

    def _send(self, batch: Batch, connection: Connection, next_seqno: int) -> None:
        if not batch.seqno:
            batch.name = self._name
            batch.seqno = next_seqno
            self._next_seqno = next_seqno + len(batch.bodies)
        batch.request = connection.next_request()
        batch.unsure.add(batch.request)
        self._sent.append(batch)
        meta, attrs = batch.fields()
        frame = [
            wire.PUBLISH,
            batch.request,
            self.queue,
            batch.name,
            batch.seqno,
            batch.bodies,
            meta,
            attrs,
        ]
        connection.ask(batch.request, wire.encode(frame), _BatchAsker(self, batch), counted=True)

    def _seek(self, pause_s: float) -> None:
        if not self._seeking and not self._core.closed:
            self._seeking = True
            self._core.spawn(self._find(pause_s))

    async def _find(self, pause_s: float) -> None:
        """Find the leader's connection (for a given name also its next number), then send."""
        try:
            while self._waiting:
                await asyncio.sleep(pause_s)
                try:
                    connection = await self._core.routes.connection(self.queue)
                    if self._next_seqno is None and not await self._ask_next_seqno(connection):
                        pause_s = self._backoff.next_s()
                        continue
                    self._connection = connection
                    break
                except ConnectFailed as error:
                    self._last_error = str(error)
                    pause_s = self._backoff.next_s()
                except QuorateError as error:
                    self._fail_all(error)
                    return
        except asyncio.CancelledError:
            self._fail_all(ClientClosed("the client was closed before a node confirmed this"))
            raise
        finally:
            self._seeking = False
        self._pump()

    async def _ask_next_seqno(self, connection: Connection) -> bool:
        """A name may have published before: the refusal of an impossible number says which comes
        next.
        """
        frame = await connection.call(
            wire.PUBLISH, self.queue, self._name, _PROBE_SEQNO, [b""], None, None
        )
        if frame[0] == wire.ERROR:
            if frame[2] == "out_of_sequence" and isinstance(frame[4], int):
                self._next_seqno = frame[4]
                return True
            if frame[2] not in wire.PASSING:
                raise Refused(frame[2], frame[3], frame[4])
            self._core.routes.forget(self.queue)
            self._last_error = f"{frame[2]}: {frame[3]}"
        elif frame[0] == wire.REDIRECT:
            self._last_error = f"queue {self.queue!r} has no leader now"
        return False

    # --- answers ----------------------------------------------------------------------------------

    def answered(self, batch: Batch, request: int, opcode: int, frame: list[Any]) -> None:
        """An answer to a frame; of an earlier sending only a refusal still says something."""
        if opcode in (wire.REDIRECT, wire.ERROR):
            batch.unsure.discard(request)
        if batch.request != request:
            return
        if opcode == wire.CONFIRM:
            self._backoff.reset()
            if self._connection is not None:
                self._core.routes.used(self.queue, self._connection)
            _, first, stored, duplicates, refused = frame[:5]
            self._leave(batch)
            batch.resolve(Row(first, stored, duplicates, refused or ()))
        elif opcode == wire.LOST:
            self._last_error = "the connection to the leader was lost"
            self._rewind(0.0)
        elif opcode == wire.REDIRECT:
            self._last_error = f"queue {self.queue!r} has no leader now"
            self._rewind(0.0 if frame[3] else self._backoff.next_s())
        elif opcode == wire.ERROR:
            self._refused(batch, frame)
        if self._draining and not self._sent:
            self._end_draining()
        if self._waiting and not self._seeking:
            self._pump()

    def _refused(self, batch: Batch, frame: list[Any]) -> None:
        code, reason, detail = frame[2], frame[3], frame[4] if len(frame) > 4 else None
        self._last_error = f"{code}: {reason}"
        if code in wire.PASSING:
            self._core.routes.forget(self.queue)
            self._rewind(self._backoff.next_s())
            return
        gap = code == "out_of_sequence"
        if gap and (self._draining or batch is not self._sent[0]):
            # Something before it was refused: its turn comes again.
            self._sent.remove(batch)
            self._put_back(batch)
            return
        if batch.unsure:
            # An earlier sending may have been stored; those behind it find out for themselves.
            self._leave(batch)
            batch.fail(OutcomeUnknown(f"sent again, and then refused: {code}: {reason}"))
            self._name = self._name if self._named else generated_name()
            self._next_seqno = None if self._named else 1
        elif gap and isinstance(detail, int):
            # The queue forgot our numbers: made anew, or this publisher was idle for long.
            self._sent.remove(batch)
            self._put_back(batch)
            self._renumber(batch.name, batch.seqno, detail)
        else:
            self._leave(batch)
            batch.fail(Refused(code, reason, detail))
            self._renumber(batch.name, batch.seqno, batch.seqno)

    def _leave(self, batch: Batch) -> None:
        batch.request = 0
        self._sent.remove(batch)  # nearly always the first
        self._release(batch.size)

    def _renumber(self, name: str, seqno: int, free: int) -> None:
        """`seqno` was surely not stored, so nothing behind it was: all of that gets numbers from
        `free`.

        A generated name is simply replaced, so that frames still on their way stop at the gap for
        ever. A given name must wait until the node has answered them all.
        """
        later = [batch for batch in self._sent if batch.seqno > seqno and batch.name == name]
        if self._named:
            self._next_seqno = min(free, self._next_seqno or free)
            self._free_from = min(seqno, self._free_from) if self._draining else seqno
            self._draining = True
            if not self._sent:
                self._end_draining()
            return
        for batch in later:
            self._sent.remove(batch)
            self._put_back(batch)
        self._name = generated_name()
        self._next_seqno = 1
        self._unnumber(name, seqno)

    def _end_draining(self) -> None:
        self._draining = False
        self._unnumber(self._name, self._free_from)

    def _unnumber(self, name: str, seqno: int) -> None:
        for batch in self._waiting:
            if batch.name == name and batch.seqno >= seqno:
                batch.seqno = 0
                batch.unsure.clear()

    def _put_back(self, batch: Batch) -> None:
        """Into the line again: behind lower numbers of its name, before everything else."""
        batch.request = 0
        at = 0
        for waiting in self._waiting:
            if not 0 < waiting.seqno < batch.seqno or waiting.name != batch.name:
                break
            at += 1
        self._waiting.insert(at, batch)

    def _rewind(self, pause_s: float) -> None:
        """Everything sent goes out again, in order, under the same numbers, wherever the leader is
        now.
        """
        for batch in self._sent:
            batch.request = 0
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        self._connection = None
        if not self._core.closed:
            self._seek(pause_s)
        else:
            self._fail_all(ClientClosed("the client was closed before a node confirmed this"))

    def _fail_all(self, error: QuorateError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._release(batch.size)
            unknown = batch.seqno and not isinstance(error, Refused)
            batch.fail(OutcomeUnknown(str(error)) if unknown else error)


class _BatchAsker:
    __slots__ = ("batch", "publisher")

    def __init__(self, publisher: Publisher, batch: Batch) -> None:
        self.publisher = publisher
        self.batch = batch

    def answered(self, request: int, opcode: int, frame: list[Any]) -> None:
        self.publisher.answered(self.batch, request, opcode, frame)
