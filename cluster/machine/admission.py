"""Whether a queue takes a message: de-duplication, limits, attributes, all before it is stored.

What a queue remembers of its publishers makes that a repeated publish is stored once. A named
publisher numbers its messages densely; the queue remembers the last number, and which of the recent
ones it refused, so that a resend gets the answer of the first time. A publisher that is idle for
long is forgotten, by the time of the log, and starts at 1 again; names that begin with `~` are made
up by clients for one run and are forgotten sooner. Of what was refused only the last
`REFUSED_RANGES_MAX` runs are remembered. A resend of lower numbers is answered as refused:
published once more a message may be there twice, but none is confirmed that is not there.

Names that begin with `dlx:` are the nodes' own: carriers of dead letters from another group, one a
source queue. Their numbers are those of the source's outbox, so they grow and may skip some, which
were not given, or went elsewhere. That is safe because a carrier sends nothing before all lower
numbers are safe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from cluster.machine.arguments import GROUP_KEY_SINCE
from cluster.machine.commands import BodyPart, Enqueue
from cluster.machine.context import ApplyContext
from cluster.machine.deadletters import MAXLEN, REFUSED, is_cycle
from cluster.machine.disposal import Disposal
from cluster.machine.expiry import MessageExpiry
from cluster.machine.identity import QueueIdentity
from cluster.machine.limits import QueueLimits, full
from cluster.machine.marks import (
    NO_ATTRS,
    NO_MARK,
    Attrs,
    Mark,
    each_attrs,
    group_keys,
    keys_of,
    parse_attrs,
)
from cluster.machine.messages import Messages
from cluster.machine.replies import BAD_ARGUMENT, OUT_OF_SEQUENCE, Enqueued, Refused, Reply
from cluster.machine.runs import RangeMap, joined, ranges_of
from cluster.machine.timetable import Deadline
from cluster.machine.uploads import NONE_LARGE, Large, Uploads
from cluster.machine.versions import ASKS_ALL_SINCE

_SUM_BYTES = 16
_SUMS = 1 << (8 * _SUM_BYTES)
SEQNO_MAX = 1 << 62
PUBLISHER_IDLE_MS = 7 * 24 * 3_600_000
EPHEMERAL_PUBLISHER_IDLE_MS = 3_600_000
EPHEMERAL_PREFIX = "~"
CARRIER_PREFIX = "dlx:"
#: Carriers that take copies on a person's order.
COPY_PREFIX = f"{CARRIER_PREFIX}copy:"
#: From when on a cycle is one of dead letters, and no order to bring them back.
REPLAYS_SINCE = 5
PUBLISHERS_MAX = 100_000  # per queue; over it the one idle longest is forgotten
REFUSED_RANGES_MAX = 1_024  # a publisher; a single command may have more
#: From this machine version on all that one command was refused is kept, so that at least the last
#: one of a publisher is answered as the first time.
REFUSED_OF_COMMAND_SINCE = 5
DEDUP_IDS_MAX = 1_000_000  # per queue
#: Ids that begin so are kept by every queue, also by one that keeps no duplicates out: who moves
#: messages between brokers gives them, and may have to send the last ones again.
ONCE_PREFIX = "once:"
ONCE_SINCE = 5
ONCE_WINDOW_MS = 24 * 3_600_000
ONCE_IDS_MAX = 20_000  # per queue


def is_carrier(name: str) -> bool:
    return name.startswith(CARRIER_PREFIX)


@dataclass(eq=False, slots=True)
class PublisherState:
    last: int  # highest number answered
    seen_ms: int
    refused: RangeMap[None] | None = None  # numbers at or below `last`

    @property
    def remembered_from(self) -> int:
        """Of lower numbers it may be forgotten that they were refused. Only the lowest runs are
        cut, and a map of which some were cut stays full.
        """
        refused = self.refused
        if refused is None or refused.range_count < REFUSED_RANGES_MAX:
            return 0
        return refused.head[0]


@dataclass(eq=False, slots=True)
class Publishers:
    """Publishers of one queue, each kind in the order in which they were last heard of."""

    #: The named ones, and the ephemeral ones.
    _kinds: tuple[OrderedDict[str, PublisherState], OrderedDict[str, PublisherState]] = field(
        default_factory=lambda: (OrderedDict(), OrderedDict())
    )
    _forget_ms: int = 0  # nobody was idle for too long before

    def __len__(self) -> int:
        return sum(map(len, self._kinds))

    def known(self, name: str, now_ms: int) -> PublisherState | None:
        """The publisher, unless it is new or was idle for too long."""
        if now_ms >= self._forget_ms:
            self._forget_idle(now_ms)
        return self._kinds[name.startswith(EPHEMERAL_PREFIX)].get(name)

    def answered(
        self,
        name: str,
        last: int,
        now_ms: int,
        refused: Sequence[tuple[int, int]],
        keep_from: int = SEQNO_MAX,
    ) -> None:
        """Numbers up to `last` have their answer; those in `refused` were refused. What was refused
        from `keep_from` on is not forgotten now.
        """
        kind = self._kinds[name.startswith(EPHEMERAL_PREFIX)]
        publisher = kind.get(name)
        if publisher is None:
            publisher = kind[name] = PublisherState(last, now_ms)
            if len(kind) > PUBLISHERS_MAX:
                kind.popitem(last=False)
        else:
            if last > publisher.last:
                publisher.last = last
            publisher.seen_ms = now_ms
            kind.move_to_end(name)
        if refused:
            if publisher.refused is None:
                publisher.refused = RangeMap()
            for first, end in refused:
                publisher.refused.put(first, end, None)
            kept = publisher.refused
            while kept.range_count > REFUSED_RANGES_MAX and kept.head[1] < keep_from:
                kept.cut(*kept.head)

    def _forget_idle(self, now_ms: int) -> None:
        named, ephemeral = self._kinds
        self._forget_ms = min(
            _forget_idle(ephemeral, EPHEMERAL_PUBLISHER_IDLE_MS, now_ms),
            _forget_idle(named, PUBLISHER_IDLE_MS, now_ms),
        )

    def dump(self) -> list[Any]:
        rows: list[Any] = []
        for kind in self._kinds:
            for name, publisher in kind.items():
                refused = [[first, last] for first, last, _ in publisher.refused or ()]
                rows.append([name, publisher.last, publisher.seen_ms, refused])
        return rows

    def load(self, rows: Sequence[Any]) -> None:
        for name, last, seen_ms, refused in rows:
            self.answered(name, last, seen_ms, refused, keep_from=1)

    def invariants(self) -> None:
        for kind in self._kinds:
            seen_ms = 0
            for publisher in kind.values():
                assert publisher.seen_ms >= seen_ms, "publishers are not in the order last heard of"
                seen_ms = publisher.seen_ms
                for _, last, _ in publisher.refused or ():
                    assert last <= publisher.last, "a number was refused before it was given"


def _forget_idle(kind: OrderedDict[str, PublisherState], idle_ms: int, now_ms: int) -> int:
    """Those last heard of so long ago; they come first. Answers when to look again: whoever is
    heard of for the first time from now on is not idle before either.
    """
    while kind:
        name = next(iter(kind))
        due_ms = kind[name].seen_ms + idle_ms
        if due_ms > now_ms:
            return due_ms
        del kind[name]
    return now_ms + idle_ms


@dataclass(eq=False, slots=True)
class DedupIds:
    """Ids of messages stored within the window, oldest first."""

    _ids: OrderedDict[str, int] = field(default_factory=OrderedDict[str, int])
    _sum: int | None = None  # of the hashes of all; None: nobody asked yet

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, dedup_id: str) -> bool:
        return dedup_id in self._ids

    def remember(self, dedup_id: str, now_ms: int, most: int = DEDUP_IDS_MAX) -> None:
        self._ids[dedup_id] = now_ms
        if self._sum is not None:
            self._sum += _hash_of(dedup_id, now_ms)
        if len(self._ids) > most:
            self._drop(next(iter(self._ids)))

    def _drop(self, dedup_id: str) -> None:
        at_ms = self._ids.pop(dedup_id)
        if self._sum is not None:
            self._sum -= _hash_of(dedup_id, at_ms)

    def forget(self, window_ms: int | None, now_ms: int) -> None:
        """Drop what is older than the window."""
        ids = self._ids
        while ids:
            dedup_id = next(iter(ids))
            if window_ms is not None and ids[dedup_id] + window_ms > now_ms:
                break
            self._drop(dedup_id)

    def fingerprint(self) -> list[Any]:
        """What tells two sets of ids apart; after the first time it costs what changed."""
        if self._sum is None:
            self._sum = sum(_hash_of(dedup_id, at_ms) for dedup_id, at_ms in self._ids.items())
        return [len(self._ids), (self._sum % _SUMS).to_bytes(_SUM_BYTES, "big")]

    def dump(self) -> list[Any]:
        return list(self._ids.items())

    def load(self, rows: Sequence[Any]) -> None:
        self._ids = OrderedDict((dedup_id, at_ms) for dedup_id, at_ms in rows)
        self._sum = None


def _hash_of(dedup_id: str, at_ms: int) -> int:
    data = f"{at_ms} {dedup_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=_SUM_BYTES).digest(), "big")


BODIES_MAX = 1 << 20  # in one command
NAME_CHARS_MAX = 512
ONLY_BYTES = frozenset((bytes,))


class Run(NamedTuple):
    """Neighbours in the batch with equal attributes."""

    first: int  # offset in the batch
    last: int
    attrs: Attrs


def _names(run: Run) -> Sequence[str] | None:
    """The keys of its messages."""
    group = run.attrs.group
    return None if group is None else [group] * (run.last - run.first + 1)


def _apart(runs: Sequence[Run], large: Large) -> list[Run]:
    """Each large body in a run of its own, and so alone in what is delivered together."""
    found: list[Run] = []
    for run in runs:
        start = run.first
        for place in sorted(place for place in large if run.first <= place <= run.last):
            if start < place:
                found.append(Run(start, place - 1, run.attrs))
            found.append(Run(place, place, run.attrs))
            start = place + 1
        if start <= run.last:
            found.append(Run(start, run.last, run.attrs))
    return found


@dataclass(eq=False, slots=True)
class QueueAdmission:
    """Owns what the queue remembers of publishers: their numbers, ids, parts of large bodies."""

    identity: QueueIdentity
    messages: Messages
    limits: QueueLimits
    expiry: MessageExpiry
    disposal: Disposal
    deadline: Deadline
    publishers: Publishers = field(default_factory=Publishers)
    dedup_ids: DedupIds = field(default_factory=DedupIds)
    uploads: Uploads = field(default_factory=Uploads)

    def keep_part(self, context: ApplyContext, command: BodyPart) -> Reply:
        """Of a large body of which a message is to be made later."""
        reply = self.uploads.keep(context, command)
        self.look_ahead()
        return reply

    def look_ahead(self) -> None:
        due_ms = self.uploads.due_ms
        if due_ms is not None:
            self.deadline.wake_at(due_ms)

    def objection(self, context: ApplyContext, steps: Sequence[Enqueue]) -> Refused | None:
        """Why not all of these would be stored now."""
        sizes = [len(body) for step in steps for body in step.bodies]
        if self.limits.takes_all(len(sizes), sizes):
            return None
        room = self.limits.room()
        for step in steps:
            runs = runs_of(step.attrs, 0, len(step.bodies), context.version)
            if isinstance(runs, str):
                return Refused(BAD_ARGUMENT, runs)
            for run in runs:
                delayed = context.version >= ASKS_ALL_SINCE and is_delayed(run.attrs, context)
                for body in step.bodies[run.first : run.last + 1]:
                    if not room.take(len(body), delayed=delayed):
                        return full(self.identity.name, len(sizes))
        return None

    def enqueue(self, context: ApplyContext, command: Enqueue) -> Reply:
        """Store what is new and within the limits; say what was not."""
        bodies = command.bodies
        count = len(bodies)
        publisher, seqno = command.publisher, command.seqno
        asks = count == 0 and seqno == 0 and publisher is not None
        if not (1 <= count <= BODIES_MAX or asks):
            return Refused(BAD_ARGUMENT, f"a batch holds from 1 to {BODIES_MAX} bodies")
        skip = 0
        known: PublisherState | None = None
        if publisher is not None:
            if not (1 <= seqno <= SEQNO_MAX or asks) or not 1 <= len(publisher) <= NAME_CHARS_MAX:
                return Refused(
                    BAD_ARGUMENT,
                    f"a publisher has a name of 1 to {NAME_CHARS_MAX} characters"
                    f" and numbers its messages from 1",
                )
            known = self.publishers.known(publisher, context.now_ms)
            last = known.last if known is not None else 0
            if asks or (seqno > last + 1 and not is_carrier(publisher)):
                # Also of one that is not known: were any start granted to it, a first batch that
                # never came here would later pass for a duplicate of the second one.
                return Refused(OUT_OF_SEQUENCE, _expects(publisher, known), last + 1)
            if seqno <= last:
                skip = min(count, last + 1 - seqno)
        if not ONLY_BYTES.issuperset(map(type, bodies)):
            return Refused(BAD_ARGUMENT, "a body is bytes")
        sizes = list(map(len, bodies))
        attrs = command.attrs
        large = NONE_LARGE
        if command.large is not None and context.version >= 3:
            found = self.uploads.large_of(command, skip, sizes)
            if isinstance(found, Refused):
                return found
            large = found
        if skip == count:
            self._end_uploads(large)
            refused = _refused_before(known, seqno, count)
            if publisher is not None:
                self.publishers.answered(publisher, seqno + count - 1, context.now_ms, ())
            return Enqueued(0, 0, count - _count(refused), refused)
        limits = self.limits
        takes_all = limits.never_refuses or context.decided or limits.takes_all(count, sizes)
        names: Sequence[str | None] | None = None
        if attrs is not None and self.messages.keyed is not None:
            names = group_keys(attrs, count)
        if (attrs is None or names is not None) and not large and takes_all:
            fresh, index, offset = count - skip, context.index, context.body_offset + skip
            if skip:
                sizes, names = sizes[skip:], names and names[skip:]
            first = self.messages.add(index, offset, sizes, context.now_ms, names=names)
            if (recorder := self.identity.recorder) is not None:
                last = first + fresh - 1
                number = seqno and seqno + skip
                recorder.published(self.identity, first, last, index, offset, publisher, number)
            if publisher is None:
                return Enqueued(first, fresh)
            self.publishers.answered(publisher, seqno + count - 1, context.now_ms, ())
            if skip == 0:
                return Enqueued(first, fresh)
            refused = _refused_before(known, seqno, skip)
            return Enqueued(first, fresh, skip - _count(refused), refused)
        runs = runs_of(attrs, skip, count, context.version)
        if isinstance(runs, str):
            return Refused(BAD_ARGUMENT, runs)
        return self._enqueue_each(context, command, sizes, runs, known, skip, large)

    def _enqueue_each(
        self,
        context: ApplyContext,
        command: Enqueue,
        sizes: Sequence[int],
        runs: Sequence[Run],
        known: PublisherState | None,
        skip: int,
        large: Large,
    ) -> Reply:
        """The careful way: some message has attributes, or the queue may be full."""
        config = self.identity.config
        if not self.limits.never_refuses and self.messages.may_expire:
            self.expiry.sweep(context, inclusive=False)  # what is dead takes no room
        room = self.limits.room(unlimited=context.decided)
        publisher = command.publisher
        carried = publisher is not None and is_carrier(publisher)
        ends_cycles = context.version < REPLAYS_SINCE or (
            publisher is not None and carried and not publisher.startswith(COPY_PREFIX)
        )
        # A carrier's messages that find no room are not answered: they come again, in order. Unless
        # this queue dead-letters them itself: then they are done with.
        in_order = carried and config.overflow == "reject-publish"
        before = _refused_before(known, command.seqno, skip)
        duplicates = skip - _count(before)
        accepted: list[Run] = []
        refused: list[Run] = []
        window_ms, once = config.dedup_window_ms, context.version >= ONCE_SINCE
        if window_ms is None and once:
            self.dedup_ids.forget(ONCE_WINDOW_MS, context.now_ms)
        else:
            self.dedup_ids.forget(window_ms, context.now_ms)
        for run in runs:
            attrs = run.attrs
            deaths = attrs.deaths
            if deaths is not None and ends_cycles and is_cycle(deaths, self.identity.name):
                # It came back with nobody having rejected it: the end of a cycle (C22).
                duplicates += run.last - run.first + 1
                continue
            delayed = is_delayed(attrs, context)
            dedup_id = attrs.dedup_id
            if window_ms is None and not (once and dedup_id and dedup_id.startswith(ONCE_PREFIX)):
                dedup_id = None
            if dedup_id is None and room.unlimited:
                accepted.append(run)
                continue
            for offset in range(run.first, run.last + 1):
                one = Run(offset, offset, attrs)
                if dedup_id is not None and dedup_id in self.dedup_ids:
                    duplicates += 1
                elif not (in_order and refused) and room.take(sizes[offset], delayed=delayed):
                    _extend(accepted, one)
                    if dedup_id is not None:
                        most = ONCE_IDS_MAX if window_ms is None else DEDUP_IDS_MAX
                        self.dedup_ids.remember(dedup_id, context.now_ms, most)
                else:
                    _extend(refused, one)
        if large:
            accepted, refused = _apart(accepted, large), _apart(refused, large)
        first = self._store(context, command, accepted, sizes, large)
        if refused and config.overflow == "reject-publish-dlx":
            self._dead_letter_refused(context, command, refused, sizes, large)
        gaps = [(run.first, run.last) for run in refused if in_order or not carried]
        self._end_uploads(large, gaps[0][0] if in_order and gaps else None)
        if refused and config.overflow == "reject-publish" and not carried:
            self.disposal.count(context, REFUSED, _count(gaps), goes=False)
        if command.publisher is not None:
            seqno, answered = command.seqno, gaps[0][0] if in_order and gaps else len(sizes)
            kept = [] if carried else [(seqno + start, seqno + end) for start, end in gaps]
            keep_from = seqno if context.version >= REFUSED_OF_COMMAND_SINCE else SEQNO_MAX
            last = seqno + answered - 1
            self.publishers.answered(command.publisher, last, context.now_ms, kept, keep_from)
        return Enqueued(first, _count(accepted), duplicates, joined([*before, *gaps]))

    def _store(
        self,
        context: ApplyContext,
        command: Enqueue,
        runs: Sequence[Run],
        sizes: Sequence[int],
        large: Large,
    ) -> int:
        """Store these messages; the position of the first one, or 0."""
        first = 0
        for run in runs:
            attrs = run.attrs
            born_ms = attrs.deliver_at_ms if is_delayed(attrs, context) else None
            expires_at_ms = None
            if attrs.ttl_ms is not None:
                expires_at_ms = attrs.ttl_ms + (context.now_ms if born_ms is None else born_ms)
            mark = Mark(
                priority=attrs.priority,
                ttl_ms=attrs.ttl_ms,
                born_ms=born_ms,
                expires_at_ms=expires_at_ms,
                deaths=attrs.deaths,
            )
            stored = self.messages.add(
                context.index,
                context.body_offset + run.first,
                sizes[run.first : run.last + 1],
                context.now_ms,
                mark,
                born_ms,
                _names(run),
            )
            self._bind(large, run.first, run.last, stored)
            self._record(context, command, run, stored)
            first = first or stored
        return first

    def _record(self, context: ApplyContext, command: Enqueue, run: Run, first: int) -> None:
        """These were given positions from `first` on."""
        if (recorder := self.identity.recorder) is not None:
            last, offset = first + run.last - run.first, context.body_offset + run.first
            number = command.seqno and command.seqno + run.first
            recorder.published(
                self.identity, first, last, context.index, offset, command.publisher, number
            )

    def _dead_letter_refused(
        self,
        context: ApplyContext,
        command: Enqueue,
        refused: Sequence[Run],
        sizes: Sequence[int],
        large: Large,
    ) -> None:
        """Overflow `reject-publish-dlx`: the publisher is refused, the target gets the message."""
        for run in refused:
            mark = Mark(
                priority=run.attrs.priority,
                ttl_ms=run.attrs.ttl_ms,
                deaths=run.attrs.deaths,
            )
            count = run.last - run.first + 1
            first = self.messages.store.append(
                count,
                context.index,
                context.body_offset + run.first,
                sizes[run.first : run.last + 1],
                context.now_ms,
            )
            if mark != NO_MARK:
                self.messages.marks.put(first, first + count - 1, mark)
            if self.messages.keyed is not None and run.attrs.group is not None:
                self.messages.keyed.name(first, [run.attrs.group] * count)
            self._bind(large, run.first, run.last, first)
            self._record(context, command, run, first)
            self.disposal.dead_letter(context, first, first + count - 1, MAXLEN)

    def _bind(self, large: Large, first: int, last: int, position: int) -> None:
        """These bodies got positions from there on: parts of large ones stay with them."""
        for place, (_, parts) in large.items():
            if first <= place <= last:
                indexes = ranges_of(sorted({index for index, _, _ in parts}))
                self.messages.store.add_parts(position + place - first, indexes)

    def _end_uploads(self, large: Large, before: int | None = None) -> None:
        """What becomes of these bodies is known; `before`: of those at lower places."""
        for place, (name, _) in large.items():
            if before is None or place < before:
                self.uploads.end(name)


def is_delayed(attrs: Attrs, context: ApplyContext) -> bool:
    return attrs.deliver_at_ms is not None and attrs.deliver_at_ms > context.now_ms


def _expects(publisher: str, known: PublisherState | None) -> str:
    if known is None:
        return f"this queue does not know publisher {publisher}: number its messages from 1 on"
    return (
        f"publisher {publisher} sent up to {known.last}: send again from {known.last + 1} on,"
        f" in order"
    )


def runs_of(attrs: Any, skip: int, count: int, version: int) -> list[Run] | str:
    """The attributes of the messages from `skip` on, or what is wrong with them."""
    if not isinstance(attrs, (list, tuple)) and (
        version < GROUP_KEY_SINCE or keys_of(attrs) is None
    ):
        parsed = parse_attrs(attrs, version)
        return parsed if isinstance(parsed, str) else [Run(skip, count - 1, parsed)]
    each = each_attrs(attrs, count, version)
    if len(each) != count:
        return f"there are {count} bodies and {len(each)} sets of attributes"
    runs: list[Run] = []
    for offset in range(skip, count):
        parsed = NO_ATTRS if each[offset] is None else parse_attrs(each[offset], version)
        if isinstance(parsed, str):
            return f"body {offset}: {parsed}"
        _extend(runs, Run(offset, offset, parsed))
    return runs


def _extend(runs: list[Run], run: Run) -> None:
    """Append, as one run with the last one where they are alike."""
    if runs and runs[-1].last == run.first - 1 and runs[-1].attrs == run.attrs:
        runs[-1] = Run(runs[-1].first, run.last, run.attrs)
    else:
        runs.append(run)


def _refused_before(known: PublisherState | None, seqno: int, count: int) -> list[tuple[int, int]]:
    """Which of the repeated messages were refused the first time, as offsets; also those of which
    that is forgotten.
    """
    if known is None or known.refused is None or not count:
        return []
    end = seqno + count - 1
    found = [(first, last) for first, last, _ in known.refused.pieces(seqno, end)]
    if seqno < known.remembered_from:
        found = joined([(seqno, min(end, known.remembered_from - 1)), *found])
    return [(first - seqno, last - seqno) for first, last in found]


def _count(ranges: Sequence[tuple[Any, ...]]) -> int:
    return sum(piece[1] - piece[0] + 1 for piece in ranges)
