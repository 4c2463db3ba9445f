"""How far the clocks of nodes are apart, when one of them jumped, and times that compare."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.life.nodes import MS_NS, S_NS, said
from chaos.postmortem.tables import Tables

MINUTE_NS: Final = 60 * S_NS
#: Less than this is no jump: a node reads its two clocks one after the other.
JUMP_NS_MIN: Final = 100 * MS_NS
#: What is measured less exactly corrects nothing.
BOUND_MS_MAX: Final = 250.0


def minute_of(at_ns: str) -> Column:
    return F.col(at_ns) - F.col(at_ns) % MINUTE_NS


def measured() -> tuple[Column, Column]:
    """Of a note about clocks, in ns: how far the peer's was ahead of the node's, and in which time
    the peer was asked and answered: by half of that the other may be wrong.
    """
    sent, received, answered, returned = (said(place).try_cast("bigint") for place in range(1, 5))
    peers, own = F.try_add(received, answered), F.try_add(sent, returned)
    there_and_back = F.try_subtract(F.try_add(received, returned), F.try_add(sent, answered))
    return F.try_subtract(peers, own) / 2, there_and_back


def clocks(tables: Tables) -> DataFrame:
    """The quickest answer of a minute tells most (the first of those that were as quick): its
    offset is wrong by half of its delay at most.
    An answer that seems to come before the question was asked across a jump.
    """
    ahead_ns, took_ns = measured()
    samples = (
        tables["notes"]
        .filter(F.col("kind") == "clock")
        .select(
            "node",
            said(0).alias("peer"),
            "wall_ns",
            minute_of("wall_ns").alias("minute_ns"),
            (ahead_ns / MS_NS).alias("offset_ms"),
            (took_ns / 2 / MS_NS).alias("bound_ms"),
        )
        .filter(F.col("bound_ms") >= 0)
    )
    return samples.groupBy("node", "peer", "minute_ns").agg(
        F.min_by("offset_ms", F.struct("bound_ms", "wall_ns")).alias("offset_ms"),
        F.min("bound_ms").alias("bound_ms"),
        F.count("*").alias("samples"),
    )


# --- jumps


def clock_jumps(tables: Tables) -> DataFrame:
    """All records are looked at again, but only in seconds that a jump is in or next to."""
    near = _near_jumps(tables["beats"])
    if near.isEmpty():
        return tables.empty("clock_jumps")
    second = F.floor(F.col("mono_ns") / S_NS).alias("second")
    read = tables["records"].select(
        "node", "boot", "file", "segment", "offset", "wall_ns", "mono_ns", second
    )
    suspects = read.join(F.broadcast(near), ["file", "second"])
    in_order = Window.partitionBy("node", "boot").orderBy("segment", "offset")
    ahead = F.col("wall_ns") - F.col("mono_ns")
    jump = F.col("ahead_ns") - F.col("before_ns")
    # A node that was held between reading the one clock and the other is back at the next record.
    stays = F.abs(F.coalesce("after_ns", "ahead_ns") - F.col("before_ns")) >= JUMP_NS_MIN
    return (
        suspects.withColumn("ahead_ns", ahead)
        .withColumn("before_ns", F.lag("ahead_ns").over(in_order))
        .withColumn("after_ns", F.lead("ahead_ns").over(in_order))
        .withColumn("before_place", F.lag("place").over(in_order))
        .filter(F.col("place") - F.col("before_place") <= 1)
        .filter((F.abs(jump) >= JUMP_NS_MIN) & stays)
        .select(
            "node", "file", "offset", F.col("wall_ns").alias("at_ns"),
            (jump / MS_NS).alias("jump_ms"),
        )
    )  # fmt: skip


def _near_jumps(beats: DataFrame) -> DataFrame:
    """Seconds with a jump, and those before and behind them, by file. What is not next to one
    another must not be compared: in hours a clock drifts further than it jumps.
    """
    in_order = Window.partitionBy("node", "boot").orderBy("segment", "second")
    apart = F.greatest(
        F.col("ahead_max_ns") - F.col("before_min_ns"),
        F.col("before_max_ns") - F.col("ahead_min_ns"),
        F.col("ahead_max_ns") - F.col("ahead_min_ns"),
    )
    return (
        beats.withColumn("before_min_ns", F.lag("ahead_min_ns").over(in_order))
        .withColumn("before_max_ns", F.lag("ahead_max_ns").over(in_order))
        .withColumn("place", F.row_number().over(in_order))
        .withColumn("jumps", apart >= JUMP_NS_MIN)
        .withColumn("follows", F.lag("jumps").over(in_order))
        .withColumn("leads", F.lead("jumps").over(in_order))
        .filter("coalesce(jumps, false) or coalesce(follows, false) or coalesce(leads, false)")
        .select("file", "second", "place")
    )


# --- times that compare


def shifts(tables: Tables) -> DataFrame:
    """By the clock of the node whose name comes first."""
    good = tables["clocks"].filter(F.col("bound_ms") <= BOUND_MS_MAX)
    first = good.agg(F.min(F.least("node", "peer")).alias("first"))
    of_first = (F.col("node") == F.col("first")) | (F.col("peer") == F.col("first"))
    told = good.join(F.broadcast(first), of_first)
    # What the node measured itself is stamped with its own time, so it counts more.
    by_itself = F.col("peer") == F.col("first")
    ahead = (F.col("offset_ms") * MS_NS).cast("bigint")
    by_minute = (
        told.select(
            F.when(by_itself, F.col("node")).otherwise(F.col("peer")).alias("node"),
            "minute_ns",
            F.when(by_itself, ahead).otherwise(-ahead).alias("shift_ns"),
            F.when(by_itself, 0).otherwise(1).alias("rank"),
        )
        .groupBy("node", "minute_ns")
        .agg(F.min_by("shift_ns", "rank").alias("shift_ns"))
    )
    always = by_minute.groupBy("node").agg(
        F.lit(None).cast("bigint").alias("minute_ns"),
        F.percentile("shift_ns", F.lit(0.5)).cast("bigint").alias("shift_ns"),
    )
    return by_minute.unionByName(always)


def in_common_time(frame: DataFrame, shifts: DataFrame, at_ns: str = "at_ns") -> DataFrame:
    """Adds `shift_ns`: what must be added to a time of `node`. In a minute without a measurement
    it is what it mostly was.
    """
    in_minute = shifts.filter("minute_ns is not null").withColumnRenamed("shift_ns", "_then")
    always = shifts.filter("minute_ns is null").select("node", F.col("shift_ns").alias("_always"))
    return (
        frame.withColumn("minute_ns", minute_of(at_ns))
        .join(in_minute, ["node", "minute_ns"], "left")
        .join(always, "node", "left")
        .withColumn("shift_ns", F.coalesce("_then", "_always", F.lit(0)))
        .drop("minute_ns", "_then", "_always")
    )
