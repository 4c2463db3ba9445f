"""What the records of one group add up to, read in order.

For every index the newest record counts. Records may be missing where segments were dropped, so
gaps are fine while reading; the sum must have none. An entry voids all that was above it, a
truncate and a resetting mark too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import cbor2

from cluster.log import format as fmt
from cluster.log.index import Columns, Place, Sparse, Tail
from cluster.log.snapshots import BIRTH, Ranges, decode_mark


class Scattered(Columns):
    """Entries in no order."""

    def __init__(self) -> None:
        super().__init__()
        self.indexes: array[int] = array("Q")
        self.highest = 0

    def put(self, index: int, segment: int, offset: int, length: int, term: int) -> None:
        self.indexes.append(index)
        self.append(segment, offset, length, term)
        self.highest = max(self.highest, index)

    def cut(self, index: int) -> None:
        """Forget the entries from `index` on."""
        if index <= self.highest:
            kept = Scattered()
            for slot, its_index in enumerate(self.indexes):
                if its_index < index:
                    kept.put(its_index, *self.place(slot), self.terms[slot])
            self.indexes, self.highest = kept.indexes, kept.highest
            self.segments, self.offsets, self.lengths, self.terms = (
                kept.segments,
                kept.offsets,
                kept.lengths,
                kept.terms,
            )


class Replay:
    """One group's records so far."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.term = 0
        self.voted_for: str | None = None
        self.votes_suspended = False
        self.forced: bytes | None = None
        self.diverged: bool | None = None
        self.commit = BIRTH.index
        self.mark = BIRTH
        self.run = Tail(BIRTH.index + 1)  # the latest entries without a gap
        self.next = self.run.first
        self.scattered = Scattered()  # those before it, and those written again
        self.staged = Scattered()  # of installs; they count only below a snapshot
        self.memberships = set[int]()  # where an entry about members is, or once was

    def jump(self, index: int) -> None:
        """The next entry is not the expected one: it replaces some, or some before it are gone."""
        run = self.run
        if index > self.next:
            self._scatter()
            self.run = Tail(index)
        elif index > run.first:
            run.delete(index - run.first, len(run))
        else:
            self.run = Tail(index)
        self.next = index
        self.scattered.cut(index)

    def _scatter(self) -> None:
        run, scattered = self.run, self.scattered
        if len(run):
            scattered.take(run, 0, len(run))
            scattered.indexes.extend(range(run.first, run.first + len(run)))
            scattered.highest = max(scattered.highest, run.first + len(run) - 1)

    def cut(self, index: int) -> None:
        """A truncate: nothing from `index` on counts."""
        if index < self.next:
            self.jump(index)
        else:
            self.scattered.cut(index)

    def state(self, kind: int, index: int, term: int, payload: bytes) -> None:
        """A record that is not about an entry."""
        if kind == fmt.KIND_HARD_STATE:
            self.term = term
            self.voted_for, *rest = cbor2.loads(payload)
            self.votes_suspended = rest == [True]
        elif kind == fmt.KIND_FORCED:
            self.forced = payload
            if term > self.term:  # it begins with this record
                self.term, self.voted_for, self.votes_suspended = term, None, False
        elif kind == fmt.KIND_COMMIT:
            self.commit = index
        elif kind == fmt.KIND_TRUNCATE:
            self.cut(index)
        elif kind == fmt.KIND_SNAPSHOT:
            self.mark = decode_mark(index, term, payload)
            if self.mark.flags & fmt.MARK_RESETS:
                self.cut(index + 1)

    def above(self, base: int) -> tuple[Tail, int | None]:
        """The entries above the base, and the first missing index among them."""
        run = self.run
        if run.first <= base + 1 and self.scattered.highest <= base:
            tail = Tail(base + 1)
            tail.take(run, min(base + 1 - run.first, len(run)), len(run))
            return tail, None
        top = max(self.next - 1, self.scattered.highest)
        newest = self._newest([(base + 1, top)], [self.scattered])
        tail = Tail(base + 1)
        for index in range(base + 1, max(newest, default=base) + 1):
            if index not in newest:
                return tail, index
            place, term = newest[index]
            tail.append(*place, term)
        return tail, None

    def below(self, live: Ranges) -> tuple[Sparse, int | None]:
        """The live entries at or below the base, and the first missing one."""
        newest = self._newest(live, [self.scattered, self.staged])
        kept = Sparse()
        for first, last in live:
            for index in range(first, last + 1):
                if index not in newest:
                    return kept, index
                place, term = newest[index]
                kept.put(index, place, term)
        return kept, None

    def _newest(self, ranges: Ranges, sources: list[Scattered]) -> dict[int, tuple[Place, int]]:
        """The newest record of every index in the ranges."""
        found = dict[int, tuple[Place, int]]()
        run = self.run
        for first, last in ranges:
            for index in range(max(first, run.first), min(last + 1, self.next)):
                found[index] = (run.place(index - run.first), run.terms[index - run.first])
        starts = [first for first, _ in ranges]
        for source in sources:
            for slot, index in enumerate(source.indexes):
                at = bisect_right(starts, index) - 1
                if at < 0 or index > ranges[at][1]:
                    continue
                place = source.place(slot)
                known = found.get(index)
                if known is None or known[0][:2] < place[:2]:
                    found[index] = (place, source.terms[slot])
        return found
