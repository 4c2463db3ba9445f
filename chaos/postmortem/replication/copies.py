"""What the nodes' logs have in common, and where they differ."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.tables import Tables
from cluster.log.snapshots import BIRTH

_ENTRY = ["group", "index"]
_VARIANT = [*_ENTRY, "term", "hash"]
#: More nodes than a cluster ever has; further ones are not counted.
HOLDERS_MAX: Final = 63
_RANKS = {"voided": 0, "pending": 1, "committed": 2}


def names(tables: Tables) -> list[str]:
    """The nodes whose logs were read. `merged.holders` has a bit for each, in this order."""
    return sorted(row.node for row in tables["segments"].select("node").distinct().collect())


def merged(tables: Tables) -> DataFrame:
    """The table `merged`. What somebody says is committed goes before what is only there."""
    bits = [
        F.lit(each)
        for nth, name in enumerate(names(tables)[:HOLDERS_MAX])
        for each in (name, 1 << nth)
    ]
    bit = F.create_map(*bits)[F.col("node")] if bits else F.lit(0)
    counted = (
        tables["entries"]
        .where("outcome <> 'voided'")
        .select(
            *(*_VARIANT, "wall_ns", bit.cast("bigint").alias("bit")),
            (F.col("outcome") == "committed").alias("committed"),
        )
        .repartition(*_ENTRY)  # all that follows needs no other exchange
        .groupBy(*_VARIANT)
        .agg(
            F.max("committed").alias("committed"),
            F.coalesce(F.bit_or("bit"), F.lit(0)).alias("holders"),
            F.min("wall_ns").alias("at_ns"),
        )
        .withColumn("nodes", F.bit_count("holders"))
    )
    known = F.col("hash").isNotNull()
    best = Window.partitionBy(*_ENTRY).orderBy(
        F.desc("committed"), F.desc(known), F.desc("nodes"), "term", "hash"
    )
    ranked = counted.withColumn("rank", F.row_number().over(best))
    return ranked.where("rank = 1 and committed").drop("rank", "committed")


def divergence(tables: Tables) -> DataFrame:
    """The table `divergence`. A snapshot's mark says what was committed at its index, too."""
    copies = (
        tables["entries"]
        .select(*_VARIANT, "node", "outcome", "file", "offset")
        .unionByName(_marked(tables))
        .where("hash is not null")
    )
    variant = F.xxhash64("term", "hash")
    differing = (
        copies.groupBy(*_ENTRY)
        .agg(F.min(variant).alias("least"), F.max(variant).alias("most"))
        .where("least <> most")
        .select(*_ENTRY)
    )
    pairs = [F.lit(each) for pair in _RANKS.items() for each in pair]
    rank = F.create_map(*pairs)[F.col("outcome")]
    best = Window.partitionBy(*_VARIANT, "node").orderBy(F.desc("rank"), "file", "offset")
    each = (
        copies.join(differing, _ENTRY)
        .withColumn("rank", rank)
        .withColumn("nth", F.row_number().over(best))
        .where("nth = 1")
    )
    said = F.when(F.col("outcome") == "committed", F.col("hash"))
    copy = F.struct(
        "node", "term", F.lower(F.hex("hash")).alias("hash"), "outcome", "file", "offset"
    )
    return each.groupBy(*_ENTRY).agg(
        (F.count_distinct(said) > 1).alias("committed"),
        F.sort_array(F.collect_list(copy)).alias("copies"),
    )


def _marked(tables: Tables) -> DataFrame:
    marks = tables["records"].where((F.col("kind") == "snapshot") & (F.col("index") > BIRTH.index))
    return marks.select(
        *_ENTRY,
        "term",
        F.unhex(F.get_json_object("detail", "$[1]")).alias("hash"),
        "node",
        F.lit("committed").alias("outcome"),
        "file",
        "offset",
    )
