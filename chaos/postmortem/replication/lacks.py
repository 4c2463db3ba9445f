"""Entries that a log should have and has not: the table `missing`, and rows of `corruption`.

Entries are boiled down to runs where they are read; what remains is little.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.engine import in_order
from chaos.postmortem.replication import entry_outcomes as fold
from chaos.postmortem.replication.entries import damaged, safe_points, told_kind
from chaos.postmortem.replication.expected_entries import ExpectedEntries, Lack
from chaos.postmortem.replication.logorder import LogOrder, local_frame, log_order, read_ends
from chaos.postmortem.replication.order import Placed
from chaos.postmortem.schemas import arrow_schema
from chaos.postmortem.tables import Tables

_RUNS_DDL: Final = (
    "stream bigint, place bigint, ends bigint, seen bigint, kind tinyint, first bigint,"
    " last bigint, commit bigint"
)
_RUNS: Final = arrow_schema(_RUNS_DDL)
_LACKS_DDL: Final = (
    "stream bigint, place bigint, first bigint, last bigint, reason string, explained boolean"
)
_LACKS: Final = arrow_schema(_LACKS_DDL)


def missing(tables: Tables) -> DataFrame:
    """The table `missing`: nothing explains why they are not there."""
    return tables["lacks"].where("not explained")


def missing_entries(tables: Tables) -> DataFrame:
    """Rows of the table `corruption`: segments of a log folder are gone that were still needed."""
    found = tables["lacks"].where("explained")
    return found.withColumn("at_ns", F.col("created_ns")).withColumn(
        "kind", F.lit("missing entries")
    )


def missing_segments(tables: Tables) -> DataFrame:
    """Rows of the table `corruption`: numbers that an archive has no file for."""
    order = log_order(tables)
    found = [each for each in order.segments if each.first_missing and not each.dropped]
    clusters = order.frame.select("file", "cluster")
    rows = [
        (
            each.given.node,
            each.given.file,
            each.first_missing,
            each.given.created_ns,
            f"{_numbers(each.first_missing, each.last_missing)} not there: this one follows it",
        )
        for each in found
    ]
    frame = local_frame(
        tables.spark, rows, "node string, file string, segment bigint, at_ns bigint, reason string"
    )
    return frame.join(clusters, "file").select(
        *("cluster", "node", "file", "segment", "reason", "at_ns"),
        F.lit(0).alias("offset"),
        F.lit("missing segment").alias("kind"),
    )


def _numbers(first: int, last: int) -> str:
    return f"segment {first} is" if first == last else f"segments {first} to {last} are"


def lacks(tables: Tables) -> DataFrame:
    """The table `lacks`."""
    order = log_order(tables)
    told = tables["records"].where(F.col("kind").isin(*fold.KINDS))
    told = told.select(*("node", "created_ns", "segment", "offset", "group", "index"), told_kind())
    columns = ["stream", "place", "kind", "index"]
    runs = order.place(told).select(*columns).mapInArrow(_runs, _RUNS_DDL)
    marks = _marks(tables, order)
    found = in_order(
        runs, "stream", ["stream", "place"], lambda batches: _lacks(batches, marks), _LACKS_DDL
    )
    group = F.col("stream").bitwiseAND(F.lit((1 << 32) - 1)).cast("int")
    return order.name(found.withColumn("group", group))


class _Mark(NamedTuple):
    """Of all groups of a node: where a segment begins, or something is damaged or lost."""

    place: int
    kind: int
    disk: int = 0
    holes: int = 0
    dropped: bool = False


def _marks(tables: Tables, order: LogOrder) -> dict[int, list[_Mark]]:
    """By number of the node, in log order. As few as segments and damage."""
    found: dict[int, list[_Mark]] = {}
    for each in order.segments:
        mark = _Mark(
            each.seq << fold.OFFSET_BITS, fold.SEGMENT, each.disk, each.holes, each.dropped
        )
        found.setdefault(each.node_number, []).append(mark)
    holes = [(each.node_number, each.seq, end) for each, end in _lost_ends(tables, order)]
    bad = damaged(tables, order)
    if bad is not None:
        holes += [(row.node_number, row.seq, row.offset) for row in bad.collect()]
    for number, seq, offset in holes:
        found[number].append(_Mark((seq << fold.OFFSET_BITS) + offset, fold.CORRUPT))
    return {number: sorted(marks) for number, marks in found.items()}


def _lost_ends(tables: Tables, order: LogOrder) -> list[tuple[Placed, int]]:
    """Segments that are shorter than was said, and how long they are."""
    by_seq = {each.seq: each for each in order.segments}
    said = safe_points(tables, order).groupBy("seq").agg(F.max("reached").alias("reached"))
    # That of a running node has grown since it was looked for: what was read of it counts.
    reached = {
        segment.given.file: (segment, row.reached)
        for row in said.collect()
        if row.reached > (segment := by_seq[row.seq]).given.bytes
    }
    if not reached:
        return []
    ends = read_ends(tables["records"].where(F.col("file").isin(*reached))).collect()
    found = {row.file: row.end or 0 for row in ends}
    return [
        (segment, end)
        for file, (segment, safe) in reached.items()
        if (end := found.get(file, 0)) < safe
    ]


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield runs_of(batch)


def runs_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Entries that follow one another in a segment, and how far they are committed by then. ends:
    the place of the last entry; seen: of the commit behind it, if there is one.
    """
    stream, place, kind, index = (
        batch.column(name).to_numpy() for name in ("stream", "place", "kind", "index")
    )
    order = np.lexsort((place, stream))
    stream, place, kind, index = stream[order], place[order], kind[order], index[order]
    entry, commit = kind == fold.ENTRY, kind == fold.COMMIT
    copy = (kind == fold.LIVE) | (kind == fold.INSTALLED)
    count = len(kind)
    if not count:
        return pa.RecordBatch.from_pylist([], schema=_RUNS)
    # The entry before each row.
    at = np.maximum.accumulate(np.where(entry, np.arange(count), -1))
    before = np.concatenate([[-1], at[:-1]])
    next_one = (before >= 0) & (index == index[np.maximum(before, 0)] + 1)
    plain = entry | commit
    goes_on = np.zeros(count, bool)
    goes_on[1:] = (commit[1:] | (entry[1:] & next_one[1:])) & plain[:-1]
    goes_on[1:] |= copy[1:] & (kind[1:] == kind[:-1]) & (np.diff(index) == 1)
    goes_on[1:] &= (np.diff(stream) == 0) & (np.diff(place >> fold.OFFSET_BITS) == 0)
    # A run begins with an entry: commits in front of it are one of their own.
    item = np.cumsum(~goes_on)
    has_entry = np.zeros(count, bool)
    has_entry[1:] = goes_on[1:] & (at[:-1] >= np.flatnonzero(~goes_on)[item[1:] - 1])
    goes_on &= ~(entry & ~has_entry)
    starts = np.flatnonzero(~goes_on)
    ends = np.concatenate([starts[1:], [count]]) - 1
    top = np.maximum.reduceat(np.where(commit, 0, index), starts)
    said = np.maximum.reduceat(np.where(commit, index, 0), starts)
    held = np.where(at[ends] >= starts, at[ends], ends)
    columns = [
        *(stream[starts], place[starts], place[held], place[ends]),
        *(kind[starts], index[starts], top, said),
    ]
    return pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=_RUNS)


def _lacks(
    batches: Iterable[pa.RecordBatch], marks: Mapping[int, Sequence[_Mark]]
) -> Iterator[pa.RecordBatch]:
    stream, log = None, _Log(())
    for batch in batches:
        rows: list[dict] = []
        for row in batch.to_pylist():
            if row["stream"] != stream:
                rows += _told(stream, log.ended())
                stream = row["stream"]
                log = _Log(marks[stream >> 32])
            rows += _told(stream, log.take(row))
        yield pa.RecordBatch.from_pylist(rows, schema=_LACKS)
    yield pa.RecordBatch.from_pylist(_told(stream, log.ended()), schema=_LACKS)


def _told(stream: int | None, found: Iterable[Lack]) -> list[dict]:
    return [
        {
            "stream": stream,
            "place": each.place,
            "first": each.first,
            "last": each.last,
            "reason": each.reason,
            "explained": each.explained,
        }
        for each in found
    ]


class _Log:
    """Runs of one stream, as they come, and the marks of its node."""

    def __init__(self, marks: Sequence[_Mark]) -> None:
        self._expected = ExpectedEntries()
        self._disk = self._holes = 0
        self._marks = marks
        self._next = 0

    def take(self, row: dict) -> Iterable[Lack]:
        expected, kind = self._expected, row["kind"]
        place, first, last = row["place"], row["first"], row["last"]
        self._up_to(place)
        found: Iterable[Lack] = ()
        if kind == fold.ENTRY:
            found = list(expected.entries(first, last, place, row["ends"], row["seen"]))
            expected.committed(row["commit"])
        elif kind in (fold.LIVE, fold.INSTALLED):
            expected.copies(first, last, place, row["ends"])
        elif kind == fold.COMMIT:
            expected.committed(row["commit"])
        elif kind == fold.TRUNCATE:
            found = list(expected.truncate(first, place))
        elif kind == fold.SNAPSHOT:
            expected.marked(first, place)
        elif kind == fold.INSTALL:
            expected.installed(first, place)
        elif kind == fold.REMOVED:
            expected.removed()
        return found

    def ended(self) -> Iterable[Lack]:
        self._up_to(None)
        return self._expected.ended()

    def _up_to(self, place: int | None) -> None:
        while self._next < len(self._marks):
            mark = self._marks[self._next]
            if place is not None and mark.place > place:
                return
            self._next += 1
            if mark.kind == fold.CORRUPT:
                self._expected.hole(mark.place, told=True)
            elif mark.disk != self._disk:
                self._expected.removed()
            elif mark.holes != self._holes:
                self._expected.hole(mark.place, told=not mark.dropped)
            if mark.kind == fold.SEGMENT:
                self._disk, self._holes = mark.disk, mark.holes
