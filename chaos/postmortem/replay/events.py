"""The committed entries through the real machine: what became of every message.

`spans` plans it, `events` replays all spans side by side, and from what that tells `replays` says
how far each came, and `states` compares the replayed state with what nodes noted of theirs.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.replay.bases import contents
from chaos.postmortem.replay.spans import Plan, Span, in_spans, slots, spans, states_of
from chaos.postmortem.schemas import TABLES
from chaos.postmortem.tables import Tables
from cluster.lifecycle import Event, Lifecycle, ReplayFailed, Row
from cluster.log.errors import LogCorrupt, UnsupportedFormat
from cluster.log.format import chain
from cluster.log.reader import BODIES
from cluster.log.snapshots import decode_snapshot
from cluster.machine import UnsupportedSnapshot
from cluster.types import GroupId

__all__ = ["Plan", "Span", "events", "replays", "spans", "states"]

#: Rows of events that leave a worker at once.
ROWS_AT_ONCE: Final = 16_384
#: Entries that one worker replays, about; more of them are not needed than there are spans.
ENTRIES_AT_ONCE: Final = 500_000

#: What a worker is given, in the order in which it needs it at an index: the state that the span
#: begins with, the hash of what was committed, what was found in logs, a digest to be made.
BASE, MERGED, FOUND, DIGEST = range(4)
_GIVEN: Final = ("number", "index", "rank", "term", "hash", "command")

_TYPES: Final = {
    "int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "boolean": pa.bool_(),
}  # fmt: skip
EVENTS: Final = pa.schema(
    [
        (name, _TYPES[kind])
        for name, kind in (column.split() for column in TABLES["events"].split(", "))
    ]
)
assert tuple(EVENTS.names) == Event._fields


def events(tables: Tables, plan: Plan, *, build: str | None = None) -> DataFrame:
    """Rows of the table `events`. `build`: the machine is that broken build of `chaos.builds`,
    in the place of the release that was running.
    """
    if not plan.spans:
        return tables.empty("events")
    parallel = tables.spark.sparkContext.defaultParallelism
    entries = sum(span.entries for span in plan.spans)
    count = min(len(plan.spans), max(parallel, entries // ENTRIES_AT_ONCE))
    of_span = slots(plan.spans, count)
    numbers = [(number, slot) for number, slot in of_span.items()]
    slot = F.broadcast(tables.spark.createDataFrame(numbers, "number int, slot int"))
    replayed = _Replay({span.number: span for span in plan.spans}, build)
    return (
        _given(tables, plan)
        .join(slot, "number")
        .repartitionById(count, F.col("slot"))
        .sortWithinPartitions("number", "index", "rank")
        .select(*_GIVEN)
        .mapInArrow(replayed.run, TABLES["events"])
    )


def _given(tables: Tables, plan: Plan) -> DataFrame:
    merged = in_spans(tables["merged"], plan.spans)
    records = tables["records"].where(F.col("kind").isin(*BODIES) & F.col("hash").isNotNull())
    chosen = tables.spark.createDataFrame(
        [(span.number, span.node) for span in plan.spans], "its int, chosen string"
    )
    found = in_spans(records, plan.spans).join(F.broadcast(chosen), F.col("number") == F.col("its"))
    found = found.where(F.col("chosen").isNull() | (F.col("chosen") == F.col("node")))
    wanted = in_spans(_compared(tables, plan).select("group", "index").distinct(), plan.spans)
    frame = _ranked(merged, MERGED).unionByName(_ranked(found, FOUND))
    frame = frame.unionByName(_ranked(wanted, DIGEST))
    return frame.unionByName(_bases(tables, plan))


def _ranked(frame: DataFrame, rank: int) -> DataFrame:
    columns = set(frame.columns)
    kinds = {"term": "bigint", "hash": "binary", "command": "binary"}
    given = [
        F.col(name) if name in columns and (name != "hash" or rank != BASE)
        else F.lit(None).cast(kinds[name]).alias(name)
        for name in ("term", "hash", "command")
    ]  # fmt: skip
    return frame.select("number", "index", F.lit(rank).alias("rank"), *given)


def _bases(tables: Tables, plan: Plan) -> DataFrame:
    """A row for each span, with the file of its state, if there is one."""
    rows = [(span.number, span.base.index, span.base.file) for span in plan.spans]
    begins = tables.spark.createDataFrame(rows, "number int, index bigint, file string")
    files = sorted({file for _, _, file in rows if file is not None})
    if not files:
        return _ranked(begins, BASE)
    read = contents(tables.spark, files).withColumnRenamed("content", "command")
    return _ranked(begins.join(read, "file", "left"), BASE)


# --- in a worker ----------------------------------------------------------------------------------


class _Replay:
    """Spans one after the other; each row is of the span before, or begins the next one."""

    def __init__(self, plan: dict[int, Span], build: str | None) -> None:
        self._plan = plan
        self._build = build

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with _running(self._build), _collecting_rarely():
            rows: list[Row] = []
            replay: _Span | None = None
            for batch in batches:
                columns = [column.to_pylist() for column in batch.columns]
                for number, index, rank, term, digest, command in zip(*columns, strict=True):
                    if rank == FOUND:
                        if replay is not None and index == replay.wanted_at:
                            replay.apply(index, term, digest, command)
                    elif rank == BASE:
                        if replay is not None:
                            rows += replay.end()
                        replay = _Span(self._plan[number])
                        for row in replay.begin(command):
                            rows.append(row)
                            if len(rows) >= ROWS_AT_ONCE:
                                yield as_batch(rows)
                                rows = []
                    elif replay is not None:
                        replay.take(rank, index, digest)
                if replay is not None:
                    rows += replay.take_rows()
                for start in range(0, len(rows) - ROWS_AT_ONCE + 1, ROWS_AT_ONCE):
                    yield as_batch(rows[start : start + ROWS_AT_ONCE])
                rows = rows[len(rows) // ROWS_AT_ONCE * ROWS_AT_ONCE :]
            if replay is not None:
                rows += replay.end()
            if rows:
                yield as_batch(rows)


class _Span:
    """The replay of one span; what fails ends it and is told."""

    def __init__(self, plan: Span) -> None:
        self._plan = plan
        self._life = Lifecycle(GroupId(plan.group))
        self._hash = plan.base.hash
        self._wanted = b""
        self.wanted_at = 0  # the entry that comes next, if it is known
        self._failed: str | None = None
        self._more: list[Row] = []

    def begin(self, content: bytes | None) -> Iterator[Row]:
        plan = self._plan
        if plan.base.file is not None:
            try:
                if content is None:
                    raise ReplayFailed(f"{plan.base.file} is gone")
                _, snapshot, _ = decode_snapshot(content, plan.base.file)
                self._life = Lifecycle.after(GroupId(plan.group), snapshot)
            except (LogCorrupt, UnsupportedFormat, UnsupportedSnapshot, ReplayFailed) as error:
                self._failed = str(error)
                return
            if plan.told:
                yield from self._life.known()

    def take(self, rank: int, index: int, digest: bytes) -> None:
        life = self._life
        if self._failed is not None:
            return
        if rank == MERGED:
            if index > life.index + 1:
                self._failed = f"entry {life.index + 1} is missing"
            self._wanted, self.wanted_at = digest, index
        elif rank == DIGEST and index == life.index:
            self._add(event="digest", reason=life.digest().hex())

    def apply(self, index: int, term: int, digest: bytes, command: bytes) -> None:
        """What was found at the index; more than one log may have it."""
        life = self._life
        if index != life.index + 1 or digest != self._wanted or self._failed is not None:
            return
        if index == self._plan.first and chain(self._hash, term, command) != digest:
            self._failed = f"entry {index} does not follow on {self._plan.base.file}"
            return
        try:
            life.apply(index, term, command)
        except ReplayFailed as error:
            self._failed = str(error)

    def take_rows(self) -> list[Row]:
        return self._life.take_rows() + self._taken()

    def _taken(self) -> list[Row]:
        more, self._more = self._more, []
        return more

    def end(self) -> list[Row]:
        life, plan = self._life, self._plan
        if self._failed is None and life.index < plan.last:
            self._failed = f"entry {life.index + 1} is missing"
        done = life.index - plan.base.index
        self._add(
            event="replayed", ordinal=plan.span, first=plan.first, last=life.index, entry=done,
            token=life.commands, seqno=life.messages, reason=self._failed,
        )  # fmt: skip
        return self.take_rows()

    def _add(self, *, event: str, ordinal: int = 0, **more: Any) -> None:
        life = self._life
        at = (life.group, life.index, life.term, ordinal, 0, life.now_ms)
        self._more.append(Event(*at, event, **more))


def as_batch(rows: list[Row]) -> pa.RecordBatch:
    count = len(rows)
    arrays = [
        pa.nulls(count, field.type)
        if column[-1] is None and column.count(None) == count
        else pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), EVENTS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def _running(build: str | None) -> AbstractContextManager[None]:
    if build is None:
        return nullcontext()
    from chaos.builds import broken

    return broken(build)


class _collecting_rarely:  # noqa: N801 -- a context manager
    """Rows are many and in no cycles: looking for those takes a good part of the time."""

    def __enter__(self) -> None:
        self._before = gc.get_threshold()
        gc.set_threshold(100_000, 50, 100)

    def __exit__(self, *_: object) -> None:
        gc.set_threshold(*self._before)


# --- what it adds up to ---------------------------------------------------------------------------


def replays(tables: Tables, plan: Plan) -> DataFrame:
    """Needs `events`."""
    rows = [
        (span.group, span.span, span.base.index, span.base.file, span.node) for span in plan.spans
    ]
    columns = "group int, span int, base bigint, base_file string, node string"
    planned = tables.spark.createDataFrame(rows, columns)
    ended = (
        tables["events"]
        .where(F.col("event") == "replayed")
        .select(
            *("group", F.col("ordinal").alias("span"), "first", "last"),
            *(F.col("entry").alias("entries"), F.col("token").alias("commands")),
            *(F.col("seqno").alias("messages"), F.col("reason").alias("failed")),
        )
    )
    lacking = tables.spark.createDataFrame(
        [
            (group, 0, first, f"there is no state to begin with before entry {first}")
            for group, first in plan.lacking.items()
        ],
        "group int, span int, first bigint, failed string",
    )
    return planned.join(ended, ["group", "span"], "left").unionByName(
        lacking, allowMissingColumns=True
    )


def states(tables: Tables, plan: Plan) -> DataFrame:
    """Needs `events`."""
    replayed = (
        tables["events"]
        .where(F.col("event") == "digest")
        .select("group", "index", F.col("reason").alias("replayed"))
    )
    return (
        _compared(tables, plan)
        .join(replayed, ["group", "index"])
        .withColumn("agrees", F.col("noted") == F.col("replayed"))
    )


def _compared(tables: Tables, plan: Plan) -> DataFrame:
    """What nodes noted of their states, and what they wrote down of them."""
    noted = (
        tables["records"]
        .where(F.col("kind") == "digest")
        .select(
            *("group", "index", "node", F.lit("digest").alias("source")),
            F.expr("trim(BOTH '\"' FROM detail)").alias("noted"),
            *("file", "offset"),
        )
    )
    stored = states_of(tables.spark, plan.bases).select(
        *("group", "index", "node", F.lit("snapshot").alias("source")),
        F.col("digest").alias("noted"),
        *("file", F.lit(None).cast("bigint").alias("offset")),
    )
    return noted.unionByName(stored)
