"""What nodes say of themselves: when they lived, stood still, synced, and whom they heard."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.replication.logorder import log_order
from chaos.postmortem.tables import Tables

S_NS: Final = 1_000_000_000
MS_NS: Final = 1_000_000
#: Rare, and what `notes` holds.
KINDS: Final = (
    "hard-state", "snapshot", "group-created", "group-removed", "role", "link-up", "link-down",
    "round", "clock", "digest", "given-up", "stopped", "started", "settings", "alarm",
    "publishers", "failed", "archive", "stall", "corrupt", "torn",
)  # fmt: skip
DAMAGE: Final = ("corrupt", "torn")
#: Even an idle node that hears others notes something about once a second.
STANDSTILL_NS_MIN: Final = 2 * S_NS
#: A sync that took this share of a standstill may be the reason for it.
SYNC_SHARE: Final = 0.8


def said(place: int) -> Column:
    """A field of a note's payload, as text."""
    return F.get(F.from_json("detail", "array<string>"), F.lit(place))


def notes(tables: Tables) -> DataFrame:
    return tables["records"].filter(F.col("kind").isin(*KINDS))


def beats(tables: Tables) -> DataFrame:
    """Aggregates of plain numbers only: this reads every record there is."""
    ahead = F.col("wall_ns") - F.col("mono_ns")
    by = ("cluster", "node", "boot", "file", "segment", "created_ns")
    return (
        tables["records"]
        .filter(~F.col("kind").isin(*DAMAGE))
        .groupBy(*by, F.floor(F.col("mono_ns") / S_NS).alias("second"))
        .agg(
            F.count("*").alias("records"),
            F.min("mono_ns").alias("first_ns"),
            F.max("mono_ns").alias("last_ns"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
            F.min(ahead).alias("ahead_min_ns"),
            F.max(ahead).alias("ahead_max_ns"),
        )
    )


# --- lives


def lives(tables: Tables) -> DataFrame:
    found = tables["beats"]
    newest = F.struct("segment", "last_offset")
    boots = found.groupBy("cluster", "node", "boot").agg(
        F.min("created_ns").alias("from_ns"),
        F.max_by(F.col("last_ns") + F.col("ahead_max_ns"), newest).alias("to_ns"),
        F.max_by("file", newest).alias("file"),
        F.max_by("last_offset", newest).alias("offset"),
    )
    stopped = (
        tables["notes"].filter(F.col("kind") == "stopped").select("node", "boot").distinct()
    ).withColumn("stopped", F.lit(True))
    in_order = log_order(tables).frame.select("node", "boot", "boot_number").distinct()
    of_node = Window.partitionBy("node").orderBy("boot_number")
    boots = (
        boots.join(F.broadcast(in_order), ["node", "boot"])
        .join(stopped, ["node", "boot"], "left")
        .withColumn("life", F.row_number().over(of_node) - 1)
        .withColumn("is_last", F.lead("boot").over(of_node).isNull())
    )
    gone = _seen_gone(tables["links"])
    missed = F.col("is_last") & (F.col("gone_ns") >= F.col("to_ns") - STANDSTILL_NS_MIN)
    ended = (
        F.when(F.col("stopped"), "orderly")
        .when(~F.col("is_last") | missed, "killed")
        .otherwise("open")
    )
    return boots.join(gone, "node", "left").withColumn("ended", ended)


def _seen_gone(links: DataFrame) -> DataFrame:
    """Nodes whose process somebody saw end, and did not see again; when."""
    newest = F.max_by(F.struct("event", "at_ns"), F.struct("at_ns", "file", "offset"))
    return (
        links.groupBy("node", "peer")
        .agg(newest.alias("newest"))
        .filter(F.col("newest.event") == "gone")
        .groupBy(F.col("peer").alias("node"))
        .agg(F.max("newest.at_ns").alias("gone_ns"))
    )


def links(tables: Tables) -> DataFrame:
    event = (
        F.when(F.col("kind") == "link-up", "up").when(said(2) == "true", "gone").otherwise("down")
    )
    return (
        tables["notes"]
        .filter(F.col("kind").isin("link-up", "link-down"))
        .select(
            "node",
            said(0).alias("peer"),
            F.col("wall_ns").alias("at_ns"),
            event.alias("event"),
            "file",
            "offset",
        )
    )


def syncs(tables: Tables) -> DataFrame:
    return (
        tables["notes"]
        .filter(F.col("kind") == "round")
        .select(
            "node",
            F.col("wall_ns").alias("at_ns"),
            said(0).try_cast("bigint").alias("records"),
            said(1).try_cast("bigint").alias("bytes"),
            said(2).try_cast("bigint").alias("syncs"),
            (said(3).try_cast("bigint") / MS_NS).alias("longest_ms"),
            "file",
            "offset",
        )
    )


# --- standstills


def standstills(tables: Tables) -> DataFrame:
    gaps = _gaps(tables["beats"])
    noted = tables["notes"]
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
    return found.join(syncing, ["node", "boot", "begin_ns"], "left").withColumn(
        "syncing", F.coalesce("syncing", F.lit(False))
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
