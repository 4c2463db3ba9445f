"""What the replay says of the nodes."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections import Counter

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.limits import Limits
from chaos.postmortem.tables import Tables, as_findings


def state_mismatch(tables: Tables, limits: Limits) -> DataFrame:
    """One for each node and group: between which entries its state became another."""
    del limits
    states = _judged(tables)
    wrong = states.where(~F.col("agrees"))
    begins = wrong.groupBy("group", "node").agg(
        F.min_by(F.struct("index", "file", "offset", "source", "noted", "replayed"), "index").alias(
            "it"
        ),
        F.count("*").alias("count"),
    )
    good = states.where("agrees").select(
        F.col("group").alias("g"), F.col("node").alias("n"), F.col("index").alias("right")
    )
    before = F.max(F.when(F.col("right") < F.col("it.index"), F.col("right")))
    same = (F.col("group") == F.col("g")) & (F.col("node") == F.col("n"))
    located = begins.join(good, same, "left").groupBy("group", "node", "it", "count")
    others = Window.partitionBy("group", "it.index", "it.noted")
    found = located.agg(before.alias("right")).withColumn("alike", F.count("*").over(others))
    detail = F.to_json(
        F.struct(
            *(F.col(f"it.{name}").alias(name) for name in ("source", "noted", "replayed")),
            F.col("alike").alias("nodes_alike"),
        )
    )
    return as_findings(
        found.select(
            *("group", "node", "count"),
            (F.coalesce("right", F.lit(0)) + 1).alias("first"),
            F.col("it.index").alias("last"),
            *("it.file", "it.offset"),
            detail.alias("detail"),
        ),
        "state_mismatch",
    )


def _judged(tables: Tables) -> DataFrame:
    """The table `states`; where a replay began with a wrong state, it is wrong to agree with it."""
    states = tables["states"]
    if states.where(~F.col("agrees")).isEmpty():
        return states
    rows = _misled(tables)
    misled = tables.spark.createDataFrame(rows, "its int, from_index bigint, to_index bigint")
    within = F.col("index").between(F.col("from_index"), F.col("to_index"))
    found = states.join(F.broadcast(misled), (F.col("group") == F.col("its")) & within, "left")
    right = F.col("its").isNull()
    return found.withColumn("agrees", F.col("agrees") == right).withColumn(
        "replayed", F.when(right, F.col("replayed"))
    )


def _misled(tables: Tables) -> list[tuple[int, int, int]]:
    """Replays that began with a state to which the log does not lead: group, first and last index
    at which they are compared. What leads up to that state says so, if it is not misled itself; of
    one that nothing leads up to, most nodes say so.
    """
    kept = tables["states"].where("source = 'snapshot'")
    kept = kept.select(
        "group", F.col("index").alias("base"), F.col("file").alias("base_file"), "agrees"
    )
    replays = tables["replays"].where("base is not null and last is not null")
    rows = (
        replays.select("group", "span", "base", "base_file", "last", "failed")
        .join(kept, ["group", "base", "base_file"], "left")
        .orderBy("group", "span")
        .collect()
    )
    befores = [None, *rows][: len(rows)]
    alone = [
        before is None or before.group != row.group or before.failed is not None
        for before, row in zip(befores, rows, strict=True)
    ]
    began = [row for row, first in zip(rows, alone, strict=True) if first and row.base_file]
    outvoted = _outvoted(tables, [(row.group, row.base, row.last) for row in began])
    found = list[tuple[int, int, int]]()
    misled = False
    for row, first in zip(rows, alone, strict=True):
        if first:
            misled = (row.group, row.base) in outvoted
        else:
            misled = misled == (row.agrees is not False)
        if misled:
            found.append((row.group, row.base + (not first), row.last))
    return found


def _outvoted(tables: Tables, began: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    """Those behind which more nodes have one other state than have the replayed one."""
    begun = tables.spark.createDataFrame(began, "group int, base bigint, until bigint")
    rows = (
        tables["states"]
        .join(F.broadcast(begun), "group")
        .where("index > base and index <= until")
        .groupBy("group", "base", "index")
        .agg(F.collect_set(F.struct("node", "noted", "agrees")).alias("said"))
        .groupBy("group", "base")
        .agg(F.max_by("said", F.struct(F.size("said"), -F.col("index"))).alias("said"))
        .collect()
    )
    found = set[tuple[int, int]]()
    for row in rows:
        others = Counter(each.noted for each in row.said if not each.agrees)
        agree = sum(each.agrees for each in row.said)
        if max(others.values(), default=0) > max(1, agree):
            found.add((row.group, row.base))
    return found


def not_replayed(tables: Tables, limits: Limits) -> DataFrame:
    """One for each group: from which entry on. How many replays came to nothing is `count`."""
    del limits
    rows = tables["replays"].where("failed is not null or last is null")
    first = F.coalesce(F.col("last") + 1, F.col("first"), F.col("base") + 1)
    failed = F.coalesce("failed", F.lit("the replay of it never ended"))
    it = F.struct(first.alias("first"), failed.alias("detail"), F.col("base_file").alias("file"))
    found = rows.groupBy("group").agg(F.min(it).alias("it"), F.count("*").alias("count"))
    return as_findings(found.select("group", "count", "it.*"), "not_replayed")
