"""What queues did that they must not do, and what their consumers should not have to see.

They judge the machine too: nothing is taken for granted that only a right machine ensures. Of each
queue, or consumer, or message there is one finding of a kind: the first example is located, the
others are counted. `first` and `last` are indexes of entries.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.limits import Limits
from chaos.postmortem.queues.messages import DELIVERIES, ORDER, QUEUE, by_message, unbroken
from chaos.postmortem.tables import Tables, as_findings

MS_NS: Final = 1_000_000
MINUTE_MS: Final = 60_000
#: Of one queue no more poison messages than these are findings of their own.
POISON_MAX: Final = 100
#: In a storm each message comes again and again; after the end of a consumer all come once again.
STORM_ROUNDS: Final = 2


# --- delivered though it must not be --------------------------------------------------------------


def settled_again(tables: Tables, limits: Limits) -> DataFrame:
    """`first`: the entry that delivered it after it was settled."""
    del limits
    steps = _steps(tables, "settled_again")
    before = F.max(F.when(F.col("event") == "settled", F.col("index"))).over(_message_before())
    wrong = steps.withColumn("before", before).where(
        F.col("event").isin(*DELIVERIES) & F.col("before").isNotNull()
    )
    return _by_queue(wrong, "settled_again", "settled by entry")


def unflagged_duplicate(tables: Tables, limits: Limits) -> DataFrame:
    """`first`: the entry that delivered it again as if for the first time."""
    del limits
    steps = _steps(tables, "unflagged_duplicate")
    known = (F.col("event") == "known") & (F.col("consumer").isNotNull() | (F.col("acquired") > 0))
    out = F.col("event").isin(*DELIVERIES) | known
    before = F.max(F.when(out, F.col("index"))).over(_message_before())
    wrong = steps.withColumn("before", before).where(
        F.col("event").isin(*DELIVERIES) & (F.col("acquired") == 0) & F.col("before").isNotNull()
    )
    return _by_queue(wrong, "unflagged_duplicate", "delivered before by entry")


def _steps(tables: Tables, code: str) -> DataFrame:
    """All that happened to the messages that break this rule."""
    broken = tables["messages"].where(F.array_contains("broken", code))
    events = unbroken(tables).where(F.col("event").isin("known", *DELIVERIES, "settled"))
    return by_message(_located(events), broken.select(*QUEUE, "position", "message"))


def _located(events: DataFrame) -> DataFrame:
    known = ["name", *ORDER, "term", "at_ms", "event", "first", "last"]
    return events.select(*QUEUE, *known, "consumer", "session", "token", "acquired", "failed")


def _message_before() -> WindowSpec:
    """What happened to the same message before."""
    message = Window.partitionBy(*QUEUE, "bucket", "position").orderBy(*ORDER)
    return message.rowsBetween(Window.unboundedPreceding, -1)


def _by_queue(wrong: DataFrame, code: str, before: str) -> DataFrame:
    """One finding for each queue."""
    one = F.struct(
        *ORDER, "term", "position", "message", "before", "at_ms", "consumer", "session", "token"
    )
    messages = F.count_distinct("message").alias("messages")
    queues = wrong.groupBy(*QUEUE, "name").agg(*_counted(one), messages)
    detail = F.format_string(
        f"position %d: {before} %d, then delivered%s; messages of this queue: %d",
        *("one.position", "one.before", _to_whom(), "messages"),
    )
    return _placed(queues, code, detail)


def _counted(one: Column) -> list[Column]:
    """Of a group: the first one, until when there are more, and how many."""
    return [
        F.min(one).alias("one"),
        F.max("index").alias("last"),
        F.max("at_ms").alias("to_ms"),
        F.count("*").alias("count"),
    ]


def _to_whom() -> Column:
    told = F.format_string(
        " to consumer %d of session %s with token %s",
        "one.consumer",
        F.coalesce("one.session", F.lit("?")),
        F.coalesce(F.col("one.token").cast("string"), F.lit("?")),
    )
    return F.when(F.col("one.consumer").isNotNull(), told).otherwise("")


def _placed(queues: DataFrame, code: str, detail: Column) -> DataFrame:
    names = {"first": "index", "term": "term", "message": "message", "from_ms": "at_ms"}
    located = {name: F.col(f"one.{own}") for name, own in names.items()}
    return _found(queues.withColumns({**located, "detail": detail}), code)


def _found(queues: DataFrame, code: str) -> DataFrame:
    """Findings, of rows with the name of a queue and times of its log."""
    named = {"queue": F.col("name")}
    times = {f"{end}_ns": F.col(f"{end}_ms") * MS_NS for end in ("from", "to")}
    return as_findings(queues.withColumns({**named, **times}), code)


# --- one at a time --------------------------------------------------------------------------------


def sac_overlap(tables: Tables, limits: Limits) -> DataFrame:
    """`first`: the entry that gave a message to another than the active consumer, with a token that
    was not the newest; or that took a settle though another consumer had got something since.
    """
    del limits
    kinds = ("active", "known", *DELIVERIES, "settled", "consumer_ended")
    events = unbroken(tables).where(F.col("sac") & F.col("event").isin(*kinds))
    event, delivered = F.col("event"), F.col("event").isin(*DELIVERIES)
    queue = Window.partitionBy(*QUEUE).orderBy(*ORDER)
    before = queue.rowsBetween(Window.unboundedPreceding, -1)
    seen = (
        events.select(*QUEUE, "name", *ORDER, "term", "at_ms", "event", "first", "entry",
                      "entry_offset", "consumer", "session", "token")
        .withColumn("active", _newest(event == "active", "consumer", queue))
        .withColumn("served", _newest(delivered, "consumer", before))
        .withColumn("newest", F.max(F.when(event != "known", F.col("token"))).over(before))
    )  # fmt: skip
    not_active = (
        delivered
        & F.col("active").isNotNull()
        & ~F.col("active.consumer").eqNullSafe(F.col("consumer"))
    )
    another = ~F.col("served.consumer").eqNullSafe(F.col("consumer"))
    old_token = delivered & (
        (F.col("token") < F.col("newest"))
        | ((F.col("token") == F.col("newest")) & F.col("served").isNotNull() & another)
    )
    late = (event == "settled") & F.col("served").isNotNull() & another
    wrong = seen.withColumn(
        "what",
        F.when(not_active, "a delivery to another than the active consumer")
        .when(old_token, "a delivery with an old token")
        .when(late, "a settle by one that another had taken over from"),
    ).where("what is not null")
    wrong = wrong.join(_leaving(events), [*QUEUE, "consumer"], "left").where(
        (F.col("event") != "settled")
        | F.col("left_index").isNull()
        | (F.col("left_index") > F.col("index"))
    )
    return _overlaps(wrong)


def _newest(meant: Column, name: str, over: WindowSpec) -> Column:
    """As a struct: also that it is null is something to know."""
    return F.last(F.when(meant, F.struct(name)), ignorenulls=True).over(over)


def _leaving(events: DataFrame) -> DataFrame:
    """Consumers that were cancelled: what they hold they may still settle. One that held something
    when the log begins may have been cancelled before.
    """
    gone = events.where("event in ('consumer_ended', 'known') and consumer is not null")
    return gone.groupBy(*QUEUE, "consumer").agg(F.min("index").alias("left_index"))


def _overlaps(wrong: DataFrame) -> DataFrame:
    message = F.when(
        F.col("entry").isNotNull(), F.concat_ws("-", "group", "entry", "entry_offset")
    ).alias("message")
    one = F.struct(
        *ORDER,
        "term",
        message,
        F.col("first").alias("position"),
        "what",
        F.col("active.consumer").alias("active"),
        "at_ms",
        "consumer",
        "session",
        "token",
    )
    detail = F.format_string(
        "%s: position %d,%s; active was %s",
        *("one.what", "one.position", _to_whom()),
        F.coalesce(F.col("one.active").cast("string"), F.lit("nobody")),
    )
    queues = wrong.groupBy(*QUEUE, "name").agg(*_counted(one))
    return _placed(queues, "sac_overlap", detail)


# --- consumers and what they are given ------------------------------------------------------------


def stuck_unacked(tables: Tables, limits: Limits) -> DataFrame:
    """By consumer. `first`: the entry that delivered what it held longest."""
    return _held(tables, F.col("longest_ms") >= limits.stuck_ms, "stuck_unacked")


def late_settle(tables: Tables, limits: Limits) -> DataFrame:
    """As `stuck_unacked`, of what ended just before."""
    near = F.col("longest_ms") >= limits.stuck_ms * limits.late_share
    return _held(tables, near & (F.col("longest_ms") < limits.stuck_ms), "late_settle")


def _held(tables: Tables, so_long: Column, code: str) -> DataFrame:
    stuck = tables["unacked"].where(so_long)
    stuck = stuck.withColumn("position", F.col("longest_position"))
    message = tables["messages"].select(*QUEUE, "position", "message", "outcome")
    stuck = message.join(F.broadcast(stuck), [*QUEUE, "position"])
    stuck = stuck.withColumn("first", F.col("longest_entry"))
    at_ms = F.when(F.col("oldest_position") == F.col("position"), F.col("oldest_ms"))
    detail = F.format_string(
        "consumer %d of session %s had position %d for %d s; it is %s now; held at the end: %d",
        *("consumer", F.coalesce("session", F.lit("?")), "position"),
        F.round(F.col("longest_ms") / 1000).cast("bigint"),
        *("outcome", "held"),
    )
    told = {"from_ms": at_ms, "to_ms": at_ms + F.col("longest_ms"), "detail": detail}
    found = _with_terms(tables, stuck).withColumns({"last": F.col("first"), **told})
    return _found(found, code)


def _with_terms(tables: Tables, found: DataFrame) -> DataFrame:
    """Adds `term`, of the entry `first`; there are few of these."""
    wanted = F.broadcast(found.select("group", "first").distinct())
    events = tables["events"].select("group", F.col("index").alias("first"), "term")
    terms = events.join(wanted, ["group", "first"]).groupBy("group", "first")
    return found.join(terms.agg(F.max("term").alias("term")), ["group", "first"], "left")


def redelivery_storm(tables: Tables, limits: Limits) -> DataFrame:
    """Minutes on end are one storm. `first`: the entry of its first redelivery."""
    again = F.col("redelivered")
    stormy = tables["redelivery"].where(
        (again >= limits.storm_redeliveries)
        & (again >= F.col("delivered") * limits.storm_share)
        & (again >= F.col("messages") * STORM_ROUNDS)
    )
    queue = Window.partitionBy(*QUEUE).orderBy("minute_ms")
    nth = F.row_number().over(queue)
    storms = (
        stormy.withColumn("storm", F.col("minute_ms") - nth * MINUTE_MS)
        .groupBy(*QUEUE, "name", "storm")
        .agg(
            F.min("entry").alias("first"),
            F.min("minute_ms").alias("from_ms"),
            (F.max("minute_ms") + MINUTE_MS).alias("to_ms"),
            F.sum("redelivered").alias("count"),
            F.sum("delivered").alias("delivered"),
            F.max("messages").alias("messages"),
            F.max("consumers").alias("consumers"),
        )
    )
    detail = F.format_string(
        "%d of %d deliveries were repetitions; within a minute up to %d messages, to up to"
        " %d consumers",
        *("count", "delivered", "messages", "consumers"),
    )
    return _found(_with_terms(tables, storms).withColumn("detail", detail), "redelivery_storm")


def poison_message(tables: Tables, limits: Limits) -> DataFrame:
    """`first` and `last`: the entries of its first failure and its last one."""
    nth = F.row_number().over(Window.partitionBy(*QUEUE).orderBy("position"))
    poison = (
        tables["messages"]
        .where(F.col("failed") >= limits.poison_failures)
        .select(
            *QUEUE, "position", "message", F.col("failed").alias("failures"), "outcome", "reason"
        )
        .withColumn("nth", nth)
        .withColumn("all", F.count("*").over(Window.partitionBy(*QUEUE)))
        .where(F.col("nth") <= POISON_MAX)
    )
    events = unbroken(tables).where("event = 'returned' and failed > 0")
    failures = by_message(_located(events), poison)
    found = failures.groupBy(
        *QUEUE, "name", "position", "message", "failures", "outcome", "reason", "all"
    ).agg(
        F.min("index").alias("first"),
        F.max("index").alias("last"),
        F.max("term").alias("term"),
        F.min("at_ms").alias("from_ms"),
        F.max("at_ms").alias("to_ms"),
    )
    why = F.when(F.col("reason").isNotNull(), F.format_string(" (%s)", "reason")).otherwise("")
    detail = F.format_string(
        "position %d failed %d times; it is %s%s now; poison messages of this queue: %d",
        *("position", "failures", "outcome", why, "all"),
    )
    return _found(found.withColumn("detail", detail), "poison_message")


def dead_letter_loop(tables: Tables, limits: Limits) -> DataFrame:
    """One for each queue. A dead letter is called as the message that it was, while it stays in its
    group. `first`: the entry that brought the one that died most often.
    """
    died = tables["messages"].where("outcome = 'died'")
    loops = (
        died.groupBy(*QUEUE, "name", "message")
        .agg(
            F.count("*").alias("deaths"),
            F.min("entry").alias("entry"),
            F.min("outcome_ms").alias("from_ms"),
            F.max("outcome_ms").alias("to_ms"),
            F.max("reason").alias("reason"),
        )
        .where(F.col("deaths") >= limits.loop_deaths)
    )
    queues = loops.groupBy(*QUEUE, "name").agg(
        F.count("*").alias("count"),
        F.max(F.struct("deaths", "message", "entry", "reason")).alias("worst"),
        F.min("from_ms").alias("from_ms"),
        F.max("to_ms").alias("to_ms"),
    )
    detail = F.format_string(
        "one message died %d times there (%s), and came back; such messages: %d",
        "worst.deaths",
        "worst.reason",
        "count",
    )
    told = {"first": F.col("worst.entry"), "message": F.col("worst.message"), "detail": detail}
    return _found(queues.withColumns(told), "dead_letter_loop")
