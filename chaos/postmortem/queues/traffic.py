"""What went on in queues: how quickly, how much, how often again, who held what, who was active."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.engine import quantiles
from chaos.postmortem.queues.messages import (
    DELIVERIES,
    ORDER,
    QUEUE,
    by_message,
    unbroken,
)
from chaos.postmortem.tables import Tables

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
QUANTILES: Final = (0.5, 0.95, 0.99)
NAMES: Final = (*QUEUE, "vhost", "name")
#: A count of messages, where a row is a range of them.
SIZE: Final = "last - first + 1"


def _begin(stamp: str, span_ms: int) -> Column:
    return F.col(stamp) - F.col(stamp) % span_ms


# --- how much, how quickly ------------------------------------------------------------------------


def throughput(tables: Tables) -> DataFrame:
    """By queue and second."""

    def count(events: tuple[str, ...], of: Column | None = None) -> Column:
        meant = F.col("event").isin(*events)
        return F.sum(F.when(meant if of is None else meant & of, F.expr(SIZE)).otherwise(0))

    given = (*DELIVERIES, "handed")
    columns = {
        "published": count(("published", "letter")),
        "delivered": count(given),
        "redelivered": count(given, F.col("acquired") > 0),
        "settled": count(("settled",)),
        "returned": count(("returned",)),
        "dead": count(("died",)),
    }
    seen = ("published", "letter", *given, "settled", "returned", "died")
    return (
        tables["events"]
        .where(F.col("event").isin(*seen))
        .groupBy(*NAMES, _begin("at_ms", SECOND_MS).alias("second_ms"))
        .agg(*(column.alias(name) for name, column in columns.items()))
    )


def latency(tables: Tables) -> DataFrame:
    """By queue and minute: publish to confirm, publish to first delivery, delivery to settle."""
    spans = {
        "confirm": F.col("confirm_ms"),
        "deliver": (F.col("first_delivered_ms") - F.col("published_ms")).cast("double"),
        "settle": F.when(F.col("outcome") == "settled", F.col("held_ms").cast("double")),
    }
    measured = tables["messages"].select(
        *NAMES,
        _begin("published_ms", MINUTE_MS).alias("minute_ms"),
        *(span.alias(kind) for kind, span in spans.items()),
    )
    wide = measured.groupBy(*NAMES, "minute_ms").agg(
        *(
            F.struct(
                F.lit(kind).alias("kind"),
                F.count(kind).alias("messages"),
                quantiles(kind, *QUANTILES).alias("quantiles"),
                F.max(kind).alias("longest"),
            ).alias(kind)
            for kind in spans
        )
    )
    long = wide.select(*NAMES, "minute_ms", F.inline(F.array(*spans))).where("messages > 0")
    columns = [
        F.col("quantiles")[nth].alias(name) for nth, name in enumerate(("p50", "p95", "p99"))
    ]
    return long.select(*NAMES, "kind", "minute_ms", "messages", *columns, "longest")


# --- again and again ------------------------------------------------------------------------------


def redelivery(tables: Tables) -> DataFrame:
    """By queue and minute; single messages are only counted among those that came again."""
    minute = _begin("at_ms", MINUTE_MS).alias("minute_ms")
    key = [*NAMES, "minute_ms"]
    deliveries = tables["events"].where(F.col("event").isin(*DELIVERIES))
    deliveries = deliveries.select(
        *NAMES, minute, "index", "first", "last", "consumer", (F.col("acquired") > 0).alias("again")
    )
    size = F.expr(SIZE)
    counts = deliveries.groupBy(*key).agg(
        F.sum(size).alias("delivered"),
        F.sum(F.when(F.col("again"), size).otherwise(0)).alias("redelivered"),
        F.min(F.when(F.col("again"), F.col("index"))).alias("entry"),
    )
    again = deliveries.where("again")
    consumers = again.select(*key, "consumer").distinct().groupBy(*key)
    messages = (
        by_message(again.select(*key, "first", "last"))
        .select(*key, "position")
        .distinct()
        .groupBy(*key)
    )
    return (
        counts.join(consumers.agg(F.count("*").alias("consumers")), key, "left")
        .join(messages.agg(F.count("*").alias("messages")), key, "left")
        .na.fill(0, ["consumers", "messages"])
    )


# --- with whom ------------------------------------------------------------------------------------


def unacked(tables: Tables) -> DataFrame:
    """By consumer that ever got something to settle."""
    events = unbroken(tables)
    messages = tables["messages"].where("last_consumer is not null")
    open_now = F.col("outcome") == "unsettled"
    # What was with a consumer when the log begins is with it at least since then.
    since_ms = F.coalesce("last_delivered_ms", "begin_ms")
    until_ms = F.when(open_now, F.greatest("end_ms", since_ms))
    last_holds = messages.join(F.broadcast(_known_times(tables, events)), "group").select(
        *QUEUE,
        F.col("last_consumer").alias("consumer"),
        "position",
        F.col("last_index").alias("index"),
        open_now.alias("open"),
        since_ms.alias("since_ms"),
        F.coalesce("held_ms", until_ms - since_ms).alias("ms"),
    )
    held = F.when(F.col("open"), F.struct("since_ms", "position", "index"))
    longest = F.struct("ms", (-F.col("position")).alias("position"), "index")
    consumers = (
        last_holds.unionByName(_earlier_holds(events, messages))
        .groupBy(*QUEUE, "consumer")
        .agg(
            F.count_if("open").alias("held"),
            F.min(held).alias("oldest"),
            F.max(F.when(F.col("ms").isNotNull(), longest)).alias("longest"),
        )
    )
    sessions = events.where("session is not null").select(*NAMES, "consumer", "session").distinct()
    return consumers.join(sessions, [*QUEUE, "consumer"], "left").select(
        *NAMES,
        "consumer",
        "session",
        "held",
        F.col("oldest.since_ms").alias("oldest_ms"),
        F.col("oldest.position").alias("oldest_position"),
        F.col("oldest.index").alias("oldest_entry"),
        F.coalesce("longest.ms", F.lit(0)).alias("longest_ms"),
        (-F.col("longest.position")).alias("longest_position"),
        F.col("longest.index").alias("longest_entry"),
    )


def _known_times(tables: Tables, events: DataFrame) -> DataFrame:
    """Of each group from when to when it is known what happened: from the first stamp of which
    there is an event, not only a memory, to the end of the log, or to where its replay failed.
    """
    # What could not begin has no clock.
    stamps = F.when((F.col("event") != "known") & (F.col("at_ms") > 0), F.col("at_ms"))
    known = events.groupBy("group").agg(
        F.coalesce(F.min(stamps), F.max("at_ms")).alias("begin_ms"),
        F.coalesce(F.max(stamps), F.max("at_ms")).alias("last_ms"),
    )
    failed = tables["replays"].where("failed is not null").select("group").distinct()
    return (
        known.join(failed.withColumn("broken", F.lit(True)), "group", "left")
        .crossJoin(_end_of_log(tables))  # one row
        .select(
            "group",
            "begin_ms",
            F.when(F.col("broken"), F.col("last_ms")).otherwise(F.col("end_ms")).alias("end_ms"),
        )
    )


def _end_of_log(tables: Tables) -> DataFrame:
    """One row: until when somebody wrote. By the clock of the median node, as one of them may be
    wrong, and another one may have ended long before.
    """
    last = F.expr("max(last_ns) div 1000000").alias("last_ms")
    nodes = tables["segments"].groupBy("node").agg(last)
    by_nodes = nodes.agg(quantiles("last_ms", 0.5)[0].cast("bigint").alias("by_nodes"))
    stamps = tables["events"].where("event != 'known'").agg(F.max("at_ms").alias("by_stamps"))
    return by_nodes.crossJoin(stamps).select(F.greatest("by_nodes", "by_stamps").alias("end_ms"))


def _earlier_holds(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Of messages that were delivered more than once: all deliveries but the last one."""
    wanted = messages.where("deliveries > 1").select(*QUEUE, "position")
    steps = events.where(F.col("event").isin(*DELIVERIES, "returned")).select(
        *QUEUE, *ORDER, "event", "at_ms", "consumer", "first", "last"
    )
    steps = by_message(steps, wanted)
    one = Window.partitionBy("position", "bucket", "queue", "group").orderBy(*ORDER)
    return (
        steps.withColumn("until_ms", F.lead("at_ms").over(one))
        .where(F.col("event").isin(*DELIVERIES) & F.col("until_ms").isNotNull())
        .select(
            *QUEUE,
            "consumer",
            "position",
            "index",
            F.lit(False).alias("open"),
            F.col("at_ms").alias("since_ms"),
            (F.col("until_ms") - F.col("at_ms")).alias("ms"),
        )
    )


# --- the single active one ------------------------------------------------------------------------


def sac(tables: Tables) -> DataFrame:
    """Each time that a consumer, or nobody (null), was the active one."""
    events = tables["events"].where("sac and event in ('active', 'queue_deleted')")
    queue = Window.partitionBy(*QUEUE).orderBy(*ORDER)
    return (
        events.withColumn("to_ms", F.lead("at_ms").over(queue))
        .withColumn("until_token", F.lead("token").over(queue))
        .where("event = 'active'")
        .select(
            *NAMES,
            "consumer",
            "session",
            "token",
            F.col("at_ms").alias("from_ms"),
            "to_ms",
            "until_token",
            F.col("index").alias("entry"),
        )
    )
