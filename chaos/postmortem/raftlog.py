"""The Spark data source `raftlog`: the records of replication logs.

    spark.read.format("raftlog").load("DATA")

Paths are folders of nodes, archives, folders of such, or single segments, as in
docs/log-format.md. One partition is one segment. Filters on group, index, term and wall_ns are
pushed down, which needs `spark.sql.python.filterPushdown.enabled`; a damaged record is a row
whatever they say.

Options:
    paths      more of them: a JSON list, or separated by commas
    commands   false: leave out the commands, which are the bulk of a log
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource as ds

from chaos.postmortem.decoding import decode
from chaos.postmortem.inputs import Segment, discover, is_remote
from chaos.postmortem.schemas import RECORDS
from chaos.postmortem.wanted import COLUMNS, ONLY_DAMAGE, Bounds, Wanted

REMOTE: Final = "is on a file system that only Spark reaches: read it by chaos.postmortem.ingest"


class RaftLog(ds.DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "raftlog"

    def schema(self) -> str:
        return RECORDS

    def reader(self, schema: Any) -> ds.DataSourceReader:
        return Reader(self.options)


class OfSegment(ds.InputPartition):
    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.file)
        self.segment = segment


class Reader(ds.DataSourceReader):
    """Of all segments there are when the query is planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._paths = paths_of(options)
        self._wanted = Wanted(payloads=options.get("commands", "true").lower() != "false")

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:  # noqa: N802
        for each in filters:
            bounds = bounds_of(each)
            if bounds is None:
                yield each
            else:
                self._wanted = self._wanted.also(_column(each), bounds)

    def partitions(self) -> list[ds.InputPartition]:
        return [OfSegment(segment) for segment in discover(self._paths).segments]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OfSegment)
        return read_segment(partition.segment, self._wanted)


def read_segment(segment: Segment, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Of a segment that was given twice only what is damaged."""
    try:
        with open(segment.file, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return  # the cleaner of a running node was quicker: nothing of it was needed any more
    yield from decode(data, segment, only_checked(wanted) if segment.copy else wanted)


def only_checked(wanted: Wanted) -> Wanted:
    return replace(ONLY_DAMAGE, payloads=wanted.payloads)


def paths_of(options: Mapping[str, str]) -> list[str]:
    """From `load(...)` and from the option."""
    paths = [options["path"]] if options.get("path") else []
    more = options.get("paths", "")
    paths += (
        json.loads(more) if more.startswith("[") else [each for each in more.split(",") if each]
    )
    if not paths:
        raise ValueError("raftlog: name a folder, as in load('DATA')")
    for path in paths:
        if is_remote(path):
            raise ValueError(f"raftlog: {path} {REMOTE}")
    return paths


def _column(each: ds.Filter) -> str:
    return getattr(each, "attribute", ("",))[-1]


def bounds_of(each: ds.Filter) -> Bounds | None:
    """What this filter asks of its column; None: Spark must see to it."""
    if _column(each) not in COLUMNS:
        return None
    match each:
        case ds.IsNotNull():
            return Bounds()
        case ds.EqualTo(value=int(value)) | ds.EqualNullSafe(value=int(value)):
            return Bounds(value, value)
        case ds.GreaterThan(value=int(value)):
            return Bounds(low=value + 1)
        case ds.GreaterThanOrEqual(value=int(value)):
            return Bounds(low=value)
        case ds.LessThan(value=int(value)):
            return Bounds(high=value - 1)
        case ds.LessThanOrEqual(value=int(value)):
            return Bounds(high=value)
        case ds.In(value=values):
            return Bounds(among=frozenset(each for each in values if isinstance(each, int)))
        case _:
            return None
