"""What the fold over one segment must be told of the log around it: so segments are folded apart.

Of the log in front: how far it was committed and snapshotted. Of the log behind: what decides on
the entries that the segment leaves open. That is little: of most batches a few records.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from chaos.postmortem.replication.entry_outcomes import (
    COMMIT,
    CORRUPT,
    ENTRY,
    INSTALL,
    LIVE,
    OFFSET_BITS,
    REMOVED,
    SEGMENT,
    SNAPSHOT,
    TRUNCATE,
)
from chaos.postmortem.schemas import arrow_schema

#: Records that matter to other segments. low, high: of entries that their segment may leave open.
DECISIVE_DDL: Final = (
    "stream bigint, place bigint, kind tinyint, index bigint, mono_ns bigint, low bigint,"
    " high bigint"
)
_DECISIVE: Final = arrow_schema(DECISIVE_DDL)
#: seq: of the segment that is told; the rest are columns of `EntryOutcomes`.
TOLD_DDL: Final = (
    "seq int, stream bigint, place bigint, kind tinyint, index bigint, mono_ns bigint, disk int,"
    " boot int, holes int, committed bigint, base bigint"
)
_TOLD: Final = arrow_schema(TOLD_DDL)
_ROWS_AT_ONCE: Final = 10_000
_NONE: Final = np.iinfo(np.int64).max


class Mark(NamedTuple):
    """Where a segment begins."""

    disk: int
    boot: int
    holes: int


@dataclass
class NodeMarks:
    """Of one node: its segments by `seq`, and the places of what cannot be read, ascending."""

    segments: dict[int, Mark] = field(default_factory=dict[int, Mark])
    corrupt: list[int] = field(default_factory=list[int])


def decisive(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of batches with the columns stream, place, kind, index, mono_ns."""
    for batch in batches:
        yield decisive_of(batch)


def decisive_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Each is kept or not by records of its own segment and group alone, so it does not matter how
    those are spread over batches.
    """
    stream, place, kind, index = (
        batch.column(name).to_numpy() for name in ("stream", "place", "kind", "index")
    )
    order = np.lexsort((place, stream))
    stream, place, kind, index = stream[order], place[order], kind[order], index[order]
    edges = (np.diff(stream) != 0) | (np.diff(place >> OFFSET_BITS) != 0)
    starts = [0, *(np.flatnonzero(edges) + 1).tolist(), len(order)]
    kept = kind >= TRUNCATE
    low, high = np.full(len(order), _NONE), np.zeros(len(order), np.int64)
    for start, stop in pairwise(starts):
        if start == stop:
            continue
        part = slice(start, stop)
        kept[part] |= _kept(kind[part], index[part])
        open_ = index[part][(kind[part] == ENTRY) | (kind[part] == LIVE)]
        low[start], high[start] = open_.min(initial=_NONE), open_.max(initial=0)
    rows = batch.take(pa.array(order[kept])).select(["stream", "place", "kind", "index", "mono_ns"])
    columns = [*rows.columns, pa.array(low[kept]), pa.array(high[kept])]
    return pa.RecordBatch.from_arrays(columns, schema=_DECISIVE)


def _kept(kind: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Of one segment and group: the first record; entries that void what no entry before them did;
    what says that more is committed, as long as entries from before may be open, and what says most
    from some record on.
    """
    voids = (kind == ENTRY) | (kind == TRUNCATE)
    least = np.minimum.accumulate(np.concatenate([[_NONE], np.where(voids, index, _NONE)]))
    kept = voids & (index < least[:-1])
    says = np.flatnonzero((kind == COMMIT) | (kind == SNAPSHOT))
    said = index[says]
    most = np.maximum.accumulate(np.concatenate([[-1], said]))[:-1]
    later = np.maximum.accumulate(np.concatenate([[-1], said[::-1]]))[:-1][::-1]
    kept[says] |= ((said > most) & (most < least[says] - 1)) | (said > later)
    kept[0] = True
    return kept


def surroundings(
    batches: Iterable[pa.RecordBatch], nodes: Mapping[int, NodeMarks]
) -> Iterator[pa.RecordBatch]:
    """Of each segment with records of a stream where it begins, and what is to be known of later
    ones. Streams one behind the other, each in the order of its places.
    """
    log: _Log | None = None
    rows: list[dict[str, Any]] = []
    for batch in batches:
        for row in batch.to_pylist():
            if log is None or row["stream"] != log.stream:
                if log is not None:
                    rows += log.ended()
                log = _Log(row["stream"], nodes[row["stream"] >> 32])
            rows += log.take(row)
            if len(rows) >= _ROWS_AT_ONCE:
                yield pa.RecordBatch.from_pylist(rows, schema=_TOLD)
                rows = []
    if log is not None:
        rows += log.ended()
    yield pa.RecordBatch.from_pylist(rows, schema=_TOLD)


@dataclass(slots=True)
class _Open:
    """A segment of which entries from `low` to `high` may still be open."""

    seq: int
    mark: Mark
    low: int = _NONE
    high: int = 0
    committed: int = 0  # as far as its fold knows
    base: int = 0
    told: bool = False  # a later record said what is committed
    doubted: bool = False  # some of what is open
    all_doubted: bool = False
    late: bool = False  # another process has begun

    @property
    def closed(self) -> bool:
        return self.high < self.low

    def close(self) -> None:
        self.high = -1


class _Log:
    """Of one group on one node. What it tells is what `EntryOutcomes` would do in one go, less what
    cannot make a difference to what a segment leaves open.
    """

    def __init__(self, stream: int, node: NodeMarks) -> None:
        self.stream = stream
        self._node = node
        self._next = 0  # of what cannot be read
        self._place = 0  # of the last record
        self._mark: Mark | None = None
        self._committed = self._base = 0
        self._current: _Open | None = None
        self._open: list[_Open] = []
        self._rows: list[dict[str, Any]] = []

    def take(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        place = row["place"]
        assert place >= self._place, "records are not in the order of the log"
        self._corrupt_up_to(place)
        self._place = place
        current = self._current
        if current is None or current.seq != place >> OFFSET_BITS:
            current = self._begin(place >> OFFSET_BITS)
        current.low, current.high = min(current.low, row["low"]), max(current.high, row["high"])
        self._happens(row["kind"], row["index"], row["mono_ns"])
        self._open = [each for each in self._open if not each.closed]
        return self._taken()

    def ended(self) -> list[dict[str, Any]]:
        self._corrupt_up_to(None)
        self._leave()
        self._end()
        return self._taken()

    def _taken(self) -> list[dict[str, Any]]:
        rows, self._rows = self._rows, []
        return rows

    def _begin(self, seq: int) -> _Open:
        self._leave()
        mark, before = self._node.segments[seq], self._mark
        if before is not None and mark.disk != before.disk:
            self._end()
            self._committed = self._base = 0
        began = {"place": seq << OFFSET_BITS, **mark._asdict()}
        for each in self._open:
            another, missing = mark.boot != each.mark.boot, mark.holes != each.mark.holes
            if (another and not each.late) or (missing and not each.all_doubted):
                self._tell(each, SEGMENT, **began)
            each.late |= another
            each.doubted |= missing
            each.all_doubted |= missing
        self._mark, self._current = mark, _Open(seq, mark)
        self._tell(self._current, SEGMENT, committed=self._committed, base=self._base, **began)
        return self._current

    def _leave(self) -> None:
        """The current segment is read."""
        current, self._current = self._current, None
        if current is not None and not current.closed:
            current.committed, current.base = self._committed, self._base
            self._open.append(current)

    def _end(self) -> None:
        """Nothing more comes of this disk: what is doubted is judged by all that it said."""
        place = self._place + 1
        for each in self._open:
            if each.doubted and each.committed < self._committed:
                self._tell(each, COMMIT, self._committed, place=place)
            if each.doubted and each.base != self._base:
                self._tell(each, SNAPSHOT, self._base, place=place)
        self._open.clear()

    def _corrupt_up_to(self, place: int | None) -> None:
        corrupt = self._node.corrupt
        while self._next < len(corrupt) and (place is None or corrupt[self._next] <= place):
            at = corrupt[self._next]
            self._next += 1
            if self._current is not None and self._current.seq == at >> OFFSET_BITS:
                self._tell(self._current, CORRUPT, place=at)
                self._current.doubted = True
            else:
                self._leave()
            for each in self._open:
                if not each.all_doubted:
                    self._tell(each, CORRUPT, place=at)
                each.doubted = each.all_doubted = True
            self._place = max(self._place, at)

    def _happens(self, kind: int, index: int, mono_ns: int) -> None:
        if kind in (ENTRY, TRUNCATE):
            self._void(index)
        elif kind in (COMMIT, SNAPSHOT):
            self._says(index, mono_ns)
            self._base = index if kind == SNAPSHOT else self._base
        elif kind in (INSTALL, REMOVED):
            for each in self._open:
                self._tell(each, kind, index)
                each.close()
            removed = kind == REMOVED
            self._committed = 0 if removed else max(self._committed, index)
            self._base = 0 if removed else index

    def _void(self, index: int) -> None:
        for each in self._open:
            if index <= each.high:
                self._tell(each, TRUNCATE, index)
                each.high = index - 1

    def _says(self, index: int, mono_ns: int) -> None:
        for each in self._open:
            # The first one, whatever it says: of what was written although it was committed.
            if not each.told or each.committed < min(index, each.high):
                self._tell(each, COMMIT, index, mono_ns=mono_ns)
                each.told, each.committed = True, max(each.committed, index)
            if not each.doubted and each.committed >= each.high:
                each.close()
        self._committed = max(self._committed, index)

    def _tell(self, of: _Open, kind: int, index: int = 0, **more: int) -> None:
        told = {"seq": of.seq, "stream": self.stream, "kind": kind, "index": index}
        self._rows.append({"place": self._place, "mono_ns": 0, **told, **more})
