"""Nodes that did nothing for a while though they were up, and nobody's disk is to blame."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.life.clocks import in_common_time
from chaos.postmortem.life.nodes import DAMAGE, MS_NS, S_NS, STANDSTILL_NS_MIN, said
from chaos.postmortem.tables import Tables

#: A node looks at the clock of each peer about once a second: when it took none for so long, while
#: a sync was under way, it did not wait for the disk alone.
UNSAMPLED_NS_MIN: Final = 1_300_000_000
#: A stall is noted at the second tick behind it.
STALL_NOTED_NS: Final = S_NS
#: A clock goes ahead by no less when its machine was paused for long enough to be missed.
PAUSE_NS_MIN: Final = 2 * S_NS
#: Who says that it stood still for longer than a year says nothing.
STALL_MS_MAX: Final = 366 * 86_400_000.0
#: A sync that took this share of a standstill may be the reason for it.
SYNC_SHARE: Final = 0.8


def standstills(tables: Tables) -> DataFrame:
    noted = tables["notes"]
    gaps = _within_gaps(tables["beats"], noted)
    told = _stalls(noted)
    # Whoever says so itself knows it better than what can be seen of it.
    since = F.col("gap.to_ns") + STALL_NOTED_NS + S_NS
    same = (F.col("gap.node") == F.col("told.node")) & (F.col("gap.boot") == F.col("told.boot"))
    both = same & (F.col("told.from_ns") <= since) & (F.col("told.to_ns") >= F.col("gap.from_ns"))
    known = gaps.alias("gap").join(told.alias("told"), both, "left_anti")
    unsampled = _unsampled(noted)
    seen = known.unionByName(told)
    both = (
        (F.col("one.node") == F.col("other.node"))
        & (F.col("one.from_ns") < F.col("other.to_ns"))
        & (F.col("one.to_ns") > F.col("other.from_ns"))
    )
    more = unsampled.alias("one").join(seen.alias("other"), both, "left_anti")
    return seen.unionByName(more).unionByName(_paused(tables))


def _stalls(noted: DataFrame) -> DataFrame:
    """What nodes said of themselves. When exactly they did not run they do not know."""
    loop_ms, process_ms = (said(place).try_cast("double") for place in range(2))
    held = process_ms >= SYNC_SHARE * loop_ms
    ms = F.when(held, process_ms).otherwise(loop_ms)
    to_ns = F.col("wall_ns") - F.lit(STALL_NOTED_NS // 2)
    said_ms = loop_ms.between(0, STALL_MS_MAX) & process_ms.between(0, STALL_MS_MAX)
    return noted.filter((F.col("kind") == "stall") & said_ms).select(
        *("node", "boot"),
        (to_ns - (ms * MS_NS).try_cast("bigint")).alias("from_ns"),
        to_ns.alias("to_ns"),
        ms.alias("ms"),
        F.lit(False).alias("syncing"),
        F.when(held, "process").otherwise("loop").alias("cause"),
        *("file", "offset"),
    )


def _unsampled(noted: DataFrame) -> DataFrame:
    """Syncs that took long, in which a node that looks at its peers' clocks all the time did not:
    all of it stood still. Of older releases, which do not say so.
    """
    of_boot = Window.partitionBy("node", "boot").orderBy("segment", "offset")
    samples = noted.filter(F.col("kind") == "clock").select(
        *("node", "boot", "mono_ns"), F.lead("mono_ns").over(of_boot).alias("next_ns")
    )
    took_ns = said(3).try_cast("bigint")
    slow = noted.filter((F.col("kind") == "round") & (took_ns >= UNSAMPLED_NS_MIN)).select(
        *("node", "boot", "wall_ns", "mono_ns", "file", "offset"), took_ns.alias("took_ns")
    )
    begun = F.col("slow.mono_ns") - F.col("slow.took_ns")
    edge = F.lit(S_NS // 10)
    # From one sample to the next the whole sync went by, and both were in time.
    over = (
        (F.col("slow.node") == F.col("sample.node"))
        & (F.col("slow.boot") == F.col("sample.boot"))
        & (F.col("sample.mono_ns").between(begun - 2 * S_NS, begun + edge))
        & (F.col("sample.next_ns") >= F.col("slow.mono_ns") - edge)
        & (F.col("sample.next_ns") <= F.col("slow.mono_ns") + 2 * S_NS)
    )
    return (
        slow.alias("slow")
        .join(samples.alias("sample"), over, "left_semi")
        .select(
            *("node", "boot"),
            (F.col("wall_ns") - F.col("took_ns")).alias("from_ns"),
            F.col("wall_ns").alias("to_ns"),
            (F.col("took_ns") / MS_NS).alias("ms"),
            F.lit(True).alias("syncing"),
            F.lit("unknown").alias("cause"),
            *("file", "offset"),
        )
    )


def _paused(tables: Tables) -> DataFrame:
    """Clocks that went ahead, in a time in which others, who went on, got no answer from the node:
    its machine was paused, and its monotonic clock with it.
    """
    jumps = tables["clock_jumps"].where(F.col("jump_ms") >= PAUSE_NS_MIN / MS_NS)
    if jumps.isEmpty():
        return tables.empty("standstills")
    shift = F.col("shift_ns")
    ahead_ns = (F.col("jump_ms") * MS_NS).cast("bigint")
    at = in_common_time(jumps, tables["shifts"]).select(
        *("node", "file", "offset", "at_ns", "jump_ms"),
        (F.col("at_ns") + shift).alias("ref_ns"),
        ahead_ns.alias("ahead_ns"),
    )
    of_peer = Window.partitionBy("node", "boot", "peer").orderBy("segment", "offset")
    heard = in_common_time(
        tables["notes"].filter(F.col("kind") == "clock").withColumn("peer", said(0)),
        tables["shifts"],
        "wall_ns",
    )
    silent = (
        heard.withColumn("next_ns", F.lead("mono_ns").over(of_peer))
        .withColumn("gap_ns", F.col("next_ns") - F.col("mono_ns"))
        .where(F.col("gap_ns") >= SYNC_SHARE * PAUSE_NS_MIN)
        .select(
            F.col("node").alias("by"), "boot", "peer", "mono_ns", "next_ns", "gap_ns",
            (F.col("wall_ns") + shift).alias("since_ns"),
        )
    )  # fmt: skip
    beats = tables["beats"].select(
        F.col("node").alias("whose"),
        F.col("boot").alias("its"),
        (F.col("second") * S_NS).alias("s"),
    )
    # Who heard nothing went on by itself.
    went_on = (
        (F.col("whose") == F.col("by"))
        & (F.col("its") == F.col("boot"))
        & (F.col("s") > F.col("mono_ns") + S_NS // 2)
        & (F.col("s") < F.col("next_ns") - S_NS)
    )
    silent = silent.join(beats, went_on, "left_semi")
    missed = (
        (F.col("peer") == F.col("node"))
        & (F.col("gap_ns") >= SYNC_SHARE * F.col("ahead_ns"))
        & (F.abs(F.col("since_ns") + F.col("ahead_ns") - F.col("ref_ns")) <= 3 * S_NS)
    )
    return at.join(silent, missed, "left_semi").select(
        "node",
        F.lit(None).cast("string").alias("boot"),
        (F.col("at_ns") - F.col("ahead_ns")).alias("from_ns"),
        F.col("at_ns").alias("to_ns"),
        F.col("jump_ms").alias("ms"),
        F.lit(False).alias("syncing"),
        F.lit("machine").alias("cause"),
        *("file", "offset"),
    )


def _within_gaps(beats: DataFrame, noted: DataFrame) -> DataFrame:
    gaps = _gaps(beats)
    same = ["node", "boot"]
    heard = _heard(noted)
    inside = (F.col("heard.mono_ns") <= F.col("gap.begin_ns")) & (
        F.col("heard.next_ns").isNull() | (F.col("heard.next_ns") >= F.col("gap.end_ns"))
    )
    of_boot = (F.col("gap.node") == F.col("heard.node")) & (
        F.col("gap.boot") == F.col("heard.boot")
    )
    found = gaps.alias("gap").join(heard.alias("heard"), of_boot & inside, "left_semi")
    holes = noted.filter(F.col("kind").isin(*DAMAGE)).select(*same, "segment", "offset")
    between = (
        (F.col("gap.node") == F.col("hole.node"))
        & (F.col("gap.boot") == F.col("hole.boot"))
        & F.col("hole.segment").between(F.col("gap.before_segment"), F.col("gap.segment"))
        & (
            (F.col("hole.segment") > F.col("gap.before_segment"))
            | (F.col("hole.offset") > F.col("gap.before_offset"))
        )
        & (
            (F.col("hole.segment") < F.col("gap.segment"))
            | (F.col("hole.offset") < F.col("gap.offset"))
        )
    )
    found = found.alias("gap").join(holes.alias("hole"), between, "left_anti")
    syncing = _under_sync(found, noted)
    return found.join(syncing, ["node", "boot", "begin_ns"], "left").select(
        *("node", "boot", "from_ns", "to_ns", "ms"),
        F.coalesce("syncing", F.lit(False)).alias("syncing"),
        F.lit("unknown").alias("cause"),
        *("file", "offset"),
    )


def _gaps(found: DataFrame) -> DataFrame:
    """Where nothing was written for long: between records of which nothing is missing."""
    in_order = Window.partitionBy("node", "boot").orderBy("segment", "first_offset")
    before = {name: F.lag(name).over(in_order) for name in ("segment", "last_ns", "last_offset")}
    gap_ns = F.col("first_ns") - F.col("begin_ns")
    return (
        found.withColumn("begin_ns", before["last_ns"])
        .withColumn("before_segment", before["segment"])
        .withColumn("before_offset", before["last_offset"])
        .withColumn("before_ahead_ns", F.lag("ahead_max_ns").over(in_order))
        .filter(gap_ns >= STANDSTILL_NS_MIN)
        .filter(F.col("segment") - F.col("before_segment") <= 1)
        .select(
            "node",
            "boot",
            "begin_ns",
            F.col("first_ns").alias("end_ns"),
            (F.col("begin_ns") + F.col("before_ahead_ns")).alias("from_ns"),
            (F.col("first_ns") + F.col("ahead_min_ns")).alias("to_ns"),
            (gap_ns / MS_NS).alias("ms"),
            "before_segment",
            "before_offset",
            "file",
            "segment",
            F.col("first_offset").alias("offset"),
        )
    )


def _heard(noted: DataFrame) -> DataFrame:
    """Times in which a link was up, and nothing was heard over it for long. A node that hears
    nobody has nothing to write, and stands still for no reason of its own.
    """
    of_peer = Window.partitionBy("node", "boot", "peer").orderBy("segment", "offset")
    return (
        noted.filter(F.col("kind").isin("clock", "link-up", "link-down"))
        .withColumn("peer", said(0))
        .withColumn("next_ns", F.lead("mono_ns").over(of_peer))
        .filter(F.col("kind") != "link-down")
        .filter(
            F.col("next_ns").isNull() | (F.col("next_ns") - F.col("mono_ns") >= STANDSTILL_NS_MIN)
        )
        .select("node", "boot", "mono_ns", "next_ns")
    )


def _under_sync(gaps: DataFrame, noted: DataFrame) -> DataFrame:
    """Those gaps that one sync took up."""
    longest = said(3).try_cast("bigint")
    slow = (
        noted.filter((F.col("kind") == "round") & (longest >= SYNC_SHARE * STANDSTILL_NS_MIN))
        .select("node", "boot", F.col("mono_ns").alias("done_ns"), longest.alias("took_ns"))
        .alias("slow")
    )
    shared = F.least("gap.end_ns", "slow.done_ns") - F.greatest(
        F.col("gap.begin_ns"), F.col("slow.done_ns") - F.col("slow.took_ns")
    )
    fits = (
        (F.col("gap.node") == F.col("slow.node"))
        & (F.col("gap.boot") == F.col("slow.boot"))
        & (shared >= SYNC_SHARE * (F.col("gap.end_ns") - F.col("gap.begin_ns")))
    )
    return (
        gaps.alias("gap")
        .join(slow, fits, "left_semi")
        .select("node", "boot", "begin_ns", F.lit(True).alias("syncing"))
    )
