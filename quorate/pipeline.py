"""The line of one publisher's frames: numbered, sent, sent again, until the node has answered each.

Numbers are given when a frame is first sent, so a message that was never sent can still be taken
back and its fate is certain. Once sent it stays in line until a node answers, also when its caller
has given up: a gap would stop everything behind it.

When a frame was surely not stored, what is behind it needs other numbers: the line *drains*, it
sends nothing until what is on its way is answered, and starts again (quorate.numbering).

A queue that is split has one line for each shard, each with numbers of its own. A node says to
which of them a message goes, before it is given to that line.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any

from quorate import wire
from quorate.batches import Batch, Row
from quorate.connection import ConnectFailed, Connection
from quorate.core import Core
from quorate.errors import ClientClosed, OutcomeUnknown, QuorateError, Refused, Unreachable
from quorate.numbering import Numbering
from quorate.routes import Backoff
from quorate.spread import Collected, of_places, places_by_shard

_OUT_OF_SEQUENCE = "out_of_sequence"
#: What is said of a shard whose queue is joined, or is one again.
GONE = frozenset(("joined", "no_queue"))
#: By so much a call of `publish` may outlast its timeout: many that wait are looked at together.
LATE_S_MAX = 0.01


class PublisherPipeline:
    """All of one name's (or one unnamed publisher's) unconfirmed frames for one queue."""

    def __init__(
        self,
        core: Core,
        queue: str,
        name: str | None,
        next_seqno: int | None,
        whole: PublisherPipeline | None = None,
    ) -> None:
        """`whole`: of the split queue of which this is a shard."""
        self.queue = queue
        self._whole = whole
        self._split = False  # as far as a node said: its shards get what is published
        self._asking: deque[Batch] = deque()  # of which a node is asked to which shards they go
        self._shards: dict[str, PublisherPipeline] = {}
        self._gone = False  # of a shard: what is not stored goes back to the whole
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._numbers = Numbering(name, next_seqno)
        self._asked = 0  # the request that asks for the next number; 0: none
        self._connection: Connection | None = None
        self._waiting: deque[Batch] = deque()
        self._sent: deque[Batch] = deque()  # in the order of their numbers
        self._size = 0  # of bodies in all of these
        #: Of single messages: nobody has to be told before then that time is up.
        self._due_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._room: deque[tuple[asyncio.Future[None], int]] = deque()
        self._granted = 0  # bytes of callers that may go on and have not yet
        self._backoff = Backoff()
        self._seeking = False
        self._pumping = False  # a call of _pump is scheduled
        self._draining = False
        self._back: list[Batch] = []  # sent, and to be sent again: they join the line together
        self._last_error = "no node was asked yet"

    @property
    def name(self) -> str:
        return self._numbers.name

    @property
    def size(self) -> int:
        """Of bodies that wait or are on their way, to the shards, too."""
        return self._size + sum(line._size for line in self._shards.values())

    # --- the line ---------------------------------------------------------------------------------

    def add_single(
        self,
        body: bytes,
        meta: Any,
        attrs: Any,
        deadline_s: float,
        large: dict[int, Any] | None = None,
        waiter: asyncio.Future[Any] | None = None,
    ) -> Batch:
        """The batch that this message goes with, as its last one; the waiter there is told, which
        is a new one if none is given.
        """
        size = len(body)
        batch = self._waiting[-1] if self._waiting else None
        if (
            batch is None
            or not batch.single
            or batch.seqno
            or batch.size + size > wire.BATCH_BYTES_MAX
            or len(batch.bodies) >= wire.BATCH_COUNT_MAX
            or batch.large is not large  # what was sent in parts goes alone
        ):
            batch = Batch([], [], [], 0, True, [], large=large)
            self.append(batch)
        batch.bodies.append(body)
        batch.metas.append(meta)
        batch.attrs.append(attrs)
        batch.waiters.append(self._loop.create_future() if waiter is None else waiter)
        batch.deadlines_s.append(deadline_s)
        batch.size += size
        self._size += size
        if deadline_s < self._due_s:
            self._look_at(deadline_s)
        return batch

    def append(self, batch: Batch) -> None:
        self._waiting.append(batch)
        self._size += batch.size
        if not self._pumping:
            # Whatever else is published in this turn of the loop goes out with it.
            self._pumping = True
            self._loop.call_soon(self._pump)

    @property
    def is_full(self) -> bool:
        """Also while others wait for room: who came first goes first."""
        return self.size + self._granted >= wire.WINDOW_BYTES_MAX or bool(self._room)

    async def wait_for_room(self, size: int, deadline_s: float) -> None:
        """Until it is this caller's turn. Something must be in line, or nothing makes room."""
        room: asyncio.Future[None] = self._loop.create_future()
        self._room.append((room, size))
        try:
            async with asyncio.timeout_at(deadline_s):
                await room
        except TimeoutError:
            raise Unreachable(
                f"{self.size} bytes wait for their confirm and no more are taken:"
                f" {self._last_error}"
            ) from None
        finally:
            if room.done() and not room.cancelled():
                self._granted -= size
            # A caller that was given room and gave up leaves it to the next.
            self._loop.call_soon(self._let_in)

    def _release(self, size: int) -> None:
        self._size -= size
        (self._whole or self)._let_in()

    def _let_in(self) -> None:
        while self._room and self.size + self._granted < wire.WINDOW_BYTES_MAX:
            room, size = self._room.popleft()
            if not room.done():
                room.set_result(None)
                self._granted += size

    def _look_at(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = due_s
        self._timer = self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        """Whose time is up is told. One timer for all: most messages are confirmed long before."""
        self._due_s, self._timer = math.inf, None
        now_s = self._loop.time()
        due_s = math.inf
        for batch in [*self._sent, *self._back, *self._asking, *self._waiting]:
            for waiter, deadline_s in list(zip(batch.waiters, batch.deadlines_s, strict=False)):
                if waiter.done():
                    continue
                if deadline_s <= now_s:
                    waiter.set_exception(self.gave_up(batch, waiter))
                else:
                    due_s = min(due_s, deadline_s)
        if due_s < math.inf:
            self._look_at(max(due_s, now_s + LATE_S_MAX))

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
        for line in self._shards.values():
            for each in line._waiting:
                if waiter in each.waiters:
                    return line.take_back(each, waiter)
        if batch.seqno or batch.done or waiter not in batch.waiters:
            return False
        if batch in self._asking:  # it is not given to a shard, whatever the node says
            batch.done = not batch.single
            return True
        if batch.single and len(batch.waiters) > 1:
            offset = batch.waiters.index(waiter)
            size = len(batch.bodies[offset])
            columns = (batch.waiters, batch.deadlines_s, batch.bodies, batch.metas, batch.attrs)
            for column in columns:
                del column[offset]
            batch.size -= size
        else:
            batch.done = True
            self._waiting.remove(batch)
            size = batch.size
        self._release(size)
        return True

    # --- sending ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what waits, as far as the node's window goes."""
        self._pumping = False
        if not self._waiting or self._draining or self._asked:
            return
        connection = self._connection
        if connection is None or connection.lost:
            self._seek(0.0)
            return
        while self._waiting:
            batch = self._waiting[0]
            if self._split:
                self._ask_shards(self._waiting.popleft(), connection)
                continue
            if not batch.seqno and self._numbers.next is None:
                self._ask_number(connection)
                return
            if self._numbers.too_late(batch, self._loop.time()):
                self._waiting.remove(batch)
                self._unknown(batch, "sent, and no node could be asked again in time")
                self._drain()
                if self._draining:
                    return
                continue
            if not connection.has_room(batch.size):
                connection.when_room(self._pump)
                return
            self._send(self._waiting.popleft(), connection)

    def _ask_number(self, connection: Connection) -> None:
        """An empty batch with number 0 is always refused, with the name's next number."""
        self._asked = connection.next_request()
        frame: list[Any] = [wire.PUBLISH, self._asked, self.queue, self.name, 0, [], None, None]
        connection.ask(self._asked, wire.encode(frame), _Asker(self, None))

    def _send(self, batch: Batch, connection: Connection) -> None:
        if not batch.seqno:
            self._numbers.give(batch)
        batch.request = connection.next_request()
        batch.unsure.add(batch.request)
        batch.sent_at_s = batch.sent_at_s or self._loop.time()
        self._sent.append(batch)
        meta, attrs = batch.fields()
        head = [wire.PUBLISH, batch.request, self.queue, batch.name, batch.seqno]
        tail = [] if batch.large is None else [batch.large]
        data = wire.encode([*head, batch.bodies, meta, attrs, *tail])
        connection.ask(batch.request, data, _Asker(self, batch), counted=True)

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
        elif opcode == wire.ERROR:
            self._refused(batch, frame)
        else:
            self._rewind(self._pause_after(opcode, frame))
        self._go_on()

    def number_answered(self, request: int, opcode: int, frame: list[Any]) -> None:
        """The answer to `_ask_number`."""
        if request != self._asked:
            return
        self._asked = 0
        if opcode != wire.ERROR:
            self._elsewhere(self._pause_after(opcode, frame))
            return
        code, reason, detail = frame[2], frame[3], frame[4] if len(frame) > 4 else None
        self._last_error = f"{code}: {reason}"
        if code == wire.SPLIT_QUEUE:
            self._split = True
            self._pump()
        elif code in GONE and self._whole is not None:
            self._give_back(self._whole)
        elif code == _OUT_OF_SEQUENCE and isinstance(detail, int):
            self._backoff.reset()
            self._numbers.next = detail
            self._pump()
        elif code in wire.PASSING:
            self._core.routes.forget(self.queue)
            self._elsewhere(self._backoff.next_s())
        else:
            self._fail_all(Refused(code, reason, detail))

    def _pause_after(self, opcode: int, frame: list[Any]) -> float:
        """After LOST or REDIRECT: how long to wait before looking for the leader."""
        if opcode == wire.REDIRECT:
            self._last_error = f"queue {self.queue!r} has no leader now"
            return 0.0 if frame[3] else self._backoff.next_s()
        self._last_error = "the connection to the leader was lost"
        lost = self._connection is None or self._connection.lost
        return 0.0 if lost else self._backoff.next_s()

    def _go_on(self) -> None:
        if not self._draining:
            self._line_up()
        elif not self._sent:
            self._end_draining()
        if self._waiting and not self._seeking:
            self._pump()

    def _confirmed(self, batch: Batch, row: Row) -> None:
        self._backoff.reset()
        if self._connection is not None:
            self._core.routes.used(self.queue, self._connection)
        if row.duplicates and self._numbers.was_used(batch):
            if row.duplicates < len(batch.bodies):
                self._sent.remove(batch)
                self._unknown(batch, f"another publisher is using the name {self.name!r}")
            else:
                self._put_back(batch)
                batch.unsure.clear()
            self._drain()
            return
        self._leave(batch)
        batch.confirmed_at_s = self._loop.time()
        batch.resolve(row, self._full)

    def _full(self) -> Refused:
        return Refused("queue_full", f"queue {self.queue!r} is at its limit: consume, then retry")

    def _refused(self, batch: Batch, frame: list[Any]) -> None:
        code, reason, detail = frame[2], frame[3], frame[4] if len(frame) > 4 else None
        self._last_error = f"{code}: {reason}"
        passing, gap = code in wire.PASSING, code == _OUT_OF_SEQUENCE
        if passing:
            self._core.routes.forget(self.queue)
            if not self._draining:
                self._rewind(self._backoff.next_s())
                return
        if passing or (gap and (self._draining or batch is not self._sent[0])):
            # Something before it was refused: its turn comes again.
            self._put_back(batch)
        elif not batch.unsure and self._goes_elsewhere(batch, code):
            self._put_back(batch)
            self._numbers.not_stored(batch.seqno)
            self._drain()
        elif batch.unsure:
            self._sent.remove(batch)
            self._unknown(batch, f"sent again, and then refused: {code}: {reason}")
            self._drain()
        else:
            refused = Refused(code, reason, detail)
            if gap:
                # The queue forgot the name, or expects another number of it.
                self._put_back(batch)
            else:
                self._leave(batch)
                batch.fail(refused)
            self._numbers.not_stored(batch.seqno, refused if gap else None)
            self._drain()

    def _leave(self, batch: Batch) -> None:
        batch.request = 0
        self._sent.remove(batch)  # nearly always the first
        self._release(batch.size)

    def _unknown(self, batch: Batch, reason: str) -> None:
        """It is in line no more, and nobody can know what became of it."""
        batch.request = 0
        self._numbers.unknown()
        self._release(batch.size)
        batch.fail(OutcomeUnknown(f"{reason}: it may be stored"))

    def _put_back(self, batch: Batch) -> None:
        batch.request = 0
        self._sent.remove(batch)
        self._back.append(batch)

    def _line_up(self) -> None:
        """Whatever has a number, in that order, before everything else."""
        if self._back:
            every = [*self._back, *self._waiting]
            self._back.clear()
            numbered = sorted((batch for batch in every if batch.seqno), key=_seqno)
            self._waiting = deque([*numbered, *(batch for batch in every if not batch.seqno)])

    def _drain(self) -> None:
        """Start again with other numbers once all that was sent is answered."""
        self._draining = True
        if not self._sent:
            self._end_draining()

    def _end_draining(self) -> None:
        self._draining = False
        self._line_up()
        numbered = [batch for batch in self._waiting if batch.seqno]
        for batch in numbered:
            if self._numbers.is_unknown(batch):
                self._waiting.remove(batch)
                self._unknown(batch, "sent, and the queue does not know the publisher any more")
        gap = self._numbers.start_again()
        for batch in numbered:
            if batch.done:
                continue
            if gap is None:
                batch.seqno = 0
                batch.unsure.clear()
            else:
                self._waiting.remove(batch)
                self._release(batch.size)
                batch.fail(gap)
        if self._gone and self._whole is not None:
            self._give_back(self._whole)

    def _rewind(self, pause_s: float) -> None:
        """Everything sent goes out again, in order, under the same numbers, wherever the leader is
        now.
        """
        for batch in self._sent:
            batch.request = 0
        self._back.extend(self._sent)
        self._sent.clear()
        self._line_up()
        self._elsewhere(pause_s)

    def _elsewhere(self, pause_s: float) -> None:
        """Look for the leader again."""
        self._connection = None
        if not self._core.closed:
            self._seek(pause_s)
        else:
            self._fail_all(ClientClosed("the client was closed before a node confirmed this"))

    def _fail_all(self, error: QuorateError) -> None:
        self._line_up()
        self._ask_again()
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._release(batch.size)
            unknown = batch.seqno and not isinstance(error, Refused)
            batch.fail(OutcomeUnknown(str(error)) if unknown else error)

    # --- to shards --------------------------------------------------------------------------------

    def line_of(self, queue: str) -> PublisherPipeline:
        """Of the queue itself, or of this shard, under the same name if it has one."""
        if queue == self.queue:
            return self
        line = self._shards.get(queue)
        if line is None:
            name = self.name if self._numbers.named else None
            line = self._shards[queue] = PublisherPipeline(self._core, queue, name, None, self)
        return line

    def _goes_elsewhere(self, batch: Batch, code: str) -> bool:
        """What was refused so goes to a shard, or from one that is none any more to its queue. Not
        with numbers that a program counts, or parts that one queue has.
        """
        if self._numbers.counted or batch.large is not None:
            return False
        self._gone = self._gone or (code in GONE and self._whole is not None)
        self._split = self._split or code == wire.SPLIT_QUEUE
        return self._gone or code == wire.SPLIT_QUEUE

    def _ask_shards(self, batch: Batch, connection: Connection) -> None:
        """A batch of a name with number 0 stores nothing. Of a queue that is split the refusal
        says where each message goes, which depends on what is beside the bodies alone.
        """
        batch.request = connection.next_request()
        batch.sent_at_s = batch.sent_at_s or self._loop.time()
        self._asking.append(batch)
        bodies = [b""] * len(batch.bodies)
        frame = [wire.PUBLISH, batch.request, self.queue, self.name, 0, bodies, *batch.fields()]
        connection.ask(batch.request, wire.encode(frame), _Asker(self, batch, shards=True))

    def shards_answered(self, batch: Batch, request: int, opcode: int, frame: list[Any]) -> None:
        """The answer to `_ask_shards`."""
        if batch.request != request:
            return
        code = frame[2] if opcode == wire.ERROR else ""
        if code == wire.SPLIT_QUEUE:
            self._backoff.reset()
            batch.shards = frame[4]
            while self._asking and self._asking[0].shards is not None:
                self._spread(self._asking.popleft())
            return
        self._ask_again()
        if code:
            self._last_error = f"{code}: {frame[3]}"
        if code in wire.PASSING:
            self._core.routes.forget(self.queue)
            self._elsewhere(self._backoff.next_s())
        elif code:  # it is one queue again, or refuses everything
            self._split = False
            self._pump()
        else:
            self._elsewhere(self._pause_after(opcode, frame))

    def _ask_again(self) -> None:
        """What was asked of a node that is asked no more waits as before."""
        asked, self._asking = self._asking, deque()
        self._waiting.extendleft(reversed(asked))
        for batch in asked:
            batch.request, batch.shards = 0, None
            if batch.done:
                self._waiting.remove(batch)
                self._release(batch.size)
            elif batch.single:
                for waiter in [each for each in batch.waiters if each.done()]:
                    self.take_back(batch, waiter)

    def _spread(self, batch: Batch) -> None:
        """To the lines of its shards, in their order."""
        shards = batch.shards or []
        if batch.done:
            pass
        elif batch.large is not None or len(shards) != len(batch.bodies):
            reason = f"queue {self.queue!r} is split: the body goes to {', '.join(shards)}"
            batch.fail(Refused(wire.SPLIT_QUEUE, reason, shards))
        elif batch.single:
            columns = batch.waiters, batch.bodies, batch.metas, batch.attrs, batch.deadlines_s
            for shard, waiter, *given in zip(shards, *columns, strict=True):
                if not waiter.done():
                    self.line_of(shard).add_single(*given, waiter=waiter)
        else:
            by_shard = places_by_shard(shards)
            collected = Collected(batch, len(by_shard))
            for shard, places in by_shard.items():
                waiter: asyncio.Future[Any] = self._loop.create_future()
                waiter.add_done_callback(partial(collected.add, places))
                bodies = [batch.bodies[place] for place in places]
                meta, attrs = of_places(batch.metas, places), of_places(batch.attrs, places)
                part = Batch(bodies, meta, attrs, sum(map(len, bodies)), False, [waiter])
                self.line_of(shard).append(part)
        batch.done = True
        self._release(batch.size)

    def _give_back(self, whole: PublisherPipeline) -> None:
        """The shard is none any more. What is not stored goes where its queue's messages go now."""
        self._gone = False
        self._line_up()
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._size -= batch.size
        whole.take(waiting)

    def take(self, batches: Iterable[Batch]) -> None:
        """What a shard did not get."""
        for batch in batches:
            self.append(batch)
            for deadline_s in batch.deadlines_s:
                if deadline_s < self._due_s:
                    self._look_at(deadline_s)


def _seqno(batch: Batch) -> int:
    return batch.seqno


class _Asker:
    """Who sent a frame: for a batch, for its shards, or for the next number."""

    __slots__ = ("batch", "line", "shards")

    def __init__(
        self, line: PublisherPipeline, batch: Batch | None, *, shards: bool = False
    ) -> None:
        self.line = line
        self.batch = batch
        self.shards = shards

    def answered(self, request: int, opcode: int, frame: list[Any]) -> None:
        if self.batch is None:
            self.line.number_answered(request, opcode, frame)
        elif self.shards:
            self.line.shards_answered(self.batch, request, opcode, frame)
        else:
            self.line.answered(self.batch, request, opcode, frame)
