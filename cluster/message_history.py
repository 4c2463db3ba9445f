"""What happened to one message, out of a node's log: the machine is folded over the log once more,
and what it tells of that message is kept.

The fold begins at the newest snapshot that is older than the message, or where the log begins: then
the message may have been published before, and what is told begins with how it was found there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from cluster.codec.entries import enqueues_in
from cluster.codec.errors import CodecError
from cluster.committed import NOTHING, Base, GroupLog, State, Vanished
from cluster.lifecycle import Lifecycle, ReplayFailed, stamped
from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.machine.snapshot import UnsupportedSnapshot
from cluster.story import Event, Row
from cluster.types import CATALOG_GROUP, GroupId, MessageId, QueueId

#: Entries that one history may take.
ENTRIES_MAX: Final = 10_000_000
#: Events that are told of one message: so many of the first ones, and of the last.
EVENTS_TOLD_MAX: Final = 500
#: The events of so many entries are looked at together.
ENTRIES_AT_ONCE: Final = 1_000
#: How often it is begun anew when the node drops files that are needed.
ATTEMPTS_MAX: Final = 5

BIRTHS: Final = frozenset({"published", "letter", "known"})
NUMBERED: Final = frozenset({"duplicate", "refused"})

_EVENT, _QUEUE, _FIRST, _LAST, _ENTRY, _OFFSET, _PUBLISHER, _SEQNO = map(
    Event._fields.index,
    ("event", "queue", "first", "last", "entry", "entry_offset", "publisher", "seqno"),
)

Json = dict[str, Any]
Result = TypeVar("Result")


class NoHistory(Exception):
    """There is none to tell; the code is one word for programs."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


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


class Told(NamedTuple):
    """An event of the message; the event may be of others too."""

    event: Event
    position: int | None
    seqno: int | None = None


class Stay(NamedTuple):
    """The message in a queue."""

    queue: QueueId
    position: int
    publisher: str | None
    seqno: int | None


class _Story:
    """What was told of the message so far."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.entry, self.offset = wanted.entry, wanted.offset
        self.whole = False  # its publish was seen
        self.stay: Stay | None = None  # the last one; a dead letter is in another queue than before
        self.count = 0
        self._first: list[Told] = []
        self._last: deque[Told] = deque(maxlen=EVENTS_TOLD_MAX)

    @property
    def told(self) -> list[Told]:
        return [*self._first, *self._last]

    def take(self, rows: Iterable[Row]) -> None:
        for row in rows:
            kind, first = row[_EVENT], row[_FIRST]
            if kind in BIRTHS:
                self._born(row)
            elif first is None:
                continue
            elif kind in NUMBERED:
                self._numbered(Event._make(row))
            elif (stay := self.stay) is not None and (
                row[_QUEUE] == stay.queue and first <= stay.position <= row[_LAST]
            ):
                self._tell(Event._make(row), stay.position)

    def _born(self, row: Row) -> None:
        place = self._place(row)
        if place is None:
            return
        event = Event._make(row)
        assert event.entry_offset is not None
        assert event.first is not None
        self.entry, self.offset = event.entry, event.entry_offset + place
        self.whole = self.whole or event.event == "published"
        number = event.seqno + place if event.seqno else None
        queue = QueueId(event.queue or 0)
        self.stay = Stay(queue, event.first + place, event.publisher, number)
        self._tell(event, self.stay.position, number)

    def _place(self, row: Row) -> int | None:
        """Which of these it is, from 0."""
        wanted = self.wanted
        if self.entry is not None:
            place = self.offset - row[_OFFSET] if row[_ENTRY] == self.entry else -1
        elif row[_QUEUE] != wanted.queue:
            return None
        elif wanted.position is not None:
            place = wanted.position - row[_FIRST]
        elif row[_SEQNO] and row[_PUBLISHER] == wanted.publisher:
            place = wanted.seqno - row[_SEQNO]
        else:
            return None
        return place if 0 <= place <= row[_LAST] - row[_FIRST] else None

    def _numbered(self, event: Event) -> None:
        """It came again under its number, or was refused under it."""
        stay, wanted = self.stay, self.wanted
        if stay is not None and stay.seqno is not None:
            number = stay.queue, stay.publisher, stay.seqno
        else:
            number = wanted.queue, wanted.publisher, wanted.seqno
        queue, publisher, seqno = number
        if publisher is None or (event.queue, event.publisher) != (queue, publisher):
            return
        assert event.first is not None
        assert event.last is not None
        if event.first <= seqno <= event.last:
            self._tell(event, None, seqno)

    def _tell(self, event: Event, position: int | None, seqno: int | None = None) -> None:
        self.count += 1
        told = Told(event, position, seqno)
        if len(self._first) < EVENTS_TOLD_MAX:
            self._first.append(told)
        else:
            self._last.append(told)


def queue_of(command: bytes, offset: int) -> QueueId | None:
    """To which queue an entry publishes the message at this offset. None: it has no such one."""
    try:
        for stamp, each in stamped(0, 0, command):
            at = stamp.body_offset
            for step in enqueues_in(each):
                if at <= offset < at + len(step.bodies):
                    return step.queue
                at += len(step.bodies)
    except CodecError:
        return None
    return None


# --- finding --------------------------------------------------------------------------------------


def history(
    folders: Sequence[str], wanted: Wanted, *, applied: int = 0, entries_max: int = ENTRIES_MAX
) -> Json:
    """Out of the folders with a node's segments: its log, and its archive. `applied`: as the node
    says, when it runs. NoHistory says why there is none.
    """

    def told(log: GroupLog) -> Json:
        return _history(log, wanted, entries_max)

    return _with_log(folders, wanted.group, applied, told)


def find_queue(folders: Sequence[str], vhost: str, name: str) -> tuple[GroupId, QueueId]:
    """As the catalog in these folders has it. NoHistory."""

    def found(log: GroupLog) -> tuple[GroupId, QueueId]:
        for base in reversed(log.bases):
            state = log.load(base)
            if state is not None:
                machine = _fold(log, state, None).machine
                assert isinstance(machine, CatalogMachine)
                info = machine.queue(vhost, name)
                if info is not None:
                    return info.group, info.queue
                break
        raise NoHistory(
            "no_queue",
            f"the folder knows no queue {name!r} in vhost {vhost!r}: if it was deleted, give the"
            " message's id, as GROUP-ENTRY-OFFSET",
        )

    return _with_log(folders, CATALOG_GROUP, 0, found)


def _with_log(
    folders: Sequence[str], group: GroupId, applied: int, work: Callable[[GroupLog], Result]
) -> Result:
    for _ in range(ATTEMPTS_MAX):
        try:
            log = GroupLog(folders, group, applied=applied)
            try:
                return work(log)
            finally:
                log.close()
        except Vanished:
            continue
    raise NoHistory("overloaded", "the node drops files faster than they are read: try again")


def _history(log: GroupLog, wanted: Wanted, entries_max: int) -> Json:
    best: tuple[_Story, Lifecycle, State] | None = None
    for base in _order(log.bases, wanted):
        if log.committed - base.index > entries_max:
            continue
        state = log.load(base)
        if state is None:
            continue
        story = _Story(wanted)
        life = _fold(log, state, story)
        if best is None or story.count:
            best = story, life, state
        if story.whole or (wanted.entry is not None and base.index < wanted.entry <= life.index):
            break
    if best is None:
        raise _out_of_reach(log, entries_max)
    story, life, state = best
    if not story.count:
        if log.committed <= NOTHING.index:
            raise _out_of_reach(log, entries_max)
        raise NoHistory("no_message", _why_not(wanted, life, state))
    return _answer(log, story, life, state)


def _order(bases: Sequence[Base], wanted: Wanted) -> list[Base]:
    """Which base to try first. Of a message of which it is not known when it was published: the
    newest, then ever older ones, each time twice as far.
    """
    if wanted.entry is not None:
        before = [base for base in bases if base.index < wanted.entry]
        return [*reversed(before), *bases[len(before) :]]
    found = [base for place, base in enumerate(reversed(bases), 1) if place & (place - 1) == 0]
    return found if found[-1:] == bases[:1] else [*found, bases[0]]


def _fold(log: GroupLog, state: State, story: _Story | None) -> Lifecycle:
    """As far as the log goes on."""
    group, snapshot = GroupId(log.group), state.snapshot
    try:
        life = Lifecycle(group) if snapshot is None else Lifecycle.after(group, snapshot)
        # A message that was published later is not looked for among those that are there.
        if story is not None and (story.entry is None or story.entry <= life.index):
            story.take(life.known())
        waiting = 0
        for index, term, command in log.entries(state):
            life.apply(index, term, command)
            waiting += 1
            if waiting >= ENTRIES_AT_ONCE:
                waiting = 0
                _take(life, story)
    except (ReplayFailed, UnsupportedSnapshot) as error:
        raise NoHistory("out_of_reach", f"this release cannot follow the log: {error}") from error
    _take(life, story)
    return life


def _take(life: Lifecycle, story: _Story | None) -> None:
    rows = life.take_rows()
    if story is not None:
        story.take(rows)


def _out_of_reach(log: GroupLog, entries_max: int) -> NoHistory:
    if not log.bases or log.committed <= NOTHING.index:
        return NoHistory("no_message", f"the log has nothing of group {log.group}")
    return NoHistory(
        "out_of_reach",
        f"it lies further back than {entries_max:,} entries, or the log is damaged:"
        f" {', '.join(log.damage) or 'no damage was seen'}; `quorate postmortem` reads any length",
    )


def _why_not(wanted: Wanted, life: Lifecycle, state: State) -> str:
    begin = state.base.index
    before = f"the log begins behind entry {begin}: by then it was gone, if there was one"
    if wanted.entry is None:
        if begin > NOTHING.index:
            return f"no such message is in the queue, and {before}"
        return f"the queue had no such message up to entry {life.index}"
    if wanted.entry > life.index:
        return f"entry {wanted.entry} is not committed as far as is known here, to {life.index}"
    if wanted.entry <= begin:
        return before
    return f"entry {wanted.entry} has no message with offset {wanted.offset} that was stored"


# --- telling --------------------------------------------------------------------------------------


def _answer(log: GroupLog, story: _Story, life: Lifecycle, state: State) -> Json:
    told = story.told
    entry = story.entry
    message = None if entry is None else MessageId(GroupId(log.group), entry, story.offset)
    events = [_event(each) for each in told]
    if entry is not None:
        for event in events:
            if event["event"] == "published":
                event["written_ms"] = _ms(log.written_ns(entry))
                event["committed_ms"] = _ms(log.committed_ns(entry))
    return {
        "message": None if message is None else str(message),
        "group": log.group,
        "now": _now(story, life),
        "events": events,
        "left_out": story.count - len(told),
        "read": {
            "cluster": log.cluster,
            "node": log.node,
            "from": state.base.index,
            "to": life.index,
            "to_ms": life.now_ms,
            "whole": story.whole,
            "damage": log.damage,
        },
    }


def _event(told: Told) -> Json:
    event = told.event
    found: Json = {
        "event": event.event,
        "at_ms": event.at_ms,
        "entry": event.index,
        "term": event.term,
        "vhost": event.vhost,
        "queue": event.name,
        "position": told.position,
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
    if told.seqno is not None:
        found["seqno"] = told.seqno
    if event.acquired is not None:
        found["redelivered"] = event.acquired > 0
    return found


def _now(story: _Story, life: Lifecycle) -> Json:
    """Where it is after the last entry that was read."""
    last = story.told[-1].event
    found: Json = {"vhost": last.vhost, "queue": last.name}
    stay, machine = story.stay, life.machine
    if stay is None:
        return {**found, "state": last.event}
    found["position"] = stay.position
    assert isinstance(machine, QueueMachine)
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
    end = next(each.event for each in reversed(story.told) if each.event.event not in NUMBERED)
    found["state"] = end.event
    if end.reason is not None:
        found["reason"] = end.reason
    if end.goes is not None:
        found["goes"] = end.goes
    return found


def _ms(ns: int | None) -> int | None:
    return None if ns is None else ns // 1_000_000
