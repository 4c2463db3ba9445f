"""What became of each entry, as one node's log of one group says, read once and in order.

Between two records that void something the indexes ascend, so an entry is committed by the first
commit behind it that reaches its index: whole batches at a time. What is not decided yet is held.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

#: What the fold is told of: records of these kinds, by number, and a mark where a segment begins.
SEGMENT, ENTRY, LIVE, INSTALLED, COMMIT, TRUNCATE, SNAPSHOT, INSTALL, REMOVED, CORRUPT = range(10)

KINDS: Final = {
    "entry": ENTRY,
    "live-entry": LIVE,
    "installed-entry": INSTALLED,
    "commit": COMMIT,
    "truncate": TRUNCATE,
    "snapshot": SNAPSHOT,
    "group-removed": REMOVED,
}

VOIDED, PENDING, COMMITTED = range(3)
OUTCOMES: Final = ("voided", "pending", "committed")

#: A place is the number of the segment and the offset in it.
OFFSET_BITS: Final = 40
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
UNKNOWN: Final = -1
#: Instead of a stream: what is told of a segment as a whole. It is in front of all streams.
POINTS: Final = -1
#: Of a batch that leaves the fold, at least.
ROWS_AT_ONCE: Final = 10_000
_EMPTY: Final = np.zeros(0, np.int64)


class EntryOutcomes:
    """Of one segment of one group on one node, and of what `surroundings` tells of the log around
    it. Batches have the columns place, kind, index, mono_ns, others that are only passed on, and
    in marks of segments disk, boot, holes; committed and base where the segment itself begins.
    `points`: when the log says how far the segment is safe.
    """

    def __init__(self, schema: pa.Schema, points: SafePoints) -> None:
        told = [("outcome", pa.int8()), ("commit_ns", pa.int64()), ("sync_ns", pa.int64())]
        self._schema = pa.schema([*schema, *(pa.field(*each) for each in told)])
        self._disk = self._boot = self._holes = UNKNOWN
        self._points = points
        self._clear()
        self._rows = schema.empty_table()  # of entries that are held
        self._held = _EMPTY  # their rows: these arrays are parallel
        self._index = _EMPTY
        self._mono = _EMPTY  # when it was written; UNKNOWN: by another process, or long before
        self._at = _EMPTY  # where in the batch
        self._sync = _EMPTY  # by row

    def _clear(self) -> None:
        self._commit = self._last = self._base = 0
        self._doubt = 0  # entries up to this row may have been voided where something is missing

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows that are decided now, of this batch or of earlier ones."""
        kind = batch.column("kind").to_numpy()
        index = batch.column("index").to_numpy()
        mono = batch.column("mono_ns").to_numpy()
        place = batch.column("place").to_numpy()
        bodies = np.flatnonzero((kind >= ENTRY) & (kind <= INSTALLED))
        offset = self._rows.num_rows
        self._row_of = np.full(len(kind), UNKNOWN, np.int64)
        self._row_of[bodies] = offset + np.arange(len(bodies))
        own = pa.Table.from_batches([batch])
        if len(bodies) < len(kind):
            own = own.take(pa.array(bodies))
        self._rows = pa.concat_tables([self._rows, own.select(self._rows.schema.names)])
        self._sync = np.concatenate([self._sync, np.full(len(bodies), UNKNOWN)])
        self._outcome = np.full(self._rows.num_rows, UNKNOWN, np.int8)
        self._latency = np.full(self._rows.num_rows, UNKNOWN, np.int64)
        start = 0
        for stop in self._breaks(kind, index):
            self._stretch(kind, index, mono, place, start, stop)
            self._event(batch, int(kind[stop]), int(index[stop]), int(mono[stop]), stop)
            start = stop + (kind[stop] != ENTRY)
        self._stretch(kind, index, mono, place, start, len(kind))
        yield from self._decided()

    def _breaks(self, kind: np.ndarray, index: np.ndarray) -> list[int]:
        """Where something happens that is neither the next entry nor a commit."""
        special = (kind == SEGMENT) | (kind >= TRUNCATE)
        special &= kind != SNAPSHOT
        entries = np.flatnonzero(kind == ENTRY)
        if len(entries):
            before = np.concatenate([[self._last], index[entries[:-1]]])
            # Of copies it is not known whether they are behind it; a break too many does no harm.
            copies = index[kind == LIVE].max(initial=0)
            held = self._index[self._mono == UNKNOWN].max(initial=0)
            before = np.maximum(before, max(copies, held))
            special[entries[index[entries] <= before]] = True
        return np.flatnonzero(special).tolist()

    def _stretch(
        self,
        kind: np.ndarray,
        index: np.ndarray,
        mono: np.ndarray,
        place: np.ndarray,
        start: int,
        stop: int,
    ) -> None:
        """Entries that ascend, and commits among them."""
        if start == stop:
            return
        kinds = kind[start:stop]
        says = start + np.flatnonzero((kinds == COMMIT) | (kinds == SNAPSHOT))
        values = np.maximum.accumulate(np.concatenate([[self._commit], index[says]]))
        bodies = start + np.flatnonzero((kinds >= ENTRY) & (kinds <= INSTALLED))
        if len(bodies):
            self._sync_times(bodies, mono, place)
            rows, its, when = self._row_of[bodies], index[bodies], mono[bodies]
            copies = kind[bodies] != ENTRY
            if copies.any():
                known = values[np.searchsorted(says, bodies)]
                safe = copies & ((its <= known) | (kind[bodies] == INSTALLED))
                self._outcome[rows[safe]] = COMMITTED
                when = np.where(copies, UNKNOWN, when)
                rows, its, when, bodies = (each[~safe] for each in (rows, its, when, bodies))
            self._held = np.concatenate([self._held, rows])
            self._index = np.concatenate([self._index, its])
            self._mono = np.concatenate([self._mono, when])
            self._at = np.concatenate([self._at, bodies])
            entries = index[start:stop][kinds == ENTRY]
            self._last = int(entries[-1]) if len(entries) else self._last
        if len(says):
            self._commits(says, values[1:], mono)
            marks = index[start:stop][kinds == SNAPSHOT]
            self._base = int(marks[-1]) if len(marks) else self._base

    def _commits(self, says: np.ndarray, values: np.ndarray, mono: np.ndarray) -> None:
        sure = self._held >= self._doubt
        by = np.searchsorted(values, self._index)
        by = np.maximum(by, np.searchsorted(says, self._at))
        done = sure & (by < len(says))
        rows, when = self._held[done], self._mono[done]
        self._outcome[rows] = COMMITTED
        self._latency[rows] = np.where(when == UNKNOWN, UNKNOWN, mono[says[by[done]]] - when)
        self._keep(~done)
        self._commit = max(self._commit, int(values[-1]))

    def _keep(self, kept: np.ndarray) -> None:
        self._held, self._index = self._held[kept], self._index[kept]
        self._mono, self._at = self._mono[kept], self._at[kept]

    def _decide(self, which: np.ndarray, outcome: int) -> None:
        self._outcome[self._held[which]] = outcome
        self._keep(~which)

    def _event(self, batch: pa.RecordBatch, kind: int, index: int, mono: int, at: int) -> None:
        if kind == SEGMENT:
            self._segment(batch, at)
        elif kind in (ENTRY, TRUNCATE):
            self._void(index)
        elif kind == INSTALL:  # all of it is replaced, and the leader's log is far ahead
            self._void(0)
            self._commit = max(self._commit, index)
            self._last = self._base = index
        elif kind == REMOVED:
            self._void(0)
            self._clear()
        elif kind == CORRUPT:
            self._hole()

    def _void(self, index: int) -> None:
        self._decide(self._index >= index, VOIDED)
        self._last = min(self._last, index - 1)

    def _hole(self) -> None:
        self._doubt = int(self._held.max(initial=UNKNOWN)) + 1

    def _segment(self, batch: pa.RecordBatch, at: int) -> None:
        names = ("disk", "boot", "holes", "committed", "base")
        disk, boot, holes, committed, base = (batch.column(name)[at].as_py() for name in names)
        if disk != self._disk:
            self._end()
            self._clear()
        elif holes != self._holes:
            self._hole()
        if boot != self._boot:
            self._mono = np.full(len(self._mono), UNKNOWN, np.int64)
        self._disk, self._boot, self._holes = disk, boot, holes
        if committed is not None:
            self._commit, self._base = committed, base

    def _sync_times(self, bodies: np.ndarray, mono: np.ndarray, place: np.ndarray) -> None:
        when = self._points.after(place[bodies] & OFFSET_MASK)
        known = when != UNKNOWN
        self._sync[self._row_of[bodies[known]]] = when[known] - mono[bodies[known]]

    def _end(self) -> None:
        """Nothing more comes of this disk: what is above the snapshot counts, even where something
        is missing, since only what is dead is dropped.
        """
        counts = (self._index > self._base) & (self._index <= self._commit)
        self._decide(counts & (self._held < self._doubt), COMMITTED)
        self._decide(np.ones(len(self._held), bool), PENDING)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """What is never decided."""
        self._outcome = np.full(self._rows.num_rows, UNKNOWN, np.int8)
        self._latency = np.full(self._rows.num_rows, UNKNOWN, np.int64)
        self._end()
        yield from self._decided()

    def _decided(self) -> Iterator[pa.RecordBatch]:
        done = np.flatnonzero(self._outcome != UNKNOWN)
        if len(done):
            rows = (
                self._rows if len(done) == len(self._outcome) else self._rows.take(pa.array(done))
            )
            told = (self._outcome[done], self._latency[done], self._sync[done])
            arrays = [pa.array(each, mask=each == UNKNOWN) for each in told]
            columns = [each.combine_chunks() for each in rows.columns]
            yield from pa.Table.from_arrays(columns + arrays, schema=self._schema).to_batches()
        # Held rows get new numbers, from 0 on; their order stays.
        doubtful = int((self._held < self._doubt).sum())
        order = np.argsort(self._held, kind="stable")
        self._rows = self._rows.take(pa.array(self._held[order]))
        self._sync = self._sync[self._held[order]]
        self._index, self._mono = self._index[order], self._mono[order]
        self._held = np.arange(len(order))
        self._at = np.full(len(order), UNKNOWN)
        self._doubt = doubtful


class SafePoints:
    """How far the log says that a segment is safe, and when it says so."""

    def __init__(self, reached: np.ndarray = _EMPTY, when: np.ndarray = _EMPTY) -> None:
        order = np.lexsort((when, reached))
        self._reached, self._when = reached[order], when[order]

    def also(self, reached: np.ndarray, when: np.ndarray) -> SafePoints:
        return SafePoints(
            np.concatenate([self._reached, reached]), np.concatenate([self._when, when])
        )

    def after(self, offsets: np.ndarray) -> np.ndarray:
        """When it first says that what is there is safe, or UNKNOWN."""
        by = np.searchsorted(self._reached, offsets, "right")
        return np.concatenate([self._when, [UNKNOWN]])[by]


def entry_outcomes(
    batches: Iterable[pa.RecordBatch], passed: list[str]
) -> Iterator[pa.RecordBatch]:
    """Segments one behind the other: of each first its safe points, as `index` and `mono_ns` of
    stream POINTS, then its streams, each in the order of its places; `passed` columns stay.
    """
    return _gathered(_by_segment(batches, passed))


def _by_segment(batches: Iterable[pa.RecordBatch], passed: list[str]) -> Iterator[pa.RecordBatch]:
    fold: EntryOutcomes | None = None
    segment, stream, last = None, None, -1
    points = SafePoints()
    for part in _stretches(batches):
        its = part.column("seq")[0].as_py(), part.column("stream")[0].as_py()
        if its != (segment, stream):
            if fold is not None:
                yield from fold.finish()
            points = points if its[0] == segment else SafePoints()
            fold, (segment, stream), last = None, its, -1
        if stream == POINTS:
            points = points.also(part.column("index").to_numpy(), part.column("mono_ns").to_numpy())
            continue
        if fold is None:
            fold = EntryOutcomes(part.select(passed).schema, points)
        places = part.column("place")
        assert places[0].as_py() >= last, "records are not in the order of the log"
        last = places[-1].as_py()
        yield from fold.take(part)
    if fold is not None:
        yield from fold.finish()


def _stretches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Neighbours of one segment and stream."""
    for batch in batches:
        seq, stream = (batch.column(name).to_numpy() for name in ("seq", "stream"))
        edges = np.flatnonzero((np.diff(seq) != 0) | (np.diff(stream) != 0)) + 1
        for start, stop in pairwise([0, *edges.tolist(), len(seq)]):
            if start < stop:
                yield batch.slice(start, stop - start)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Segments with many groups make small ones."""
    held, count = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= ROWS_AT_ONCE:
            yield pa.Table.from_batches(held).combine_chunks().to_batches()[0]
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks().to_batches()[0]
