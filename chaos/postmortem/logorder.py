"""Records by their place in the log: which segment, counted in the order they were written, and
where in it.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.fates import OFFSET_BITS
from chaos.postmortem.order import Given, Placed, placed
from chaos.postmortem.tables import Tables

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
    said = tables["records"].where("kind = 'synced' and group = 0")
    follows = (
        said.select(*_KEY, synced_segment().alias("follows"))
        .where("follows < segment")
        .groupBy(*_KEY)
        .agg(F.max("follows").alias("follows"))
    )
    given = tables["segments"].where("not copy and created_ns > 0").join(follows, _KEY, "left")
    rows = given.collect()
    clusters = {row.node: row.cluster for row in rows}
    segments = placed(
        Given(
            row.node,
            row.file,
            row.segment,
            row.created_ns,
            row.boot,
            row.source == "archive",
            row.follows or 0,
            row.bytes,
        )
        for row in rows
    )
    frame = tables.spark.createDataFrame(
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


def synced_segment() -> Column:
    """Which segment a record of kind `synced` is about."""
    return _synced(0)


def synced_offset() -> Column:
    """How far it is safe."""
    return _synced(1)


def _synced(at: int) -> Column:
    return F.from_json("detail", "array<bigint>")[at]


def mark_flags() -> Column:
    """Of a snapshot mark."""
    return F.get_json_object("detail", "$[0]").cast("int")
