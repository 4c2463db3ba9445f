"""Where each message of a queue lies in the log: entries, sizes, times by position; never bodies.

A run is what one command stored: consecutive positions whose bodies are consecutive in one entry.
It costs 44 bytes however many messages it holds, 4 more for each message when their sizes differ.
Runs die as their messages are released: dead ones at the head are trimmed, dead ones in the middle
are squeezed out when they outnumber the living.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from cluster.types import BodyRef, made

TRIM_MIN = 64
CHAIN_FACTOR = 6364136223846793005  # a multiplier that mixes well modulo 2**64 (Knuth)
CHAIN_MASK = (1 << 64) - 1
BIG_ENDIAN = array("H", [1]).tobytes()[0] == 0


class Piece(NamedTuple):
    """Part of a run."""

    first: int
    last: int
    bodies: BodyRef
    enqueued_ms: int


class Store:
    """Columns of runs, ordered by position."""

    __slots__ = (
        "_base",
        "_counts",
        "_dead",
        "_firsts",
        "_head",
        "_indexes",
        "_lives",
        "_offsets",
        "_parts",
        "_sizes",
        "_times",
        "_uneven",
        "bytes",
        "chain",
        "count",
        "next",
    )

    def __init__(self) -> None:
        self._firsts = array("q")
        self._counts = array("I")
        self._indexes = array("q")
        self._offsets = array("I")
        self._lives = array("I")  # positions of the run not released yet
        self._sizes = array("q")  # of each message; or ~(place of the first size in `_uneven`)
        self._times = array("q")  # never falls from run to run
        self._uneven = array("I")  # sizes, one per message, of runs whose sizes differ
        self._base = 0  # place of `_uneven[0]`
        self._head = 0  # runs below are released
        # of live large messages, by position: the entries with the rest of the body, as ranges
        self._parts: dict[int, tuple[tuple[int, int], ...]] = {}
        self._dead = 0  # released runs from the head on
        self.chain = 0  # of all runs ever appended: equal histories have equal chains
        self.next = 1  # position of the next message
        self.count = 0  # live messages
        self.bytes = 0  # of live messages

    # --- changing ---------------------------------------------------------------------------------

    def append(self, count: int, index: int, offset: int, sizes: Sequence[int], now_ms: int) -> int:
        """Give `count` messages the next positions; the first one is answered."""
        first = self.next
        self._firsts.append(first)
        self._counts.append(count)
        self._indexes.append(index)
        self._offsets.append(offset)
        self._lives.append(count)
        self._times.append(now_ms)
        size = sizes[0]
        if count == 1 or sizes.count(size) == count:
            self._sizes.append(size)
            stored = size * count
        else:
            self._sizes.append(~(self._base + len(self._uneven)))
            self._uneven.extend(sizes)
            stored = sum(sizes)
        self.bytes += stored
        self.count += count
        self.next = first + count
        mixed = (index << 20) + offset + (count << 8) + now_ms + stored
        self.chain = (self.chain * CHAIN_FACTOR + mixed) & CHAIN_MASK
        return first

    def extend(self, count: int, index: int, offset: int, sizes: Sequence[int], now_ms: int) -> int:
        """As `append`, within the last run where they go on with it: it is one run then, although
        more than one command stored it, or a command one by one.
        """
        slot = len(self._firsts) - 1
        if slot < self._head or not self._lives[slot]:
            return self.append(count, index, offset, sizes, now_ms)
        known = self._counts[slot]
        first = self.next
        if (
            self._indexes[slot] != index
            or self._offsets[slot] + known != offset
            or self._times[slot] != now_ms
            or self._firsts[slot] + known != first
        ):
            return self.append(count, index, offset, sizes, now_ms)
        size = self._sizes[slot]
        if size < 0 or sizes.count(size) != count:
            if size >= 0:
                self._sizes[slot] = ~(self._base + len(self._uneven))
                self._uneven.extend([size] * known)
            self._uneven.extend(sizes)
        stored = sum(sizes)
        self._counts[slot] = known + count
        self._lives[slot] += count
        self.bytes += stored
        self.count += count
        self.next = first + count
        mixed = (index << 20) + offset + (count << 8) + now_ms + stored
        self.chain = (self.chain * CHAIN_FACTOR + mixed) & CHAIN_MASK
        return first

    def add_parts(self, position: int, indexes: Sequence[tuple[int, int]]) -> None:
        """The body of this live message goes on in these entries."""
        self._parts[position] = tuple(indexes)

    def parts_of(self, first: int, last: int) -> dict[int, tuple[tuple[int, int], ...]]:
        """Of those of these messages that are large."""
        parts = self._parts
        if last - first < len(parts):
            return {at: parts[at] for at in range(first, last + 1) if at in parts}
        return {at: indexes for at, indexes in parts.items() if first <= at <= last}

    def release(self, first: int, last: int) -> int:
        """These live messages are done with. Answers their bytes."""
        for position in self.parts_of(first, last):
            del self._parts[position]
        firsts, lives = self._firsts, self._lives
        slot = self._slot(first)
        released = 0
        self.count -= last - first + 1
        while first <= last:
            end = firsts[slot] + self._counts[slot] - 1
            if end > last:
                end = last
            released += self._bytes_in(slot, first, end)
            left = lives[slot] - (end - first + 1)
            assert left >= 0, "a message was released twice"
            lives[slot] = left
            if left == 0:
                self._dead += 1
            first = end + 1
            slot += 1
        self.bytes -= released
        if lives[self._head] == 0:
            self._advance_head()
        elif self._dead > TRIM_MIN and self._dead * 2 > len(firsts) - self._head:
            self._squeeze()
        return released

    def _advance_head(self) -> None:
        head, size, lives = self._head, len(self._firsts), self._lives
        while head < size and lives[head] == 0:
            head += 1
            self._dead -= 1
        self._head = head
        if head == size or (head > TRIM_MIN and head * 2 > size):
            for column in self._columns():
                del column[:head]
            self._head = 0
            self._trim_uneven()

    def _trim_uneven(self) -> None:
        """Free sizes that lie before those of the first run that has any of its own."""
        if not self._uneven:
            return
        end = self._base + len(self._uneven)
        start = next((~size for size in self._sizes if size < 0), end)
        del self._uneven[: start - self._base]
        self._base = start

    def _squeeze(self) -> None:
        """Drop the dead runs between living ones."""
        living = [slot for slot in range(self._head, len(self._firsts)) if self._lives[slot]]
        self._uneven, self._sizes = self._packed_sizes(living)
        self._base = 0
        for name in ("_firsts", "_counts", "_indexes", "_offsets", "_lives", "_times"):
            column: array[int] = getattr(self, name)
            setattr(self, name, array(column.typecode, [column[slot] for slot in living]))
        self._head = self._dead = 0

    def _packed_sizes(self, living: Sequence[int]) -> tuple[array[int], array[int]]:
        """The sizes of these runs, with the uneven ones moved together."""
        uneven = array("I")
        sizes = array("q")
        for slot in living:
            size = self._sizes[slot]
            if size < 0:
                start = ~size - self._base
                size = ~len(uneven)
                uneven.extend(self._uneven[start : start + self._counts[slot]])
            sizes.append(size)
        return uneven, sizes

    def _columns(self) -> tuple[array[int], ...]:
        return (
            self._firsts,
            self._counts,
            self._indexes,
            self._offsets,
            self._lives,
            self._sizes,
            self._times,
        )

    def _slot(self, position: int) -> int:
        """The run of a live message; most are asked for at the head or at the tail."""
        firsts, head = self._firsts, self._head
        if position < firsts[head] + self._counts[head]:
            return head
        if position >= firsts[-1]:
            return len(firsts) - 1
        return bisect_right(firsts, position, head) - 1

    # --- reading ----------------------------------------------------------------------------------

    def _bytes_in(self, slot: int, first: int, last: int) -> int:
        size = self._sizes[slot]
        if size >= 0:
            return size * (last - first + 1)
        start = ~size - self._base + first - self._firsts[slot]
        return sum(self._uneven[start : start + last - first + 1])

    def bytes_of(self, first: int, last: int) -> int:
        slot = self._slot(first)
        firsts, counts = self._firsts, self._counts
        total = 0
        while first <= last:
            end = firsts[slot] + counts[slot] - 1
            if end > last:
                end = last
            total += self._bytes_in(slot, first, end)
            first = end + 1
            slot += 1
        return total

    def sizes_of(self, first: int, last: int) -> list[int]:
        """The size of each message."""
        slot = self._slot(first)
        sizes: list[int] = []
        while first <= last:
            end = min(self._firsts[slot] + self._counts[slot] - 1, last)
            size = self._sizes[slot]
            if size >= 0:
                sizes += [size] * (end - first + 1)
            else:
                start = ~size - self._base + first - self._firsts[slot]
                sizes += self._uneven[start : start + end - first + 1]
            first = end + 1
            slot += 1
        return sizes

    def pieces(self, first: int, last: int) -> list[Piece]:
        """The bodies of these live messages, run by run."""
        firsts = self._firsts
        slot = self._slot(first)
        found: list[Piece] = []
        while first <= last:
            start = firsts[slot]
            end = start + self._counts[slot] - 1
            if end > last:
                end = last
            offset = self._offsets[slot] + first - start
            bodies = made(BodyRef, (self._indexes[slot], offset, end - first + 1))
            found.append(made(Piece, (first, end, bodies, self._times[slot])))
            first = end + 1
            slot += 1
        return found

    def time_of(self, position: int) -> int:
        return self._times[self._slot(position)]

    def first_since(self, at_ms: int) -> int:
        """The first position of the first run stored at that time or later, be it released or not;
        the next position when there is none.
        """
        slot = bisect_left(self._times, at_ms, self._head)
        return self._firsts[slot] if slot < len(self._firsts) else self.next

    def reach(self, position: int, runs: int) -> int:
        """The last position of so many runs, from this live message on."""
        slot = min(self._slot(position) + runs, len(self._firsts)) - 1
        return self._firsts[slot] + self._counts[slot] - 1

    def run_end(self, position: int) -> int:
        """The last position that shares the entry and the time of this one."""
        slot = self._slot(position)
        return self._firsts[slot] + self._counts[slot] - 1

    def live_indexes(self) -> list[tuple[int, int]]:
        """Entries that hold a live body, as ranges in the order of positions."""
        ranges: list[tuple[int, int]] = []
        start = end = -2
        for live, index in zip(self._lives[self._head :], self._indexes[self._head :], strict=True):
            if live:
                if index == end + 1:
                    end = index
                elif not start <= index <= end:
                    if end > 0:
                        ranges.append((start, end))
                    start = end = index
        if end > 0:
            ranges.append((start, end))
        for indexes in self._parts.values():
            ranges += indexes
        return ranges

    # --- snapshots --------------------------------------------------------------------------------

    def fingerprint(self) -> list[int]:
        """Tells two stores apart at no cost, given that they hold the same positions."""
        return [self.next, self.count, self.bytes, self.chain, *self._dump_parts()]

    def _dump_parts(self) -> list[Any]:
        """Empty while there are none, as it was before large bodies."""
        rows = [[at, [list(each) for each in found]] for at, found in sorted(self._parts.items())]
        return [rows] if rows else []

    def dump(self) -> list[Any]:
        if not self._dead and not self._uneven:
            columns = [pack(column[self._head :]) for column in self._columns()]
            return self._dump(b"", columns)
        living = [slot for slot in range(self._head, len(self._firsts)) if self._lives[slot]]
        uneven, sizes = self._packed_sizes(living)
        columns = [
            pack(sizes)
            if column is self._sizes
            else pack(array(column.typecode, [column[slot] for slot in living]))
            for column in self._columns()
        ]
        return self._dump(pack(uneven), columns)

    def _dump(self, uneven: bytes, columns: list[bytes]) -> list[Any]:
        numbers = [self.next, self.count, self.bytes, self.chain]
        return [*numbers, uneven, columns, *self._dump_parts()]

    def load(self, data: Sequence[Any]) -> None:
        self.__init__()
        self.next, self.count, self.bytes, self.chain, uneven, columns, *parts = data
        for position, indexes in parts[0] if parts else ():
            self._parts[position] = tuple((first, last) for first, last in indexes)
        self._uneven = unpack("I", uneven)
        for column, packed in zip(self._columns(), columns, strict=True):
            column.extend(unpack(column.typecode, packed))

    def invariants(self) -> None:
        columns = self._columns()
        assert len({len(column) for column in columns}) == 1, "columns differ in length"
        size = len(self._firsts)
        slots = range(self._head, size)
        dead = sum(1 for slot in slots if not self._lives[slot])
        assert dead == self._dead, "dead runs miscounted"
        assert not size or self._lives[self._head], "the head is dead"
        assert sum(self._lives[slot] for slot in slots) == self.count, "live messages miscounted"
        end, time = 0, 0
        for slot in slots:
            assert self._firsts[slot] > end, "runs overlap"
            assert self._times[slot] >= time, "time went back"
            end = self._firsts[slot] + self._counts[slot] - 1
            time = self._times[slot]
        assert end < self.next, "a run lies behind the next position"


def pack(column: array[int]) -> bytes:
    """Little-endian bytes, the same on every machine."""
    if BIG_ENDIAN:
        column = column[:]
        column.byteswap()
    return column.tobytes()


def unpack(typecode: str, data: bytes) -> array[int]:
    column: array[int] = array(typecode)  # type: ignore[assignment]
    column.frombytes(data)
    if BIG_ENDIAN:
        column.byteswap()
    return column
