"""What happened to one message, out of a node's log: the machine is folded over the log once more,
and what it tells of that message is kept.

The fold begins at the newest snapshot that is older than the message, or where the log begins: then
the message may have been published before, and what is told begins with how it was found there.
Entries that cannot tell more of it are left out (`cluster.history.leaps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from cluster.codec.entries import enqueues_in
from cluster.codec.errors import CodecError
from cluster.history.committed import (
    NOTHING,
    Base,
    BaseState,
    GroupLog,
    NotAsNoted,
    Vanished,
)
from cluster.history.group_replay import GroupReplay, ReplayFailed, stamped
from cluster.history.leaps import Leaps
from cluster.history.message_events import MessageEvents, Number, Wanted, event_of, now_of
from cluster.log import SystemClock
from cluster.machine import QueueMachine, UnsupportedSnapshot
from cluster.machine.catalog import CatalogMachine
from cluster.machine.queue import Queue
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
    leaps: bool = True,
    clock: Clock | None = None,
) -> Json:
    """Out of the folders with a node's segments: its log, and its archive. `applied`: as the node
    says, when it runs. `seconds_max`: who has to wait longer gets what was found so far. Without
    `leaps` everything is read and applied, which comes to the same. NoHistory says why there is
    none.
    """

    def attempt(log: GroupLog, thorough: bool) -> _Attempt:
        found = Leaps(log) if leaps else None
        return _attempt(log, wanted, entries_max, found, thorough=thorough or log.is_all)

    limit_ns = None if seconds_max is None else seconds_max * 1e9
    clock = clock or SystemClock()
    best = _look_back(folders, wanted.group, applied, attempt, limit_ns, clock, heads=leaps)
    if best.history is None:
        raise best.none
    return best.history


def find_queue(folders: Sequence[str], vhost: str, name: str) -> tuple[GroupId, QueueId]:
    """As the catalog in these folders has it. NoHistory."""
    none = NoHistory("no_queue", f"the folder knows no queue {name!r} in vhost {vhost!r}")

    def attempt(log: GroupLog, _: bool) -> _Attempt:
        for base in reversed(log.bases):
            state = log.load(base)
            if state is not None:
                machine = _fold(log, state, None, None).replay.machine
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
    attempt: Callable[[GroupLog, bool], _Attempt],
    limit_ns: float | None,
    clock: Clock,
    *,
    heads: bool = True,
) -> _Attempt:
    """In the newest segments, then in ever more: an archive may hold years. What older ones are
    needed for anyway is followed from the newest only when there is no time for those.
    """
    begun_ns, best, count, thorough = clock.monotonic_ns(), None, SEGMENTS_FIRST, False
    while True:
        found, is_all = _with_log(folders, group, applied, count, attempt, thorough, heads=heads)
        if best is None or found.history is not None:
            best = found
        next_ns = (clock.monotonic_ns() - begun_ns) * (SEGMENTS_FACTOR + 1)
        too_long = limit_ns is not None and next_ns > limit_ns
        if found.final or is_all:
            return best
        if thorough:
            return _cut_short(best, count)
        if too_long:
            thorough = True
        else:
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
    attempt: Callable[[GroupLog, bool], _Attempt],
    thorough: bool,
    *,
    heads: bool,
) -> tuple[_Attempt, bool]:
    """Also whether these were all segments."""
    for _ in range(ATTEMPTS_MAX):
        try:
            log = GroupLog(folders, group, applied=applied, newest=count, heads=heads)
            try:
                return attempt(log, thorough), log.is_all
            finally:
                log.close()
        except Vanished:
            continue
        except NotAsNoted:
            heads = False
    raise NoHistory("overloaded", "the node drops files faster than they are read: try again")


class _Followed(NamedTuple):
    """`to`, `to_ms`: as far as is known, which may be further than was applied."""

    replay: GroupReplay
    to: int
    to_ms: int


class _Found(NamedTuple):
    kept: MessageEvents
    followed: _Followed
    state: BaseState


def _attempt(
    log: GroupLog, wanted: Wanted, entries_max: int, leaps: Leaps | None, *, thorough: bool
) -> _Attempt:
    """`thorough`: no older segments will be asked."""
    best: _Found | None = None
    final = False
    bases = [
        base for base in _order(log.bases, wanted) if log.committed - base.index <= entries_max
    ]
    later: list[Base] = []  # it was published before these, if at all
    for place, base in enumerate(bases):
        state = log.load(base)
        if state is None:
            continue
        needed = thorough and place + 1 == len(bases)
        if leaps is not None and not needed and _is_before(log, wanted, state, leaps):
            later.append(base)
            continue
        best, final = _better(log, wanted, state, leaps, best)
        if final:
            break
    if thorough and (best is None or not best.kept.count):
        # The log does not lead from an older one to where the message is.
        for base in later:
            state = log.load(base)
            if state is not None and not final:
                best, final = _better(log, wanted, state, leaps, best)
    if best is None or log.committed <= NOTHING.index:
        return _Attempt(None, _out_of_reach(log, entries_max), final)
    none = NoHistory("no_message", _why_not(wanted, best.followed.replay, best.state))
    return _Attempt(_answer(log, best) if best.kept.count else None, none, final)


def _better(
    log: GroupLog, wanted: Wanted, state: BaseState, leaps: Leaps | None, best: _Found | None
) -> tuple[_Found, bool]:
    """What is told from there on, if that is more; and whether another base tells no more."""
    kept = MessageEvents(wanted)
    followed = _fold(log, state, kept, leaps)
    if best is None or kept.count:
        best = _Found(kept, followed, state)
    entry = wanted.entry
    covers = entry is not None and state.base.index < entry <= followed.replay.index
    return best, kept.whole or covers


def _order(bases: Sequence[Base], wanted: Wanted) -> list[Base]:
    """Which base to try first. Of a message of which it is not known when it was published: the
    newest, then ever older ones, each time twice as far.
    """
    if wanted.entry is not None:
        before = [base for base in bases if base.index < wanted.entry]
        return [*reversed(before), *bases[len(before) :]]
    found = [base for place, base in enumerate(reversed(bases), 1) if place & (place - 1) == 0]
    return found if found[-1:] == bases[:1] else [*found, bases[0]]


def _is_before(log: GroupLog, wanted: Wanted, state: BaseState, leaps: Leaps) -> bool:
    """Was the message published before this state, if at all?"""
    if wanted.entry is not None:
        return wanted.entry <= state.base.index
    queue = wanted.queue
    if queue is None:
        return False
    if wanted.position is None:
        assert wanted.publisher is not None
        number = Number(queue, wanted.publisher, wanted.seqno)
        return leaps.is_not_after(number, state.base.index)
    try:
        machine = GroupReplay.begin(GroupId(log.group), state.snapshot).machine
    except UnsupportedSnapshot:
        return False  # to follow the log from there says why not
    assert isinstance(machine, QueueMachine)
    found = machine.find(queue)
    if not isinstance(found, Queue) or found.messages.store.next <= wanted.position:
        return False
    return not leaps.is_created_after(queue, state.base.index)


def _fold(
    log: GroupLog, state: BaseState, kept: MessageEvents | None, leaps: Leaps | None
) -> _Followed:
    """As far as the log goes on."""
    group = GroupId(log.group)
    try:
        replay = GroupReplay.begin(group, state.snapshot)
        # A message that was published later is not looked for among those that are there.
        if kept is not None and (kept.entry is None or kept.entry <= replay.index):
            kept.take(replay.known())
        waiting = 0
        entries = log.entries(state)
        while (entry := next(entries, None)) is not None:
            replay.apply(*entry)
            waiting += 1
            if waiting < ENTRIES_AT_ONCE:
                continue
            waiting = 0
            _take(replay, kept)
            leap = None if kept is None or leaps is None else leaps.from_here(replay, kept)
            if leap is None:
                continue
            if leap.state is None:
                return _Followed(replay, leap.to, leap.to_ms)
            replay = GroupReplay.begin(group, leap.state.snapshot)
            entries = log.entries(leap.state)
    except (ReplayFailed, UnsupportedSnapshot) as error:
        raise NoHistory("out_of_reach", f"this release cannot follow the log: {error}") from error
    _take(replay, kept)
    return _Followed(replay, replay.index, replay.now_ms)


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


def _answer(log: GroupLog, found: _Found) -> Json:
    kept, (replay, to, to_ms), state = found
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
            "to": to,
            "to_ms": to_ms,
            "whole": kept.whole,
            "damage": log.damage,
            "cut_short": False,
        },
    }


def _ms(ns: int | None) -> int | None:
    return None if ns is None else ns // 1_000_000
