"""Tables of how quickly entries become safe, and of snapshots."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.engine import quantiles
from chaos.postmortem.life.times import leaders_of_terms
from chaos.postmortem.replication.logorder import mark_flags
from chaos.postmortem.tables import Tables
from cluster.log.format import MARK_INSTALLED
from cluster.log.snapshots import BIRTH

MINUTE_NS: Final = 60_000_000_000


def commit_latency(tables: Tables) -> DataFrame:
    """The table `commit_latency`. leads: entries of terms that the node led itself."""
    leaders = leaders_of_terms(tables).withColumn("leads", F.lit(True))
    entries = tables["entries"].where("kind = 'entry'")
    entries = entries.withColumn("sync", F.col("sync_ns") / 1e6)
    entries = entries.withColumn("commit", F.col("commit_ns") / 1e6)
    return (
        entries.join(F.broadcast(leaders), ["group", "term", "node"], "left")
        .groupBy(
            *("node", "group"),
            (F.floor(F.col("wall_ns") / MINUTE_NS) * MINUTE_NS).alias("minute_ns"),
            F.coalesce("leads", F.lit(False)).alias("leads"),
        )
        .agg(
            F.count("*").alias("entries"),
            F.sum("bytes").alias("bytes"),
            quantiles("sync", 0.5, 0.99).alias("syncs"),
            F.max("sync").alias("sync_max"),
            quantiles("commit", 0.5, 0.95, 0.99).alias("commits"),
            F.max("commit").alias("commit_max"),
        )
        .select(
            *("node", "group", "minute_ns", "leads", "entries", "bytes"),
            F.col("syncs")[0].alias("sync_p50"),
            F.col("syncs")[1].alias("sync_p99"),
            "sync_max",
            F.col("commits")[0].alias("commit_p50"),
            F.col("commits")[1].alias("commit_p95"),
            F.col("commits")[2].alias("commit_p99"),
            "commit_max",
        )
    )


def snapshots(tables: Tables) -> DataFrame:
    """The table `snapshots`: where the log first speaks of each; the cleaner repeats it later."""
    marks = tables["records"].where((F.col("kind") == "snapshot") & (F.col("index") > BIRTH.index))
    first = F.struct("created_ns", "segment", "offset", "wall_ns", "file")
    return (
        marks.groupBy("node", "group", "index", "term")
        .agg(
            F.min(first).alias("first"),
            F.max(mark_flags().bitwiseAND(F.lit(MARK_INSTALLED)) != 0).alias("installed"),
        )
        .select(
            *("node", "group", "index", "term"),
            F.col("first.wall_ns").alias("at_ns"),
            "installed",
            F.col("first.file").alias("file"),
            F.col("first.offset").alias("offset"),
        )
    )
