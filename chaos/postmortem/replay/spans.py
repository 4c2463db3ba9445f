"""From which states a replay begins, and how far each goes: to the next such state.

So the spans of a group do not wait for each other. A replay begins with the oldest state from which
on the committed entries are known up to the next one.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.reading.inputs import SnapshotFile
from chaos.postmortem.replay.bases import Base, Unusable, agreed, bases, worth_reading
from chaos.postmortem.replication import copies
from chaos.postmortem.tables import Tables
from cluster.history.group_replay import BEFORE_FIRST
from cluster.log.format import NO_HASH

#: To begin costs the reading of a state, so spans are not shorter than so many entries.
SPAN_ENTRIES_MIN: Final = 10_000
#: Spans are found by the index divided by this.
BUCKET: Final = 4_096
NO_SLOTS: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class Span:
    """Entries `first` to `last` of a group, after the state `base`."""

    number: int  # among all spans
    group: int
    span: int  # among those of its group
    base: Base
    last: int
    whole: bool  # all entries are known
    node: str | None = None  # whose log has all of them; None: no single one's
    told: bool = False  # what is there at its beginning is told: no span before leads up to it

    @property
    def first(self) -> int:
        return self.base.index + 1

    @property
    def entries(self) -> int:
        return self.last - self.base.index


@dataclass(frozen=True, slots=True)
class Plan:
    """What is replayed, and the states that it is compared with."""

    spans: list[Span]
    bases: list[Base]
    lacking: dict[int, int]  # group -> its first known entry, when there is no state to begin with
    unusable: list[Unusable]  # snapshots that are not among `bases`


def spans(
    tables: Tables,
    snapshots: Sequence[SnapshotFile],
    *,
    cut: bool = False,
    span_entries_min: int = SPAN_ENTRIES_MIN,
) -> Plan:
    """Needs `segments`, `lacks` and `merged`. `cut`: what nodes wrote later than some time was not
    read, so states of later than that do not count either.
    """
    ends = {
        row.group: (row.first, row.last)
        for row in tables["merged"]
        .groupBy("group")
        .agg(F.min("index").alias("first"), F.max("index").alias("last"))
        .collect()
    }
    firsts = {group: first for group, (first, _) in ends.items()}
    lasts = _told_by_then(tables, ends) if cut else None
    found, unusable = bases(tables.spark, worth_reading(snapshots, firsts, lasts))
    if lasts is not None:
        found = [base for base in found if base.index <= lasts.get(base.group, 0)]
    usable = agreed(_of_this_history(tables, found))
    archived = {each.file for each in snapshots if each.source == "archive"}
    by_group = {
        group: _within(list(own), archived, ends.get(group, (0, 0))[1])
        for group, own in groupby(usable, key=lambda base: base.group)
    }
    lost = [(row.group, row.first, row.last) for row in tables["lacks"].collect()]

    def choose(finely: Container[int]) -> list[Span]:
        drawn: list[Span] = []
        for group in sorted({*ends, *by_group}):
            own = by_group.get(group, [])
            _, last = ends.get(group, (0, 0))
            drawn += _draw(group, own, last, 1 if group in finely else span_entries_min, len(drawn))
        return _chosen(drawn, *_counts(tables, drawn), lost)

    chosen = choose(())
    # A segment that was rewritten keeps what is still needed, single entries of long before: what
    # follows on the states of that time is not there, but what follows on later ones, which are too
    # near to them to count otherwise.
    missed = {
        group for group, own in by_group.items() if _misses(chosen, group, own, firsts.get(group))
    }
    if missed:
        chosen = _joined(choose(missed), missed, span_entries_min)
    begun = {span.group for span in chosen}
    lacking = {group: first for group, (first, _) in ends.items() if group not in begun}
    return Plan(chosen, found, lacking, unusable)


def _within(own: list[Base], archived: Container[str | None], last: int) -> list[Base]:
    """Without those that are newer than all known entries: an archive has a state at once, and what
    led to it when its segment is full. If there is no other one it is better than nothing.
    """
    within = [base for base in own if base.index <= last or base.file not in archived]
    return within if any(base.index <= last for base in within) else own


def _misses(chosen: Iterable[Span], group: int, own: Iterable[Base], first: int | None) -> bool:
    """Whether there are states from which more could be replayed than with these spans."""
    spans = [span for span in chosen if span.group == group]
    if first is None:
        return not spans
    if not spans or not all(span.whole for span in spans):
        return True
    begins = spans[0].base.index
    return any(first <= base.index + 1 <= begins for base in own)


def _joined(chosen: Iterable[Span], groups: Container[int], entries_min: int) -> list[Span]:
    """Those of these groups that were drawn finely; to begin costs as always."""
    joined: list[Span] = []
    for span in chosen:
        before = joined[-1] if joined and joined[-1].group == span.group else None
        if before is None:
            joined.append(replace(span, number=len(joined)))
        elif span.group in groups and span.whole and not span.told and before.entries < entries_min:
            node = before.node if before.node == span.node else None
            joined[-1] = replace(before, last=span.last, node=node)
        else:
            joined.append(replace(span, number=len(joined), span=before.span + 1))
    return joined


def _told_by_then(tables: Tables, ends: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """By group, up to where entries are known to be committed, or logs speak of a snapshot."""
    marks = tables["records"].where(F.col("kind") == "snapshot").groupBy("group")
    told = {row.group: row.last for row in marks.agg(F.max("index").alias("last")).collect()}
    for group, (_, last) in ends.items():
        told[group] = max(last, told.get(group, 0))
    return told


def _of_this_history(tables: Tables, found: Sequence[Base]) -> list[Base]:
    """Those that do not contradict what was committed at their index."""
    if not found:
        return []
    rows = [(base.group, base.index) for base in found]
    at = tables.spark.createDataFrame(rows, "group int, index bigint").distinct()
    known = {
        (row.group, row["index"]): bytes(row.hash)
        for row in tables["merged"].join(F.broadcast(at), ["group", "index"]).collect()
    }
    return [each for each in found if known.get((each.group, each.index), each.hash) == each.hash]


def _draw(group: int, found: Iterable[Base], last: int, apart: int, number: int) -> list[Span]:
    """All spans that there could be; `found` in the order of their indexes."""
    starts = [Base(group, BEFORE_FIRST, NO_HASH)]
    for base in found:
        if base.index >= starts[-1].index + (apart if len(starts) > 1 else 1):
            starts.append(base)
    stops = [base.index for base in starts[1:]] + [max(last, starts[-1].index)]
    return [
        Span(number + at, group, at, base, stop, whole=False)
        for at, (base, stop) in enumerate(zip(starts, stops, strict=True))
    ]


def in_spans(
    frame: DataFrame, drawn: Iterable[Span], slot: Mapping[int, int] = NO_SLOTS
) -> DataFrame:
    """Rows with group and index; those in none are left out. Each gets the `number` of its span,
    the node `chosen` for that, its `slot`, and its place `at` in it: 0 is the state before it.
    """
    rows = [
        (
            span.number,
            span.node,
            slot.get(span.number),
            span.base.index,
            span.group,
            bucket,
            span.last,
        )
        for span in drawn
        for bucket in range(span.base.index // BUCKET, span.last // BUCKET + 1)
    ]
    known = frame.sparkSession.createDataFrame(
        rows,
        "number int, chosen string, slot int, before bigint, its_group int, bucket bigint,"
        " to_index bigint",
    )
    same = (F.col("group") == F.col("its_group")) & (
        F.floor(F.col("index") / BUCKET) == F.col("bucket")
    )
    within = (F.col("index") > F.col("before")) & (F.col("index") <= F.col("to_index"))
    joined = frame.join(F.broadcast(known), same & within)
    return joined.withColumn("at", F.col("index") - F.col("before")).drop(
        "before", "its_group", "bucket", "to_index"
    )


def _counts(
    tables: Tables, drawn: Sequence[Span]
) -> tuple[dict[int, tuple[int, int]], dict[int, list[str]]]:
    """By span, how many of its entries are known and which is the first, and the nodes that have
    all of those.
    """
    rows = (
        in_spans(tables["merged"], drawn)
        .groupBy("number")
        .agg(
            F.count("*").alias("n"),
            F.min("index").alias("first"),
            F.bit_and("holders").alias("holders"),
        )
        .collect()
    )
    nodes = copies.names(tables)
    known = {row.number: (row.n, row.first) for row in rows}
    having = {
        row.number: [name for nth, name in enumerate(nodes) if row.holders >> nth & 1]
        for row in rows
    }
    return known, having


def _chosen(
    drawn: Iterable[Span],
    known: dict[int, tuple[int, int]],
    having: dict[int, list[str]],
    lost: Sequence[tuple[int, int, int]],
) -> list[Span]:
    """From the first one on that is whole, or else has a beginning. What no log lacks, and is not
    there, nobody needed any more: then from behind it on. Numbered anew.
    """
    kept: list[Span] = []
    for _, of_group in groupby(drawn, key=lambda span: span.group):
        every: list[Span] = []
        begun: list[int] = []
        for span in of_group:
            count, first = known.get(span.number, (0, span.first))
            every.append(replace(span, whole=count == span.entries))
            if first == span.first and (span.entries or span.base.file is not None):
                begun.append(span.span)
        whole = [span.span for span in every if span.whole and span.entries]
        dropped = [span.span for span in every[: max(whole, default=0)] if _dropped(span, lost)]
        whole = [each for each in whole if each > max(dropped, default=-1)]
        if not whole and not begun:
            continue
        begins = whole[0] if whole else begun[-1]
        told = True
        for span in every[begins:]:
            if not span.entries and span.span > begins:
                continue  # the span before ends there
            nodes = having.get(span.number, []) if span.whole else []
            node = nodes[0] if nodes else None
            number = len(kept)
            kept.append(replace(span, number=number, span=span.span - begins, node=node, told=told))
            told = not span.whole
    return kept


def _dropped(span: Span, lost: Iterable[tuple[int, int, int]]) -> bool:
    """Its entries are not all there, and no log says that they should be."""
    return not span.whole and not any(
        group == span.group and first <= span.last and last >= span.first
        for group, first, last in lost
    )


def slots(plan: Sequence[Span], count: int) -> dict[int, int]:
    """By number of the span, which of `count` workers replays it: the longest ones first, each
    where there is least to do.
    """
    loads = [0] * count
    found: dict[int, int] = {}
    for span in sorted(plan, key=lambda each: -each.entries):
        slot = loads.index(min(loads))
        loads[slot] += span.entries + 1
        found[span.number] = slot
    return found


def states_of(spark: SparkSession, found: Sequence[Base]) -> DataFrame:
    """Snapshots as rows: group, index, node, file, digest."""
    rows = [(each.group, each.index, each.node, each.file, each.digest) for each in found]
    columns = "group int, index bigint, node string, file string, digest string"
    return spark.createDataFrame(rows, columns)
