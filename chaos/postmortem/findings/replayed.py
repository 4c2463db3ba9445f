"""What the replay says of the nodes."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.limits import Limits
from chaos.postmortem.tables import Tables, as_findings


def state_mismatch(tables: Tables, limits: Limits) -> DataFrame:
    """One for each node and group: between which entries its state became another."""
    del limits
    states = tables["states"]
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


def not_replayed(tables: Tables, limits: Limits) -> DataFrame:
    """One for each group: from which entry on. How many replays came to nothing is `count`."""
    del limits
    rows = tables["replays"].where("failed is not null or last is null")
    first = F.coalesce(F.col("last") + 1, F.col("first"), F.col("base") + 1)
    failed = F.coalesce("failed", F.lit("the replay of it never ended"))
    it = F.struct(first.alias("first"), failed.alias("detail"), F.col("base_file").alias("file"))
    found = rows.groupBy("group").agg(F.min(it).alias("it"), F.count("*").alias("count"))
    return as_findings(found.select("group", "count", "it.*"), "not_replayed")
