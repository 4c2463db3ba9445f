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
_GONE: Final = ("died", "purged", "queue_deleted")


def client_anomalies(tables: Tables, limits: Limits) -> DataFrame:
    """One finding for each kind and queue, with the first example."""
    del limits
    gone = tables["events"].where(F.col("event").isin(*_GONE)).select("name").distinct()
    seen = tables["client_findings"]
    excused = seen.join(gone, seen["queue"] == gone["name"], "left_semi").where("kind = 'lost'")
    seen = seen.exceptAll(excused)
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
            ).alias("detail"),
        )
    )
    codes = sorted({*CODES.values(), OTHER})
    parts = [as_findings(found.where(F.col("code") == each), each) for each in codes]
    return reduce(DataFrame.unionByName, parts)
