"""The messages of a queue: where their bodies lie, what is special about them, and which wait."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any

from cluster.machine.identity import QueueIdentity
from cluster.machine.keyed import KeyedReady
from cluster.machine.marks import NO_MARK, Mark, Marks
from cluster.machine.replies import Chunk
from cluster.machine.runs import RangeMap, joined
from cluster.machine.store import Store, pack, unpack
from cluster.machine.sums import factor, packed, weight
from cluster.machine.timetable import Deadline


class ReadyMessages:
    """Messages that may be delivered now, in the order (priority descending, position).

    A returned message goes where it came from, because its position never changes (B08). One set of
    ranges a priority, and a bit a priority that says which are not empty.
    """

    __slots__ = ("_levels", "_used", "count")

    def __init__(self) -> None:
        self._levels: dict[int, RangeMap[None]] = {0: RangeMap()}
        self._used = 0
        self.count = 0

    def add(self, first: int, last: int, priority: int = 0) -> None:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = RangeMap()
        level.put(first, last, None)
        self._used |= 1 << priority
        self.count += last - first + 1

    @property
    def free(self) -> int:
        """How many messages could be handed out at once."""
        return self.count

    @property
    def front(self) -> tuple[int, int]:
        """The range that is served next. Only when not empty."""
        return self._levels[self._used.bit_length() - 1].head

    def take(self, limit: int) -> tuple[int, int]:
        """Remove up to `limit` neighbours at the head. Only when not empty."""
        priority = self._used.bit_length() - 1
        level = self._levels[priority]
        taken = level.take(limit)
        if not level.count:
            self._used ^= 1 << priority
        self.count -= taken[1] - taken[0] + 1
        return taken

    def priorities(self) -> list[int]:
        """Of the levels that hold something, highest first."""
        found: list[int] = []
        used = self._used
        while used:
            found.append(used.bit_length() - 1)
            used ^= 1 << found[-1]
        return found

    def has(self, priority: int) -> bool:
        return bool(self._used >> priority & 1)

    def head(self, priority: int) -> tuple[int, int]:
        return self._levels[priority].head

    def take_at(self, priority: int, limit: int) -> tuple[int, int]:
        """Remove up to `limit` neighbours at the head of one level."""
        level = self._levels[priority]
        taken = level.take(limit)
        if not level.count:
            self._used ^= 1 << priority
        self.count -= taken[1] - taken[0] + 1
        return taken

    def cut(self, first: int, last: int) -> list[tuple[int, int]]:
        """Remove whatever is ready of the range, and answer it."""
        removed: list[tuple[int, int]] = []
        for priority in self.priorities():
            level = self._levels[priority]
            removed += [(start, end) for start, end, _ in level.cut(first, last)]
            if not level.count:
                self._used ^= 1 << priority
        self.count -= sum(end - start + 1 for start, end in removed)
        return removed

    def pieces(self, first: int, last: int) -> list[tuple[int, int]]:
        """What is ready of the range."""
        return [
            (start, end)
            for priority in self.priorities()
            for start, end, _ in self._levels[priority].pieces(first, last)
        ]

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(priority, first, last), in the order of delivery."""
        for priority in self.priorities():
            for first, last, _ in self._levels[priority]:
                yield priority, first, last

    def from_position(self, start: int, count: int) -> list[int]:
        """At most `count` positions of each level, from `start` on."""
        found: list[int] = []
        for priority in self.priorities():
            left = count
            for first, last, _ in self._levels[priority].ranges_from(start):
                if left <= 0:
                    break
                end = min(last, first + left - 1)
                found += range(first, end + 1)
                left -= end - first + 1
        return found

    # --- snapshots --------------------------------------------------------------------------------

    def levels(self) -> list[tuple[int, RangeMap[None]]]:
        return [(priority, self._levels[priority]) for priority in self.priorities()]

    def restore_level(self, priority: int, level: RangeMap[None]) -> None:
        self._levels[priority] = level
        self._used |= 1 << priority
        self.count += level.count

    def invariants(self) -> None:
        for priority, level in self._levels.items():
            level.invariants()
            assert bool(level.count) == bool(self._used >> priority & 1), "a used bit is wrong"
        assert sum(level.count for level in self._levels.values()) == self.count, "ready miscounted"


_DELAYED, _READY_AT = factor(b"delayed"), factor(b"ready at")


@dataclass(eq=False, slots=True)
class Messages:
    """Owns all messages of the queue (`store`, `marks`) and those that wait: ready or delayed."""

    identity: QueueIdentity
    deadline: Deadline
    store: Store = field(default_factory=Store)
    marks: Marks = field(default_factory=Marks)
    ready: ReadyMessages | KeyedReady = field(init=False)
    keyed: KeyedReady | None = None  # the same, of a queue with message groups
    #: A heap of (ready at ms, first, last).
    delayed: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    delayed_count: int = 0
    _delayed_sum: int | None = None  # None: nobody asked yet
    waiting_bytes: int = 0  # of ready and delayed messages
    #: While many leave together: those that did so far, and whether their bodies are released.
    _leaving: list[tuple[int, int, bool]] | None = None

    def __post_init__(self) -> None:
        if self.identity.config.group_key is not None:
            self.keyed = KeyedReady()
        self.ready = ReadyMessages() if self.keyed is None else self.keyed

    @property
    def waiting_count(self) -> int:
        """Messages that the limits count."""
        return self.ready.count + self.delayed_count

    @property
    def may_expire(self) -> bool:
        """Some of them, at some time: else nobody has to look."""
        return self.identity.config.message_ttl_ms is not None or self.marks.count > 0

    # --- in ---------------------------------------------------------------------------------------

    def add(
        self,
        index: int,
        offset: int,
        sizes: Sequence[int],
        now_ms: int,
        mark: Mark | None = None,
        ready_at_ms: int | None = None,
        names: Sequence[str | None] | None = None,
    ) -> int:
        """Give these bodies positions and make them ready, now or later. `names`: their keys."""
        count = len(sizes)
        store = self.store
        bytes_before = store.bytes
        first = store.append(count, index, offset, sizes, now_ms)
        last = first + count - 1
        self.waiting_bytes += store.bytes - bytes_before
        if mark is not None and mark != NO_MARK:
            self.marks.put(first, last, mark)
        if ready_at_ms is not None:
            if self.keyed is not None and names is not None:
                self.keyed.name(first, names)
            self.delay(first, last, ready_at_ms)
        elif self.keyed is not None and names is not None:
            self.keyed.enter(first, names)
        else:
            self.ready.add(first, last, 0 if mark is None else self.identity.capped(mark.priority))
        return first

    def delay(self, first: int, last: int, ready_at_ms: int) -> None:
        heappush(self.delayed, (ready_at_ms, first, last))
        self.delayed_count += last - first + 1
        if self._delayed_sum is not None:
            self._delayed_sum += _product_of(ready_at_ms, first, last)
        self.deadline.wake_at(ready_at_ms)

    def end_delays(self, now_ms: int) -> None:
        """What is due by now is ready."""
        while self.delayed and self.delayed[0][0] <= now_ms:
            _, first, last = self._end_delay()
            self.make_ready(first, last)

    def _end_delay(self) -> tuple[int, int, int]:
        """The one that is due first."""
        ready_at_ms, first, last = delay = heappop(self.delayed)
        self.delayed_count -= last - first + 1
        if self._delayed_sum is not None:
            self._delayed_sum -= _product_of(ready_at_ms, first, last)
        return delay

    def make_ready(self, first: int, last: int) -> None:
        if not self.marks.count:
            self.ready.add(first, last)
            return
        for start, end, mark in self.marks.segments(first, last):
            if mark is not None and mark.wish_ms is not None:
                self.marks.assign(start, end, mark._replace(wish_ms=None))
            self.ready.add(start, end, self.identity.capped(mark.priority) if mark else 0)

    # --- out --------------------------------------------------------------------------------------

    def take_head(self, limit: int) -> tuple[int, int]:
        """Remove up to `limit` neighbours that come next: ready ones, or else delayed ones."""
        if self.ready.count:
            first, last = self.ready.take(limit)
        else:
            ready_at_ms, first, last = self._end_delay()
            if last - first >= limit:
                self.delay(first + limit, last, ready_at_ms)
                last = first + limit - 1
        self.waiting_bytes -= self.store.bytes_of(first, last)
        return first, last

    def take_waiting(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Remove those of these ascending ranges that wait, ready or delayed, and answer them in
        the order of positions.
        """
        taken = [piece for first, last in ranges for piece in self.ready.cut(first, last)]
        left: list[tuple[int, int, int]] = []
        for delay in self.delayed:
            ready_at_ms, first, last = delay
            inside = _within(first, last, ranges)
            if not inside:
                left.append(delay)
                continue
            taken += inside
            outside = [(ready_at_ms, *each) for each in _without(first, last, inside)]
            left += outside
            if self._delayed_sum is not None:
                self._delayed_sum += sum(_product_of(*each) for each in outside)
                self._delayed_sum -= _product_of(*delay)
        heapify(left)
        self.delayed = left
        self.delayed_count = sum(last - first + 1 for _, first, last in left)
        taken.sort()
        self.waiting_bytes -= sum(self.store.bytes_of(first, last) for first, last in taken)
        return taken

    def take_put_aside(self) -> list[tuple[int, int, int]]:
        """Remove those that consumers put aside from what is delayed, and answer them with the
        times until which they shall be: the caller delays them again.
        """
        aside: list[tuple[int, int, int]] = []
        left: list[tuple[int, int, int]] = []
        for ready_at_ms, first, last in self.delayed:
            for start, end, mark in self.marks.segments(first, last):
                if mark is not None and mark.wish_ms is not None:
                    aside.append((start, end, mark.wish_ms))
                else:
                    left.append((ready_at_ms, start, end))
        if aside:
            heapify(left)
            self.delayed, self._delayed_sum = left, None
            self.delayed_count = sum(last - first + 1 for _, first, last in left)
        return sorted(aside)

    def missing(self, ranges: Sequence[tuple[int, int]]) -> int | None:
        """The first position of these ascending ranges that does not wait; None: all do."""
        found = [piece for first, last in ranges for piece in self.ready.pieces(first, last)]
        for _, first, last in self.delayed:
            found += _within(first, last, ranges)
        waiting: RangeMap[None] = RangeMap()
        for first, last in sorted(found):
            waiting.put(first, last, None)
        gaps = (waiting.missing(first, last) for first, last in ranges)
        return next((gap for gap in gaps if gap is not None), None)

    def take_head_bytes(self, wanted: int, look_at: int) -> tuple[int, int]:
        """As `take_head`: at most as many as are needed to be rid of so many bytes."""
        first, last = self.ready.front if self.ready.count else self.delayed[0][1:]
        count = 0
        for size in self.store.sizes_of(first, min(last, first + look_at - 1)):
            count += 1
            wanted -= size
            if wanted <= 0:
                break
        return self.take_head(count)

    def release(self, first: int, last: int) -> None:
        """These messages are done with; they wait no longer, and no consumer holds them."""
        if self.keyed is not None:
            self.keyed.forget(first, last)
        if self._leaving is not None:
            self._leaving.append((first, last, True))
            return
        if self.marks.count:
            self.marks.cut(first, last)
        self.store.release(first, last)

    def unmark(self, first: int, last: int) -> None:
        """These go into the outbox, which knows itself what is special about them."""
        if self.keyed is not None:
            self.keyed.forget(first, last)
        if self._leaving is not None:
            self._leaving.append((first, last, False))
        else:
            self.marks.cut(first, last)

    @contextmanager
    def leaving_together(self) -> Generator[None]:
        """What is released within is gone at its end. One by one, messages that are no neighbours
        would each move the marks of all others, and purging a queue with priorities take minutes.
        """
        leaving: list[tuple[int, int, bool]] = []
        self._leaving = leaving
        yield
        self._leaving = None
        leaving.sort()
        if self.marks.count:
            self.marks.cut_all(joined([(first, last) for first, last, _ in leaving]))
        for first, last in joined([(first, last) for first, last, goes in leaving if goes]):
            self.store.release(first, last)

    # --- looking ----------------------------------------------------------------------------------

    def chunks_of(self, first: int, last: int, token: int) -> list[Chunk]:
        """These messages as they are delivered: one chunk an entry and set of counts."""
        if not self.marks.count:
            return [
                Chunk(piece.first, piece.bodies, token, 0, 0)
                for piece in self.store.pieces(first, last)
            ]
        chunks: list[Chunk] = []
        for start, end, mark in self.marks.segments(first, last):
            mark = mark or NO_MARK
            chunks += [
                Chunk(piece.first, piece.bodies, token, mark.failed, mark.acquired, mark.deaths)
                for piece in self.store.pieces(start, end)
            ]
        return chunks

    def waiting(self) -> list[tuple[int, int, str]]:
        """(first, last, state)."""
        return [
            *((first, last, "ready") for _, first, last in self.ready),
            *((first, last, "delayed") for _, first, last in self.delayed),
        ]

    # --- snapshots --------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """What waits and what is special; the store is written beside it."""
        firsts, lasts, values = self.marks.dump()
        marks = [mark[:-1] if mark.wish_ms is None else mark for mark in values]
        return [self._dump_ready(), [pack(firsts), pack(lasts), marks], sorted(self.delayed)]

    def fingerprint(self) -> list[Any]:
        """As `dump`, less what is special: of that, sums that cost what changed."""
        if self._delayed_sum is None:
            self._delayed_sum = self._sum_of_delayed()
        delayed = [self.delayed_count, packed(self._delayed_sum)]
        ready = self._dump_ready() if self.keyed is None else self.keyed.fingerprint()
        return [ready, self.marks.fingerprint(), delayed]

    def _dump_ready(self) -> list[Any]:
        levels: list[Any] = []
        for priority, level in self.ready.levels():
            firsts, lasts, _ = level.dump()
            levels.append([priority, pack(firsts), pack(lasts)])
        return levels

    def _sum_of_delayed(self) -> int:
        return sum(_product_of(*delay) for delay in self.delayed)

    def load(self, store: Any, levels: Any, marks: Any, delayed: Any, waiting_bytes: int) -> None:
        self.store.load(store)
        for priority, firsts, lasts in levels:
            level: RangeMap[None] = RangeMap()
            column = unpack("q", firsts)
            level.load(column, unpack("q", lasts), [None] * len(column))
            self.ready.restore_level(priority, level)
        firsts, lasts, values = marks
        self.marks.load(unpack("q", firsts), unpack("q", lasts), [Mark(*value) for value in values])
        self.delayed = [(ready_at_ms, first, last) for ready_at_ms, first, last in delayed]
        self.delayed_count = sum(last - first + 1 for _, first, last in self.delayed)
        self._delayed_sum = None
        self.waiting_bytes = waiting_bytes

    def invariants(self) -> None:
        self.store.invariants()
        self.ready.invariants()
        self.marks.invariants()
        size = sum(self.store.bytes_of(first, last) for first, last, _ in self.waiting())
        assert size == self.waiting_bytes, "waiting bytes miscounted"
        assert self._delayed_sum in (None, self._sum_of_delayed()), "the sum of delays is wrong"
        for priority, level in self.ready.levels():
            for first, last, _ in level:
                for _, _, mark in self.marks.segments(first, last):
                    expected = self.identity.capped(mark.priority) if mark else 0
                    assert expected == priority, "ready at a wrong priority"


def _product_of(ready_at_ms: int, first: int, last: int) -> int:
    return (_DELAYED + _READY_AT * ready_at_ms) * weight(first, last)


def _within(first: int, last: int, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of one range is in these ascending ones."""
    slot = bisect_left(ranges, first, key=itemgetter(1))
    found: list[tuple[int, int]] = []
    while slot < len(ranges) and ranges[slot][0] <= last:
        found.append((max(first, ranges[slot][0]), min(last, ranges[slot][1])))
        slot += 1
    return found


def _without(first: int, last: int, cuts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The rest of a range, less these ascending parts of it."""
    left: list[tuple[int, int]] = []
    for start, end in cuts:
        if first < start:
            left.append((first, start - 1))
        first = end + 1
    return [*left, (first, last)] if first <= last else left
