"""The line of one publisher's frames: numbered, sent, sent again, until the node has answered each.

Numbers are given when a frame is first sent, so a message that was never sent can still be taken
back and its fate is certain. Once sent it stays in line until a node answers, also when its caller
has given up: a gap would stop everything behind it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from typing import Any

from quorate import wire
from quorate.batches import Batch, Row
from quorate.connection import ConnectFailed, Connection
from quorate.core import Core
from quorate.errors import ClientClosed, OutcomeUnknown, QuorateError, Refused, Unreachable
from quorate.routes import Backoff

#: Added to a first number that turned out to be used.
_SEQNO_STEP = 1 << 50
#: Queues forget generated names an hour after their last message.
_NAME_IDLE_S_MAX = 900.0


def generated_name() -> str:
    """For a publisher that nobody named: unique, so that its numbers are its own."""
    return f"~{secrets.token_hex(8)}"


class Line:
    """All of one name's (or one unnamed publisher's) unconfirmed frames for one queue."""

    def __init__(self, core: Core, queue: str, name: str | None, next_seqno: int | None) -> None:
        self.queue = queue
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._named = name is not None
        self.name = name or generated_name()
        self._next_seqno: int | None = next_seqno if self._named else 1
        self._connection: Connection | None = None
        self._waiting: deque[Batch] = deque()
        self._sent: deque[Batch] = deque()  # in the order of their numbers
        self.size = 0  # of bodies in both
        self._room: deque[asyncio.Future[None]] = deque()
        self._backoff = Backoff()
        self._seeking = False
        self._pumping = False  # a call of _pump is scheduled
        self._proven_at_s: float | None = None  # when a frame under this name was last confirmed
        self._guessing = False  # the numbers begin with a guess that nothing has proven yet
        self._draining = False  # a number is free again: no sending until all in flight is answered
        self._free_from = 0  # while draining: numbers from here on were surely not stored
        self._last_error = "no node was asked yet"

    # --- the line ---------------------------------------------------------------------------------

    def add_single(self, body: bytes, meta: Any, attrs: Any, waiter: asyncio.Future[Any]) -> Batch:
        batch = self._waiting[-1] if self._waiting else None
        if (
            batch is None
            or not batch.single
            or batch.seqno
            or len(batch.bodies) >= wire.BATCH_COUNT_MAX
            or batch.size + len(body) > wire.BATCH_BYTES_MAX
        ):
            batch = Batch([], [], [], 0, True, [])
            self.append(batch)
        batch.bodies.append(body)
        batch.metas.append(meta)
        batch.attrs.append(attrs)
        batch.waiters.append(waiter)
        batch.size += len(body)
        self.size += len(body)
        return batch

    def append(self, batch: Batch) -> None:
        self._waiting.append(batch)
        self.size += batch.size
        if not self._pumping:
            # Whatever else is published in this turn of the loop goes out with it.
            self._pumping = True
            self._loop.call_soon(self._pump)

    async def wait_for_room(self, deadline_s: float) -> None:
        while self.size >= wire.WINDOW_BYTES_MAX:
            room: asyncio.Future[None] = self._loop.create_future()
            self._room.append(room)
            try:
                async with asyncio.timeout_at(deadline_s):
                    await room
            except TimeoutError:
                raise Unreachable(
                    f"{self.size} bytes wait for their confirm and no more are taken:"
                    f" {self._last_error}"
                ) from None

    def _release(self, size: int) -> None:
        self.size -= size
        while self._room and self.size < wire.WINDOW_BYTES_MAX:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
                break

    def gave_up(self, batch: Batch, waiter: asyncio.Future[Any]) -> QuorateError:
        """What the deadline means for this message: never sent is certain, sent is not."""
        if self.take_back(batch, waiter):
            return Unreachable(f"not sent before the deadline: {self._last_error}")
        return OutcomeUnknown(
            f"sent to queue {self.queue!r}, not confirmed before the deadline ({self._last_error}):"
            " it may be stored, now or later"
        )

    def take_back(self, batch: Batch, waiter: asyncio.Future[Any]) -> bool:
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
        if connection is None or connection.lost:
            self._seek(0.0)
            return
        while self._waiting:
            batch = self._waiting[0]
            if self._sent and not self._proven():
                return
            if not connection.has_room(batch.size):
                connection.when_room(self._pump)
                return
            self._send(self._waiting.popleft(), connection)

    def _proven(self) -> bool:
        """Whether the queue surely knows this name.

        To a name that it does not know it may grant any first number; were the first frame refused
        and the second one stored, the first could not be sent again. So the first one goes alone.
        """
        at_s = self._proven_at_s
        return (
            at_s is not None and not self._guessing and self._loop.time() - at_s < _NAME_IDLE_S_MAX
        )

    def _number(self, batch: Batch) -> None:
        """Give it the next numbers.

        A given name may have published before, and only the queue knows how far it came. Its first
        frame is numbered by the clock: a queue that knows the name sees a gap, and its refusal
        tells the next number; a queue that does not know it takes any. Should the clock have
        stepped back below a number used before, the frame passes for a duplicate: see `_collided`.
        """
        if self._next_seqno is None:
            self._next_seqno = time.time_ns() // 1_000
            self._guessing = True
        batch.name = self.name
        batch.seqno = self._next_seqno
        self._next_seqno += len(batch.bodies)

    def _send(self, batch: Batch, connection: Connection) -> None:
        if not batch.seqno:
            self._number(batch)
        batch.request = connection.next_request()
        batch.unsure.add(batch.request)
        batch.sent_at_s = batch.sent_at_s or self._loop.time()
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
        """Find the leader's connection, then send."""
        try:
            while self._waiting:
                await asyncio.sleep(pause_s)
                try:
                    self._connection = await self._core.routes.connection(self.queue)
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

    # --- answers ----------------------------------------------------------------------------------

    def answered(self, batch: Batch, request: int, opcode: int, frame: list[Any]) -> None:
        """An answer to a frame; of an earlier sending only a refusal still says something."""
        if opcode in (wire.REDIRECT, wire.ERROR):
            batch.unsure.discard(request)
        if batch.request != request:
            return
        if opcode == wire.CONFIRM:
            _, first, stored, duplicates, refused = frame[:5]
            self._confirmed(batch, Row(first, stored, duplicates, refused or ()))
        elif opcode == wire.LOST:
            self._last_error = "the connection to the leader was lost"
            lost = self._connection is None or self._connection.lost
            self._rewind(0.0 if lost else self._backoff.next_s())
        elif opcode == wire.REDIRECT:
            self._last_error = f"queue {self.queue!r} has no leader now"
            self._rewind(0.0 if frame[3] else self._backoff.next_s())
        elif opcode == wire.ERROR:
            self._refused(batch, frame)
        if self._draining and not self._sent:
            self._end_draining()
        if self._waiting and not self._seeking:
            self._pump()

    def _confirmed(self, batch: Batch, row: Row) -> None:
        self._backoff.reset()
        if self._connection is not None:
            self._core.routes.used(self.queue, self._connection)
        if self._guessing and batch.name == self.name and not batch.has_dedup_id:
            if row.duplicates == len(batch.bodies):
                self._collided(batch)
                return
            self._guessing = False
        if batch.name == self.name:
            self._proven_at_s = self._loop.time()
        self._leave(batch)
        batch.confirmed_at_s = self._loop.time()
        batch.resolve(row)

    def _collided(self, batch: Batch) -> None:
        """The guessed first number was used before. What is sent for the first time is no
        duplicate, so nothing was stored: guess higher. What was sent twice may be one.
        """
        if len(batch.unsure) > 1:
            self._leave(batch)
            batch.fail(OutcomeUnknown("sent again, and taken for a duplicate: it may be stored"))
            self._next_seqno = None
            return
        self._sent.remove(batch)
        self._next_seqno = batch.seqno + _SEQNO_STEP
        batch.seqno = 0
        batch.unsure.clear()
        self._put_back(batch)

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
            self._rename()
        elif gap and isinstance(detail, int):
            # The queue tells our next number: we guessed, or it forgot us.
            self._guessing = False
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
        self._rename()
        self._unnumber(name, seqno)

    def _rename(self) -> None:
        self._proven_at_s = None
        if self._named:
            self._next_seqno = None
        else:
            self.name = generated_name()
            self._next_seqno = 1

    def _end_draining(self) -> None:
        self._draining = False
        self._unnumber(self.name, self._free_from)

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
    __slots__ = ("batch", "line")

    def __init__(self, line: Line, batch: Batch) -> None:
        self.line = line
        self.batch = batch

    def answered(self, request: int, opcode: int, frame: list[Any]) -> None:
        self.line.answered(self.batch, request, opcode, frame)
