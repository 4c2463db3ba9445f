"""What the clients' history accuses the cluster of."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.limits import Limits
from chaos.postmortem.tables import Tables, as_findings

#: By what the checkers call it; all else is `client_anomaly`.
CODES: Final = {
    "lost": "lost_message",
    "duplicated without the flag": "unflagged_duplicate",
    "delivered after its settle": "settled_again",
    "token shared": "sac_overlap",
    "old token settled": "sac_overlap",
    "old token stored": "sac_overlap",
}
OTHER: Final = "client_anomaly"
#: How messages leave a queue without a consumer: clients cannot tell that from a loss.
_GONE: Final = ("died", "purged", "deleted")


def client_anomalies(tables: Tables, limits: Limits) -> DataFrame:
    """One finding for each kind and queue, with the first example. Which of a queue's messages left
    it without a consumer a history does not tell, but as many as did not are lost.
    """
    del limits
    gone = tables["events"].where(F.col("event").isin(*_GONE)).groupBy(F.col("name").alias("queue"))
    gone = gone.agg(F.sum(F.col("last") - F.col("first") + 1).alias("gone"))
    seen = tables["client_findings"]
    code = reduce(
        lambda rest, pair: F.when(F.col("kind") == pair[0], pair[1]).otherwise(rest),
        CODES.items(),
        F.lit(OTHER),
    )
    first = F.min_by(F.struct("message", "op", "at_ms", "detail"), "op")
    found = (
        seen.withColumn("code", code)
        .groupBy("code", "checker", "kind", "queue")
        .agg(F.count("*").alias("count"), first.alias("first_seen"))
        .join(gone, "queue", "left")
        .withColumn("gone", F.when(F.col("kind") == "lost", F.coalesce("gone", F.lit(0))))
        .withColumn("count", F.col("count") - F.coalesce("gone", F.lit(0)))
        .where("count > 0")
        .select(
            "code",
            "queue",
            "count",
            F.col("first_seen.message").alias("message"),
            (F.col("first_seen.at_ms") * 1_000_000).alias("from_ns"),
            F.concat(
                F.lit("clients' history, "),
                "checker",
                F.lit(": "),
                "kind",
                F.lit("; first at op "),
                F.col("first_seen.op").cast("string"),
                F.when(F.col("first_seen.detail") != "", F.lit(", ")).otherwise(F.lit("")),
                "first_seen.detail",
                F.when(
                    F.col("gone") > 0,
                    F.format_string("; not counted: %d died, were purged or deleted", "gone"),
                ).otherwise(F.lit("")),
            ).alias("detail"),
        )
    )
    codes = sorted({*CODES.values(), OTHER})
    parts = [as_findings(found.where(F.col("code") == each), each) for each in codes]
    return reduce(DataFrame.unionByName, parts)
