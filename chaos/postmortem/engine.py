"""Two engines carry out the same plans: Spark, and Sail, which speaks Spark's protocol in this
process and needs no Java. How they differ is here; who needs it asks `is_local`.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its usual name
from pyspark.sql.utils import is_remote

from chaos.postmortem.forks import Forks

#: Of Spark's quantiles: the error is at most one part in so many of the rank.
ACCURACY: Final = 1_000
#: Of a batch that a function is given, as Spark has them.
ROWS_AT_ONCE: Final = 10_000

Fold = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def is_local() -> bool:
    """Whether plans are carried out without Spark; known when the session has begun."""
    return is_remote()


def warm_up() -> None:
    """Begins to load what such tasks need, beside what this process does."""
    _forks()


@cache
def _forks() -> Forks:
    return Forks()


def cores(spark: SparkSession) -> int:
    """Tasks that run at once."""
    return (os.cpu_count() or 2) if is_local() else spark.sparkContext.defaultParallelism


def quantiles(column: str, *wanted: float) -> Column:
    """An array of values that are there. Spark keeps a sketch, however many there are; Sail's would
    make up values, so it sorts them.
    """
    if not is_local():
        return F.percentile_approx(column, list(wanted), ACCURACY)
    ranks = ", ".join(map(str, wanted))
    return F.expr(f"percentile_disc(array({ranks})) within group (order by {column})")


def in_order(
    frame: DataFrame, by: str | Sequence[str], order: list[str], fold: Fold, schema: str
) -> DataFrame:
    """What `fold` makes of the rows; those of one value of `by` are given to one call, in order."""
    placed = frame.repartition(*([by] if isinstance(by, str) else by))
    if not is_local():
        return placed.sortWithinPartitions(*order).mapInArrow(fold, schema)
    return placed.mapInArrow(partial(_sorted, fold, order), schema)


def in_slots(
    frame: DataFrame, count: int, order: str, columns: list[str], fold: Fold, schema: str
) -> DataFrame:
    """As `in_order`, by column `slot`: each slot, counted from 0, is a task of its own, in a
    process of its own.
    """
    if not is_local():
        placed = frame.repartitionById(count, F.col("slot")).sortWithinPartitions(order)
        return placed.select(*columns).mapInArrow(fold, schema)
    # Sail calls functions by threads of this process, one of which runs at a time.
    return frame.coalesce(1).mapInArrow(partial(_apart, fold, order, columns), schema)


def _sorted(
    fold: Fold, order: list[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Sail forgets that rows were sorted before it hands them to a function."""
    held = list(batches)
    if held:
        rows = _ordered(pa.Table.from_batches(held), order)
        yield from fold(iter(rows.to_batches(ROWS_AT_ONCE)))


def _ordered(rows: pa.Table, order: list[str]) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in order])


def _apart(
    fold: Fold, order: str, columns: list[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    held = list(batches)
    if not held:
        return
    rows = _ordered(pa.Table.from_batches(held), ["slot", order])
    slots = rows.column("slot").to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(slots)) + 1).tolist(), len(slots)]
    slices = [rows.slice(start, end - start).select(columns) for start, end in pairwise(starts)]
    for made in _forks().each(partial(_folded, fold), [_as_bytes(each) for each in slices]):
        if made:
            yield from pa.ipc.open_stream(made)


def _folded(fold: Fold, rows: bytes) -> bytes:
    made = list(fold(pa.ipc.open_stream(rows)))
    return _as_bytes(pa.Table.from_batches(made)) if made else b""


def _as_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows, ROWS_AT_ONCE)
    return sink.getvalue().to_pybytes()
