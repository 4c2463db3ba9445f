"""The table `entries`: what each node's log says that became of each of its entries."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.engine import in_order
from chaos.postmortem.replication import entry_outcomes as fold
from chaos.postmortem.replication import surroundings as around
from chaos.postmortem.replication.logorder import (
    LogOrder,
    log_order,
    mark_flags,
    synced_offset,
    synced_segment,
)
from chaos.postmortem.tables import Tables
from cluster.log.format import MARK_RESETS
from cluster.log.snapshots import BIRTH

_BODIES = ("entry", "live-entry", "installed-entry")
_TYPES = ("command", "noop", "membership")  # the first byte of what was given to the journal
_PASSED = ["place", "group", "kind", "index", "term", "hash", "type", "bytes", "wall_ns", "mono_ns"]
_FOLDED = (
    "place bigint, group int, kind tinyint, index bigint, term bigint, hash binary, type tinyint,"
    " bytes int, wall_ns bigint, mono_ns bigint, outcome tinyint, commit_ns bigint, sync_ns bigint"
)


def entries(tables: Tables) -> DataFrame:
    """Segment by segment, each with what `surroundings` tells it of the log around it."""
    order = log_order(tables)
    whole = _told(tables, order)
    for more in (_surroundings(tables, order), _safe_points(tables, order)):
        whole = whole.unionByName(more, allowMissingColumns=True)
    folded = in_order(whole, "seq", ["seq", "stream", "place"], _outcomes, _FOLDED)
    return order.name(folded).select(
        *("cluster", "node", "file", "segment", "created_ns", "offset"),
        _named("kind", {code: name for name, code in fold.KINDS.items() if name in _BODIES}),
        *("group", "index", "term", "hash"),
        _named("type", dict(enumerate(_TYPES))),
        *("bytes", "wall_ns", "mono_ns"),
        _named("outcome", dict(enumerate(fold.OUTCOMES))),
        *("commit_ns", "sync_ns"),
    )


def _outcomes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return fold.entry_outcomes(batches, _PASSED)


def _named(column: str, names: dict[int, str]) -> Column:
    pairs = [F.lit(each) for pair in names.items() for each in pair]
    return F.create_map(*pairs)[F.col(column).cast("int")].alias(column)


def told_kind() -> Column:
    """The kind of a record as the fold knows it; a mark that replaces everything is another one."""
    codes = F.create_map(*[F.lit(each) for pair in fold.KINDS.items() for each in pair])
    replaces = (F.col("kind") == "snapshot") & (F.col("index") > BIRTH.index)
    replaces &= mark_flags().bitwiseAND(F.lit(MARK_RESETS)) != 0
    code = F.when(replaces, fold.INSTALL).otherwise(codes[F.col("kind")])
    return code.cast("tinyint").alias("kind")


def _type() -> Column:
    """Of an entry by its first byte: as the fold passes it on; one below for a byte unknown."""
    first, type_ = F.col("command"), F.lit(-1)
    for code in range(len(_TYPES)):
        its = (first >= F.lit(bytes([code]))) & (first < F.lit(bytes([code + 1])))
        type_ = F.when(its, code).otherwise(type_)
    return F.when(first.isNotNull(), type_).cast("tinyint")


def _told(tables: Tables, order: LogOrder) -> DataFrame:
    """Records that say something about entries."""
    records = tables["records"].where(F.col("kind").isin(*fold.KINDS))
    told = order.place(
        records.select(
            *("node", "created_ns", "segment", "offset", "group", "index", "term", "hash"),
            *("bytes", "wall_ns", "mono_ns"),
            told_kind(),
            _type().alias("type"),
        )
    )
    return told.withColumn("seq", F.shiftright("place", fold.OFFSET_BITS).cast("int"))


def _surroundings(tables: Tables, order: LogOrder) -> DataFrame:
    """By segment and stream. Records are boiled down where they are read, so little remains to be
    gone through in order.
    """
    records = tables["records"].where(F.col("kind").isin(*fold.KINDS))
    told = order.place(
        records.select(
            *("node", "created_ns", "segment", "offset", "group", "index", "mono_ns"), told_kind()
        )
    )
    columns = told.select("stream", "place", "kind", "index", "mono_ns")
    few = columns.mapInArrow(around.decisive, around.DECISIVE_DDL)
    nodes = _nodes(tables, order)
    return in_order(
        few,
        "stream",
        ["stream", "place"],
        lambda batches: around.surroundings(batches, nodes),
        around.TOLD_DDL,
    )


def _nodes(tables: Tables, order: LogOrder) -> dict[int, around.NodeMarks]:
    """By number. As few as segments and damage."""
    found: dict[int, around.NodeMarks] = {}
    for each in order.segments:
        its = found.setdefault(each.node_number, around.NodeMarks())
        its.segments[each.seq] = around.Mark(each.disk, each.boot_number, each.holes)
    bad = damaged(tables, order)
    # A record that cannot be read may have been of any group of its node.
    for row in [] if bad is None else bad.collect():
        found[row.node_number].corrupt.append((row.seq << fold.OFFSET_BITS) + row.offset)
    for its in found.values():
        its.corrupt.sort()
    return found


def _safe_points(tables: Tables, order: LogOrder) -> DataFrame:
    """Each once, in front of all streams of its segment."""
    return safe_points(tables, order).select(
        F.col("seq").cast("int").alias("seq"),
        F.lit(fold.POINTS).cast("bigint").alias("stream"),
        F.shiftleft("seq", fold.OFFSET_BITS).alias("place"),
        F.lit(fold.SEGMENT).cast("tinyint").alias("kind"),
        F.col("reached").alias("index"),
        F.col("at").alias("mono_ns"),
    )


def safe_points(tables: Tables, order: LogOrder) -> DataFrame:
    """seq, reached, at: a process said of a segment that it had written (monotonic time)."""
    said = (
        tables["records"]
        .where("kind = 'synced' and group = 0")
        .select(
            *("node", "created_ns", "segment", "mono_ns"),
            synced_segment().alias("about"),
            synced_offset().alias("reached"),
        )
    )
    keys = order.frame.select("node", "created_ns", "segment", "seq", "boot_number", "disk")
    here = said.join(F.broadcast(keys), ["node", "created_ns", "segment"])
    own = here.where("about = segment").select("seq", "reached", F.col("mono_ns").alias("at"))
    theirs = order.frame.select(
        F.col("seq").alias("its"),
        F.col("node").alias("its_node"),
        F.col("segment").alias("its_number"),
        F.col("boot_number").alias("its_boot"),
    )
    earlier = (
        here.where("about < segment")
        .join(
            F.broadcast(theirs),
            (F.col("node") == F.col("its_node"))
            & (F.col("about") == F.col("its_number"))
            & (F.col("boot_number") == F.col("its_boot")),
        )
        .select(F.col("its").alias("seq"), "reached", F.col("mono_ns").alias("at"))
    )
    return own.unionByName(earlier).where("reached is not null")


def damaged(tables: Tables, order: LogOrder) -> DataFrame | None:
    """node_number, seq, offset of records that cannot be read; None: there are none."""
    if not tables["segments"].where("status = 'corrupt' and not copy").take(1):
        return None
    keys = order.frame.select("file", "seq", "node_number")
    # What is damaged in a copy is not damaged in what counts.
    bad = tables["records"].where("kind = 'corrupt'").join(F.broadcast(keys), "file")
    return bad.select("node_number", "seq", "offset")
