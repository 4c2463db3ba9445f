"""The table `lag`: by second, how far each follower's log is behind what is committed."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.limits import Limits
from chaos.postmortem.logorder import local_frame, log_order, mark_flags
from chaos.postmortem.tables import Tables
from chaos.postmortem.times import Clock, clock, second
from cluster.log.format import MARK_INSTALLED

SECOND_NS = 1_000_000_000
_COPY = ["group", "node"]


def lag(tables: Tables) -> DataFrame:
    """Only of seconds in which the group did anything, on whatever node."""
    common = clock(tables, log_order(tables))
    has = _has(tables, common)
    said = _said(tables, common)
    copies = _members(tables, common)
    seconds = has.select("group", "sec").unionByName(said.select("group", "sec")).distinct()
    so_far = Window.partitionBy("group").orderBy("sec").rowsBetween(Window.unboundedPreceding, 0)
    group = seconds.join(said, ["group", "sec"], "left").select(
        *("group", "sec"),
        F.max("committed").over(so_far).alias("committed"),
        F.max("term").over(so_far).alias("term"),
    )
    its = Window.partitionBy(*_COPY).orderBy("sec").rowsBetween(Window.unboundedPreceding, 0)
    grid = (
        group.join(F.broadcast(copies), "group")
        .where("sec between since and until and committed is not null")
        .join(has, [*_COPY, "sec"], "left")
        .withColumn("index", F.coalesce(F.max("index").over(its), F.lit(0)))
    )
    leaders = _leaders(tables)
    lagging = (
        _age(grid)
        .join(F.broadcast(leaders), ["group", "term"], "left")
        .where("leader is null or leader <> node")
    )
    behind = F.greatest(F.col("committed") - F.col("index"), F.lit(0))
    return _downs(tables, common, lagging).select(
        *("node", "group"),
        (F.col("sec") * SECOND_NS).alias("at_ns"),
        *("leader", "committed", "index"),
        behind.alias("lag_entries"),
        F.when(behind > 0, (F.col("sec") - F.col("had_all")) * 1000.0)
        .otherwise(0.0)
        .alias("lag_ms"),
        "down",
    )


def _leaders(tables: Tables) -> DataFrame:
    notes = tables["records"].where("kind = 'role'")
    led = notes.where(F.get_json_object("detail", "$[0]") == "leader")
    return led.groupBy("group", "term").agg(F.min("node").alias("leader"))


def _has(tables: Tables, common: Clock) -> DataFrame:
    """The last entry that a log got in each second; a snapshot that came stands for some."""
    columns = ["node", "created_ns", "segment", "group", "index", "mono_ns"]
    got = tables["entries"].where("kind = 'entry' and fate <> 'voided'").select(*columns)
    marks = tables["records"].where("kind = 'snapshot'")
    marks = marks.where(mark_flags().bitwiseAND(F.lit(MARK_INSTALLED)) != 0).select(*columns)
    return (
        common.timed(got.unionByName(marks))
        .groupBy(*_COPY, second(F.col("t")).alias("sec"))
        .agg(F.max("index").alias("index"))
    )


def _said(tables: Tables, common: Clock) -> DataFrame:
    """How far anybody said that it is committed, and the newest term by then."""
    said = tables["records"].where("kind in ('commit', 'role')")
    leads = (F.col("kind") == "role") & (F.get_json_object("detail", "$[0]") == "leader")
    committed = F.when(F.col("kind") == "commit", F.col("index"))
    said = said.select(
        *("node", "created_ns", "segment", "group", "mono_ns"),
        committed.alias("committed"),
        F.when(leads, F.col("term")).alias("term"),
    )
    return (
        common.timed(said)
        .groupBy("group", second(F.col("t")).alias("sec"))
        .agg(F.max("committed").alias("committed"), F.max("term").alias("term"))
    )


def _members(tables: Tables, common: Clock) -> DataFrame:
    """From when until when a node has a copy of a group."""
    told = tables["records"].where("kind in ('entry', 'hard-state', 'snapshot', 'group-removed')")
    gone = F.col("kind") == "group-removed"
    return (
        common.timed(
            told.select("node", "created_ns", "segment", "group", "mono_ns", gone.alias("gone"))
        )
        .groupBy(*_COPY)
        .agg(
            second(F.min("t")).alias("since"),
            F.max(F.when(F.col("gone"), F.col("t"))).alias("gone"),
            F.max("t").alias("last"),
        )
        .select(
            *_COPY,
            "since",
            F.when(F.col("gone") == F.col("last"), second(F.col("gone")))
            .otherwise(F.lit((1 << 63) - 1))
            .alias("until"),
        )
    )


def _age(grid: DataFrame) -> DataFrame:
    """had_all: the last second in which there was nothing committed that it has not even now."""
    rows = grid.withColumn("value", F.col("index")).withColumn("is_row", F.lit(True))
    points = grid.select(
        *_COPY, F.col("sec").alias("point"), F.col("committed").alias("value")
    ).withColumn("is_row", F.lit(False))
    by_value = (
        Window.partitionBy(*_COPY)
        .orderBy("value", "is_row")
        .rowsBetween(Window.unboundedPreceding, 0)
    )
    first = Window.partitionBy(*_COPY)
    return (
        rows.unionByName(points, allowMissingColumns=True)
        .withColumn("had_all", F.max("point").over(by_value))
        .withColumn("had_all", F.coalesce("had_all", F.min("sec").over(first)))
        .where("is_row")
        .withColumn("had_all", F.least("had_all", "sec"))
    )


def _downs(tables: Tables, common: Clock, rows: DataFrame) -> DataFrame:
    """Whether a process is there that has had the time to catch up."""
    catch_up_ns = int(Limits().catch_up_ms * 1_000_000)
    lives = local_frame(
        tables.spark,
        [
            (
                node,
                number,
                (process.first_ns + common.shift[node, number]) // SECOND_NS,
                (process.first_ns + common.shift[node, number] + catch_up_ns) // SECOND_NS,
                (process.last_ns + common.shift[node, number]) // SECOND_NS,
            )
            for (node, number), process in common.processes.items()
        ],
        "its string, number int, began bigint, ready bigint, ended bigint",
    )
    first = (
        lives.groupBy("its").agg(F.min("number").alias("number")).withColumn("first", F.lit(True))
    )
    # Whoever is there from the first record of all on has nothing to catch up with.
    lives = lives.join(first, ["its", "number"], "left").withColumn(
        "ready", F.when(F.col("first"), F.col("began")).otherwise(F.col("ready"))
    )
    up = (F.col("node") == F.col("its")) & F.col("sec").between(F.col("ready"), F.col("ended"))
    there = rows.join(F.broadcast(lives), up, "left")
    return there.withColumn("down", F.col("its").isNull())
