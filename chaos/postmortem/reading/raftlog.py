"""The Spark data source `raftlog`: the records of replication logs, as rows of table `records`.

    spark.read.format("raftlog").load("DATA")
    spark.readStream.format("raftlog").load("DATA")

Paths are folders of nodes, archives, folders of such, or single segments, as in
docs/log-format.md. One partition is one segment. Filters on group, index, term and wall_ns are
pushed down, which needs `spark.sql.python.filterPushdown.enabled`; a damaged record is a row
whatever they say.

Options:
    paths      more of them: a JSON list, or separated by commas
    segments   instead of paths: segments as they were found, see `told`; nothing is looked for
    commands   false: leave out the commands, which are the bulk of a log
    indexes    a folder that all workers reach: what each sealed segment holds is kept there, and
               one that cannot hold what a filter asks for is not read again
    maxFilesPerTrigger   of a stream: so many segments in one batch
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource as ds

from chaos.postmortem.reading import segment_index
from chaos.postmortem.reading.decoding import decode
from chaos.postmortem.reading.inputs import Segment, discover, is_remote
from chaos.postmortem.reading.raftlog_stream import StreamReader
from chaos.postmortem.reading.segment_index import SegmentIndex
from chaos.postmortem.reading.wanted import COLUMNS, ONLY_DAMAGE, Bounds, Wanted
from chaos.postmortem.schemas import RECORDS
from cluster.log.reader import CORRUPT, TORN

REMOTE: Final = (
    "is on a file system that only Spark reaches: read it by chaos.postmortem.reading.ingest"
)


class RaftLog(ds.DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "raftlog"

    def schema(self) -> str:
        return RECORDS

    def reader(self, schema: Any) -> ds.DataSourceReader:
        return Reader(self.options)

    def streamReader(self, schema: Any) -> ds.DataSourceStreamReader:  # noqa: N802
        options = self.options
        files_max = options.get("maxFilesPerTrigger")
        wanted, paths = wanted_of(options), paths_of(options)
        return StreamReader(paths, wanted, None if files_max is None else int(files_max))


class OfSegment(ds.InputPartition):
    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.file)
        self.segment = segment


class Reader(ds.DataSourceReader):
    """Of all segments there are when the query is planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._segments = segments_of(options)
        self._paths = paths_of(options) if self._segments is None else []
        self._wanted = wanted_of(options)
        self._indexes = options.get("indexes")

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:  # noqa: N802
        for each in filters:
            bounds = bounds_of(each)
            if bounds is None:
                yield each
            else:
                self._wanted = self._wanted.also(_column(each), bounds)

    def partitions(self) -> list[ds.InputPartition]:
        segments = self._segments
        if segments is None:
            segments = discover(self._paths).segments
        if self._indexes is not None:
            os.makedirs(self._indexes, exist_ok=True)
            segments = [each for each in segments if self._may_hold(self._indexes, each)]
        return [OfSegment(segment) for segment in segments] or [NOTHING]

    def _may_hold(self, indexes: str, segment: Segment) -> bool:
        if segment.copy or not segment_index.indexable(segment):
            return True
        known = segment_index.load(indexes, segment)
        return known is None or known.may_hold(self._wanted)

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, OfSegment):
            return iter(())
        return read_segment(partition.segment, self._wanted, self._indexes)


#: Spark takes an empty list of partitions for one.
NOTHING: Final = ds.InputPartition(None)


def read_segment(
    segment: Segment, wanted: Wanted, indexes: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Of a segment that was given twice only what is damaged."""
    data = _content(segment)
    if data is None:
        return  # the cleaner of a running node was quicker: nothing of it was needed any more
    wanted = only_checked(wanted) if segment.copy else wanted
    if indexes is None or not segment_index.indexable(segment):
        yield from decode(data, segment, wanted)
        return
    index, sound = SegmentIndex(), True
    for batch in decode(data, segment, wanted, seen=index.see):
        # Damage is in a batch of its own.
        sound = sound and batch.column("kind")[0].as_py() not in (CORRUPT, TORN)
        yield batch
    if sound:
        index.store(indexes, segment)


def _content(segment: Segment) -> bytes | None:
    """Of one that is gone by now that of a copy."""
    for path in (segment.file, *segment.copies):
        with suppress(FileNotFoundError), open(path, "rb") as file:
            return file.read()
    return None


def only_checked(wanted: Wanted) -> Wanted:
    return replace(ONLY_DAMAGE, payloads=wanted.payloads)


def wanted_of(options: Mapping[str, str]) -> Wanted:
    return Wanted(payloads=options.get("commands", "true").lower() != "false")


def told(segments: Iterable[Segment]) -> str:
    """For the option `segments`."""
    return json.dumps([asdict(segment) for segment in segments])


def segments_of(options: Mapping[str, str]) -> list[Segment] | None:
    if "segments" not in options:
        return None
    given = json.loads(options["segments"])
    return [Segment(**each | {"copies": tuple(each["copies"])}) for each in given]


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
