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
