"""One row a message: where it came from, how often it was handed out, and what became of it.

Events are about ranges of positions, and stay ranges until each lies in one bucket of positions and
all of a bucket are in one place: only there, and nowhere else, a range becomes its messages.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.engine import in_order
from chaos.postmortem.queues.message_fold import (
    ALL,
    BUCKET,
    DELIVERIES,
    FOLDED,
    GIVEN,
    KEY,
    ORDER,
    fold,
)
from chaos.postmortem.tables import Tables

__all__ = ["BUCKET", "DELIVERIES", "ORDER"]

#: Tokens begin with the index of the entry that gave them out: cluster.types.ORDINAL_BITS.
TOKEN_BITS: Final = 16
QUEUE: Final = ("group", "queue")


def messages(tables: Tables) -> DataFrame:
    """The table `messages`. What happened behind a replay that failed is not looked at: what the
    log said in between is not known.
    """
    events = unbroken(tables).where(F.col("event").isin(*ALL))
    fresh = F.col("event") == "published"
    events = (
        events.where(fresh)
        .join(confirms(tables), ["group", "index", "term"], "left")
        .unionByName(events.where(~fresh), allowMissingColumns=True)
    )
    buckets = _in_buckets(events.select(*QUEUE, *GIVEN))
    folded = in_order(buckets, KEY, [*KEY, *ORDER], fold, FOLDED)
    return _told(folded).join(queue_names(tables["events"]), [*QUEUE], "left")


def unbroken(tables: Tables) -> DataFrame:
    """The events of each group up to where a replay of it failed."""
    failed = tables["replays"].where(F.col("failed").isNotNull())
    until = failed.groupBy("group").agg(F.min("last").alias("until"))
    events = tables["events"].join(F.broadcast(until), "group", "left")
    return events.where("until is null or index <= until").drop("until")


def queue_names(events: DataFrame) -> DataFrame:
    """Each queue of which there is an event."""
    return events.where("queue is not null").select(*QUEUE, "vhost", "name").distinct()


def confirms(tables: Tables) -> DataFrame:
    """How long after its append each entry was committed, as its leader says; where that one does
    not, as the quickest node does.
    """
    leaders = tables["leaders"].select("group", "term", F.col("leader").alias("node")).distinct()
    entries = tables["entries"].where(
        "kind = 'entry' and outcome = 'committed' and commit_ns is not null"
    )
    entries = entries.select("group", "term", "node", "index", "commit_ns").join(
        F.broadcast(leaders.withColumn("leads", F.lit(True))), ["group", "term", "node"], "left"
    )
    own = F.min(F.when(F.col("leads"), F.col("commit_ns")))
    confirm_ms = F.coalesce(own, F.min("commit_ns")) / 1e6
    return entries.groupBy("group", "index", "term").agg(confirm_ms.alias("confirm_ms"))


def by_message(events: DataFrame, wanted: DataFrame | None = None) -> DataFrame:
    """A row for each message of each event, with its `position`; all rows of a message are in one
    partition, and `bucket` belongs to their key. `wanted`: only of these, by queue and position,
    with what else is known of them; what is far from all of them is left out first.
    """
    first = F.greatest(F.col("first"), F.col("bucket") * BUCKET)
    last = F.least(F.col("last"), F.col("bucket") * BUCKET + (BUCKET - 1))
    spread = _in_buckets(events)
    if wanted is not None:
        near = wanted.select(*QUEUE, F.expr(f"position div {BUCKET}").alias("bucket")).distinct()
        spread = spread.join(F.broadcast(near), [*QUEUE, "bucket"], "left_semi")
    rows = spread.repartition(*QUEUE, "bucket").withColumn(
        "position", F.explode(F.sequence(first, last))
    )
    return rows if wanted is None else rows.join(wanted, [*QUEUE, "position"])


def _in_buckets(events: DataFrame) -> DataFrame:
    """Each event once for each `bucket` that it is about."""
    buckets = F.sequence(F.expr(f"first div {BUCKET}"), F.expr(f"last div {BUCKET}"))
    return events.withColumn("bucket", F.explode(buckets))


def _told(folded: DataFrame) -> DataFrame:
    def birth(name: str) -> Column:
        return F.col(f"birth_{name}")

    delivered, back = F.col("deliveries") > 0, F.col("back")
    known = birth("event") == "known"
    held_before = known & birth("consumer").isNotNull()
    dead_before = known & birth("reason").isNotNull()
    out_before = held_before | (known & (birth("acquired") > 0))
    # Is the first delivery that the log shows the first one of all?
    is_first = ~F.coalesce(out_before, F.lit(False))
    fresh = is_first & (F.col("first_delivery_acquired") == 0)
    # Where the newest is a return, it is with nobody.
    with_somebody = (delivered | F.coalesce(held_before, F.lit(False))) & ~back
    ended = F.col("end_event").isNotNull()
    since_ms = F.col("delivery_at_ms")
    until_ms = F.when(back, F.col("return_at_ms")).when(ended, F.col("end_at_ms"))
    # What never left a node is delivered again as if for the first time.
    unflagged = F.col("unflagged") > F.when(fresh, 1).otherwise(0) + F.col("unsent")
    return folded.select(
        *QUEUE,
        "position",
        F.concat_ws("-", "group", birth("entry"), birth("entry_offset")).alias("message"),
        birth("entry").alias("entry"),
        birth("entry_offset").alias("entry_offset"),
        birth("publisher").alias("publisher"),
        birth("seqno").alias("seqno"),
        birth("at_ms").alias("published_ms"),
        birth("confirm_ms").alias("confirm_ms"),
        "deliveries",
        (F.col("deliveries") - F.when(fresh, 1).otherwise(0)).alias("redeliveries"),
        F.when(is_first, F.col("first_delivery_at_ms")).alias("first_delivered_ms"),
        since_ms.alias("last_delivered_ms"),
        F.coalesce("delivery_consumer", "birth_consumer").alias("last_consumer"),
        F.coalesce(
            "delivery_index", F.shiftright(F.when(held_before, birth("token")), TOKEN_BITS)
        ).alias("last_index"),
        # Not below 0, though a wrong machine may settle first and deliver then.
        F.when(delivered & (back | ended), F.greatest(until_ms - since_ms, F.lit(0))).alias(
            "held_ms"
        ),
        "returns",
        (
            F.coalesce("delivery_failed", "birth_failed", F.lit(0))
            + F.when(back, F.coalesce("return_failed", F.lit(0))).otherwise(0)
        ).alias("failed"),
        F.when(dead_before, "died")
        .when(ended, F.col("end_event"))
        .when(with_somebody, "unsettled")
        .otherwise("ready")
        .alias("outcome"),
        F.when(~F.coalesce(dead_before, F.lit(False)), F.col("end_at_ms")).alias("outcome_ms"),
        F.when(dead_before, birth("reason")).otherwise(F.col("end_reason")).alias("reason"),
        F.array_compact(
            F.array(
                F.when(F.col("settled_again"), "settled_again"),
                F.when(unflagged, "unflagged_duplicate"),
            )
        ).alias("broken"),
    )
