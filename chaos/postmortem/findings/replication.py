"""Findings about replication: what differs, what is gone, what is damaged, who lags."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.limits import Limits
from chaos.postmortem.tables import Tables, as_findings

#: Rows of the table `corruption` by what they are found as.
DAMAGED: Final = ("bad record", "broken chain", "lost end", "bad snapshot")
GAPS: Final = ("missing segment", "missing entries")
MS_NS: Final = 1_000_000


def divergence(tables: Tables, _: Limits) -> DataFrame:
    """One per group and stretch of indexes: from the first entry that differs all hashes do."""
    differing = tables["divergence"].where("committed")
    said = F.filter("copies", lambda copy: copy["outcome"] == "committed")
    right = tables["merged"].select("group", "index", F.lower(F.hex("hash")).alias("right"))
    by_index = Window.partitionBy("group").orderBy("index")
    stretches = (
        differing.withColumn("run", F.col("index") - F.row_number().over(by_index))
        .groupBy("group", "run")
        .agg(
            F.min("index").alias("first"),
            F.max("index").alias("last"),
            F.count("*").alias("count"),
            F.min_by(said, "index").alias("said"),
        )
        .join(right.withColumnRenamed("index", "first"), ["group", "first"], "left")
    )
    # The copy that fewer nodes have is where to look.
    other = F.filter("said", lambda copy: ~copy["hash"].eqNullSafe(F.col("right")))
    copy = F.coalesce(F.get(other, F.lit(0)), F.get(F.col("said"), F.lit(0)))
    told = F.transform(
        "said",
        lambda copy: F.format_string(
            "%s has term %d hash %s (%s at %d)",
            copy["node"],
            copy["term"],
            F.substring(copy["hash"], 1, 12),
            copy["file"],
            copy["offset"],
        ),
    )
    ordered = F.when(
        F.size("orders") > 0,
        F.concat(F.lit("; by order of a person "), F.array_join("orders", ", ")),
    )
    stretches = stretches.join(_given_up(tables, stretches), ["group", "first"], "left")
    found = stretches.withColumn("copy", copy).select(
        *("group", "first", "last", "count"),
        F.col("copy.term").alias("term"),
        F.col("copy.node").alias("node"),
        F.col("copy.file").alias("file"),
        F.col("copy.offset").alias("offset"),
        F.concat(
            F.lit("at the first index: "),
            F.array_join(told, "; "),
            F.coalesce(ordered, F.lit("")),
        ).alias("detail"),
    )
    return as_findings(found, "divergence")


def _given_up(tables: Tables, stretches: DataFrame) -> DataFrame:
    """group, first, orders: nodes that were told before to go on without a majority."""
    lost = F.from_json(F.get_json_object("detail", "$[0]"), "array<string>")
    order = F.format_string(
        "%s went on without %s from %d on",
        "node",
        F.array_join(lost, ", "),
        F.col("index") + 1,
    )
    notes = tables["notes"].where("kind = 'given-up'")
    orders = notes.select("group", F.col("index").alias("kept"), order.alias("order"))
    told = stretches.select("group", "first").join(F.broadcast(orders), "group")
    return (
        told.where("kept < first")
        .groupBy("group", "first")
        .agg(F.sort_array(F.collect_set("order")).alias("orders"))
    )


def missing_entry(tables: Tables, _: Limits) -> DataFrame:
    """One per node, group and stretch."""
    found = tables["missing"].select(
        *("group", "node", "first", "last", "file", "offset"),
        (F.col("last") - F.col("first") + 1).alias("count"),
        F.col("reason").alias("detail"),
    )
    return as_findings(found, "missing_entry")


def corrupt_segment(tables: Tables, _: Limits) -> DataFrame:
    """One per damaged place; a chain that stays broken is one."""
    damage = tables["corruption"].where(F.col("kind").isin(*DAMAGED))
    chain = F.col("kind") == "broken chain"
    by_index = Window.partitionBy("node", "group", "kind").orderBy("first")
    run = F.when(chain, F.col("first") - F.row_number().over(by_index))
    place = F.struct("segment", "offset", "file", "term", "reason", "at_ns")
    found = (
        damage.withColumn("term", F.lit(None).cast("bigint"))
        .withColumn("run", run)
        .withColumn("each", F.when(~chain, F.struct("file", "offset")))
        .groupBy("node", "group", "kind", "run", "each")
        .agg(
            F.min(place).alias("place"),
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.count("*").alias("count"),
        )
        .select(
            *("node", "group", "first", "last", "count"),
            F.col("place.file").alias("file"),
            F.col("place.offset").alias("offset"),
            F.col("place.at_ns").alias("from_ns"),
            F.concat("kind", F.lit(": "), F.col("place.reason")).alias("detail"),
        )
    )
    return as_findings(found, "corrupt_segment")


def archive_gap(tables: Tables, _: Limits) -> DataFrame:
    """One per place; entries of several groups that are gone with a segment are one."""
    gaps = tables["corruption"].where(F.col("kind").isin(*GAPS))
    one_group = F.count_distinct("group") == 1
    of_group = F.when(
        F.col("group").isNotNull(), F.format_string("group %d: %d to %d", "group", "first", "last")
    )
    place = F.struct("segment", "offset", "file", "reason", "at_ns")
    found = (
        gaps.groupBy("node", "kind", "file", "segment")
        .agg(
            F.min(place).alias("place"),
            F.when(one_group, F.min("group")).alias("group"),
            F.when(one_group, F.min("first")).alias("first"),
            F.when(one_group, F.max("last")).alias("last"),
            F.sort_array(F.collect_set(of_group)).alias("groups"),
        )
        .select(
            *("node", "group", "first", "last"),
            F.col("place.file").alias("file"),
            F.col("place.offset").alias("offset"),
            F.col("place.at_ns").alias("from_ns"),
            F.concat_ws("; ", "place.reason", "groups").alias("detail"),
        )
    )
    return as_findings(found, "archive_gap")


def lagging_replica(tables: Tables, limits: Limits) -> DataFrame:
    """One per node and time, whichever groups it concerns."""
    rows = tables["lag"]
    # Second by second; who was down has the time to catch up.
    ready = F.col("here_ms").isNull() | (F.col("here_ms") >= limits.catch_up_ms)
    behind = (F.col("lag_entries") >= limits.lag_entries) & ~F.col("down") & ready
    by_time = Window.partitionBy("node", "group").orderBy("at_ns")
    stretches = (
        rows.withColumn("behind", behind)
        .withColumn("next_ns", F.coalesce(F.lead("at_ns").over(by_time), F.col("at_ns")))
        .withColumn(
            "begins", (~F.coalesce(F.lag("behind").over(by_time), F.lit(False))).cast("int")
        )
        .withColumn("run", F.sum(F.when(F.col("behind"), F.col("begins"))).over(by_time))
        .where("behind")
        .groupBy("node", "group", "run")
        .agg(
            F.min("at_ns").alias("from_ns"),
            F.max("next_ns").alias("to_ns"),
            F.max("lag_entries").alias("entries"),
            F.max("lag_ms").alias("ms"),
            F.min_by("index", "at_ns").alias("index"),
            F.max("committed").alias("committed"),
            F.first("leader").alias("leader"),
        )
        .where(
            ((F.col("to_ns") - F.col("from_ns")) >= limits.lag_ms * MS_NS)
            | (F.col("ms") >= limits.lag_ms)
        )
    )
    its = Window.partitionBy("node").orderBy("from_ns")
    before = its.rowsBetween(Window.unboundedPreceding, -1)
    new = F.col("from_ns") > F.coalesce(F.max("to_ns").over(before), F.lit(-1))
    worst = F.struct("entries", "group", "index", "committed", "leader")
    found = (
        stretches.withColumn("new", new.cast("int"))
        .withColumn("time", F.sum("new").over(its))
        .groupBy("node", "time")
        .agg(
            F.max(worst).alias("worst"),
            F.min("from_ns").alias("from_ns"),
            F.max("to_ns").alias("to_ns"),
            F.max("ms").alias("ms"),
            F.sort_array(F.collect_set("group")).alias("groups"),
        )
    )
    lacked = found.select(
        *("node", "from_ns", "to_ns", "ms", "groups"),
        F.col("worst.group").alias("group"),
        (F.col("worst.index") + 1).alias("index"),
        F.col("worst.committed").alias("last"),
        F.col("worst.entries").alias("entries"),
        F.col("worst.leader").alias("leader"),
    )
    # Where the first entry that it lacked came at last; else where another node has it.
    at = tables["entries"].where("kind = 'entry' and outcome <> 'voided'")
    at = at.select("group", "index", "term", "file", "offset", F.col("node").alias("its"))
    place = F.struct((F.col("its") != F.col("node")).alias("other"), "term", "file", "offset")
    placed = (
        at.join(F.broadcast(lacked.select("node", "from_ns", "group", "index")), ["group", "index"])
        .groupBy("node", "from_ns")
        .agg(F.min(place).alias("place"))
    )
    told = F.format_string(
        "up to %d entries and %.1f s behind leader %s; groups %s",
        "entries",
        F.col("ms") / 1000,
        F.coalesce("leader", F.lit("?")),
        F.array_join("groups", ", "),
    )
    return as_findings(
        lacked.join(placed, ["node", "from_ns"], "left").select(
            *("node", "group", "last", "from_ns", "to_ns"),
            F.col("index").alias("first"),
            F.col("entries").alias("count"),
            F.col("place.term").alias("term"),
            F.col("place.file").alias("file"),
            F.col("place.offset").alias("offset"),
            told.alias("detail"),
        ),
        "lagging_replica",
    )
