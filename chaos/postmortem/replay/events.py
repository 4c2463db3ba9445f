"""The committed entries through the real machine: what became of every message.

`spans` plans it, `events` replays all spans side by side, and from what that tells `replays` says
how far each came, and `states` compares the replayed state with what nodes noted of theirs.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.engine import cores, in_slots
from chaos.postmortem.reading.whole_files import whole_files
from chaos.postmortem.replay.spans import Plan, Span, in_spans, slots, spans, states_of
from chaos.postmortem.schemas import TABLES, arrow_schema
from chaos.postmortem.tables import Tables
from cluster.history.group_replay import Event, GroupReplay, ReplayFailed, Row
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

#: What a worker is given of a place, in this order: the state that the span begins with, the hash
#: of what was committed where that is in question, what was found in logs, a digest to be made.
BASE, MERGED, FOUND, DIGEST = range(4)
#: A row's key, so that one number is sorted by: the span, the place in it, which of those four.
_NUMBER_BIT: Final = 40
_AT_BIT: Final = 2
_AT_MASK: Final = (1 << (_NUMBER_BIT - _AT_BIT)) - 1

EVENTS: Final = arrow_schema(TABLES["events"])
assert tuple(EVENTS.names) == Event._fields


#: Where a replay runs: may replace functions of the machine meanwhile. Workers get it pickled.
Build = Callable[[], AbstractContextManager[None]]


def events(tables: Tables, plan: Plan, *, build: Build = nullcontext) -> DataFrame:
    """Rows of the table `events`, by the machine of that build."""
    if not plan.spans:
        return tables.empty("events")
    parallel = cores(tables.spark)
    entries = sum(span.entries for span in plan.spans)
    count = min(len(plan.spans), max(parallel, entries // ENTRIES_AT_ONCE))
    replayed = _Replay({span.number: span for span in plan.spans}, build)
    given = _given(tables, plan, slots(plan.spans, count))
    columns = ["key", "term", "hash", "command"]
    return in_slots(given, count, "key", columns, replayed.run, TABLES["events"])


def _given(tables: Tables, plan: Plan, slot: Mapping[int, int]) -> DataFrame:
    records = tables["records"].where(F.col("kind").isin(*BODIES) & F.col("hash").isNotNull())
    nodes = {span.node for span in plan.spans}
    if None not in nodes:
        records = records.where(F.col("node").isin(*nodes))
    chosen = F.col("chosen").isNull() | (F.col("chosen") == F.col("node"))
    found = in_spans(records, plan.spans, slot).where(chosen)
    noted = _compared(tables, plan).select("group", "index").distinct()
    frame = _ranked(found, FOUND)
    for questioned in _questioned(tables, plan, slot):
        frame = frame.unionByName(_ranked(questioned, MERGED))
    frame = frame.unionByName(_ranked(in_spans(noted, plan.spans, slot), DIGEST))
    return frame.unionByName(_bases(tables, plan, slot))


def _questioned(tables: Tables, plan: Plan, slot: Mapping[int, int]) -> Iterator[DataFrame]:
    """Committed entries that what is found there need not be: logs differ, or nobody knows its
    hash. Where entries are lacking, all of the span: what is found instead was never committed.
    """
    merged, place = tables["merged"], ["group", "index"]
    differing = merged.join(tables["divergence"].select(*place).distinct(), place, "left_semi")
    unknown = merged.where(F.col("hash").isNull())
    yield in_spans(differing.unionByName(unknown), plan.spans, slot)
    if lacking := [span for span in plan.spans if not span.whole]:
        yield in_spans(merged, lacking, slot)


def _ranked(frame: DataFrame, rank: int) -> DataFrame:
    number = F.shiftleft(F.col("number").cast("bigint"), _NUMBER_BIT)
    key = number + F.shiftleft(F.col("at"), _AT_BIT) + F.lit(rank)
    columns = set(frame.columns)
    kinds = {"term": "bigint", "hash": "binary", "command": "binary"}
    given = [
        F.col(name) if name in columns else F.lit(None).cast(kind).alias(name)
        for name, kind in kinds.items()
    ]
    return frame.select("slot", key.alias("key"), *given)


def _bases(tables: Tables, plan: Plan, slot: Mapping[int, int]) -> DataFrame:
    """A row for each span, with the file of its state, if there is one."""
    rows = [(span.number, slot[span.number], 0, span.base.file) for span in plan.spans]
    begins = tables.spark.createDataFrame(rows, "number int, slot int, at bigint, file string")
    files = sorted({file for *_, file in rows if file is not None})
    if not files:
        return _ranked(begins, BASE)
    read = whole_files(tables.spark, files).withColumnRenamed("content", "command")
    return _ranked(begins.join(read, "file", "left"), BASE)


# --- in a worker ----------------------------------------------------------------------------------


class _Replay:
    """Spans one after the other; each row is of the span before, or begins the next one."""

    def __init__(self, plan: dict[int, Span], build: Build) -> None:
        self._plan = plan
        self._build = build

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._build(), _collecting_rarely():
            rows: list[Row] = []
            replay: _Span | None = None
            for batch in batches:
                for number, at, rank, part in _stretches(batch):
                    if rank == FOUND and replay is not None:
                        replay.found(part)
                    elif rank == BASE:
                        if replay is not None:
                            rows += replay.end()
                        replay = _Span(self._plan[number])
                        for row in replay.begin(part.column("command")[0].as_py()):
                            rows.append(row)
                            if len(rows) >= ROWS_AT_ONCE:
                                yield as_batch(rows)
                                rows = []
                    elif replay is not None:
                        replay.take(rank, at, part.column("hash")[0].as_py())
                if replay is not None:
                    rows += replay.take_rows()
                for start in range(0, len(rows) - ROWS_AT_ONCE + 1, ROWS_AT_ONCE):
                    yield as_batch(rows[start : start + ROWS_AT_ONCE])
                rows = rows[len(rows) // ROWS_AT_ONCE * ROWS_AT_ONCE :]
            if replay is not None:
                rows += replay.end()
            if rows:
                yield as_batch(rows)


def _stretches(batch: pa.RecordBatch) -> Iterator[tuple[int, int, int, pa.RecordBatch]]:
    """Number of the span, first place, rank, rows: of neighbours of one span that were found, and
    of each other row.
    """
    keys = batch.column("key").to_numpy()
    found = (keys & ((1 << _AT_BIT) - 1)) == FOUND
    ends = (keys[1:] >> _NUMBER_BIT != keys[:-1] >> _NUMBER_BIT) | ~(found[1:] & found[:-1])
    starts = [0, *(np.flatnonzero(ends) + 1).tolist()] if len(keys) else []
    for start, stop in zip(starts, [*starts[1:], len(keys)], strict=True):
        key = int(keys[start])
        at, rank = key >> _AT_BIT & _AT_MASK, key & ((1 << _AT_BIT) - 1)
        yield key >> _NUMBER_BIT, at, rank, batch.slice(start, stop - start)


class _Span:
    """The replay of one span; what fails ends it and is told."""

    def __init__(self, plan: Span) -> None:
        self._plan = plan
        self._replay = GroupReplay(GroupId(plan.group))
        self._replay.index = plan.base.index  # what does not begin ends there
        self._hash = plan.base.hash
        self._questioned = 0  # what is committed there has this hash
        self._wanted: bytes | None = None
        self._failed: str | None = None
        self._more: list[Row] = []

    def begin(self, content: bytes | None) -> Iterator[Row]:
        plan = self._plan
        if plan.base.file is not None:
            try:
                if content is None:
                    raise ReplayFailed(f"{plan.base.file} is gone")
                _, snapshot, _ = decode_snapshot(content, plan.base.file)
                self._replay = GroupReplay.after(GroupId(plan.group), snapshot)
            except (LogCorrupt, UnsupportedFormat, UnsupportedSnapshot, ReplayFailed) as error:
                self._failed = str(error)
                return
            if plan.told:
                self._add(event="digest", reason=plan.base.digest)
                yield from self._replay.known()

    def take(self, rank: int, at: int, digest: bytes | None) -> None:
        index = self._plan.base.index + at
        if rank == MERGED:
            self._questioned, self._wanted = index, digest
        elif rank == DIGEST and index == self._replay.index and self._failed is None:
            self._add(event="digest", reason=self._replay.digest().hex())

    def found(self, part: pa.RecordBatch) -> None:
        """What was found in logs, in order; more than one may have the same entry."""
        if self._failed is not None:
            return
        replay, digests = self._replay, part.column("hash")
        apply, following = replay.apply, replay.index + 1
        keys = part.column("key").to_numpy()
        indexes = ((keys >> _AT_BIT & _AT_MASK) + self._plan.base.index).tolist()
        terms, commands = part.column("term").to_pylist(), part.column("command").to_pylist()
        try:
            for nth, index in enumerate(indexes):
                if index == following:
                    if index == self._questioned:
                        if digests[nth].as_py() != self._wanted:
                            continue
                    elif not self._plan.whole:
                        continue
                    if index == self._plan.first:
                        self._must_follow(terms[nth], commands[nth], digests[nth].as_py())
                    apply(index, terms[nth], commands[nth])
                    following += 1
                elif index > following:
                    raise ReplayFailed(f"entry {following} is missing")
        except ReplayFailed as error:
            self._failed = str(error)

    def _must_follow(self, term: int, command: bytes, digest: bytes) -> None:
        if chain(self._hash, term, command) != digest:
            file = self._plan.base.file
            raise ReplayFailed(f"entry {self._plan.first} does not follow on {file}")

    def take_rows(self) -> list[Row]:
        return self._replay.take_rows() + self._taken()

    def _taken(self) -> list[Row]:
        more, self._more = self._more, []
        return more

    def end(self) -> list[Row]:
        replay, plan = self._replay, self._plan
        if self._failed is None and replay.index < plan.last:
            self._failed = f"entry {replay.index + 1} is missing"
        done = replay.index - plan.base.index
        self._add(
            event="replayed", ordinal=plan.span, first=plan.first, last=replay.index, entry=done,
            token=replay.commands, seqno=replay.messages, reason=self._failed,
        )  # fmt: skip
        return self.take_rows()

    def _add(self, *, event: str, ordinal: int = 0, **more: Any) -> None:
        replay = self._replay
        at = (replay.group, replay.index, replay.term, ordinal, 0, replay.now_ms)
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
