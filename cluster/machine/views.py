"""Looking at a queue without touching it: for people, metrics, peeks and resuming clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.machine.consumers import Consumer
from cluster.machine.deadletters import Parcel
from cluster.machine.dispatch import chunks_of
from cluster.machine.disposal import expires_at_ms
from cluster.machine.effects import DeadLetter
from cluster.machine.interface import ConsumerView, QueueGauges, QueueView, Row, RowState

if TYPE_CHECKING:
    from cluster.machine.queue import Queue


def queue_view(queue: Queue) -> QueueView:
    oldest_ms = None
    if queue.ready.count:
        oldest_ms = queue.store.time_of(queue.ready.top.head[0])
    consumers = queue.consumers
    return QueueView(
        id=queue.id,
        name=queue.name,
        vhost=queue.vhost,
        config=queue.config,
        ready_count=queue.ready.count,
        unsettled_count=queue.unsettled_count,
        delayed_count=queue.delayed_count,
        dead_letter_count=queue.outbox.count,
        bytes=queue.store.bytes,
        ready_bytes=queue.waiting_bytes,
        paused=queue.paused,
        publishers=len(queue.publishers),
        oldest_ready_ms=oldest_ms,
        last_token=queue.last_token,
        removed=dict(queue.removed),
        consumers=[
            ConsumerView(
                key=consumer.key,
                session=consumer.session,
                tag=consumer.tag,
                credit=consumer.credit,
                unsettled=consumer.held.count,
                priority=consumer.priority,
                exclusive=consumer.exclusive,
                auto_settle=consumer.auto_settle,
                active=consumers.is_active(consumer),
                status=consumers.status_of(consumer),
            )
            for consumer in consumers.by_key.values()
        ],
    )


def queue_gauges(queue: Queue) -> QueueGauges:
    """Looks at the heads of priorities and consumers: positions grow with time, so there the oldest
    messages are.
    """
    ready, store, consumers = queue.ready, queue.store, queue.consumers
    oldest_ready = min((ready.head(each)[0] for each in ready.priorities()), default=None)
    heads = [each.held.head[0] for each in consumers.by_key.values() if each.held.count]
    subscribed = sum(each.registered for each in consumers.by_key.values())
    active = consumers.active
    has_active = active is not None and consumers.is_active(active)
    return QueueGauges(
        queue.vhost,
        queue.name,
        subscribed,
        None if oldest_ready is None else store.time_of(oldest_ready),
        store.time_of(min(heads)) if heads else None,
        consumers.single_active and subscribed > 0 and not has_active,
    )


class _Place(NamedTuple):
    position: int
    consumer: Consumer | None = None
    token: int = 0
    due_ms: int | None = None
    delayed: bool = False


def rows(queue: Queue, start: int, count: int, state: RowState | None = None) -> list[Row]:
    """At most `count` messages from position `start` on, in this state or wherever they are."""
    places: list[_Place] = []
    if state in (None, "ready"):
        places += [_Place(position) for position in queue.ready.from_position(start, count)]
    for consumer in queue.consumers.by_key.values() if state in (None, "unsettled") else ():
        left = count
        for first, last, hold in consumer.held.ranges_from(start):
            end = min(last, first + left - 1)
            places += [
                _Place(position, consumer, hold.token, hold.due_ms or None)
                for position in range(first, end + 1)
            ]
            left -= end - first + 1
            if left <= 0:
                break
    for ready_at_ms, first, last in queue.delayed if state in (None, "delayed") else ():
        first = max(first, start)
        places += [
            _Place(position, None, 0, ready_at_ms, delayed=True)
            for position in range(first, min(last, first + count - 1) + 1)
        ]
    places.sort(key=lambda place: place.position)
    return [_row(queue, place) for place in places[: max(0, count)]]


def _row(queue: Queue, place: _Place) -> Row:
    position = place.position
    mark = queue.marks.get(position)
    state = "ready" if place.consumer is None else "unsettled"
    return Row(
        position=position,
        state="delayed" if place.delayed else state,
        chunk=chunks_of(queue, position, position, place.token)[0],
        bytes=queue.store.bytes_of(position, position),
        enqueued_ms=queue.store.time_of(position),
        expires_at_ms=expires_at_ms(queue, position),
        due_ms=place.due_ms,
        priority=queue.capped(mark.priority) if mark else 0,
        consumer=None if place.consumer is None else place.consumer.key,
    )


def dead_letters(queue: Queue, count: int) -> list[DeadLetter]:
    """The first `count` dead letters on their way to other groups."""
    found: list[DeadLetter] = []
    for parcel in queue.outbox.parcels:
        if len(found) >= count:
            break
        found += _unpacked(queue, parcel, count - len(found))
    return found


def _unpacked(queue: Queue, parcel: Parcel, count: int) -> list[DeadLetter]:
    last = min(parcel.last, parcel.first + count - 1)
    return [
        DeadLetter(
            parcel.number + position - parcel.first,
            piece.bodies.index,
            piece.bodies.offset + position - piece.first,
            parcel.deaths,
            parcel.exchange,
            parcel.routing_key,
            parcel.priority,
        )
        for piece in queue.store.pieces(parcel.first, last)
        for position in range(piece.first, piece.last + 1)
    ]
