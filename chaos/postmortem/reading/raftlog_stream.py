"""The logs of running nodes as a stream of records.

A record is handed out once it is known to be on stable storage: in a sealed segment all are, in
the newest one those up to the last note of kind `synced`. So nothing is handed out that a crash can
take back, nor half of a record; the last ones before a silence come with the next write.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from chaos.postmortem.reading.decoding import decode
from chaos.postmortem.reading.inputs import HEAD_BYTES, NothingToRead, Segment, discover
from chaos.postmortem.reading.wanted import EVERYTHING, Wanted
from cluster.log import format as fmt
from cluster.log.reader import Record, header_of, runs

#: By segment (see `key_of`) how many of its bytes were handed out.
Offsets = dict[str, int]


class OfPart(ds.InputPartition):
    """A segment from one record to another."""

    def __init__(self, segment: Segment, start: int, stop: int) -> None:
        super().__init__((segment.file, start, stop))
        self.segment = segment
        self.start = start
        self.stop = stop


class StreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module."""

    def __init__(
        self, paths: list[str], wanted: Wanted = EVERYTHING, files_max: int | None = None
    ) -> None:
        self._paths = paths
        self._wanted = wanted
        self._files_max = files_max
        self._target: Offsets | None = None  # what there was when `availableNow` began

    def initialOffset(self) -> Offsets:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._files_max is None else ReadMaxFiles(self._files_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._reached({}, None)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        return self._reached(start, limit.max_files if isinstance(limit, ReadMaxFiles) else None)

    def _reached(self, start: Offsets, files_max: int | None) -> Offsets:
        """How far each segment can be handed out; of those with something new the first ones."""
        reached, taken = Offsets(), 0
        for segment in _listed(self._paths):
            key = key_of(segment)
            before = start.get(key, 0)
            stop = before
            if files_max is None or taken < files_max:
                stop = max(before, safe_end(segment, before))
                if self._target is not None:
                    stop = max(before, min(stop, self._target.get(key, 0)))
            taken += stop > before
            if stop > 0:
                reached[key] = stop
        return dict(sorted(reached.items()))

    def partitions(self, start: Offsets, end: Offsets) -> list[ds.InputPartition]:
        return [
            OfPart(segment, start.get(key, 0), end[key])
            for segment in _listed(self._paths)
            if (key := key_of(segment)) in end and end[key] > start.get(key, 0)
        ]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OfPart)
        return _records(partition, self._wanted)


def _listed(paths: list[str]) -> list[Segment]:
    """One that is in a log folder and in an archive is in there once."""
    try:
        return [segment for segment in discover(paths).segments if not segment.copy]
    except NothingToRead:
        return []  # a node that has yet to begin


def key_of(segment: Segment) -> str:
    """The same for a segment and its copy in an archive, which may outlive it."""
    if segment.damaged:
        return segment.file
    number = f"{segment.number:012d}"
    return f"{segment.cluster}/{segment.node}/{segment.created_ns:020d}-{number}"


def safe_end(segment: Segment, start: int) -> int:
    """Where what is surely stored ends, as far as notes behind `start` say; all of a sealed one."""
    if not segment.last:
        return segment.bytes
    data, base = _bytes(segment.file, start, None)
    header = header_of(_bytes(segment.file, 0, HEAD_BYTES)[0], segment.file, last=True)
    if isinstance(header, Record):
        return 0  # about to be written
    reached, first = 0, max(start, header.size)
    for run in runs(data, header, segment.file, last=True, count=1 << 20, start=first - base):
        if isinstance(run, list):
            kinds = np.frombuffer(data, np.uint8)[np.array(run[:-1]) + fmt.KIND_AT]
            for at in np.flatnonzero(kinds == fmt.KIND_SYNCED).tolist():
                number, offset = fmt.decode_synced(data[run[at] + fmt.RECORD_HEADER : run[at + 1]])
                reached = max(reached, offset if number == header.number else 0)
    return min(reached, base + len(data))


def _bytes(path: str, start: int, stop: int | None) -> tuple[bytes, int]:
    """From the begin of the sector of `start` on, and where that is."""
    base = start - start % fmt.SECTOR
    try:
        with open(path, "rb") as file:
            file.seek(base)
            return file.read(-1 if stop is None else stop - base), base
    except FileNotFoundError:
        return b"", base  # the cleaner was quicker: nothing of it was needed any more


def _records(part: OfPart, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    # It ends with a whole record that was synced, so whatever is bad in there is no torn end.
    segment = replace(part.segment, last=False)
    data, base = _bytes(segment.file, part.start, part.stop)
    head, _ = _bytes(segment.file, 0, HEAD_BYTES)
    if head:
        yield from decode(data, segment, wanted, head=head, start=part.start, base=base)
