"""What a queue lost in a span of time because it expired or was purged, out of a node's log: the
machine is folded over the log once more, and the bodies are taken from the entries on the way.

What was moved elsewhere is not lost, nor is what went on as a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cluster.codec.entries import AnyCommand, enqueues_in
from cluster.history.committed import GroupLog, Vanished
from cluster.history.event_rows import Event
from cluster.history.group_replay import GroupReplay, ReplayFailed, stamped
from cluster.history.message_history import ATTEMPTS_MAX, NoHistory
from cluster.machine import UnsupportedSnapshot
from cluster.machine.commands import Enqueue, Purge
from cluster.machine.deadletters import EXPIRED, PURGED
from cluster.machine.marks import each_attrs
from cluster.types import GroupId, MessageId, QueueId, Stamp


class Lost(NamedTuple):
    message: MessageId
    position: int
    at_ms: int  # when it was lost, by the clock of the log
    reason: str  # expired, or purged
    body: bytes
    meta: Any
    attrs: Any


class LostMessages(NamedTuple):
    found: list[Lost]  # in the order in which they were lost
    out_of_reach: int  # lost as well, and their bodies are not in these folders, or are in parts
    from_index: int  # the log was read from behind this entry on
    to_ms: int  # up to this time


def lost_messages(
    folders: Sequence[str], group: GroupId, queue: QueueId, *, from_ms: int, to_ms: int
) -> LostMessages:
    """Out of all segments in the folders. NoHistory says why nothing can be said."""
    for _ in range(ATTEMPTS_MAX):
        try:
            log = GroupLog(folders, group)
            try:
                return _lost(log, queue, from_ms, to_ms)
            finally:
                log.close()
        except Vanished:
            continue
    raise NoHistory("overloaded", "the node drops files faster than they are read: try again")


def _lost(log: GroupLog, queue: QueueId, from_ms: int, to_ms: int) -> LostMessages:
    for base in log.bases:  # the oldest first
        state = log.load(base)
        if state is None:
            continue
        group = GroupId(log.group)
        try:
            replay = GroupReplay.begin(group, state.snapshot)
            search = _Search(group, queue, from_ms, to_ms)
            for row in replay.known():
                search.take(Event._make(row), ())
            for index, term, command in log.entries(state):
                commands = stamped(index, term, command)
                search.keep_bodies(commands)
                replay.apply(index, term, command)
                for row in replay.take_rows():
                    search.take(Event._make(row), commands)
        except (ReplayFailed, UnsupportedSnapshot) as error:
            reason = f"this release cannot follow the log: {error}"
            raise NoHistory("out_of_reach", reason) from error
        return LostMessages(search.lost, search.out_of_reach, base.index, replay.now_ms)
    raise NoHistory("no_message", f"the log has nothing of group {log.group}")


class _Message(NamedTuple):
    id: MessageId
    content: tuple[bytes, Any, Any] | None  # body, meta and attributes; None: out of reach


class _Search:
    """Holds the messages that are in the queue, as far as it was read."""

    def __init__(self, group: GroupId, queue: QueueId, from_ms: int, to_ms: int) -> None:
        self.lost: list[Lost] = []
        self.out_of_reach = 0
        self._group = group
        self._queue = queue
        self._span_ms = range(from_ms, to_ms)
        self._there: dict[int, _Message] = {}  # by position
        self._bodies: dict[int, tuple[bytes, Any, Any] | None] = {}  # of this entry, by offset

    def keep_bodies(self, commands: Sequence[tuple[Stamp, AnyCommand]]) -> None:
        self._bodies = {}
        for stamp, command in commands:
            at = stamp.body_offset
            for step in enqueues_in(command):
                if step.queue == self._queue:
                    self._bodies |= dict(enumerate(_contents(step), at))
                at += len(step.bodies)

    def take(self, event: Event, commands: Sequence[tuple[Stamp, AnyCommand]]) -> None:
        if event.queue != self._queue or event.first is None or event.last is None:
            return
        positions = range(event.first, event.last + 1)
        match event.event:
            case "published" | "known" | "letter":
                assert event.entry is not None
                assert event.entry_offset is not None
                for place, position in enumerate(positions, event.entry_offset):
                    known = self._bodies.get(place) if event.event == "published" else None
                    message = MessageId(self._group, event.entry, place)
                    self._there.setdefault(position, _Message(message, known))
            case "settled" | "moved" | "withdrawn" | "deleted":
                for position in positions:
                    self._there.pop(position, None)
            case "died" | "purged":
                reason = _lost_by(event, commands)
                for position in positions:
                    self._gone(position, event, reason)
            case _:
                pass

    def _gone(self, position: int, event: Event, reason: str | None) -> None:
        if event.event == "died" and event.goes:
            return  # it leaves when it has moved, or has left already
        message = self._there.pop(position, None)
        if message is None or reason is None or event.at_ms not in self._span_ms:
            return
        if message.content is None:
            self.out_of_reach += 1
        else:
            self.lost.append(Lost(message.id, position, event.at_ms, reason, *message.content))


def _lost_by(event: Event, commands: Sequence[tuple[Stamp, AnyCommand]]) -> str | None:
    """Why a message was lost, if it was: a limit purges a stream, too."""
    if event.event == "died":
        return EXPIRED if event.reason == EXPIRED else None
    for stamp, command in commands:
        if stamp.ordinal == event.ordinal and isinstance(command, Purge):
            return PURGED
    return None


def _contents(step: Enqueue) -> Iterator[tuple[bytes, Any, Any] | None]:
    metas, attrs = step.meta, each_attrs(step.attrs, len(step.bodies))
    for place, body in enumerate(step.bodies):
        if step.large is not None and place in step.large:
            yield None
            continue
        yield (
            body,
            metas[place] if isinstance(metas, list) else metas,
            attrs[place],
        )
