"""What clients saw (`history.jsonl` of a run), judged by Spark as `chaos.checker` judges it.

The rules are those of the checkers, said once more in SQL: for histories that do not fit one
machine's memory, and so that each of both is the other's witness. An op is a row with the columns
of `chaos.history.Op`; `run` tells histories apart, so that many are judged in one go. A key is a
message of a queue; its *decisions* are its deliveries, a repeat under the same token left away.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Final

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

OPS: Final = (
    "run string, index bigint, process string, type string, f string, node string, wall_ms bigint,"
    " invoke bigint, value struct<queue: string, publisher: string, first: bigint, count: bigint,"
    " refused: array<array<bigint>>, ordered: boolean, messages: array<string>, consumer: string,"
    " token: bigint, delivery_count: bigint, acquired_count: bigint, accepted: boolean,"
    " publishes: array<array<string>>, settles: array<array<string>>, ttl_ms: bigint,"
    " delay_ms: bigint, arguments: map<string, string>>"
)
#: Not proof of anything: a queue that was not drained may still hold it.
UNDECIDED: Final = "missing, not drained"
ORDER: Final = ("stored out of order", "first delivered out of order")
#: What a message looks like that is in its queue twice, as links may send it.
TWICE: Final = (
    "stored twice",
    "duplicated without the flag",
    "delivered after its settle",
    "settled twice",
    "count went back",
)
#: Arguments with which messages leave a queue without a consumer.
LEAVING: Final = (
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-delivery-limit",
    "x-dead-letter-exchange",
)
_KEY: Final = ["run", "queue", "message"]
_TOKEN: Final = ["run", "queue", "token"]
_ENDS: Final = ("settle", "discard")


def read_history(spark: SparkSession, path: Path | str) -> DataFrame:
    """The ops of one history, or of all in a folder."""
    lines = spark.read.text(str(path))
    ops = lines.select(F.from_json("value", OPS).alias("op")).select("op.*")
    return ops.withColumn("run", F.coalesce("run", F.lit("")))


def anomalies(ops: DataFrame, single_active: Sequence[str]) -> DataFrame:
    """Rows of `client_findings`, and `run`. `single_active`: queues with a single active consumer.

    UNDECIDED is among the kinds: it accuses nobody.
    """
    flat = ops.select("run", "index", "process", "type", "f", "invoke", "wall_ms", "value.*")
    seen = decisions(flat).cache()
    found = [
        *_total_queue(flat, seen),
        *_ack_finality(flat, seen),
        *_publisher_order(flat, seen),
        *_delivery_count(seen),
        *_sac_exclusion(flat.where(F.col("queue").isin(list(single_active)))),
    ]
    times = flat.select("run", F.col("index").alias("op"), F.col("wall_ms").alias("at_ms"))
    return reduce(DataFrame.unionByName, found).join(times, ["run", "op"], "left")


def provable(ops: DataFrame, found: DataFrame) -> DataFrame:
    """Of `found`, what is wrong whatever these queues are for. A checker is told which queues are
    its own; here a queue may expire messages, be deleted and made anew, delay, or get what was
    published elsewhere: through an exchange, as a dead letter, or over a link (a shovel, a
    federation), which takes it from the queue that it was published to and may send it twice.
    """
    flat = ops.select("run", "type", "f", F.col("index"), "value.*")
    asked = _published(flat).where("type = 'invoke'")
    here = asked.select(*_KEY, F.lit(True).alias("here")).distinct()
    anywhere = asked.select("run", "message", F.lit(True).alias("anywhere")).distinct()
    to_a_queue = asked.where("queue is not null").select("run", "message").distinct()
    came = (
        flat.where("f = 'deliver'")
        .select("run", "queue", F.explode("messages").alias("message"))
        .distinct()
        .join(here, _KEY, "left_anti")
        .join(to_a_queue, ["run", "message"], "left_semi")
    )
    left = came.select("run", "message", F.lit(True).alias("left_here")).distinct()
    came = came.withColumn("came_here", F.lit(True))
    arguments = F.map_keys(F.coalesce("arguments", F.create_map().cast("map<string, string>")))
    leaving = F.arrays_overlap(arguments, F.array(*map(F.lit, LEAVING)))
    queues = (
        flat.where("queue is not null")
        .groupBy("run", "queue")
        .agg(
            F.max(F.col("f") == "delete").alias("deleted"),
            F.max(leaving | F.col("ttl_ms").isNotNull()).alias("leaving"),
            F.max(
                F.array_contains(arguments, "x-max-priority") | F.col("delay_ms").isNotNull()
            ).alias("mixed"),
        )
    )
    kind, deleted = F.col("kind"), F.col("deleted")
    doubtful = (
        F.when(kind == UNDECIDED, True)
        .when(kind == "unexpected", F.col("anywhere"))
        .when(kind == "lost", deleted | F.col("leaving") | F.col("left_here").isNotNull())
        .when(kind.isin(*TWICE), F.col("came_here"))
        .when(kind.isin(*ORDER), deleted | F.col("mixed") | F.col("here").isNull())
    )
    known = found.join(queues, ["run", "queue"], "left").join(here, _KEY, "left")
    known = known.join(came, _KEY, "left").join(left, ["run", "message"], "left")
    known = known.join(anywhere, ["run", "message"], "left")
    return known.where(~F.coalesce(doubtful, F.lit(False))).select(found.columns)


def _found(frame: DataFrame, checker: str, kind: str, *, op: str = "op") -> DataFrame:
    message = F.col("message") if "message" in frame.columns else F.lit(None).cast("string")
    detail = F.col("detail") if "detail" in frame.columns else F.lit("")
    return frame.select(
        "run",
        F.lit(checker).alias("checker"),
        F.lit(kind).alias("kind"),
        "queue",
        message.alias("message"),
        F.col(op).alias("op"),
        detail.alias("detail"),
    )


# --- keys -----------------------------------------------------------------------------------------


def _published(flat: DataFrame) -> DataFrame:
    """One row for each message that a publish or a transaction puts into a queue."""
    kept_out = F.exists(
        F.coalesce("refused", F.array().cast("array<array<bigint>>")),
        lambda span: F.col("offset").between(span[0], span[1]),
    )
    single = (
        flat.where("f = 'publish' and count > 0")
        .withColumn("offset", F.explode(F.sequence(F.lit(0), F.col("count") - 1)))
        .where(~kept_out)
        .withColumn("message", F.concat_ws(":", "publisher", F.col("first") + F.col("offset")))
        .select(*_KEY, "publisher", "ordered", "type", F.col("index").alias("op"))
    )
    together = (
        flat.where("f = 'transaction'")
        .withColumn("pair", F.explode("publishes"))
        .select(
            "run",
            F.col("pair")[0].alias("queue"),
            F.col("pair")[1].alias("message"),
            F.lit(None).cast("string").alias("publisher"),
            F.lit(None).cast("boolean").alias("ordered"),
            "type",
            F.col("index").alias("op"),
        )
    )
    return single.unionByName(together)


def decisions(flat: DataFrame) -> DataFrame:
    """Deliveries, one row a message and decision. `rank` from 1: by token, or as they were seen
    where one of them has none; `tokens`: all have one; `times`: how many there are.
    """
    each = (
        flat.where("f = 'deliver'")
        .select("*", F.posexplode("messages").alias("at", "message"))
        .select(
            *_KEY,
            "consumer",
            "token",
            "at",
            F.col("index").alias("op"),
            (F.col("first") + F.col("at")).alias("position"),
            F.col("delivery_count").alias("failed"),
            F.coalesce("acquired_count", F.lit(0)).alias("acquired"),
        )
    )
    repeat = F.row_number().over(Window.partitionBy(*_KEY, "token").orderBy("op", "at"))
    once = each.withColumn("repeat", repeat).where("token is null or repeat = 1").drop("repeat")
    key = Window.partitionBy(*_KEY)
    known = once.withColumn("tokens", F.every(F.col("token").isNotNull()).over(key)).withColumn(
        "times", F.count("*").over(key)
    )
    order = F.when(F.col("tokens"), F.col("token"))
    return known.withColumn("rank", F.row_number().over(key.orderBy(order, "op", "at")))


def _whole(flat: DataFrame) -> DataFrame:
    """Settles and discards that were confirmed for all that they named."""
    asked = F.size("messages")
    return flat.where(
        F.col("f").isin(*_ENDS) & (F.col("type") == "ok") & (F.coalesce("count", asked) == asked)
    )


def _words() -> Column:
    """What a delivery is called."""
    return F.concat_ws(
        " ",
        F.lit("consumer"),
        "consumer",
        F.lit("token"),
        F.coalesce(F.col("token").cast("string"), F.lit("-")),
        F.lit("position"),
        F.coalesce(F.col("position").cast("string"), F.lit("-")),
    )


# --- the checkers ---------------------------------------------------------------------------------


def _total_queue(flat: DataFrame, seen: DataFrame) -> list[DataFrame]:
    published = _published(flat)
    delivered = seen.where("rank = 1")
    confirmed = published.where("type = 'ok'").groupBy(*_KEY).agg(F.max("op").alias("op"))
    drained = flat.where("f = 'drain' and type = 'ok'").select("run", "queue").distinct()
    missing = confirmed.join(delivered.select(*_KEY), _KEY, "left_anti")
    attempted = published.where("type = 'invoke'").select(*_KEY).distinct()
    refused = (
        published.where("type in ('invoke', 'refused')")
        .groupBy(*_KEY)
        .agg(
            F.sum(F.when(F.col("type") == "invoke", 1).otherwise(-1)).alias("open"),
            F.max(F.when(F.col("type") == "refused", F.col("op"))).alias("op"),
        )
        .where("op is not null and open <= 0")
    )
    placed = (
        seen.groupBy(*_KEY)
        .agg(F.count_distinct("position").alias("places"), F.min("op").alias("op"))
        .where("places > 1")
    )
    name = "total-queue"
    return [
        _found(missing.join(drained, ["run", "queue"]), name, "lost"),
        _found(missing.join(drained, ["run", "queue"], "left_anti"), name, UNDECIDED),
        _found(delivered.join(attempted, _KEY, "left_anti"), name, "unexpected"),
        _found(refused.join(delivered.select(*_KEY), _KEY), name, "refused, yet delivered"),
        _found(_unflagged_again(seen), name, "duplicated without the flag"),
        _found(placed, name, "stored twice"),
    ]


def _unflagged_again(seen: DataFrame) -> DataFrame:
    """Not the first decision of its message, and not flagged. Without tokens the order is not
    known: then one of them may be unflagged, unless its consumer had a flagged one before.
    """
    before = Window.partitionBy(*_KEY).orderBy("rank").rowsBetween(Window.unboundedPreceding, -1)
    here = (
        Window.partitionBy(*_KEY, "consumer")
        .orderBy("rank")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    unflagged = F.when(F.col("acquired") == 0, 1).otherwise(0)
    others = F.coalesce(F.sum(unflagged).over(before), F.lit(0))
    flagged_here = F.coalesce(F.sum(1 - unflagged).over(here), F.lit(0))
    return (
        seen.where("times > 1")
        .withColumn("others", others)
        .withColumn("flagged_here", flagged_here)
        .where("acquired = 0")
        .where("(tokens and rank > 1) or (not tokens and (others > 0 or flagged_here > 0))")
        .withColumn("detail", _words())
    )


def _ack_finality(flat: DataFrame, seen: DataFrame) -> list[DataFrame]:
    ends = (
        _whole(flat)
        .select("*", F.posexplode("messages").alias("at", "message"))
        .select(
            *_KEY,
            F.col("token").alias("end_token"),
            F.col("consumer").alias("end_consumer"),
            F.col("index").alias("end_op"),
            F.coalesce("invoke", "index").alias("end_invoke"),
            "at",
        )
    )
    order = Window.partitionBy(*_KEY).orderBy("end_op", "at")
    ends = ends.withColumn("rank", F.row_number().over(order)).withColumn(
        "first_token", F.first("end_token").over(order)
    )
    twice = ends.where("rank > 1 and first_token != end_token").withColumn("op", F.col("end_op"))
    end = ends.where("rank = 1").drop("rank", "at", "first_token")
    both = seen.join(end, _KEY)
    meant = F.when(F.col("end_token").isNotNull(), F.col("token") == F.col("end_token")).otherwise(
        (F.col("consumer") == F.col("end_consumer")) & (F.col("op") < F.col("end_invoke"))
    )
    done = (
        both.where(meant)
        .withColumn("last", F.row_number().over(Window.partitionBy(*_KEY).orderBy(F.desc("rank"))))
        .where("last = 1")
        .select(
            *_KEY,
            *[
                F.col(name).alias(f"done_{name}")
                for name in ("op", "at", "token", "acquired", "failed", "consumer")
            ],
        )
    )
    told = "end_token is not null and token is not null"
    by_token = both.where(f"{told} and token > end_token")
    by_sight = (
        both.where(f"not ({told})")
        .join(done, _KEY)
        .where(F.col("op") > F.col("end_op"))
        .where(_surely_after())
        .select(both.columns)
    )
    after = by_token.unionByName(by_sight).withColumn("detail", _words())
    return [
        _found(after, "ack-finality", "delivered after its settle"),
        _found(twice, "ack-finality", "settled twice"),
    ]


def _surely_after() -> Column:
    """Whether a delivery was decided after the one that was settled (columns `done_...`)."""
    failed, done_failed = F.coalesce("failed", F.lit(0)), F.coalesce("done_failed", F.lit(0))
    flagged, done_flagged = F.col("acquired") > 0, F.col("done_acquired") > 0
    return (
        F.when(
            F.col("token").isNotNull() & F.col("done_token").isNotNull(),
            F.col("token") > F.col("done_token"),
        )
        .when((F.col("op") == F.col("done_op")) & (F.col("at") == F.col("done_at")), F.lit(False))
        .when(flagged & ~done_flagged, F.lit(True))
        .when(done_flagged & ~flagged, F.lit(False))
        .when(failed != done_failed, failed > done_failed)
        .otherwise((F.col("consumer") == F.col("done_consumer")) & (F.col("op") > F.col("done_op")))
    )


def _publisher_order(flat: DataFrame, seen: DataFrame) -> list[DataFrame]:
    published = flat.where("f = 'publish'")
    whole = published.where("ordered").select("run", "publisher").distinct()
    confirmed = (
        _published(published).where("ordered is null and type = 'ok'").select(*_KEY).distinct()
    )
    named = seen.withColumn("publisher", F.regexp_extract("message", "^(.*):([^:]*)$", 1))
    named = named.withColumn(
        "number", F.regexp_extract("message", "([^:]*)$", 1).try_cast("bigint")
    )
    promised = (
        named.join(whole, ["run", "publisher"], "left_semi")
        .unionByName(
            named.join(confirmed, _KEY, "left_semi").join(whole, ["run", "publisher"], "left_anti")
        )
        .cache()
    )
    whose = ["run", "queue", "publisher"]
    placed = promised.where("rank = 1 and position is not null")
    lower = F.lag("position").over(Window.partitionBy(*whose).orderBy("number"))
    misplaced = placed.withColumn("lower", lower).where("lower >= position")
    fresh = promised.where("acquired = 0 and (token is null or rank = 1)")
    first = F.row_number().over(Window.partitionBy(*_KEY).orderBy("rank"))
    fresh = fresh.withColumn("nth", first).where("nth = 1")
    by = F.when(F.col("token").isNull(), F.col("consumer"))
    sighted = F.col("token").isNull() | F.col("position").isNull()
    order = Window.partitionBy(*whose, "by").orderBy("major", "minor")
    out_of_order = (
        fresh.withColumn("by", by)
        .withColumn("major", F.when(sighted, F.col("op")).otherwise(F.col("token")))
        .withColumn("minor", F.when(sighted, F.col("at")).otherwise(F.col("position")))
        .withColumn("lower", F.lag("number").over(order))
        .where("lower > number")
    )
    return [
        _found(misplaced.withColumn("detail", _words()), "publisher-order", "stored out of order"),
        _found(
            out_of_order.withColumn("detail", _words()),
            "publisher-order",
            "first delivered out of order",
        ),
    ]


def _delivery_count(seen: DataFrame) -> list[DataFrame]:
    whose = F.when(F.col("tokens") & (F.col("times") > 1), F.lit(None)).otherwise(F.col("consumer"))
    order = Window.partitionBy(*_KEY, "whose").orderBy("rank")
    counts = F.col("consumer").rlike("^[0-9]+$")  # names are words: they are told only a flag
    pairs = (
        seen.withColumn("whose", whose)
        .withColumn("counts", counts)
        .withColumn("before", F.lag(F.struct("failed", "acquired", "counts")).over(order))
    )
    back = pairs.where("before is not null").where(
        F.coalesce(F.col("failed") < F.col("before.failed"), F.lit(False))
        | F.when(
            F.col("counts") & F.col("before.counts"),
            F.col("acquired") <= F.col("before.acquired"),
        ).otherwise(F.col("acquired") == 0)
    )
    over = pairs.where("coalesce(failed, 0) > acquired and (counts or acquired = 0)")
    return [
        _found(back.withColumn("detail", _words()), "delivery-count", "count went back"),
        _found(over.withColumn("detail", _words()), "delivery-count", "over the limit"),
    ]


def _sac_exclusion(flat: DataFrame) -> list[DataFrame]:
    delivered = flat.where("f = 'deliver' and token is not null")
    owner = F.first("consumer").over(Window.partitionBy(*_TOKEN).orderBy("index"))
    shared = delivered.withColumn("owner", owner).where("owner != consumer")
    whole = _whole(flat).select("run", "invoke", F.col("index").alias("ended"))
    asked = flat.where("f = 'settle' and type = 'invoke' and token is not null")
    confirmed = asked.withColumn("invoke", F.col("index")).join(whole, ["run", "invoke"])
    late = _late(delivered, confirmed)
    stores = flat.where("f = 'store' and accepted and token is not null")
    highest = F.max("token").over(
        Window.partitionBy("run", "queue")
        .orderBy("index")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    backward = stores.withColumn("highest", highest).where("token < highest")
    return [
        _found(shared, "sac-exclusion", "token shared", op="index"),
        _found(late, "sac-exclusion", "old token settled", op="ended"),
        _found(backward, "sac-exclusion", "old token stored", op="index"),
    ]


def _late(delivered: DataFrame, settles: DataFrame) -> DataFrame:
    """The settles before which *another* consumer held a newer token already.

    The newest token of each consumer so far is what has to be carried along: no window does that.
    """
    columns = ["run", "queue", "index", "consumer", "token"]
    never = F.lit(None).cast("bigint").alias("ended")
    both = delivered.select(*columns, never).unionByName(settles.select(*columns, "ended"))

    def fold(rows: pd.DataFrame) -> pd.DataFrame:
        newest: dict[str, int] = {}
        late: list[bool] = []
        rows = rows.sort_values("index")
        for consumer, token, ended in zip(
            rows["consumer"], rows["token"], rows["ended"], strict=True
        ):
            settles = not pd.isna(ended)
            late.append(
                settles and any(held > token for by, held in newest.items() if by != consumer)
            )
            if not settles:
                newest[consumer] = max(token, newest.get(consumer, 0))
        return rows.loc[late]

    return both.groupBy("run", "queue").applyInPandas(fold, schema=both.schema)
