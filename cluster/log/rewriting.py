"""What is live in sparse segments moves to a segment of its own, group by group.

So what stays long is parted from what comes and goes: it is copied once, not again with all that
was written beside it, and lies in the order in which it is read. The segment is written under
another name, and gets its own when it is complete and synced; until then nothing points to it, and
a crash leaves nothing but a file to remove.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable
from typing import Final

from cluster.log import format as fmt
from cluster.log.heads import tag_of
from cluster.log.index import Columns, Place, Sparse
from cluster.log.journal import Journal, indexes_in
from cluster.log.segment import Segment
from cluster.log.wal import Wal

#: Of one read off the event loop, and of one write.
PIECE_BYTES: Final = 1 << 20
#: Entries that begin to point to their copies before others get their turn.
SLICE: Final = 2000


class _Part:
    """What one group has in it: which entries are wanted, and, in packed columns, which were copied
    from where to where.
    """

    def __init__(self, journal: Journal, sources: set[int]) -> None:
        self.journal = journal
        self.wanted = array(
            "Q", sorted(index for number in sources for index in indexes_in(journal, number))
        )
        self.next = 0
        self.copied = Sparse()  # where they were
        self.offsets: array[int] = array("I")  # where they are

    def located(self, index: int) -> tuple[Columns, int] | None:
        """Columns and slot of an entry that is still there."""
        return None if self.journal.removed else self.journal.located(index)


class Rewriting:
    """One such segment while it is written. Its calls raise OSError as the disk does."""

    def __init__(
        self, wal: Wal, number: int, sparse: Iterable[Segment], journals: Iterable[Journal]
    ) -> None:
        """`number`: from `Wal.spare_number`, called after the segments were sealed."""
        self._wal = wal
        self._name = fmt.segment_name(number)
        self._segment = wal.create(number, self._name + fmt.UNFINISHED_SUFFIX)
        self._sources = {segment.number for segment in sparse}
        self._parts = [_Part(journal, self._sources) for journal in journals]

    async def copy(self, bytes_max: int) -> bool:
        """About so much more; whether that is all."""
        end = self._segment.size + bytes_max
        for part in self._parts:
            while part.next < len(part.wanted):
                if self._segment.size >= end:
                    return False
                await self._copy(part)
        return True

    async def _copy(self, part: _Part) -> None:
        """What is next and lies close together. Some may be gone since the beginning."""
        first = len(part.copied)
        places = list[Place]()
        while part.next < len(part.wanted):
            index = part.wanted[part.next]
            found = part.located(index)
            if found is not None and found[0].segments[found[1]] in self._sources:
                columns, slot = found
                place = columns.place(slot)
                if places and not _close(places, place):
                    break
                places.append(place)
                part.copied.put(index, place, columns.terms[slot])
            part.next += 1
        if places:
            self._write(part, first, await self._wal.fetch(places))

    def _write(self, part: _Part, first: int, payloads: list[bytes]) -> None:
        segment, clock, group = self._segment, self._wal.clock, part.journal.group
        wall_ns, mono_ns = clock.wall_ns(), clock.monotonic_ns()
        records = list[bytes]()
        for slot, payload in enumerate(payloads, first):
            index, term = part.copied.indexes[slot], part.copied.terms[slot]
            what = (fmt.KIND_LIVE, group, index, term, wall_ns, mono_ns)
            records.append(fmt.encode_record(segment.salt, *what, payload))
            segment.heads += fmt.covered_of(records[-1])
            segment.tags += tag_of(fmt.KIND_LIVE, payload)
            part.offsets.append(segment.size)
            segment.size += len(records[-1])
        segment.file.append(records)
        segment.groups.add(group)

    async def publish(self) -> None:
        """Give the segment its name; entries lie there from now on."""
        wal, segment = self._wal, self._segment
        await segment.file.sync()
        path = f"{wal.directory}/{self._name}"
        wal.disk.rename(segment.path, path)
        segment.path = path
        await wal.disk.sync_dir(wal.directory)
        wal.adopt(segment)
        for part in self._parts:
            for slot, offset in enumerate(part.offsets):
                self._point(part, slot, offset)
                if slot % SLICE == SLICE - 1:
                    await asyncio.sleep(0)

    def _point(self, part: _Part, slot: int, offset: int) -> None:
        """An entry to its copy, if it is still where it was."""
        old = part.copied.place(slot)
        found = part.located(part.copied.indexes[slot])
        if found is not None and found[0].place(found[1]) == old:
            found[0].move(found[1], self._segment.number, offset)
            self._wal.hold(Place(self._segment.number, offset, old.length))
            self._wal.release(old)

    def close(self) -> None:
        self._segment.file.close()


def _close(before: list[Place], place: Place) -> bool:
    """Whether one read brings them all."""
    return (
        place.segment == before[0].segment
        and place.offset > before[-1].offset
        and place.offset + fmt.RECORD_HEADER + place.length - before[0].offset <= PIECE_BYTES
    )
