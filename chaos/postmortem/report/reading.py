"""From tables to few rows in the driver: nothing here brings more than a named limit."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.report.facts import Curve, Queue, Window
from chaos.postmortem.tables import Tables

KEY = ("group", "queue", "vhost", "name")

T = TypeVar("T")


def table(tables: Tables, name: str) -> DataFrame:
    """Without rows when nobody wrote it: a history of clients is not always there."""
    try:
        return tables[name]
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return tables.empty(name)


class Cut:
    """Long lists are cut; `more` says by how much."""

    def __init__(self) -> None:
        self.more: dict[str, int] = {}

    def rows(self, name: str, frame: DataFrame, order: Sequence[Any], limit: int) -> list[Any]:
        """The first `limit` by `order`: a bounded heap in each partition, no sort of everything."""
        found = frame.orderBy(*order).limit(limit + 1).collect()
        if len(found) > limit:
            self.more[name] = frame.count() - limit
        return found[:limit]

    def made(
        self, kind: type[T], name: str, frame: DataFrame, order: Sequence[Any], limit: int
    ) -> list[T]:
        return [made(kind, row) for row in self.rows(name, frame, order, limit)]


def made(kind: type[T], row: Any, **known: Any) -> T:
    """A data class of the row's columns of the same names."""
    there = row.asDict()
    names = [field.name for field in fields(kind) if field.name in there]  # type: ignore[arg-type]
    return kind(**{name: there[name] for name in names if name not in known}, **known)


def queue_of(row: Any) -> Queue:
    return Queue(*(row[name] if row[name] is not None else _NOTHING[name] for name in KEY))


_NOTHING: Mapping[str, Any] = {"group": -1, "queue": -1, "vhost": "/", "name": "?"}


def ns_of(ms: int | None) -> int | None:
    return None if ms is None else ms * 1_000_000


def placed(
    frame: DataFrame, at_ns: Column, windows: Sequence[Window], *, lasts_ns: int = 1
) -> DataFrame:
    """Each row once for each window that it is in, with the numbers of `window` and `bucket`, which
    is negative when it began before the window did.

    All windows are read for in one pass: a closer look costs next to nothing.
    """
    places = [
        F.when(
            (at_ns > window.from_ns - lasts_ns) & (at_ns < window.to_ns),
            F.struct(
                F.lit(number).alias("window"),
                F.floor((at_ns - window.from_ns) / window.bucket_ns).alias("bucket"),
            ),
        )
        for number, window in enumerate(windows)
    ]
    exploded = frame.withColumn("place", F.explode(F.array_compact(F.array(*places))))
    return exploded.withColumns(
        {"window": F.col("place.window"), "bucket": F.col("place.bucket")}
    ).drop("place")


def curve(
    name: str, values: Mapping[int, float], window: Window, *, empty: float | None = None
) -> Curve:
    """By number of the bucket; `empty` is the value of those that are not there."""
    count = -(-(window.to_ns - window.from_ns) // window.bucket_ns)
    numbers = range(count) if empty is not None else sorted(values)
    points = ((number, values.get(number, empty)) for number in numbers)
    return Curve(
        name,
        tuple(
            (window.from_ns + number * window.bucket_ns, float(value))
            for number, value in points
            if value is not None
        ),
    )
