"""Sorted ranges of positions with values: the one structure behind ready, unsettled and marked.

A million messages in a row are one range. Ranges that touch and carry equal values are always one,
so equal contents have equal columns, whatever way led there: snapshots can be compared as bytes.

Columns are packed. Work happens near the head (deliver, settle, return) or at the tail (enqueue):
a change moves whichever side of it is shorter; space freed at the head is kept as slack and given
back when it is half of the column.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")

SLACK_MIN = 32
#: So many cuts may each move the columns.
CUTS_ONE_BY_ONE = 8
#: Behind every position.
NO_CUT = (1 << 63, 1 << 63)


class RangeMap(Generic[V]):
    """Maps positions to values, range by range."""

    __slots__ = ("_firsts", "_head", "_lasts", "_values", "count")

    def __init__(self) -> None:
        self._firsts = array("q")
        self._lasts = array("q")
        self._values: list[V | None] = []  # None in the slack; a value of V's own elsewhere
        self._head = 0  # slots below are slack
        self.count = 0  # positions, not ranges

    # --- reading ----------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[tuple[int, int, V]]:
        for slot in range(self._head, len(self._firsts)):
            yield self._firsts[slot], self._lasts[slot], self._values[slot]  # type: ignore[misc]

    def ranges_from(self, start: int) -> Iterator[tuple[int, int, V]]:
        """The ranges at or behind `start`, the first one cut to it."""
        slot = bisect_right(self._firsts, start, self._head) - 1
        if slot < self._head or self._lasts[slot] < start:
            slot += 1
        for at in range(slot, len(self._firsts)):
            value: V = self._values[at]  # type: ignore[assignment]
            yield max(self._firsts[at], start), self._lasts[at], value

    @property
    def range_count(self) -> int:
        return len(self._firsts) - self._head

    @property
    def head(self) -> tuple[int, int]:
        """The lowest range. Only when not empty."""
        return self._firsts[self._head], self._lasts[self._head]

    @property
    def end(self) -> int:
        """The highest position, 0 when empty."""
        return self._lasts[-1] if self.count else 0

    def get(self, position: int) -> V | None:
        slot = bisect_right(self._firsts, position, self._head) - 1
        if slot < self._head or self._lasts[slot] < position:
            return None
        return self._values[slot]

    def __contains__(self, position: int) -> bool:
        slot = bisect_right(self._firsts, position, self._head) - 1
        return slot >= self._head and self._lasts[slot] >= position

    def missing(self, first: int, last: int) -> int | None:
        """The first position of the range that is not here; None when all are."""
        firsts, lasts = self._firsts, self._lasts
        slot = bisect_right(firsts, first, self._head) - 1
        if slot < self._head:
            return first
        size = len(firsts)
        while slot < size and firsts[slot] <= first <= lasts[slot]:
            first = lasts[slot] + 1
            if first > last:
                return None
            slot += 1
        return first

    def pieces(self, first: int, last: int) -> list[tuple[int, int, V]]:
        """What is here of the range, cut to it."""
        firsts, lasts = self._firsts, self._lasts
        slot = bisect_right(firsts, first, self._head) - 1
        if slot < self._head or lasts[slot] < first:
            slot += 1
        found: list[tuple[int, int, V]] = []
        size = len(firsts)
        while slot < size and firsts[slot] <= last:
            value: V = self._values[slot]  # type: ignore[assignment]
            found.append((max(firsts[slot], first), min(lasts[slot], last), value))
            slot += 1
        return found

    def segments(self, first: int, last: int) -> list[tuple[int, int, V | None]]:
        """The whole range, with None where nothing is here."""
        return list(self.walk(first, last)) if self.count else [(first, last, None)]

    def walk(self, first: int, last: int) -> Iterator[tuple[int, int, V | None]]:
        """The segments one at a time. Nothing may change meanwhile."""
        for start, end, value in self.ranges_from(first):
            if start > last:
                break
            if start > first:
                yield first, start - 1, None
            yield start, min(end, last), value
            first = end + 1
        if first <= last:
            yield first, last, None

    # --- changing ---------------------------------------------------------------------------------

    def put(self, first: int, last: int, value: V) -> None:
        """Add a range of which nothing is here yet."""
        firsts, lasts = self._firsts, self._lasts
        self.count += last - first + 1
        size = len(firsts)
        if size == self._head or first > lasts[-1]:
            if size > self._head and first == lasts[-1] + 1 and self._values[-1] == value:
                lasts[-1] = last
                return
            firsts.append(first)
            lasts.append(last)
            self._values.append(value)
            return
        slot = bisect_right(firsts, first, self._head)
        start = end = slot
        if slot > self._head and lasts[slot - 1] == first - 1 and self._values[slot - 1] == value:
            first = firsts[slot - 1]
            start = slot - 1
        if firsts[slot] == last + 1 and self._values[slot] == value:
            last = lasts[slot]
            end = slot + 1
        self._splice(start, end, [(first, last, value)])

    def cut(self, first: int, last: int) -> list[tuple[int, int, V]]:
        """Remove whatever is here of the range, and answer it."""
        firsts, lasts = self._firsts, self._lasts
        start = bisect_right(firsts, first, self._head) - 1
        if start < self._head or lasts[start] < first:
            start += 1
        size = len(firsts)
        removed: list[tuple[int, int, V]] = []
        keep: list[tuple[int, int, V]] = []
        end = start
        while end < size and firsts[end] <= last:
            piece_first, piece_last = firsts[end], lasts[end]
            value: V = self._values[end]  # type: ignore[assignment]
            if piece_first < first:
                keep.append((piece_first, first - 1, value))
                piece_first = first
            if piece_last > last:
                keep.append((last + 1, piece_last, value))
                piece_last = last
            removed.append((piece_first, piece_last, value))
            self.count -= piece_last - piece_first + 1
            end += 1
        if removed:
            self._splice(start, end, keep)
        return removed

    def take(self, limit: int) -> tuple[int, int]:
        """Remove up to `limit` positions of the lowest range. Only when not empty."""
        slot = self._head
        first, last = self._firsts[slot], self._lasts[slot]
        if last - first >= limit:
            last = first + limit - 1
            self._firsts[slot] = last + 1
        else:
            self._values[slot] = None
            self._head = slot + 1
            self._trim()
        self.count -= last - first + 1
        return first, last

    def assign(self, first: int, last: int, value: V | None) -> None:
        """Set the whole range to `value`, or forget it with None."""
        if value is not None and self._replace(first, last, value):
            return
        self.cut(first, last)
        if value is not None:
            self.put(first, last, value)

    def _replace(self, first: int, last: int, value: V) -> bool:
        """In its place, where nothing has to move: True if so."""
        firsts, lasts, values = self._firsts, self._lasts, self._values
        slot = bisect_right(firsts, first, self._head) - 1
        if slot < self._head or firsts[slot] != first or lasts[slot] != last:
            return False
        if slot > self._head and lasts[slot - 1] == first - 1 and values[slot - 1] == value:
            return False
        after = slot + 1
        if after < len(firsts) and firsts[after] == last + 1 and values[after] == value:
            return False
        values[slot] = value
        return True

    def cut_all(self, ranges: Sequence[tuple[int, int]]) -> None:
        """`cut` for ascending ranges that do not touch: however many, everything moves once."""
        if len(ranges) <= CUTS_ONE_BY_ONE:
            for first, last in ranges:
                self.cut(first, last)
            return
        kept: RangeMap[V] = RangeMap()
        cuts = iter(ranges)
        cut_first, cut_last = next(cuts)
        for first, last, value in self:
            start = first
            while start <= last and cut_first <= last:
                if cut_last < start:
                    cut_first, cut_last = next(cuts, NO_CUT)
                    continue
                if start < cut_first:
                    kept.put(start, cut_first - 1, value)
                start = cut_last + 1
            if start <= last:
                kept.put(start, last, value)
        self._firsts, self._lasts, self._values = kept._firsts, kept._lasts, kept._values
        self._head, self.count = kept._head, kept.count

    def clear(self) -> None:
        self.__init__()

    def _splice(self, start: int, end: int, pieces: Sequence[tuple[int, int, V]]) -> None:
        """Put `pieces` in the place of the slots from `start` up to `end`."""
        if not pieces and start == self._head:  # nothing has to move
            self._values[start:end] = [None] * (end - start)
            self._head = end
            self._trim()
            return
        grow = len(pieces) - (end - start)
        if grow and start - self._head < len(self._firsts) - end:
            if grow > self._head:
                opened = self._open_front(grow)
                start, end = start + opened, end + opened
            old = self._head
            self._head = old - grow
            for column in (self._firsts, self._lasts, self._values):
                column[old - grow : start - grow] = column[old:start]  # type: ignore[index]
            if grow < 0:
                self._values[old : self._head] = [None] * -grow
            start -= grow
        for slot, (first, last, value) in enumerate(pieces[: end - start], start):
            self._firsts[slot] = first
            self._lasts[slot] = last
            self._values[slot] = value
        rest = pieces[end - start :]
        if rest or len(pieces) < end - start:
            start += len(pieces) - len(rest)
            self._firsts[start:end] = array("q", [piece[0] for piece in rest])
            self._lasts[start:end] = array("q", [piece[1] for piece in rest])
            self._values[start:end] = [piece[2] for piece in rest]
        self._trim()

    def _open_front(self, wanted: int) -> int:
        """Make slack, a share of the size, so that many inserts at the head cost one move."""
        opened = wanted + max(SLACK_MIN // 2, self.range_count // 8)
        blank = array("q", bytes(8 * opened))
        self._firsts[0:0] = blank
        self._lasts[0:0] = blank
        self._values[0:0] = [None] * opened
        self._head += opened
        return opened

    def _trim(self) -> None:
        head = self._head
        if head > SLACK_MIN and head * 2 > len(self._firsts):
            del self._firsts[:head]
            del self._lasts[:head]
            del self._values[:head]
            self._head = 0

    # --- snapshots --------------------------------------------------------------------------------

    def dump(self) -> tuple[array[int], array[int], list[V]]:
        """Firsts, lasts and values."""
        head = self._head
        return self._firsts[head:], self._lasts[head:], self._values[head:]  # type: ignore[return-value]

    def load(self, firsts: Sequence[int], lasts: Sequence[int], values: Sequence[V]) -> None:
        self.clear()
        for first, last, value in zip(firsts, lasts, values, strict=True):
            self.put(first, last, value)

    def invariants(self) -> None:
        before: tuple[int, V] | None = None
        count = 0
        for first, last, value in self:
            assert 0 < first <= last, "a range is empty or below 1"
            if before is not None:
                assert before[0] < first, "ranges overlap or are out of order"
                assert before[0] + 1 < first or before[1] != value, "two ranges should be one"
            before = (last, value)
            count += last - first + 1
        assert count == self.count, "the count is wrong"
        sizes = (len(self._firsts), len(self._lasts), len(self._values))
        assert min(sizes) == max(sizes), "columns differ in length"


def ranges_of(positions: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending positions, none of them twice, as ranges: neighbours are one."""
    found: list[tuple[int, int]] = []
    first = last = -1
    for position in positions:
        if position == last + 1 and first >= 0:
            last = position
            continue
        if first >= 0:
            found.append((first, last))
        first = last = position
    if first >= 0:
        found.append((first, last))
    return found


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending ranges; those that touch or overlap are one."""
    found: list[tuple[int, int]] = []
    for first, last in ranges:
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found
