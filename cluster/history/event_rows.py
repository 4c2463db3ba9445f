"""What a machine does with messages, written down as rows.

A row has the fields of `Event`, in that order; what they mean is said with the table `events` of
the post-mortem (chaos/postmortem/schemas.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from cluster.machine import QueueMachine
from cluster.machine.commands import Enqueue, Transaction
from cluster.machine.consumers import Consumer
from cluster.machine.effects import Effect, SessionEnded
from cluster.machine.identity import QueueIdentity
from cluster.machine.marks import NO_MARK
from cluster.machine.queue import Queue
from cluster.machine.replies import Chunk, Enqueued, Refused, StreamChunk
from cluster.machine.stream.stream import Stream
from cluster.types import ConsumerKey, GroupId, Stamp

#: Runs of one queue that are looked at in one go.
RUNS_AT_ONCE: Final = 4_096


class Event(NamedTuple):
    """One row. The names that shadow methods of tuple are those of the table."""

    group: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    term: int
    ordinal: int
    step: int
    at_ms: int
    event: str
    queue: int | None = None
    vhost: str | None = None
    name: str | None = None
    first: int | None = None
    last: int | None = None
    entry: int | None = None
    entry_offset: int | None = None
    consumer: int | None = None
    session: str | None = None
    token: int | None = None
    acquired: int | None = None
    failed: int | None = None
    publisher: str | None = None
    seqno: int | None = None
    reason: str | None = None
    goes: bool | None = None
    sac: bool | None = None


class Cursor(NamedTuple):
    """A consumer of a stream, as rows name it: its name stands where others have a session."""

    key: ConsumerKey
    session: str


#: The fields of an `Event`; made without its name, as there are very many.
Row = tuple[Any, ...]


class RowRecorder:
    """An event recorder that writes rows."""

    def __init__(self, group: GroupId) -> None:
        self.machine = QueueMachine()
        self.rows: list[Row] = []
        self.messages = 0
        self._group = group
        self._index = self._term = self._ordinal = 0  # of the command that is applied now
        self._start = 0  # of its rows

    def begin(self, stamp: Stamp) -> None:
        """What is told from now on is of this command."""
        self._index, self._term, self._ordinal = stamp.index, stamp.term, stamp.ordinal
        self._start = len(self.rows)

    def _add(
        self,
        event: str,
        queue: QueueIdentity | None,
        first: int | None = None,
        last: int | None = None,
        entry: int | None = None,
        offset: int | None = None,
        consumer: Consumer | Cursor | None = None,
        token: int | None = None,
        acquired: int | None = None,
        failed: int | None = None,
        publisher: str | None = None,
        seqno: int | None = None,
        reason: str | None = None,
        goes: bool | None = None,
        at_ms: int | None = None,
    ) -> None:
        """What comes with nearly every command gives its arguments by place: names cost more."""
        rows = self.rows
        rows.append(
            (
                self._group,
                self._index,
                self._term,
                self._ordinal,
                len(rows) - self._start,
                self.machine.now_ms if at_ms is None else at_ms,
                event,
                None if queue is None else queue.id,
                None if queue is None else queue.vhost,
                None if queue is None else queue.name,
                first,
                last,
                entry,
                offset,
                None if consumer is None else consumer.key,
                None if consumer is None else consumer.session,
                token,
                acquired,
                failed,
                publisher,
                seqno,
                reason,
                goes,
                None if queue is None else queue.config.single_active_consumer,
            )
        )

    # --- what the machine tells: see machine.identity.EventRecorder -------------------------------

    def queue_created(self, queue: QueueIdentity) -> None:
        self._add("queue_created", queue)

    def queue_deleted(
        self,
        queue: QueueIdentity,
        positions: Sequence[tuple[int, int]],
        consumers: Sequence[Consumer],
    ) -> None:
        for first, last in positions:
            self._add("deleted", queue, first, last)
        for consumer in consumers:
            self._add("consumer_ended", queue, consumer=consumer, reason="queue_deleted")
        self._add("queue_deleted", queue)

    def published(
        self,
        queue: QueueIdentity,
        first: int,
        last: int,
        entry: int,
        offset: int,
        publisher: str | None,
        seqno: int,
    ) -> None:
        self.messages += last - first + 1
        self._add(
            "published", queue, first, last, entry, offset, None, None, None, None, publisher,
            seqno or None,
        )  # fmt: skip

    def dead_lettered(
        self, queue: QueueIdentity, first: int, last: int, entry: int, offset: int, reason: str
    ) -> None:
        self._add("letter", queue, first, last, entry, offset, reason=reason)

    def delivered(self, queue: QueueIdentity, consumer: Consumer, chunks: Sequence[Chunk]) -> None:
        event, add = "got" if consumer.once else "delivered", self._add
        for chunk in chunks:
            first, bodies = chunk.first, chunk.bodies
            last = first + bodies.count - 1
            add(
                event, queue, first, last, bodies.index, bodies.offset, consumer, chunk.token,
                chunk.acquired_count, chunk.delivery_count,
            )  # fmt: skip
        if consumer.auto_settle and chunks:
            first, final = chunks[0].first, chunks[-1]
            last = final.first + final.bodies.count - 1
            self._add("settled", queue, first, last, consumer=consumer, reason="auto")

    def settled(self, queue: QueueIdentity, consumer: Consumer, first: int, last: int) -> None:
        self._add("settled", queue, first, last, None, None, consumer)

    def returned(
        self,
        queue: QueueIdentity,
        consumer: Consumer,
        first: int,
        last: int,
        *,
        failed: bool,
        asked: bool,
        sent: bool = True,
    ) -> None:
        reason = "unsent" if not sent else "asked" if asked else "ended"
        counts = 1 if failed else 0
        self._add("returned", queue, first, last, consumer=consumer, failed=counts, reason=reason)

    def died(self, queue: QueueIdentity, first: int, last: int, reason: str, *, goes: bool) -> None:
        self._add("died", queue, first, last, reason=reason, goes=goes)

    def moved(self, queue: QueueIdentity, first: int, last: int) -> None:
        self._add("moved", queue, first, last)

    def purged(self, queue: QueueIdentity, first: int, last: int) -> None:
        self._add("purged", queue, first, last)

    def withdrawn(self, queue: QueueIdentity, first: int, last: int) -> None:
        self._add("withdrawn", queue, first, last)

    def active(self, queue: QueueIdentity, consumer: Consumer | None, token: int) -> None:
        self._add("active", queue, consumer=consumer, token=token)

    def subscribed(self, queue: QueueIdentity, consumer: Consumer) -> None:
        self._add("subscribed", queue, consumer=consumer)

    def consumer_ended(
        self, queue: QueueIdentity, consumer: Consumer, effects: Sequence[Effect]
    ) -> None:
        reason = "cancelled"
        for effect in effects:
            if isinstance(effect, SessionEnded) and effect.session == consumer.session:
                reason = effect.reason
        self._add("consumer_ended", queue, consumer=consumer, reason=reason)

    # --- what it tells of streams ---------------------------------------------------------------

    def handed(
        self, queue: QueueIdentity, key: ConsumerKey, name: str, chunks: Sequence[StreamChunk]
    ) -> None:
        cursor = Cursor(key, name)
        for chunk in chunks:
            first, bodies = chunk.first, chunk.bodies
            self._add(
                "handed", queue, first, first + bodies.count - 1, bodies.index, bodies.offset,
                cursor, None, chunk.delivery_count - 1,
            )  # fmt: skip

    def acknowledged(
        self, queue: QueueIdentity, key: ConsumerKey, name: str, first: int, last: int
    ) -> None:
        self._add("acked", queue, first, last, None, None, Cursor(key, name))

    def done(self, queue: QueueIdentity, first: int, last: int) -> None:
        self._add("settled", queue, first, last, reason="acked")

    # --- what was not stored ----------------------------------------------------------------------

    def answered(self, step: Any, reply: Any, body_offset: int) -> None:
        """Of an enqueue, or of a whole transaction: what became of nothing."""
        if isinstance(step, Enqueue):
            if type(reply) is Refused:
                ranges = [(0, len(step.bodies) - 1)] if step.bodies else []
                self._not_stored("refused", step, body_offset, ranges, reply.code)
            elif type(reply) is Enqueued and (reply.duplicates or reply.refused):
                ranges = list(reply.refused)
                self._not_stored("refused", step, body_offset, ranges, "queue_full")
                ranges += self._stored(step, body_offset)
                rest = _rest(sorted(ranges), len(step.bodies))
                self._not_stored("duplicate", step, body_offset, rest, None)
        elif isinstance(step, Transaction) and type(reply) is Refused:
            for each in step.steps:
                if isinstance(each, Enqueue):
                    self.answered(each, reply, body_offset)
                    body_offset += len(each.bodies)

    def _stored(self, step: Enqueue, body_offset: int) -> list[tuple[int, int]]:
        """Which of its bodies were stored just now, as offsets."""
        found: list[tuple[int, int]] = []
        for row in self.rows[self._start :]:
            event: Any = Event._make(row)
            if event.event == "published" and event.queue == step.queue:
                start = event.entry_offset - body_offset
                if 0 <= start < len(step.bodies):
                    found.append((start, start + event.last - event.first))
        return found

    def _not_stored(
        self,
        event: str,
        step: Enqueue,
        body_offset: int,
        ranges: Sequence[tuple[int, int]],
        reason: str | None,
    ) -> None:
        found = self.machine.find(step.queue)
        queue = None if found is None else found.identity
        start = step.seqno or 1  # who does not number them counts the bodies of a batch
        for first, last in ranges:
            self._add(
                event,
                queue,
                start + first,
                start + last,
                entry=self._index,
                offset=body_offset + first,
                publisher=step.publisher,
                seqno=(step.seqno and step.seqno + first) or None,
                reason=reason,
            )

    # --- what is there ----------------------------------------------------------------------------

    def known(self, queue: Queue) -> Iterator[Row]:
        """Takes what it made at once: there may be very many."""
        consumers = queue.consumers
        if consumers.single_active:
            self.active(queue.identity, consumers.active, consumers.active_token)
        for first, last, _ in queue.messages.waiting():
            yield from self._known(queue, first, last)
        for consumer in consumers.by_key.values():
            for first, last, hold in consumer.held:
                yield from self._known(queue, first, last, consumer, hold.token)
        for batch in queue.disposal.outbox.everything():
            reason = batch.deaths[0]["reason"]
            yield from self._known(queue, batch.first, batch.last, reason=reason)
        yield from self._taken()

    def kept(self, stream: Stream) -> Iterator[Row]:
        """As `known`: of a stream, whose consumers hold nothing for themselves."""
        retained = stream.retained
        for first, last in retained.extents():
            for piece in retained.pieces(first, last):
                self._add(
                    "known",
                    stream.identity,
                    piece.first,
                    piece.last,
                    piece.bodies.index,
                    piece.bodies.offset,
                    acquired=0,
                    failed=0,
                    at_ms=piece.enqueued_ms,
                )
            yield from self._taken()

    def _known(
        self,
        queue: Queue,
        first: int,
        last: int,
        consumer: Consumer | None = None,
        token: int | None = None,
        reason: str | None = None,
    ) -> Iterator[Row]:
        store = queue.messages.store
        while first <= last:
            stop = min(last, store.reach(first, RUNS_AT_ONCE))
            for start, end, mark in queue.messages.marks.segments(first, stop):
                counts = mark or NO_MARK
                for piece in store.pieces(start, end):
                    self._add(
                        "known",
                        queue.identity,
                        piece.first,
                        piece.last,
                        piece.bodies.index,
                        piece.bodies.offset,
                        consumer,
                        token,
                        counts.acquired,
                        counts.failed,
                        reason=reason,
                        goes=None if reason is None else True,
                        at_ms=piece.enqueued_ms,
                    )
            first = stop + 1
            yield from self._taken()

    def _taken(self) -> list[Row]:
        rows, self.rows = self.rows, []
        self._start -= len(rows)  # so that steps go on
        return rows


def _rest(ranges: Sequence[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Of 0 to `count` - 1, what is in none of the ascending ranges."""
    found: list[tuple[int, int]] = []
    start = 0
    for first, last in ranges:
        if first > start:
            found.append((start, first - 1))
        start = max(start, last + 1)
    if start < count:
        found.append((start, count - 1))
    return found
