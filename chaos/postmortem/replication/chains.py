"""The chain of hashes: the hash of an entry is made of the one before, its term and its command.

Almost every entry stands right behind the one before it, in the same segment, and is judged there;
only the first ones of such runs, and the hashes that may be in front of them, are brought together.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.engine import in_order
from chaos.postmortem.replication import entry_outcomes as fold
from chaos.postmortem.replication.logorder import log_order
from chaos.postmortem.schemas import arrow_schema
from chaos.postmortem.tables import Tables
from cluster.log import format as fmt

REASON: Final = "hash chain broken"
#: command: of an entry that must be judged. broken: it is already.
_LINKS_DDL: Final = (
    "stream bigint, place bigint, kind tinyint, index bigint, term bigint, hash binary,"
    " command binary, broken boolean, wall_ns bigint"
)
_LINKS: Final = arrow_schema(_LINKS_DDL)


def broken_chains(tables: Tables) -> DataFrame:
    """Rows of the table `corruption`: a record that is sound, but not what belongs there."""
    order = log_order(tables)
    kinds = F.when(F.col("kind") == "entry", fold.ENTRY).when(
        F.col("kind") == "live-entry", fold.LIVE
    )
    kinds = kinds.when(F.col("kind") == "snapshot", fold.SNAPSHOT).otherwise(fold.REMOVED)
    mark = F.unhex(F.get_json_object("detail", "$[1]"))
    told = tables["records"].where(
        F.col("kind").isin("entry", "live-entry", "snapshot", "group-removed")
    )
    told = told.select(
        *("node", "created_ns", "segment", "offset", "group", "index", "term", "wall_ns"),
        F.when(F.col("kind") == "snapshot", mark).otherwise(F.col("hash")).alias("hash"),
        F.when(F.col("kind") == "entry", F.col("command")).alias("command"),
        kinds.cast("tinyint").alias("kind"),
    )
    placed = order.place(told)
    links = placed.select(*[name for name in _LINKS.names if name != "broken"])
    ends = links.mapInArrow(judged_runs, _LINKS_DDL)
    marks = order.frame.select(
        F.shiftleft("seq", fold.OFFSET_BITS).alias("place"), "node_number", "disk", "holes"
    )
    # Not of `ends`: that would hash all of the log once more.
    streams = placed.select("stream").distinct().withColumn("number", F.shiftright("stream", 32))
    begins = streams.join(F.broadcast(marks), F.col("number") == F.col("node_number")).select(
        "stream",
        "place",
        F.lit(fold.SEGMENT).cast("tinyint").alias("kind"),
        F.col("disk").cast("bigint").alias("index"),
        F.col("holes").cast("bigint").alias("term"),
    )
    whole = ends.unionByName(begins, allowMissingColumns=True)
    judged = in_order(whole, "stream", ["stream", "place"], broken_links, _LINKS_DDL)
    broken = judged.withColumn(
        "group", F.col("stream").bitwiseAND(F.lit((1 << 32) - 1)).cast("int")
    )
    return order.name(broken).select(
        *("cluster", "node", "file", "segment", "offset", "group"),
        F.col("index").alias("first"),
        F.col("index").alias("last"),
        F.lit("broken chain").alias("kind"),
        F.lit(REASON).alias("reason"),
        F.col("wall_ns").alias("at_ns"),
    )


def judged_runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of each run of entries its first, with the command, its last, and those that do not follow;
    of other records all.
    """
    for batch in batches:
        yield _judged(batch)


def _judged(batch: pa.RecordBatch) -> pa.RecordBatch:
    stream, place, kind, index = (
        batch.column(name).to_numpy() for name in ("stream", "place", "kind", "index")
    )
    order = np.lexsort((place, stream))
    if (np.diff(order) != 1).any():
        batch = batch.take(pa.array(order))
        stream, place, kind, index = stream[order], place[order], kind[order], index[order]
    hashes = batch.column("hash")
    follows = (kind[1:] == fold.ENTRY) & (kind[:-1] == fold.ENTRY) & (np.diff(index) == 1)
    follows &= (np.diff(stream) == 0) & (np.diff(place >> fold.OFFSET_BITS) == 0)
    follows &= hashes.is_valid().to_numpy(zero_copy_only=False)[:-1]
    inner = np.concatenate([[False], follows])
    broken = np.zeros(len(kind), bool)
    judged = np.flatnonzero(inner)
    broken[judged] = _differ(batch, judged)
    last = ~np.concatenate([follows, [False]])
    keep = ~inner | last | broken
    keep[_before_replacing(stream, kind, index)] = True
    kept = pa.array(np.flatnonzero(keep))
    rows = batch.take(kept)
    commands = pa.array(
        [
            None if is_inner else command
            for is_inner, command in zip(
                inner[keep].tolist(), rows.column("command").to_pylist(), strict=True
            )
        ],
        pa.binary(),
    )
    columns = {
        name: rows.column(name) for name in _LINKS.names if name not in ("command", "broken")
    }
    columns |= {"command": commands, "broken": pa.array(broken[keep])}
    return pa.RecordBatch.from_arrays([columns[name] for name in _LINKS.names], schema=_LINKS)


def _before_replacing(stream: np.ndarray, kind: np.ndarray, index: np.ndarray) -> list[int]:
    """Rows that entries follow which replace others: they may be in the middle of a run."""
    entries = np.flatnonzero(kind == fold.ENTRY)
    again = (np.diff(index[entries]) <= 0) & (np.diff(stream[entries]) == 0)
    if not again.any():
        return []
    replacing = set(entries[1:][again].tolist())
    newest: dict[tuple[int, int], int] = {}
    found: list[int] = []
    places = zip(stream[entries].tolist(), index[entries].tolist(), strict=True)
    for row, (of, at) in zip(entries.tolist(), places, strict=True):
        if row in replacing and (of, at - 1) in newest:
            found.append(newest[of, at - 1])
        newest[of, at] = row
    return found


def _differ(batch: pa.RecordBatch, rows: np.ndarray) -> np.ndarray:
    """Which of these entries do not follow from the row before them."""
    hashes, commands = _bytes(batch.column("hash")), _bytes(batch.column("command"))
    terms = batch.column("term").to_numpy()[rows].tolist()
    return np.array(
        [
            fmt.chain(hashes[at - 1], term, commands[at]) != hashes[at]
            for at, term in zip(rows.tolist(), terms, strict=True)
        ],
        bool,
    )


def _bytes(column: pa.Array) -> list[bytes]:
    return column.to_pylist()


def broken_links(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Ends of runs, stream after stream, in log order: those that are broken."""
    stream, chain = None, _Chain()
    for batch in batches:
        found: list[bool] = []
        for row in batch.to_pylist():
            if row["stream"] != stream:
                stream, chain = row["stream"], _Chain()
            found.append(chain.breaks(row))
        rows = batch.filter(pa.array(found, pa.bool_()))
        if rows.num_rows:
            yield rows


class _Chain:
    """As the reader of `cluster.log` checks it, over the ends of runs."""

    def __init__(self) -> None:
        self._hashes: dict[int, bytes] = {}
        self._highest = 0
        self._gap: tuple[int, int] | None = None

    def breaks(self, row: dict) -> bool:
        kind, index = row["kind"], row["index"]
        if kind == fold.SEGMENT:
            gap = (index, row["term"])
            if gap != self._gap:  # what comes need not follow on what was
                self._hashes.clear()
            self._gap = gap
            return False
        if kind == fold.REMOVED:
            self._hashes.clear()
            return False
        previous = self._hashes.get(index - 1)
        if kind == fold.ENTRY and index <= self._highest:
            # What it replaces must not be taken for what is inside a later run.
            self._hashes = {at: digest for at, digest in self._hashes.items() if at < index}
        if row["hash"] is not None:
            self._hashes[index] = row["hash"]
        self._highest = index if kind == fold.ENTRY else max(index, self._highest)
        if row["broken"]:
            return True
        if kind != fold.ENTRY or row["command"] is None or previous is None:
            return False
        return fmt.chain(previous, row["term"], row["command"]) != row["hash"]
