"""One row a message: where it came from, how often it was handed out, and what became of it.

Events are about ranges of positions, and stay ranges until each lies in one bucket of positions and
all of a bucket are in one place: only there, and nowhere else, a range becomes its messages.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.tables import Tables

#: Events that say where a message comes from, that somebody got it, and that it left.
BIRTHS: Final = ("published", "letter", "known")
DELIVERIES: Final = ("delivered", "got")
ENDS: Final = ("settled", "died", "purged", "withdrawn", "deleted")
#: So many neighbours are looked at in one place.
BUCKET: Final = 4_096
#: Tokens begin with the index of the entry that gave them out: cluster.types.ORDINAL_BITS.
TOKEN_BITS: Final = 16
QUEUE: Final = ("group", "queue")
ORDER: Final = ("index", "ordinal", "step")
#: What is told of where a message comes from.
BIRTH: Final = (
    *("event", "entry", "entry_offset", "publisher", "seqno", "at_ms", "confirm_ms"),
    *("consumer", "token", "acquired", "failed", "reason"),
)


def messages(tables: Tables) -> DataFrame:
    """The table `messages`. What happened behind a replay that failed is not looked at: what the
    log said in between is not known.
    """
    events = unbroken(tables).where(F.col("event").isin(*BIRTHS, *DELIVERIES, "returned", *ENDS))
    fresh = F.col("event") == "published"
    events = (
        events.where(fresh)
        .join(confirms(tables), ["group", "index", "term"], "left")
        .unionByName(events.where(~fresh), allowMissingColumns=True)
    )
    folded = _folded(by_message(_slim(events)))
    return folded.join(queue_names(tables["events"]), [*QUEUE], "left")


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
    buckets = F.sequence(F.expr(f"first div {BUCKET}"), F.expr(f"last div {BUCKET}"))
    first = F.greatest(F.col("first"), F.col("bucket") * BUCKET)
    last = F.least(F.col("last"), F.col("bucket") * BUCKET + (BUCKET - 1))
    spread = events.withColumn("bucket", F.explode(buckets))
    if wanted is not None:
        near = wanted.select(*QUEUE, F.expr(f"position div {BUCKET}").alias("bucket")).distinct()
        spread = spread.join(F.broadcast(near), [*QUEUE, "bucket"], "left_semi")
    rows = spread.repartition(*QUEUE, "bucket").withColumn(
        "position", F.explode(F.sequence(first, last))
    )
    return rows if wanted is None else rows.join(wanted, [*QUEUE, "position"])


def _slim(events: DataFrame) -> DataFrame:
    """What the fold needs: the less, the cheaper."""
    known = ["first", "last", "at_ms", "event", "entry", "entry_offset", "publisher", "seqno"]
    counts = ["consumer", "token", "acquired", "failed", "reason", "confirm_ms"]
    return events.select(*QUEUE, *ORDER, *known, *counts)


def order_number(index: str, ordinal: str, step: str) -> Column:
    """`ORDER` as one number, a decimal of 34 digits: an aggregate over structs costs Sail forty
    times as much.
    """
    return F.expr(
        f"cast({index} as decimal(19, 0)) * cast('1000000000000000' as decimal(16, 0))"
        f" + cast({ordinal} as bigint) * cast('10000000000' as bigint) + {step}"
    )


def _folded(rows: DataFrame) -> DataFrame:
    event, nth = F.col("event"), F.col("position") - F.col("first")
    # Of two births of a message: where it was published, else where it is first seen.
    rank = F.when(event == "published", "2").when(event == "letter", "1").otherwise("0")
    rank = F.rpad(rank, 36, "0").cast("decimal(38, 0)")
    delivered = event.isin(*DELIVERIES)
    rows = rows.withColumns(
        {
            "entry_offset": (F.col("entry_offset") + nth).cast("int"),
            "seqno": F.col("seqno") + nth,
            "at": order_number(*ORDER),
        }
    )
    at = F.col("at")
    rows = rows.withColumns(
        {
            "birth_at": F.when(event.isin(*BIRTHS), at + rank),
            "delivery_at": F.when(delivered, at),
            "return_at": F.when(event == "returned", at),
            "end_at": F.when(event.isin(*ENDS), at),
        }
    )

    def of(name: str, pick: Callable[[str, str], Column], *columns: str) -> list[Column]:
        kind = name.removeprefix("first_")
        return [pick(each, f"{kind}_at").alias(f"{name}_{each}") for each in columns]

    # The position first: it tells most rows apart, so that sorting compares little else.
    folded = rows.groupBy("position", "bucket", "queue", "group").agg(
        *of("birth", F.max_by, *BIRTH),
        *of("first_delivery", F.min_by, "at_ms", "acquired"),
        *of("delivery", F.max_by, "at_ms", "consumer", "failed"),
        F.max("delivery_at").alias("delivery_at"),
        F.max(F.when(delivered, F.col("index"))).alias("delivery_index"),
        F.count("delivery_at").cast("int").alias("deliveries"),
        F.count_if(delivered & (F.col("acquired") == 0)).alias("unflagged"),
        F.count_if((event == "returned") & (F.col("reason") == "unsent")).alias("unsent"),
        *of("return", F.max_by, "at_ms", "failed"),
        F.max("return_at").alias("return_at"),
        F.count("return_at").cast("int").alias("returns"),
        *of("end", F.min_by, "at_ms", "event", "reason"),
        F.min(F.when(event == "settled", at)).alias("settled_at"),
    )
    return _told(folded)


def _told(folded: DataFrame) -> DataFrame:
    def birth(name: str) -> Column:
        return F.col(f"birth_{name}")

    delivered, returned = F.col("delivery_at").isNotNull(), F.col("return_at").isNotNull()
    known = birth("event") == "known"
    held_before = known & birth("consumer").isNotNull()
    dead_before = known & birth("reason").isNotNull()
    out_before = held_before | (known & (birth("acquired") > 0))
    # Is the first delivery that the log shows the first one of all?
    is_first = ~F.coalesce(out_before, F.lit(False))
    fresh = is_first & (F.col("first_delivery_acquired") == 0)
    # The newest of both is the return: then it is with nobody.
    back = returned & (~delivered | (F.col("return_at") > F.col("delivery_at")))
    with_somebody = (delivered | F.coalesce(held_before, F.lit(False))) & ~back
    ended = F.col("end_event").isNotNull()
    since_ms = F.col("delivery_at_ms")
    until_ms = F.when(back, F.col("return_at_ms")).when(ended, F.col("end_at_ms"))
    settled_again = F.col("delivery_at") > F.col("settled_at")
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
                F.when(settled_again, "settled_again"), F.when(unflagged, "unflagged_duplicate")
            )
        ).alias("broken"),
    )
