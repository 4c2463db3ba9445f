"""Records by their place in the log: which segment, counted in the order they were written, and
where in it.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from chaos.postmortem.replication.entry_outcomes import OFFSET_BITS
from chaos.postmortem.replication.order import Given, Placed, placed
from chaos.postmortem.tables import Tables
from cluster.log import format as fmt
from cluster.log.reader import BODIES, CORRUPT, TORN

_SEGMENTS = (
    "cluster string, node string, file string, segment bigint, created_ns bigint, boot string,"
    " seq bigint, node_number bigint, disk int, boot_number int, holes int, bytes bigint"
)
_KEY = ["node", "created_ns", "segment"]


@dataclass(frozen=True, slots=True)
class LogOrder:
    """Of all that was given. There are thousands of segments in a terabyte: a small table."""

    segments: list[Placed]
    frame: DataFrame  # a row per segment

    def place(self, records: DataFrame) -> DataFrame:
        """Instead of node and file: `place`, and `stream`, which is one group on one node."""
        keys = self.frame.select(*_KEY, "seq", "node_number")
        return (
            records.join(F.broadcast(keys), _KEY)
            .withColumn("place", F.shiftleft("seq", OFFSET_BITS) + F.col("offset"))
            .withColumn("stream", F.shiftleft("node_number", 32) + F.col("group"))
            .drop(*_KEY, "offset", "seq", "node_number")
        )

    def name(self, placed_records: DataFrame) -> DataFrame:
        """The way back."""
        names = self.frame.select("cluster", "file", "seq", *_KEY)
        return (
            placed_records.withColumn("seq", F.shiftright("place", OFFSET_BITS))
            .withColumn("offset", F.col("place") - F.shiftleft("seq", OFFSET_BITS))
            .join(F.broadcast(names), "seq")
            .drop("place", "seq")
        )


def log_order(tables: Tables) -> LogOrder:
    rows = tables["segments"].collect()
    clusters = {row.node: row.cluster for row in rows}
    given = [
        Given(
            row.node,
            row.file,
            row.segment,
            row.created_ns,
            row.boot or row.file,
            archived=row.source == "archive",
            bytes=row.bytes,
            unread=row.status == "corrupt" and row.records == 0,
            copy=row.copy,
        )
        for row in rows
    ]
    segments = placed(given)
    if any(each.holes or each.disk for each in segments) or _begin_late(given):
        follows = _follows(tables)
        segments = placed(
            each
            if (before := follows.get(each.file)) is None
            else replace(each, follows=before.follows, follows_bytes=before.reached)
            for each in given
        )
    frame = local_frame(
        tables.spark,
        [
            (
                clusters[each.given.node],
                each.given.node,
                each.given.file,
                each.given.segment,
                each.given.created_ns,
                each.given.boot,
                each.seq,
                each.node_number,
                each.disk,
                each.boot_number,
                each.holes,
                each.given.bytes,
            )
            for each in segments
        ],
        _SEGMENTS,
    )
    return LogOrder(segments, frame)


def _begin_late(given: Iterable[Given]) -> bool:
    """Whether the log of any node does not begin with the first segment."""
    first: dict[str, int] = {}
    for each in given:
        first[each.node] = min(each.segment, first.get(each.node, each.segment))
    return any(number > 1 for number in first.values())


def _follows(tables: Tables) -> dict[str, Row]:
    """By file which segment was before and how long, as the first record of each says."""
    said = tables["records"].where("kind = 'synced' and group = 0")
    rows = (
        said.select(
            "file",
            "segment",
            synced_segment().alias("follows"),
            synced_offset().alias("reached"),
        )
        .where("follows < segment")
        .groupBy("file")
        .agg(F.max("follows").alias("follows"), F.max_by("reached", "follows").alias("reached"))
        .collect()
    )
    return {row.file: row for row in rows}


def local_frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], columns: str) -> DataFrame:
    """Few rows that the driver knows; as Arrow, because that needs no job to be read again."""
    told = StructType.fromDDL(columns)
    assert isinstance(told, StructType)
    schema = to_arrow_schema(told)
    values = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(each, field.type) for each, field in zip(values, schema, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema), told)


def synced_segment() -> Column:
    """Which segment a record of kind `synced` is about."""
    return _synced(0)


def synced_offset() -> Column:
    """How far it is safe."""
    return _synced(1)


def _synced(at: int) -> Column:
    return F.get(F.from_json("detail", "array<string>"), F.lit(at)).try_cast("bigint")


def read_ends(records: DataFrame) -> DataFrame:
    """file, end: how far there are sound records; bad_at: of the last that is damaged."""
    size = F.col("bytes") + fmt.RECORD_HEADER
    size = size + F.when(F.col("kind").isin(*BODIES), fmt.HASH_BYTES).otherwise(0)
    sound = ~F.col("kind").isin(CORRUPT, TORN)
    return records.groupBy("file").agg(
        F.max(F.when(sound, F.col("offset") + size)).alias("end"),
        F.max(F.when(F.col("kind") == CORRUPT, F.col("offset"))).alias("bad_at"),
    )


def mark_flags() -> Column:
    """Of a snapshot mark."""
    return F.get_json_object("detail", "$[0]").try_cast("int")
