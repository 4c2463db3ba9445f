"""What queues and their messages did, as few rows: transformations first, then what collects."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.report.facts import (
    Active,
    ClientRow,
    MessageHistory,
    Queue,
    QueueRow,
    QueueTraffic,
    Step,
    Storm,
    Window,
)
from chaos.postmortem.report.reading import (
    KEY,
    Cut,
    curve,
    made,
    ns_of,
    placed,
    queue_of,
    table,
)
from chaos.postmortem.tables import Tables

QUEUES_MAX: Final = 100
PICTURED_MAX: Final = 6
STORMS_MAX: Final = 50
ACTIVE_MAX: Final = 400
CLIENT_ROWS_MAX: Final = 100
STEPS_MAX: Final = 500
LETTERS_MAX: Final = 10

_FLOWS: Final = ("published", "delivered", "redelivered")
_TOTALS: Final = (*_FLOWS, "settled", "dead")
_KINDS: Final = ("confirm", "deliver", "settle")


def totals_by_queue(throughput: DataFrame) -> DataFrame:
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _TOTALS]
    return throughput.groupBy(*KEY).agg(*sums)


def held_by_queue(unacked: DataFrame) -> DataFrame:
    return unacked.groupBy("group", "queue").agg(
        F.sum("held").alias("held"),
        F.min(F.when(F.col("held") > 0, F.col("oldest_ms"))).alias("oldest_ms"),
        F.max("longest_ms").alias("longest_ms"),
    )


def worst_by_queue(latency: DataFrame) -> DataFrame:
    """Of each kind the worst minute's p99, and the longest."""
    of_kind = [
        F.max(F.when(F.col("kind") == kind, F.col(column))).alias(f"{kind}_{column}")
        for kind in _KINDS
        for column in ("p99", "longest")
    ]
    return latency.groupBy("group", "queue").agg(*of_kind)


def flow_by_queue(
    throughput: DataFrame, chosen: Collection[Queue], windows: Sequence[Window]
) -> DataFrame:
    """Messages by bucket: of the chosen queues each, of all others together (`shown` is null)."""
    sums = [F.sum(name).alias(name) for name in _FLOWS]
    numbers = [f"{queue.group}/{queue.queue}" for queue in chosen]
    is_chosen = F.concat_ws("/", "group", "queue").isin(numbers)
    shown = F.when(is_chosen, F.struct(*KEY)).alias("shown")
    seconds = placed(throughput, F.col("second_ms") * 1_000_000, windows)
    return seconds.groupBy("window", shown, "bucket").agg(*sums)


def steps_of(events: DataFrame, group: int, queue: int, position: int) -> DataFrame:
    """The events that a position is among. Of duplicates `first` is no position."""
    about_it = (F.col("first") <= position) & (position <= F.col("last"))
    return events.where(
        (F.col("group") == group)
        & (F.col("queue") == queue)
        & about_it
        & ~F.col("event").isin("duplicate", "refused")
    )


def queues(tables: Tables, cut: Cut, named: Collection[str]) -> list[QueueRow]:
    """Those that findings name first, then the busiest."""
    title = F.when(F.col("vhost") == "/", F.col("name")).otherwise(
        F.concat_ws("/", "vhost", "name")
    )
    is_named = F.col("name").isin(list(named)) | title.isin(list(named))
    order = (F.desc(is_named), F.desc(F.col("published") + F.col("delivered")), "group", "queue")
    totals = (
        totals_by_queue(table(tables, "throughput"))
        .join(held_by_queue(table(tables, "unacked")), on=["group", "queue"], how="left")
        .join(worst_by_queue(table(tables, "latency")), on=["group", "queue"], how="left")
    )
    return [_queue_row(row) for row in cut.rows("queues", totals, order, QUEUES_MAX)]


def _queue_row(row: Any) -> QueueRow:
    def by_kind(column: str) -> dict[str, float]:
        values = {kind: row[f"{kind}_{column}"] for kind in _KINDS}
        return {kind: value for kind, value in values.items() if value is not None}

    return made(
        QueueRow,
        row,
        queue=queue_of(row),
        held=row["held"] or 0,
        oldest_ns=ns_of(row["oldest_ms"]),
        p99=by_kind("p99"),
        longest=by_kind("longest"),
    )


def traffic(
    tables: Tables, shown: list[Queue], windows: Sequence[Window]
) -> list[tuple[QueueTraffic, ...]]:
    """For each window: of all queues together, then of each that is shown."""
    frame = flow_by_queue(table(tables, "throughput"), shown, windows)
    rows = frame.collect()
    return [
        _traffic([row for row in rows if row["window"] == number], shown, window)
        for number, window in enumerate(windows)
    ]


def _traffic(rows: list[Any], shown: list[Queue], window: Window) -> tuple[QueueTraffic, ...]:
    by_queue: dict[Queue | None, dict[str, dict[int, float]]] = {
        queue: {flow: {} for flow in _FLOWS} for queue in (None, *shown)
    }
    for row in rows:
        begin_ns = window.from_ns + row["bucket"] * window.bucket_ns
        # The last one need not be whole.
        seconds = (min(begin_ns + window.bucket_ns, window.to_ns) - begin_ns) / 1e9
        mine = {None, None if row["shown"] is None else queue_of(row["shown"])}
        for values in (by_queue[queue] for queue in mine if queue in by_queue):
            for flow in _FLOWS:
                rate = (row[flow] or 0) / seconds
                values[flow][row["bucket"]] = values[flow].get(row["bucket"], 0.0) + rate
    if not rows:
        return ()
    return tuple(
        QueueTraffic(queue, *(curve(flow, flows[flow], window, empty=0.0) for flow in _FLOWS))
        for queue, flows in by_queue.items()
    )


def active(tables: Tables, cut: Cut) -> list[Active]:
    rows = cut.rows("active", table(tables, "sac"), ("from_ms", "token"), ACTIVE_MAX)
    return [
        made(
            Active,
            row,
            queue=queue_of(row),
            from_ns=ns_of(row["from_ms"]) or 0,
            to_ns=ns_of(row["to_ms"]),
            token=row["token"] or 0,
        )
        for row in rows
    ]


def storms(tables: Tables, cut: Cut) -> list[Storm]:
    """The minutes with the most repetitions."""
    some = table(tables, "redelivery").where(F.col("redelivered") > 0)
    rows = cut.rows("storms", some, (F.desc("redelivered"), "minute_ms"), STORMS_MAX)
    return [
        made(Storm, row, queue=queue_of(row), minute_ns=ns_of(row["minute_ms"]) or 0)
        for row in rows
    ]


def clients(tables: Tables, cut: Cut) -> list[ClientRow]:
    frame = (
        table(tables, "client_findings")
        .groupBy("checker", "kind")
        .agg(F.count("*").alias("count"), F.min("detail").alias("example"))
    )
    rows = cut.rows("clients", frame, ("checker", "kind"), CLIENT_ROWS_MAX)
    return [made(ClientRow, row, count=row["count"]) for row in rows]


def messages(tables: Tables, cut: Cut, wanted: str) -> list[MessageHistory]:
    """Of a message and of the dead letters that it became. One without a queue: there is none."""
    found = table(tables, "messages").where(F.col("message") == wanted)
    rows = cut.rows("messages", found, ("published_ms", "group", "queue"), LETTERS_MAX)
    return [_history(tables, cut, row) for row in rows] or [MessageHistory(wanted)]


def _history(tables: Tables, cut: Cut, row: Any) -> MessageHistory:
    frame = steps_of(table(tables, "events"), row["group"], row["queue"], row["position"])
    steps = cut.rows("steps", frame, ("index", "ordinal", "step"), STEPS_MAX)
    return made(
        MessageHistory,
        row,
        id=row["message"],
        queue=queue_of(row),
        published_ns=ns_of(row["published_ms"]),
        outcome_ns=ns_of(row["outcome_ms"]),
        deliveries=row["deliveries"] or 0,
        redeliveries=row["redeliveries"] or 0,
        steps=tuple(made(Step, step, at_ns=ns_of(step["at_ms"]) or 0) for step in steps),
    )
