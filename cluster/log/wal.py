"""The write-ahead log of a node: records appended to the active segment, one vectored write and one
sync in an iteration of the drive loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from cluster.log import format as fmt
from cluster.log.errors import FatalDiskError, LogCorrupt
from cluster.log.heads import SEGMENT_BYTES_MIN, tag_of, write_heads
from cluster.log.index import Columns, Place
from cluster.log.segment import Segment
from cluster.seams import Clock, Disk

#: A sync that takes so long is noted by itself.
SLOW_SYNC_S = 0.1


class Written(Protocol):
    """A journal, as far as the write-ahead log tells it how safe its entries are."""

    last_index: int
    written_index: int
    syncing_index: int
    synced_index: int


class Wal:
    """Segments, the buffer, and the only places where the log writes records and syncs them."""

    def __init__(
        self,
        directory: str,
        *,
        disk: Disk,
        clock: Clock,
        identity: fmt.LogIdentity,
        boot: bytes,
        segment_bytes: int,
        heads_bytes_min: int = SEGMENT_BYTES_MIN,
    ) -> None:
        """`heads_bytes_min`: of a segment that gets a file of its heads when it is sealed."""
        self.directory = directory
        self.disk = disk
        self.clock = clock
        self.segments: dict[int, Segment] = {}
        self.failure: str | None = None
        self.touched = set[Written]()  # added to since the last write
        self.record_count = 0  # appended since the start
        self.written_bytes = 0  # since the start
        self.synced_at_ns = 0  # monotonic, end of the last sync
        #: Called once so many bytes were written: it sets the next mark.
        self.look_at_bytes = 0
        self.room_until = 0  # bytes written when only the reserve will be left
        self.on_written: Callable[[], object] = lambda: None
        #: Called after a sync that ends at this time or later, or was slow: it sets the next time.
        self.note_at_ns: float = math.inf
        self.on_note_due: Callable[[], object] = lambda: None
        self.sync_count = 0  # since it was called
        self.longest_sync_s = 0.0  # of these
        self.identity = identity
        self._boot = boot
        self.segment_bytes = segment_bytes
        self._heads_bytes_min = heads_bytes_min
        self._written = set[Written]()  # written since the last sync
        self._buffers: list[bytes] = []
        self._buffered_urgent = False
        self._urgent = False  # something written must be synced before others may hear of it
        self._fresh: Segment | None = None  # created, not yet in use
        self._closed = False
        self._lock = asyncio.Lock()

    async def start(self, number: int) -> None:
        """Open the first segment of this boot."""
        self.active = await self._prepare(number)
        self.next_offset = self.active.size
        self._fresh = None

    def append(
        self, kind: int, group: int, index: int, term: int, payload: bytes, more: bytes = b""
    ) -> int:
        """Buffer a record whose payload is both pieces joined; returns the offset it will have."""
        if self.failure is not None:
            raise FatalDiskError(self.failure)
        length = len(payload) + len(more)
        clock = self.clock
        covered = fmt.COVERED.pack(
            length, kind, fmt.MARKER, group, index, term, clock.wall_ns(), clock.monotonic_ns()
        )
        extend = fmt.extend
        active = self.active
        crc = extend(extend(extend(active.salt, covered), payload), more)
        head = covered[:4] + crc.to_bytes(4, "little") + covered[4:]
        if more:
            self._buffers += (head + payload, more)
        else:
            self._buffers.append(head + payload)
        self.record_count += 1
        offset = self.next_offset
        self.next_offset = offset + fmt.RECORD_HEADER + length
        active.groups.add(group)
        active.heads += covered
        active.tags += more[:1] or tag_of(kind, payload)  # in front of `more` there is but a hash
        if kind < fmt.KIND_NOTE and kind != fmt.KIND_COMMIT and kind != fmt.KIND_SYNCED:
            self._buffered_urgent = True
        return offset

    def write(self) -> bool:
        """Write what is buffered; whether something written must be synced before acks or votes
        leave.
        """
        if self.failure is not None:
            raise FatalDiskError(self.failure)
        if self._buffers:
            active = self.active
            try:
                offset = active.file.append(self._buffers)
            except OSError as error:
                raise self.fail("write", active.path, error) from error
            assert offset == active.size, "someone else wrote to the segment"
            self.written_bytes += self.next_offset - offset
            active.size = self.next_offset
            self._buffers = []
            self._urgent |= self._buffered_urgent
            self._buffered_urgent = False
            for journal in self.touched:
                journal.written_index = journal.last_index
            self._written |= self.touched
            self.touched.clear()
            if self.written_bytes >= self.look_at_bytes:
                self.on_written()
        return self._urgent

    def room_bytes(self) -> int:
        """About how much may still be written before only the reserve is left."""
        return self.room_until - self.written_bytes

    async def sync(self) -> float:
        """Make what is written safe; returns the seconds it took. Rolls to a new segment when this
        one is full.
        """
        if self.failure is not None:
            raise FatalDiskError(self.failure)
        started = self.clock.monotonic_ns()
        async with self._lock:
            await self._sync_active()
            self.synced_at_ns = self.clock.monotonic_ns()
            seconds = (self.synced_at_ns - started) / 1e9
            if self.active.size >= self.segment_bytes:
                await self._roll()
        self.sync_count += 1
        self.longest_sync_s = max(self.longest_sync_s, seconds)
        if self.synced_at_ns >= self.note_at_ns or seconds >= SLOW_SYNC_S:
            self.on_note_due()
        return seconds

    async def roll(self) -> None:
        """Seal the active segment now."""
        async with self._lock:
            await self._roll()

    async def spare_number(self) -> int:
        """Of a segment that holds copies: above all that is sealed, and below the active one, whose
        records are newer. The active segment is sealed for it.
        """
        async with self._lock:
            sealed = self.active.number
            while self.active.number < sealed + 2:  # one that a cancelled call has left comes first
                await self._roll(self.active.number + 2)
        return self.active.number - 1

    def adopt(self, segment: Segment) -> None:
        """A segment of copies, complete and synced under its name."""
        segment.sealed = True
        segment.synced = segment.size
        segment.last_wall_ns = self.clock.wall_ns()
        self.keep_heads(segment)
        self.segments[segment.number] = segment
        self.segments = dict(sorted(self.segments.items()))
        self.append(fmt.KIND_SYNCED, 0, 0, 0, fmt.encode_synced(segment.number, segment.size))

    async def _sync_active(self, *, mark: bool = True) -> None:
        if self.failure is not None:
            raise FatalDiskError(self.failure)
        active, size = self.active, self.active.size
        if size == active.synced:
            return
        syncing, self._written, self._urgent = self._written, set[Written](), False
        for journal in syncing:
            journal.syncing_index = journal.written_index
        try:
            await active.file.sync()
        except OSError as error:
            raise self.fail("sync", active.path, error) from error
        except asyncio.CancelledError:
            self._written |= syncing
            self._urgent = True
            raise
        active.synced = size
        for journal in syncing:
            journal.synced_index = journal.syncing_index
        if mark and size < self.segment_bytes:
            self.append(fmt.KIND_SYNCED, 0, 0, 0, fmt.encode_synced(active.number, size))

    async def _roll(self, number: int = 0) -> None:
        fresh = await self._prepare(number or self.active.number + 1)
        # While it was created others may have written: nothing unsynced may stay behind.
        while self._buffers or self.active.size > self.active.synced:
            self.write()
            await self._sync_active(mark=False)
        old = self.active
        old.sealed = True
        old.last_wall_ns = self.clock.wall_ns()
        self.keep_heads(old)
        self.active = fresh
        self.next_offset = fresh.size
        self._fresh = None
        # The first record of a segment says how long the one before was.
        self.append(fmt.KIND_SYNCED, 0, 0, 0, fmt.encode_synced(old.number, old.size))

    async def _prepare(self, number: int) -> Segment:
        """The next segment, safe on disk. One that a cancelled call has left is taken up again."""
        try:
            if self._fresh is None:
                self._fresh = self.create(number, fmt.segment_name(number))
                self.segments[number] = self._fresh
            await self._fresh.file.sync()
            await self.disk.sync_dir(self.directory)
        except OSError as error:
            raise self.fail("creation", self.directory, error) from error
        return self._fresh

    def keep_heads(self, segment: Segment) -> None:
        """Of a segment that is sealed and synced: beside it, if it is large."""
        if segment.size >= self._heads_bytes_min:
            write_heads(self.disk, segment)
        segment.heads, segment.tags = bytearray(), bytearray()

    def create(self, number: int, name: str) -> Segment:
        """A file with a header. Raises OSError."""
        path = f"{self.directory}/{name}"
        wall, mono = self.clock.wall_ns(), self.clock.monotonic_ns()
        header = fmt.encode_file_header(number, wall, mono, self._boot, self.identity)
        file = self.disk.open(path, create=True)
        file.append([header])
        salt = fmt.decode_file_header(header, path).salt
        return Segment(number, path, file, salt, len(header), len(header), len(header), wall)

    def fail(self, what: str, path: str, error: OSError) -> FatalDiskError:
        """Remember that the disk cannot be trusted any more: everything is refused from here on."""
        self.failure = f"{what} of {path} failed: {error}"
        return FatalDiskError(self.failure)

    def read(self, place: Place) -> bytes:
        """The payload of a record, its checksum verified."""
        segment = self._written_up_to(place)
        try:
            record = segment.file.read(place.offset, fmt.RECORD_HEADER + place.length)
        except OSError as error:
            raise self.fail("read", segment.path, error) from error
        return _payload(segment, place, record, 0)

    async def fetch(self, places: Sequence[Place]) -> list[bytes]:
        """As `read`, in one read off the event loop: ascending places of one segment, close to each
        other.
        """
        segment = self._written_up_to(places[-1])
        start, last = places[0].offset, places[-1]
        size = last.offset + fmt.RECORD_HEADER + last.length - start
        try:
            data = await segment.file.fetch(start, size)
        except OSError as error:
            raise self.fail("read", segment.path, error) from error
        return [_payload(segment, place, data, place.offset - start) for place in places]

    def _written_up_to(self, place: Place) -> Segment:
        segment = self.segments[place.segment]
        if place.offset >= segment.size:
            self.write()
        return segment

    def hold(self, place: Place) -> None:
        """Something points at that record."""
        self.segments[place.segment].live_bytes += fmt.RECORD_HEADER + place.length

    def release(self, place: Place) -> None:
        """Nothing points at that record any more."""
        self.segments[place.segment].live_bytes -= fmt.RECORD_HEADER + place.length

    def account(self, columns: Columns, start: int, stop: int, sign: int) -> None:
        """Hold (1) or release (-1) all records of those slots."""
        if start >= stop:
            return
        segments, lengths = columns.segments[start:stop], columns.lengths[start:stop]
        for number in set(segments):
            count = segments.count(number)
            if count == stop - start:
                total = sum(lengths)
            else:
                total = sum(n for its, n in zip(segments, lengths, strict=True) if its == number)
            self.segments[number].live_bytes += sign * (total + fmt.RECORD_HEADER * count)

    def close(self) -> None:
        """Close the files; everything is refused from here on. Idempotent."""
        self.failure = self.failure or "the log is closed"
        if not self._closed:
            self._closed = True
            for segment in self.segments.values():
                segment.file.close()


def _payload(segment: Segment, place: Place, data: bytes, at: int) -> bytes:
    """Of the record that begins there."""
    start = at + fmt.RECORD_HEADER
    payload = data[start : start + place.length]
    if len(payload) != place.length or not fmt.record_is_valid(data, at, segment.salt):
        raise LogCorrupt(segment.path, place.offset, "a record that was good is damaged")
    return payload
