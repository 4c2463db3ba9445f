"""What clients were told is safe, beside what was committed: lost, and stored twice, in production.

A message is looked for where its queue's log is known: from its first entry or, if the record says
when it was confirmed, while logs that were given reach from before that to after it.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.tables import Tables, conformed
from cluster.history.group_replay import BEFORE_FIRST

CHECKER: Final = "receipts"
LOST: Final = "confirmed, yet in no log"
TWICE: Final = "stored twice"
#: By how much the clock of a client may be wrong.
CLOCK_MS: Final = 1_000

Row = tuple[str, str, int | None, int]


def receipts(
    tables: Tables, rows: Iterable[Row], queues: Mapping[str, tuple[int, int]]
) -> DataFrame:
    """Rows of `client_findings`. queues: what clients call each, and its group and number."""
    spark = tables.spark
    told = spark.createDataFrame(
        list(rows), "called string, message string, at_ms bigint, op bigint"
    )
    names = spark.createDataFrame(
        [(name, *key) for name, key in queues.items()], "called string, group int, queue bigint"
    )
    told = told.join(F.broadcast(names), "called")
    key = ["group", "queue", "message"]
    stored = tables["messages"].where("entry is not null")
    place = [F.col("group"), F.col("queue"), F.col("entry"), F.col("entry_offset")]
    number = F.concat_ws(":", "publisher", F.col("seqno").cast("string")).alias("message")
    by_number = stored.where("publisher is not null and seqno is not null").select(*place, number)
    known = (
        by_number.unionByName(stored.select(*place, "message"))
        .distinct()
        .join(told.select(*key).distinct(), key, "left_semi")
        .groupBy(*key)
        .agg(F.count("*").alias("copies"), F.max("entry").alias("entry"))
    )
    judged = told.join(known, key, "left").join(F.broadcast(_reach(tables)), "group")
    reached = (F.col("begin_ms").isNull() | (F.col("at_ms") >= F.col("begin_ms") + CLOCK_MS)) & (
        F.col("at_ms") <= F.col("end_ms") - CLOCK_MS
    )
    lost = F.col("copies").isNull() & F.coalesce(reached, F.lit(False))
    kind = F.when(lost, LOST).when(F.col("copies") > 1, TWICE)
    detail = F.when(lost, F.lit("logs reach over its time, and none has it")).otherwise(
        F.format_string("again by entry %d of group %d", "entry", "group")
    )
    found = judged.withColumn("kind", kind).where("kind is not null")
    return conformed(
        found.select(
            F.lit(CHECKER).alias("checker"),
            "kind",
            F.col("called").alias("queue"),
            "message",
            "op",
            "at_ms",
            detail.alias("detail"),
        ),
        "client_findings",
    )


def _reach(tables: Tables) -> DataFrame:
    """Of each group that was replayed whole: from when (null: its first entry) to when its log says
    what was published.
    """
    whole = (
        tables["replays"]
        .groupBy("group")
        .agg(
            F.min(F.coalesce("base", F.lit(0))).alias("base"),
            F.max(F.when(F.col("failed").isNotNull(), 1).otherwise(0)).alias("failed"),
        )
        .where("failed = 0")
    )
    begin = F.min(F.when(F.col("event") != "known", F.col("at_ms"))).alias("stamp_ms")
    begins = tables["events"].groupBy("group").agg(begin)
    ends = tables["segments"].agg(F.floor(F.max("last_ns") / 1e6).cast("bigint").alias("end_ms"))
    begin_ms = F.when(F.col("base") > BEFORE_FIRST, F.col("stamp_ms")).alias("begin_ms")
    return whole.join(begins, "group").crossJoin(ends).select("group", begin_ms, "end_ms")
