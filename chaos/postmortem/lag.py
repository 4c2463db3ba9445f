"""The table `lag`: by second, how far each follower's log is behind what is committed."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import math

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.limits import Limits
from chaos.postmortem.logorder import local_frame, log_order, mark_flags
from chaos.postmortem.tables import Tables
from chaos.postmortem.times import Clock, clock, second
from cluster.log.format import MARK_INSTALLED

SECOND_NS = 1_000_000_000
#: What a process may take, and who is new in a group.
CATCH_UP_S = math.ceil(Limits().catch_up_ms / 1_000)
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
        .where("sec >= since and committed is not null")
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
        F.when(behind > 0, (F.col("sec") - F.col("lacks")) * 1000.0).otherwise(0.0).alias("lag_ms"),
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
    """From when on a node has a copy of a group; `ready`: when it should have caught up."""
    told = tables["records"].where("kind in ('entry', 'hard-state', 'snapshot')")
    told = told.select("node", "created_ns", "segment", "group", "mono_ns")
    since = common.timed(told).groupBy(*_COPY).agg(second(F.min("t")).alias("since"))
    founded = F.min("since").over(Window.partitionBy("group"))
    later = F.col("since") >= founded + CATCH_UP_S
    ready = F.col("since") + F.when(later, CATCH_UP_S).otherwise(0)
    return since.withColumn("ready", ready)


def _away(tables: Tables, common: Clock) -> DataFrame:
    """Times in which a node had no copy of a group, because it had left, or not long enough."""
    told = tables["records"].where("kind in ('group-removed', 'group-created')")
    told = common.timed(told.select("node", "created_ns", "segment", "group", "mono_ns", "kind"))
    left = told.where("kind = 'group-removed'").select(*_COPY, second(F.col("t")).alias("left"))
    back = told.where("kind = 'group-created'").select(*_COPY, second(F.col("t")).alias("back"))
    again = F.min(F.when(F.col("back") >= F.col("left"), F.col("back") + CATCH_UP_S))
    return (
        left.join(back, _COPY, "left")
        .groupBy(*_COPY, "left")
        .agg(F.coalesce(again, F.lit((1 << 63) - 1)).alias("back"))
        .groupBy(*_COPY)
        .agg(F.collect_list(F.struct("left", "back")).alias("away"))
    )


def _age(grid: DataFrame) -> DataFrame:
    """lacks: the first second in which something was committed that it has not even now."""
    rows = grid.withColumn("value", F.col("index")).withColumn("is_row", F.lit(True))
    points = grid.select(
        *_COPY, F.col("sec").alias("point"), F.col("committed").alias("value")
    ).withColumn("is_row", F.lit(False))
    above = (
        Window.partitionBy(*_COPY)
        .orderBy(F.desc("value"), F.desc("is_row"))
        .rowsBetween(Window.unboundedPreceding, 0)
    )
    return (
        rows.unionByName(points, allowMissingColumns=True)
        .withColumn("lacks", F.min("point").over(above))
        .where("is_row")
        .withColumn("lacks", F.least(F.coalesce("lacks", "sec"), "sec"))
    )


def _downs(tables: Tables, common: Clock, rows: DataFrame) -> DataFrame:
    """Whether a process is there that has had the time to catch up."""
    began = {
        boot: (process.first_ns + common.shift[boot]) // SECOND_NS
        for boot, process in common.processes.items()
    }
    earliest = min(began.values(), default=0)
    lives = local_frame(
        tables.spark,
        [
            (
                boot[0],
                # Who is there from the beginning of it all has nothing to catch up with.
                began[boot] + (CATCH_UP_S if began[boot] >= earliest + CATCH_UP_S else 0),
                (process.last_ns + common.shift[boot]) // SECOND_NS,
            )
            for boot, process in common.processes.items()
        ],
        "node string, able bigint, ended bigint",
    )
    lives = lives.groupBy("node").agg(F.collect_list(F.struct("able", "ended")).alias("lives"))
    placed = rows.join(F.broadcast(lives), "node", "left")
    placed = placed.join(F.broadcast(_away(tables, common)), _COPY, "left")
    sec = F.col("sec")
    up = F.exists("lives", lambda life: sec.between(life["able"], life["ended"]))
    away = F.exists("away", lambda time: sec.between(time["left"], time["back"]))
    here = F.coalesce(up, F.lit(False)) & ~F.coalesce(away, F.lit(False))
    return placed.withColumn("down", ~here | (sec < F.col("ready")))
