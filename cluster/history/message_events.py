"""What is told of one message while a group's machine is folded over its log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cluster.history.event_rows import Event, Row
from cluster.machine import QueueMachine
from cluster.types import GroupId, MessageId, QueueId

#: Events that are told of one message: so many of the first ones, and of the last.
EVENTS_KEPT_MAX: Final = 500

BIRTHS: Final = frozenset({"published", "letter", "known"})
NUMBERED: Final = frozenset({"duplicate", "refused"})
#: Has no messages.
NO_QUEUE: Final = QueueId(0)

_EVENT, _QUEUE, _FIRST, _LAST, _ENTRY, _OFFSET, _PUBLISHER, _SEQNO = map(
    Event._fields.index,
    ("event", "queue", "first", "last", "entry", "entry_offset", "publisher", "seqno"),
)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A message: by its id, or by its queue and either its position or its publisher's number."""

    group: GroupId
    entry: int | None = None
    offset: int = 0
    queue: QueueId | None = None
    position: int | None = None
    publisher: str | None = None
    seqno: int = 0

    @classmethod
    def of(cls, message: MessageId) -> Wanted:
        return cls(message.group, message.entry, message.offset)


class MessageEvent(NamedTuple):
    """An event of the message; the event may be of others too."""

    event: Event
    position: int | None
    seqno: int | None = None


class Number(NamedTuple):
    """By which a message may be sent again."""

    queue: QueueId
    publisher: str
    seqno: int


class Stay(NamedTuple):
    """The message in a queue; in `NO_QUEUE` once that is deleted: another may have its id now."""

    queue: QueueId
    position: int


class MessageEvents:
    """What was told of the message so far."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._begin()

    def _begin(self) -> None:
        wanted = self.wanted
        self.entry, self.offset = wanted.entry, wanted.offset
        self.is_replaced = False  # its queue was created anew: another may get its place there
        self.whole = False  # its publish was seen
        self.stay: Stay | None = None  # the last one; a dead letter is in another queue than before
        self.number: Number | None = None
        if wanted.queue is not None and wanted.publisher is not None:
            self.number = Number(wanted.queue, wanted.publisher, wanted.seqno)
        self.count = 0
        self._first: list[MessageEvent] = []
        self._last: deque[MessageEvent] = deque(maxlen=EVENTS_KEPT_MAX)

    @property
    def events(self) -> list[MessageEvent]:
        return [*self._first, *self._last]

    def take(self, rows: Iterable[Row]) -> None:
        for row in rows:
            kind, first = row[_EVENT], row[_FIRST]
            if kind in BIRTHS:
                self._born(row)
            elif kind == "queue_deleted":
                self._deleted(row[_QUEUE])
            elif kind == "queue_created":
                self.is_replaced |= self.entry is not None and row[_QUEUE] == self.wanted.queue
            elif first is None:
                continue
            elif kind in NUMBERED:
                self._numbered(Event._make(row))
            elif (stay := self.stay) is not None and (
                row[_QUEUE] == stay.queue and first <= stay.position <= row[_LAST]
            ):
                self._keep(Event._make(row), stay.position)

    def _born(self, row: Row) -> None:
        place = self._asked_place(row)
        if place is not None and (row[_ENTRY], row[_OFFSET] + place) != (self.entry, self.offset):
            self._begin()  # what was told is of an earlier queue that had this id
        elif self.entry is not None:
            is_its = row[_ENTRY] == self.entry
            place = _within(row, self.offset - row[_OFFSET]) if is_its else None
        if place is None:
            return
        event = Event._make(row)
        assert event.entry_offset is not None
        assert event.first is not None
        self.entry, self.offset = event.entry, event.entry_offset + place
        self.whole = self.whole or event.event == "published"
        number = event.seqno + place if event.seqno else None
        queue = QueueId(event.queue or 0)
        self.stay = Stay(queue, event.first + place)
        if number and event.publisher is not None:
            self.number = Number(queue, event.publisher, number)
        self._keep(event, self.stay.position, number)

    def _asked_place(self, row: Row) -> int | None:
        """Which of these has what was asked for in a queue, from 0."""
        wanted = self.wanted
        if row[_QUEUE] != wanted.queue:
            return None
        if wanted.position is not None:
            return _within(row, wanted.position - row[_FIRST])
        if row[_SEQNO] and row[_PUBLISHER] == wanted.publisher:
            return _within(row, wanted.seqno - row[_SEQNO])
        return None

    def _numbered(self, event: Event) -> None:
        """It came again under its number, or was refused under it."""
        number = self.number
        if number is None or (event.queue, event.publisher) != number[:2]:
            return
        assert event.first is not None
        assert event.last is not None
        if event.first <= number.seqno <= event.last:
            self._keep(event, None, number.seqno)

    def _deleted(self, queue: int) -> None:
        stay, number = self.stay, self.number
        if stay is None:
            return
        if stay.queue == queue:
            self.stay = stay._replace(queue=NO_QUEUE)
        if number is not None and number.queue == queue:
            self.number = None

    def _keep(self, event: Event, position: int | None, seqno: int | None = None) -> None:
        self.count += 1
        item = MessageEvent(event, position, seqno)
        if len(self._first) < EVENTS_KEPT_MAX:
            self._first.append(item)
        else:
            self._last.append(item)


def _within(row: Row, place: int) -> int | None:
    return place if 0 <= place <= row[_LAST] - row[_FIRST] else None


# --- telling --------------------------------------------------------------------------------------


def event_of(item: MessageEvent) -> Json:
    """For who asked."""
    event = item.event
    found: Json = {
        "event": event.event,
        "at_ms": event.at_ms,
        "entry": event.index,
        "term": event.term,
        "vhost": event.vhost,
        "queue": event.name,
        "position": item.position,
    }
    for name in (
        "consumer",
        "session",
        "token",
        "acquired",
        "failed",
        "publisher",
        "reason",
        "goes",
    ):
        value = getattr(event, name)
        if value is not None:
            found[name] = value
    if item.seqno is not None:
        found["seqno"] = item.seqno
    if event.acquired is not None:
        found["redelivered"] = event.acquired > 0
    return found


def now_of(message: MessageEvents, machine: QueueMachine) -> Json:
    """Where it is after the last entry that was read."""
    last = message.events[-1].event
    found: Json = {"vhost": last.vhost, "queue": last.name}
    stay = message.stay
    if stay is None:
        return {**found, "state": last.event}
    found["position"] = stay.position
    for row in machine.browse(stay.queue, stay.position, 1):
        if row.position == stay.position:
            about = {
                "consumer": row.consumer,
                "due_ms": row.due_ms,
                "expires_at_ms": row.expires_at_ms,
            }
            return {
                **found,
                "state": row.state,
                **{k: v for k, v in about.items() if v is not None},
            }
    end = next(each.event for each in reversed(message.events) if each.event.event not in NUMBERED)
    found["state"] = end.event
    if end.reason is not None:
        found["reason"] = end.reason
    if end.goes is not None:
        found["goes"] = end.goes
    return found
