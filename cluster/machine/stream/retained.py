"""The messages that a stream keeps: where each lies in the log, its size, its time, its subject.

Sequences are cut into segments of equal length, each with columns of its own, so that whatever has
to be moved, squeezed or searched is small however much is kept. A segment in which nothing lives is
gone. In one of which little is left the columns by sequence give way to lists of what lives.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import compress, count, starmap
from typing import Any, Final, NamedTuple

from cluster.machine.runs import ranges_of
from cluster.machine.store import (
    CHAIN_FACTOR,
    CHAIN_MASK,
    Piece,
    Store,
    pack,
    unpack,
)
from cluster.machine.stream.subjects import Filter, Subjects
from cluster.machine.sums import weight
from cluster.types import BodyRef

SEGMENT_BITS: Final = 12
SEGMENT: Final = 1 << SEGMENT_BITS
_WITHIN: Final = SEGMENT - 1
#: Of a full segment, so many living messages are listed rather than marked.
SPARSE_MAX: Final = SEGMENT // 16
BEHIND_ALL: Final = 1 << 62
#: In the first part of a dump.
HEAD_ITEMS: Final = 9


class Found(NamedTuple):
    """A message of a stream."""

    sequence: int
    subject: bytes
    bodies: BodyRef  # of this one; entry 0: see `cluster.machine.stream.leaving`
    stored_ms: int
    size: int


class Segment:
    """Sequences from `base` on. Ids are 0 where nothing lives."""

    __slots__ = ("alive", "base", "ids", "places", "store")

    def __init__(self, base: int) -> None:
        self.base = base
        self.store = Store()
        self.ids = array("I")  # by place; of a sparse segment as `places` says
        self.alive = bytearray()  # by place: 1 where a message lives
        self.places: array[int] | None = None  # sparse: of the living

    def append(
        self,
        sequence: int,
        ids: int | Sequence[int],
        index: int,
        offset: int,
        sizes: Sequence[int],
        now_ms: int,
    ) -> None:
        gap = sequence - self.base - len(self.ids)
        if gap:  # of sequences that were never kept, or are of a segment that was gone already
            self.ids.extend([0] * gap)
            self.alive.extend(bytes(gap))
        count = len(sizes)
        if not isinstance(ids, int):
            self.ids.extend(ids)
            self.alive.extend(b"\1" * count)
        elif count == 1:
            self.ids.append(ids)
            self.alive.append(1)
        else:
            self.ids.extend(array("I", [ids]) * count)
            self.alive.extend(b"\1" * count)
        self.store.next = sequence
        self.store.extend(count, index, offset, sizes, now_ms)

    def id_at(self, sequence: int) -> int:
        place = sequence - self.base
        if self.places is None:
            return self.ids[place] if place < len(self.ids) else 0
        at = bisect_left(self.places, place)
        return self.ids[at] if at < len(self.places) and self.places[at] == place else 0

    def next_live(self, sequence: int) -> int:
        """The first one at `sequence` or behind it; 0: none."""
        place = sequence - self.base
        if self.places is None:
            found = self.alive.find(1, place)
            return self.base + found if found >= 0 else 0
        at = bisect_left(self.places, place)
        return self.base + self.places[at] if at < len(self.places) else 0

    def next_meant(self, subject_ids: Container[int], sequence: int) -> int:
        """The first one at `sequence` or behind it of one of these subjects; 0: none."""
        start = sequence - self.base
        if self.places is None:
            places: Iterable[int] = count(start)
        else:
            start = bisect_left(self.places, start)
            places = self.places[start:]
        meant = map(subject_ids.__contains__, self.ids[start:])
        found = next(compress(places, meant), -1)
        return self.base + found if found >= 0 else 0

    def last_live(self, sequence: int) -> int:
        """The last one at `sequence` or before it; 0: none."""
        place = sequence - self.base
        if self.places is None:
            found = self.alive.rfind(1, 0, place + 1)
            return self.base + found if found >= 0 else 0
        at = bisect_right(self.places, place) - 1
        return self.base + self.places[at] if at >= 0 else 0

    def live_end(self, sequence: int, last: int) -> int:
        """All live from this one on up to there, at most `last`."""
        if self.places is None:
            place = sequence - self.base
            found = self.alive.find(0, place, last - self.base + 1)
            end = self.base + (found if found >= 0 else len(self.alive)) - 1
            return min(last, end)
        at = bisect_left(self.places, sequence - self.base)
        while sequence < last and at + 1 < len(self.places):
            at += 1
            if self.base + self.places[at] != sequence + 1:
                break
            sequence += 1
        return sequence

    def count_from(self, sequence: int) -> int:
        place = sequence - self.base
        if self.places is None:
            return self.alive.count(1, place)
        return len(self.places) - bisect_left(self.places, place)

    def live_ids(self, first: int, last: int) -> Sequence[int]:
        """Of messages that all live."""
        start = first - self.base
        if self.places is not None:
            start = bisect_left(self.places, start)
        return self.ids[start : start + last - first + 1]

    def remove(self, first: int, last: int) -> None:
        """All of these live."""
        start, count = first - self.base, last - first + 1
        self.store.release(first, last)
        if self.places is None:
            if count == 1:
                self.ids[start] = 0
                self.alive[start] = 0
            else:
                self.ids[start : start + count] = array("I", [0]) * count
                self.alive[start : start + count] = bytes(count)
            if self.store.count <= SPARSE_MAX and len(self.alive) == SEGMENT:
                self._thin_out()
        else:
            at = bisect_left(self.places, start)
            del self.places[at : at + count]
            del self.ids[at : at + count]

    def _thin_out(self) -> None:
        self.places = array("H", [place for place, lives in enumerate(self.alive) if lives])
        self.ids = array("I", filter(None, self.ids))
        self.alive = bytearray()

    # --- snapshots --------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """Its ids: as columns of places and ids where it is sparse, one number where all that lives
        follow each other and have one, else a column.
        """
        ids: Any
        if self.places is not None:
            ids = [pack(self.places), pack(self.ids)]
        elif self.store.count == len(self.ids) and _are_one(self.ids):
            ids = [len(self.ids), self.ids[0]]
        else:
            ids = pack(self.ids)
        return [self.base, ids, self.store.dump()]

    @classmethod
    def of(cls, row: Sequence[Any]) -> Segment:
        base, ids, store = row
        segment = cls(base)
        segment.store.load(store)
        if type(ids) is bytes:
            segment.ids = unpack("I", ids)
        elif type(ids[0]) is int:
            segment.ids = array("I", [ids[1]]) * ids[0]
        else:
            segment.places, segment.ids = unpack("H", ids[0]), unpack("I", ids[1])
        if segment.places is None:
            segment.alive = bytearray(map(bool, segment.ids))
        return segment

    def living(self) -> Iterator[tuple[int, int]]:
        """(sequence, id)."""
        if self.places is not None:
            for place, subject_id in zip(self.places, self.ids, strict=True):
                yield self.base + place, subject_id
        else:
            for sequence, subject_id in enumerate(self.ids, self.base):
                if subject_id:
                    yield sequence, subject_id

    def invariants(self) -> None:
        self.store.invariants()
        living = list(self.living())
        assert self.store.count == len(living) > 0, "a segment miscounts what lives in it"
        if self.places is None:
            assert bytes(self.alive) == bytes(map(bool, self.ids)), "alive, or not"
            assert len(self.ids) <= SEGMENT, "a segment is too long"
        else:
            assert list(self.places) == sorted(set(self.places)), "places are out of order"
        sizes = sum(starmap(self.store.bytes_of, ranges_of(at for at, _ in living)))
        assert sizes == self.store.bytes, "bytes of a segment miscounted"


class Retained:
    """All segments of one stream."""

    __slots__ = (
        "_numbers",
        "_segments",
        "bytes",
        "chain",
        "count",
        "first",
        "gone",
        "last_ms",
        "next",
        "on_removed",
        "subjects",
    )

    def __init__(self, first: int) -> None:
        self._segments: dict[int, Segment] = {}
        self._numbers: list[int] = []  # of the segments, ascending
        self.subjects = Subjects(self.is_live)
        #: Told of messages of one subject when they live no longer; (first, last, id).
        self.on_removed: Callable[[int, int, int], None] | None = None
        self.next = first  # sequence of the next message
        self.first = first  # of the first that lives; `next` when none does
        self.last_ms = 0  # when a message was last stored
        self.count = 0
        self.bytes = 0
        self.chain = 0  # of all that was ever stored
        self.gone = 0  # sum over all that lives no longer

    # --- changing ---------------------------------------------------------------------------------

    def append(
        self,
        ids: int | Sequence[int],
        index: int,
        offset: int,
        sizes: Sequence[int],
        now_ms: int,
    ) -> int:
        """Store messages of one subject, or of one each; the first sequence is answered.

        Times never fall: where a mirror goes on by itself, the clock of the other stream's leader
        may have been ahead.
        """
        now_ms = max(now_ms, self.last_ms)
        first, count = self.next, len(sizes)
        size = 0
        at = 0
        while at < count:
            sequence = first + at
            fits = min(count - at, SEGMENT - (sequence & _WITHIN))
            segment = self._segment_for(sequence)
            size -= segment.store.bytes
            if fits == count:
                segment.append(sequence, ids, index, offset, sizes, now_ms)
            else:
                some = ids if isinstance(ids, int) else ids[at : at + fits]
                part = sizes[at : at + fits]
                segment.append(sequence, some, index, offset + at, part, now_ms)
            size += segment.store.bytes
            at += fits
        if isinstance(ids, int):
            self.subjects.append(ids, first, first + count - 1)
            mixed = ids
        else:
            self.subjects.append_each(ids, first)
            mixed = sum(map(int.__mul__, ids, range(1, count + 1)))
        if not self.count:
            self.first = first
        self.count += count
        self.bytes += size
        self.next = first + count
        self.last_ms = now_ms
        self.mix((index << 20) + offset + (count << 8) + now_ms + size + (mixed << 32))
        return first

    def add_parts(self, sequence: int, indexes: Sequence[tuple[int, int]]) -> None:
        """The body of this living message goes on in these entries."""
        self._segments[sequence >> SEGMENT_BITS].store.add_parts(sequence, indexes)

    def is_large(self, sequence: int) -> bool:
        segment = self._segments.get(sequence >> SEGMENT_BITS)
        return segment is not None and bool(segment.store.parts_of(sequence, sequence))

    def skip(self, count: int) -> int:
        """Give sequences to messages that are not kept. Answers the first."""
        first = self.next
        self.next += count
        if not self.count:
            self.first = self.next
        return first

    def unskip(self, first: int, count: int) -> None:
        """Unless anything else than `skip` gave a sequence since `first` was the next one."""
        if not self.last_ms and self.next == first + count:
            self.next = self.first = first

    def mix(self, number: int) -> None:
        self.chain = (self.chain * CHAIN_FACTOR + number) & CHAIN_MASK

    def _segment_for(self, sequence: int) -> Segment:
        number = sequence >> SEGMENT_BITS
        segment = self._segments.get(number)
        if segment is None:
            segment = self._segments[number] = Segment(number << SEGMENT_BITS)
            self._numbers.append(number)
        return segment

    def remove(self, first: int, last: int) -> tuple[int, int]:
        """All that lives of the range goes. Answers how many, and their bytes."""
        count, size = self.count, self.bytes
        sequence = self.next_live(first)
        while sequence and sequence <= last:
            segment = self._segments[sequence >> SEGMENT_BITS]
            end = segment.live_end(sequence, min(last, segment.base + _WITHIN))
            self._remove(segment, sequence, end)
            sequence = self.next_live(end + 1)
        if first <= self.first <= last:
            self.first = sequence or self.next
        return count - self.count, size - self.bytes

    def _remove(self, segment: Segment, first: int, last: int) -> None:
        """All of these live."""
        ids = segment.live_ids(first, last)
        self.bytes -= segment.store.bytes
        segment.remove(first, last)
        self.bytes += segment.store.bytes
        self.count -= last - first + 1
        self.gone += weight(first, last)
        if not segment.store.count:
            number = segment.base >> SEGMENT_BITS
            del self._segments[number]
            del self._numbers[bisect_left(self._numbers, number)]
        told, subjects = self.on_removed, self.subjects
        start, size = 0, len(ids)
        while start < size:
            subject_id = ids[start]
            end = start + 1
            while end < size and ids[end] == subject_id:
                end += 1
            if told is not None:
                told(first + start, first + end - 1, subject_id)
            subjects.remove(subject_id, first + start, first + end - 1)
            start = end

    def clear(self) -> None:
        """Nothing lives any more."""
        self.mix(self.next)
        self._segments.clear()
        self._numbers.clear()
        self.subjects.clear()
        self.gone = self.count = self.bytes = 0
        self.first = self.next

    # --- reading ----------------------------------------------------------------------------------

    def id_at(self, sequence: int) -> int:
        """Of its subject; 0: no such message lives."""
        segment = self._segments.get(sequence >> SEGMENT_BITS)
        return 0 if segment is None else segment.id_at(sequence)

    def ids_of(self, first: int, count: int) -> Sequence[int]:
        """The same of so many in a row."""
        segment = self._segments.get(first >> SEGMENT_BITS)
        if segment is not None and segment.places is None:
            start = first - segment.base
            if start + count <= len(segment.ids):
                return segment.ids[start : start + count]
        return [self.id_at(sequence) for sequence in range(first, first + count)]

    def is_live(self, sequence: int) -> bool:
        return self.id_at(sequence) > 0

    def next_live(self, sequence: int) -> int:
        """The first one at `sequence` or behind it; 0: none."""
        if sequence <= self.first:
            return self.first if self.count else 0
        if sequence >= self.next:
            return 0
        number = sequence >> SEGMENT_BITS
        segment = self._segments.get(number)
        if segment is not None and (found := segment.next_live(sequence)):
            return found
        at = bisect_right(self._numbers, number)
        if at == len(self._numbers):
            return 0
        segment = self._segments[self._numbers[at]]
        return segment.next_live(segment.base)

    def last_live(self, sequence: int) -> int:
        """The last one at `sequence` or before it; 0: none."""
        sequence = min(sequence, self.next - 1)
        number = sequence >> SEGMENT_BITS
        segment = self._segments.get(number)
        if segment is not None and (found := segment.last_live(sequence)):
            return found
        at = bisect_left(self._numbers, number)
        if not at:
            return 0
        segment = self._segments[self._numbers[at - 1]]
        return segment.last_live(segment.base + _WITHIN)

    def live_end(self, sequence: int, last: int) -> int:
        """All live from this living one on up to there, at most `last`; perhaps more do."""
        segment = self._segments[sequence >> SEGMENT_BITS]
        return segment.live_end(sequence, min(last, segment.base + _WITHIN))

    def next_meant(self, subject_ids: Container[int], sequence: int, end: int) -> int:
        """The first living message of one of these subjects at `sequence` or behind it, and before
        `end`; 0: none.
        """
        at = bisect_left(self._numbers, sequence >> SEGMENT_BITS)
        while at < len(self._numbers):
            segment = self._segments[self._numbers[at]]
            if segment.base >= end:
                break
            found = segment.next_meant(subject_ids, max(sequence, segment.base))
            if found:
                return found if found < end else 0
            at += 1
        return 0

    def run_of(self, wanted: Filter, sequence: int, last: int) -> int:
        """From this living message on all live and are meant, up to there."""
        end = self.live_end(sequence, last)
        ids = wanted.ids
        if not wanted.patterns or len(ids) == len(self.subjects) or end == sequence:
            return end
        segment = self._segments[sequence >> SEGMENT_BITS]
        for subject_id in segment.live_ids(sequence, end):
            if subject_id not in ids:
                break
            sequence += 1
        return sequence - 1

    def count_of(self, wanted: Filter, sequence: int) -> int:
        """Living messages at `sequence` or behind it that the filter means."""
        if wanted.patterns and len(wanted.ids) != len(self.subjects):
            return sum(self.subjects.count_from(each, sequence) for each in wanted.ids)
        if sequence <= self.first:
            return self.count
        number = sequence >> SEGMENT_BITS
        segment = self._segments.get(number)
        count = 0 if segment is None else segment.count_from(sequence)
        behind = self._numbers[bisect_right(self._numbers, number) :]
        return count + sum(self._segments[each].store.count for each in behind)

    def pieces(self, first: int, last: int) -> Iterator[Piece]:
        """Where the bodies of these messages lie, which all live."""
        while first <= last:
            segment = self._segments[first >> SEGMENT_BITS]
            end = min(last, segment.base + _WITHIN)
            yield from segment.store.pieces(first, end)
            first = end + 1

    def sizes_of(self, first: int, last: int) -> list[int]:
        """Of messages that all live."""
        sizes: list[int] = []
        while first <= last:
            segment = self._segments[first >> SEGMENT_BITS]
            end = min(last, segment.base + _WITHIN)
            sizes += segment.store.sizes_of(first, end)
            first = end + 1
        return sizes

    def size_of(self, sequence: int) -> int:
        return self._segments[sequence >> SEGMENT_BITS].store.bytes_of(sequence, sequence)

    def time_of(self, sequence: int) -> int:
        """Of one that lives."""
        return self._segments[sequence >> SEGMENT_BITS].store.time_of(sequence)

    def run_end(self, sequence: int) -> int:
        """The last one that was stored together with this living one; perhaps it is gone."""
        return self._segments[sequence >> SEGMENT_BITS].store.run_end(sequence)

    def since(self, at_ms: int) -> int:
        """The first living message that was stored then or later; `next`: none."""
        numbers = self._numbers
        low, high = 0, len(numbers)
        while low < high:  # the first segment that holds such a run, or begins with one
            middle = (low + high) // 2
            store = self._segments[numbers[middle]].store
            if store.first_since(at_ms) < store.next:
                high = middle
            else:
                low = middle + 1
        if low == len(numbers):
            return self.next
        segment = self._segments[numbers[low]]
        return self.next_live(segment.store.first_since(at_ms)) or self.next

    def find(self, sequence: int) -> Found | None:
        subject_id = self.id_at(sequence)
        if not subject_id:
            return None
        segment = self._segments[sequence >> SEGMENT_BITS]
        _, _, bodies, stored_ms = segment.store.pieces(sequence, sequence)[0]
        size = segment.store.bytes_of(sequence, sequence)
        return Found(sequence, self.subjects.name_of(subject_id), bodies, stored_ms, size)

    def extents(self, first: int = 0, last: int = BEHIND_ALL) -> Iterator[tuple[int, int]]:
        """Ranges of what lives between these, ascending; neighbours may touch. What lives may go
        as they come.
        """
        sequence = self.next_live(first)
        while sequence and sequence <= last:
            end = self.live_end(sequence, last)
            yield sequence, end
            sequence = self.next_live(end + 1)

    def gaps(self) -> Iterator[tuple[int, int]]:
        """What is missing between the first and the last sequence."""
        before = self.first - 1
        for first, last in self.extents():
            if first > before + 1:
                yield before + 1, first - 1
            before = last
        if before + 1 < self.next:
            yield before + 1, self.next - 1

    def live_indexes(self) -> list[tuple[int, int]]:
        """Entries that hold a living body, as ranges."""
        ranges: list[tuple[int, int]] = []
        for number in self._numbers:
            for first, last in self._segments[number].store.live_indexes():
                if ranges and ranges[-1][0] <= first <= ranges[-1][1] + 1:
                    ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
                elif last:
                    ranges.append((max(1, first), last))
        return ranges

    # --- snapshots --------------------------------------------------------------------------------

    def fingerprint(self) -> list[int]:
        return [self.next, self.count, self.bytes, self.chain, self.gone & CHAIN_MASK, self.last_ms]

    def dump(self) -> tuple[list[Any], list[Any]]:
        """What it is, and its segments."""
        return (
            [*self.fingerprint(), self.first, *self.subjects.dump()],
            [self._segments[number].dump() for number in self._numbers],
        )

    def load(self, head: Sequence[Any], segments: Sequence[Any]) -> None:
        """Into one that was just made."""
        (
            self.next,
            self.count,
            self.bytes,
            self.chain,
            self.gone,
            self.last_ms,
            self.first,
            names,
            free,
        ) = head
        self.subjects.load(names, free)
        for row in segments:
            segment = Segment.of(row)
            number = segment.base >> SEGMENT_BITS
            self._segments[number] = segment
            self._numbers.append(number)
            ids = segment.ids
            if segment.places is None and _are_one(ids):
                self.subjects.append(ids[0], segment.base, segment.base + len(ids) - 1)
                continue
            for sequence, subject_id in segment.living():
                self.subjects.append(subject_id, sequence, sequence)

    def invariants(self) -> None:
        assert self._numbers == sorted(self._segments), "segments are out of order"
        for number in self._numbers:
            segment = self._segments[number]
            assert segment.base >> SEGMENT_BITS == number, "a segment is at another's place"
            segment.invariants()
        stores = [segment.store for segment in self._segments.values()]
        assert sum(store.count for store in stores) == self.count, "messages miscounted"
        assert sum(store.bytes for store in stores) == self.bytes, "bytes miscounted"
        living = [at for first, last in self.extents() for at in range(first, last + 1)]
        assert len(living) == self.count, "extents miss something"
        assert self.first == (living[0] if living else self.next), "another one is the first"
        assert not living or living[-1] < self.next, "a message lies behind the next"
        self.subjects.invariants()


def _are_one(ids: array[int]) -> bool:
    return ids[0] == ids[-1] and ids == array("I", ids[:1]) * len(ids)
