"""Where entries lie: packed columns, since a million entries must cost megabytes. The newest ones
are in memory themselves.

A place is (segment number, offset of the record, length of its payload).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple


class Place(NamedTuple):
    """Where a record lies."""

    segment: int
    offset: int
    length: int


class Columns:
    """Places and terms of entries, in order of arrival. 20 bytes an entry."""

    def __init__(self) -> None:
        self.segments: array[int] = array("I")
        self.offsets: array[int] = array("I")
        self.lengths: array[int] = array("I")
        self.terms: array[int] = array("Q")

    def __len__(self) -> int:
        return len(self.segments)

    def append(self, segment: int, offset: int, length: int, term: int) -> None:
        self.segments.append(segment)
        self.offsets.append(offset)
        self.lengths.append(length)
        self.terms.append(term)

    def place(self, at: int) -> Place:
        return Place(self.segments[at], self.offsets[at], self.lengths[at])

    def move(self, at: int, segment: int, offset: int) -> None:
        self.segments[at] = segment
        self.offsets[at] = offset

    def take(self, other: Columns, start: int, stop: int) -> None:
        self.segments.extend(other.segments[start:stop])
        self.offsets.extend(other.offsets[start:stop])
        self.lengths.extend(other.lengths[start:stop])
        self.terms.extend(other.terms[start:stop])

    def delete(self, start: int, stop: int) -> None:
        del self.segments[start:stop]
        del self.offsets[start:stop]
        del self.lengths[start:stop]
        del self.terms[start:stop]

    def positions_in(self, segment: int) -> Iterator[int]:
        """Slots that lie in that segment."""
        at = 0
        while True:
            try:
                at = self.segments.index(segment, at)
            except ValueError:
                return
            yield at
            at += 1


class Tail(Columns):
    """The entries from `first` on, without a gap."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first

    def slot(self, index: int) -> int | None:
        at = index - self.first
        return at if 0 <= at < len(self.segments) else None


class Sparse(Columns):
    """Some entries, by ascending index. 28 bytes an entry."""

    def __init__(self) -> None:
        super().__init__()
        self.indexes: array[int] = array("Q")

    def put(self, index: int, place: Place, term: int) -> None:
        """At the end; indexes must ascend."""
        assert not self.indexes or index > self.indexes[-1]
        self.indexes.append(index)
        self.append(*place, term)

    def slot(self, index: int) -> int | None:
        at = bisect_left(self.indexes, index)
        return at if at < len(self.indexes) and self.indexes[at] == index else None

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Slots of the entries from `first` to `last`."""
        return bisect_left(self.indexes, first), bisect_left(self.indexes, last + 1)

    def delete(self, start: int, stop: int) -> None:
        super().delete(start, stop)
        del self.indexes[start:stop]


#: What an entry in memory costs besides its bytes.
_ENTRY_OVERHEAD: Final = 150


class HotTail:
    """The newest entries of all groups, kept in memory up to a number of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._queue = deque[tuple[dict[int, bytes], int, bytes]]()

    def keep(self, entries: dict[int, bytes], index: int, data: bytes) -> None:
        entries[index] = data
        self._queue.append((entries, index, data))
        self.bytes += len(data) + _ENTRY_OVERHEAD
        while self.bytes > self.bytes_max and len(self._queue) > 1:
            entries, index, data = self._queue.popleft()
            if entries.get(index) is data:
                del entries[index]
            self.bytes -= len(data) + _ENTRY_OVERHEAD
