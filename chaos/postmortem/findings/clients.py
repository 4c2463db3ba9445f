"""What the clients' history accuses the cluster of."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.limits import Limits
from chaos.postmortem.queues.outcomes import GONE, became
from chaos.postmortem.queues.receipts import CHECKER, LOST
from chaos.postmortem.tables import Tables, as_findings

#: By what the checkers call it; all else is `client_anomaly`.
CODES: Final = {
    "lost": "lost_message",
    LOST: "lost_message",
    "duplicated without the flag": "unflagged_duplicate",
    "delivered after its settle": "settled_again",
    "token shared": "sac_overlap",
    "old token settled": "sac_overlap",
    "old token stored": "sac_overlap",
}
OTHER: Final = "client_anomaly"


def client_anomalies(tables: Tables, limits: Limits) -> DataFrame:
    """One finding for each kind and queue, with the first example. A message that left its queue
    without a consumer, as its settings or somebody wanted it, is not lost.
    """
    del limits
    seen = tables["client_findings"].withColumn("became", F.lit(None).cast("string"))
    seen = seen.withColumn("excused", F.lit(0).cast("bigint"))
    lost = seen.where("kind = 'lost'")
    if lost.take(1):
        seen = seen.where("kind <> 'lost'").unionByName(_not_gone(tables, lost))
    code = reduce(
        lambda rest, pair: F.when(F.col("kind") == pair[0], pair[1]).otherwise(rest),
        CODES.items(),
        F.lit(OTHER),
    )
    first = F.min_by(F.struct("message", "op", "at_ms", "detail", "became"), "op")
    of_record = F.col("checker") == CHECKER
    by = F.when(of_record, "record of confirms").otherwise(F.concat(F.lit("history, "), "checker"))
    place = F.when(of_record, "in row").otherwise("at op")
    found = (
        seen.withColumn("code", code)
        .groupBy("code", "checker", "kind", "queue")
        .agg(
            F.count("*").alias("count"),
            first.alias("first_seen"),
            F.max("excused").alias("excused"),
        )
        .withColumn("count", F.col("count") - F.col("excused"))
        .where("count > 0")
        .select(
            "code",
            "queue",
            "count",
            F.col("first_seen.message").alias("message"),
            (F.col("first_seen.at_ms") * 1_000_000).alias("from_ns"),
            F.concat(
                F.format_string("clients' %s: %s; first %s %d", by, "kind", place, "first_seen.op"),
                F.when(F.col("first_seen.detail") != "", ", ").otherwise(""),
                "first_seen.detail",
                F.coalesce(F.concat(F.lit("; "), "first_seen.became"), F.lit("")),
                F.when(
                    F.col("excused") > 0,
                    F.format_string(
                        "; not counted: %d that died, were purged, withdrawn or deleted, and that"
                        " nothing names",
                        "excused",
                    ),
                ).otherwise(""),
            ).alias("detail"),
        )
    )
    codes = sorted({*CODES.values(), OTHER})
    parts = [as_findings(found.where(F.col("code") == each), each) for each in codes]
    return reduce(DataFrame.unionByName, parts)


def _not_gone(tables: Tables, lost: DataFrame) -> DataFrame:
    """Without those of which the log says that they left without a consumer. excused: of the
    queue, how many left so that nothing names; any of the others may be among them.
    """
    told = became(tables, lost).cache()
    known = told.where("message is not null").groupBy("queue", "message")
    gone = F.col("outcome").isin(*GONE)
    ends = known.agg(
        F.max(gone).alias("gone"), F.max(F.when(~gone, F.col("outcome"))).alias("outcome")
    )
    nameless = told.where("message is null").groupBy("queue").agg(F.count("*").alias("nameless"))
    became_of = F.coalesce(
        F.concat(F.lit("the log has it: "), "outcome"), F.lit("no log that was given has it")
    )
    left = (
        lost.drop("became", "excused")
        .join(ends, ["queue", "message"], "left")
        .where(~F.coalesce("gone", F.lit(False)))
        .withColumn("became", became_of)
        .join(nameless, "queue", "left")
    )
    unknown = F.sum(F.when(F.col("outcome").isNull(), 1).otherwise(0)).over(
        Window.partitionBy("queue")
    )
    excused = F.least(F.coalesce("nameless", F.lit(0)), unknown).cast("bigint")
    return left.withColumn("excused", excused).select(*lost.columns)
