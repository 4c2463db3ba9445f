"""What happened to one message, out of a node's log: the machine is folded over the log once more,
and what it tells of that message is kept.

The fold begins at the newest snapshot that is older than the message, or where the log begins: then
the message may have been published before, and what is told begins with how it was found there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from cluster.codec.entries import enqueues_in
from cluster.codec.errors import CodecError
from cluster.history.committed import NOTHING, Base, BaseState, GroupLog, Vanished
from cluster.history.group_replay import GroupReplay, ReplayFailed, stamped
from cluster.history.message_events import MessageEvents, Wanted, event_of, now_of
from cluster.log import SystemClock
from cluster.machine import QueueMachine, UnsupportedSnapshot
from cluster.machine.catalog import CatalogMachine
from cluster.seams import Clock
from cluster.types import CATALOG_GROUP, GroupId, MessageId, QueueId

#: Entries that one history may take.
ENTRIES_MAX: Final = 10_000_000
#: The events of so many entries are looked at together.
ENTRIES_AT_ONCE: Final = 1_000
#: How often it is begun anew when the node drops files that are needed.
ATTEMPTS_MAX: Final = 5
#: Segments that are looked through first; if they do not suffice, so many times more.
SEGMENTS_FIRST: Final = 8
SEGMENTS_FACTOR: Final = 8

Json = dict[str, Any]


class NoHistory(Exception):
    """There is none to tell; the code is one word for programs."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


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
    folders: Sequence[str],
    wanted: Wanted,
    *,
    applied: int = 0,
    entries_max: int = ENTRIES_MAX,
    seconds_max: float | None = None,
    clock: Clock | None = None,
) -> Json:
    """Out of the folders with a node's segments: its log, and its archive. `applied`: as the node
    says, when it runs. `seconds_max`: who has to wait longer gets what was found so far. NoHistory
    says why there is none.
    """

    def attempt(log: GroupLog) -> _Attempt:
        return _attempt(log, wanted, entries_max)

    limit_ns = None if seconds_max is None else seconds_max * 1e9
    best = _look_back(folders, wanted.group, applied, attempt, limit_ns, clock or SystemClock())
    if best.history is None:
        raise best.none
    return best.history


def find_queue(folders: Sequence[str], vhost: str, name: str) -> tuple[GroupId, QueueId]:
    """As the catalog in these folders has it. NoHistory."""
    none = NoHistory(
        "no_queue",
        f"the folder knows no queue {name!r} in vhost {vhost!r}: if it was deleted, give the"
        " message's id, as GROUP-ENTRY-OFFSET",
    )

    def attempt(log: GroupLog) -> _Attempt:
        for base in reversed(log.bases):
            state = log.load(base)
            if state is not None:
                machine = _fold(log, state, None).machine
                assert isinstance(machine, CatalogMachine)
                info = machine.queue(vhost, name)
                found = None if info is None else {"group": info.group, "queue": info.queue}
                return _Attempt(found, none, final=log.whole)
        return _Attempt(None, none, final=False)

    found = _look_back(folders, CATALOG_GROUP, 0, attempt, None, SystemClock()).history
    if found is None:
        raise none
    return found["group"], found["queue"]


class _Attempt(NamedTuple):
    """What was found in some of the segments."""

    history: Json | None
    none: NoHistory  # why there is nothing, if there is nothing
    final: bool  # older segments tell no more


def _look_back(
    folders: Sequence[str],
    group: GroupId,
    applied: int,
    attempt: Callable[[GroupLog], _Attempt],
    limit_ns: float | None,
    clock: Clock,
) -> _Attempt:
    """In the newest segments, then in ever more: an archive may hold years."""
    begun_ns, best, count = clock.monotonic_ns(), None, SEGMENTS_FIRST
    while True:
        found, is_all = _with_log(folders, group, applied, count, attempt)
        if best is None or found.history is not None:
            best = found
        next_ns = (clock.monotonic_ns() - begun_ns) * (SEGMENTS_FACTOR + 1)
        too_long = limit_ns is not None and next_ns > limit_ns
        if found.final or is_all:
            return best
        if too_long:
            return _cut_short(best, count)
        count *= SEGMENTS_FACTOR


def _cut_short(best: _Attempt, count: int) -> _Attempt:
    """There was no time for older segments."""
    if best.history is not None:
        best.history["read"]["cut_short"] = True
    reason = (
        f"it is not in the newest {count} segments, and for older ones there is no time:"
        " `quorate message --data` reads a folder without a limit"
    )
    return best._replace(none=NoHistory("out_of_reach", reason))


def _with_log(
    folders: Sequence[str],
    group: GroupId,
    applied: int,
    count: int,
    attempt: Callable[[GroupLog], _Attempt],
) -> tuple[_Attempt, bool]:
    """Also whether these were all segments."""
    for _ in range(ATTEMPTS_MAX):
        try:
            log = GroupLog(folders, group, applied=applied, newest=count)
            try:
                return attempt(log), log.is_all
            finally:
                log.close()
        except Vanished:
            continue
    raise NoHistory("overloaded", "the node drops files faster than they are read: try again")


def _attempt(log: GroupLog, wanted: Wanted, entries_max: int) -> _Attempt:
    best: tuple[MessageEvents, GroupReplay, BaseState] | None = None
    final = False
    for base in _order(log.bases, wanted):
        if log.committed - base.index > entries_max:
            continue
        state = log.load(base)
        if state is None:
            continue
        kept = MessageEvents(wanted)
        replay = _fold(log, state, kept)
        if best is None or kept.count:
            best = kept, replay, state
        entry = wanted.entry
        final = kept.whole or (entry is not None and base.index < entry <= replay.index)
        if final:
            break
    if best is None or log.committed <= NOTHING.index:
        return _Attempt(None, _out_of_reach(log, entries_max), final)
    kept, replay, state = best
    none = NoHistory("no_message", _why_not(wanted, replay, state))
    return _Attempt(_answer(log, kept, replay, state) if kept.count else None, none, final)


def _order(bases: Sequence[Base], wanted: Wanted) -> list[Base]:
    """Which base to try first. Of a message of which it is not known when it was published: the
    newest, then ever older ones, each time twice as far.
    """
    if wanted.entry is not None:
        before = [base for base in bases if base.index < wanted.entry]
        return [*reversed(before), *bases[len(before) :]]
    found = [base for place, base in enumerate(reversed(bases), 1) if place & (place - 1) == 0]
    return found if found[-1:] == bases[:1] else [*found, bases[0]]


def _fold(log: GroupLog, state: BaseState, kept: MessageEvents | None) -> GroupReplay:
    """As far as the log goes on."""
    group, snapshot = GroupId(log.group), state.snapshot
    try:
        replay = GroupReplay(group) if snapshot is None else GroupReplay.after(group, snapshot)
        # A message that was published later is not looked for among those that are there.
        if kept is not None and (kept.entry is None or kept.entry <= replay.index):
            kept.take(replay.known())
        waiting = 0
        for index, term, command in log.entries(state):
            replay.apply(index, term, command)
            waiting += 1
            if waiting >= ENTRIES_AT_ONCE:
                waiting = 0
                _take(replay, kept)
    except (ReplayFailed, UnsupportedSnapshot) as error:
        raise NoHistory("out_of_reach", f"this release cannot follow the log: {error}") from error
    _take(replay, kept)
    return replay


def _take(replay: GroupReplay, kept: MessageEvents | None) -> None:
    rows = replay.take_rows()
    if kept is not None:
        kept.take(rows)


def _out_of_reach(log: GroupLog, entries_max: int) -> NoHistory:
    if not log.bases or log.committed <= NOTHING.index:
        return NoHistory("no_message", f"the log has nothing of group {log.group}")
    return NoHistory(
        "out_of_reach",
        f"it lies further back than {entries_max:,} entries, or the log is damaged:"
        f" {', '.join(log.damage) or 'no damage was seen'}; `quorate postmortem` reads any length",
    )


def _why_not(wanted: Wanted, replay: GroupReplay, state: BaseState) -> str:
    begin = state.base.index
    before = f"the log begins behind entry {begin}: by then it was gone, if there was one"
    if wanted.entry is None:
        if begin > NOTHING.index:
            return f"no such message is in the queue, and {before}"
        return f"the queue had no such message up to entry {replay.index}"
    if wanted.entry > replay.index:
        return f"entry {wanted.entry} is not committed as far as is known here, to {replay.index}"
    if wanted.entry <= begin:
        return before
    return f"entry {wanted.entry} has no message with offset {wanted.offset} that was stored"


# --- telling --------------------------------------------------------------------------------------


def _answer(log: GroupLog, kept: MessageEvents, replay: GroupReplay, state: BaseState) -> Json:
    assert isinstance(replay.machine, QueueMachine)
    kept_events = kept.events
    entry = kept.entry
    message = None if entry is None else MessageId(GroupId(log.group), entry, kept.offset)
    events = [event_of(each) for each in kept_events]
    if entry is not None:
        for event in events:
            if event["event"] == "published":
                event["written_ms"] = _ms(log.written_ns(entry))
                event["committed_ms"] = _ms(log.committed_ns(entry))
    return {
        "message": None if message is None else str(message),
        "group": log.group,
        "now": now_of(kept, replay.machine),
        "events": events,
        "left_out": kept.count - len(kept_events),
        "read": {
            "cluster": log.cluster,
            "node": log.node,
            "from": state.base.index,
            "to": replay.index,
            "to_ms": replay.now_ms,
            "whole": kept.whole,
            "damage": log.damage,
            "cut_short": False,
        },
    }


def _ms(ns: int | None) -> int | None:
    return None if ns is None else ns // 1_000_000
