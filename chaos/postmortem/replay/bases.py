"""The states that nodes wrote down: each snapshot, and the digest of what is in it."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from chaos.postmortem.reading.inputs import SnapshotFile, is_remote
from cluster.lifecycle import Lifecycle
from cluster.log.errors import LogCorrupt, UnsupportedFormat
from cluster.log.snapshots import decode_snapshot
from cluster.machine import UnsupportedSnapshot
from cluster.types import GroupId

#: Snapshots that are read at a time, at most.
READS_MAX: Final = 64

_READ: Final = "file string, group int, index bigint, term bigint, hash binary, digest string"
_READ_SCHEMA: Final = pa.schema(
    [
        ("file", pa.string()), ("group", pa.int32()), ("index", pa.int64()), ("term", pa.int64()),
        ("hash", pa.binary()), ("digest", pa.string()),
    ]
)  # fmt: skip
_NAMED: Final = "file string, content binary"
_CONTENT: Final = pa.schema([("file", pa.string()), ("content", pa.binary())])


class Base(NamedTuple):
    """A state that a replay can begin with; `file` None: the empty one of the beginning."""

    group: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    hash: bytes
    digest: str | None = None
    file: str | None = None
    node: str | None = None


def bases(spark: SparkSession, snapshots: Sequence[SnapshotFile]) -> list[Base]:
    """Of the snapshots that can be read and restored; the others are in `corruption`."""
    nodes = {each.file: each.node for each in snapshots if not (each.set_aside or each.copy)}
    if not nodes:
        return []
    read = contents(spark, sorted(nodes)).mapInArrow(_digests, _READ)
    found = [
        Base(row.group, row["index"], bytes(row.hash), row.digest, row.file, nodes[row.file])
        for row in read.collect()
    ]
    return sorted(found, key=lambda each: (each.group, each.index, each.file))


def contents(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """Whole files: `file`, `content`. Of local ones those that are still there."""
    near = [(file,) for file in files if not is_remote(file)]
    far = [file for file in files if is_remote(file)]
    named = spark.createDataFrame(near, "file string")
    read = named.repartition(max(1, min(len(near), READS_MAX))).mapInArrow(_local, _NAMED)
    if far:
        away = spark.read.format("binaryFile").load(far).selectExpr("path as file", "content")
        read = read.unionByName(away)
    return read


def _local(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path in batch.column(0).to_pylist():
            try:
                with open(path, "rb") as file:
                    data = file.read()
            except FileNotFoundError:  # the node has a newer one by now
                continue
            yield pa.RecordBatch.from_arrays([[path], pa.array([data])], schema=_CONTENT)


def _digests(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for file, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            try:
                group, snapshot, _ = decode_snapshot(data, file)
                digest = Lifecycle.after(GroupId(group), snapshot).digest().hex()
            except (LogCorrupt, UnsupportedFormat, UnsupportedSnapshot):
                continue
            row: dict[str, Any] = {
                "file": file, "group": group, "index": snapshot.index, "term": snapshot.term,
                "hash": snapshot.hash, "digest": digest,
            }  # fmt: skip
            yield pa.RecordBatch.from_pylist([row], schema=_READ_SCHEMA)
