"""Elections and leaders of every group: `leadership` folded over what the nodes noted."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name
from pyspark.sql.pandas.types import to_arrow_schema

from chaos.postmortem.life.clocks import in_common_time
from chaos.postmortem.life.leadership import Away, Leadership, Life, Noted, Said, Vote, as_rows
from chaos.postmortem.life.nodes import MS_NS, S_NS, said
from chaos.postmortem.tables import Tables, schema_of
from cluster.log.format import RECORD_HEADER

#: A sync that took longer than this may cost a leader its followers.
LONG_SYNC_MS: Final = 500.0
#: Where a node repeats all that it knows of a group, it takes less room than this.
REPEATED_BYTES_MAX: Final = 1_024


def elections(tables: Tables) -> DataFrame:
    return _folded(tables, "elections")


def leaders(tables: Tables) -> DataFrame:
    return _folded(tables, "leaders")


def _folded(tables: Tables, name: str) -> DataFrame:
    shifts = tables["shifts"]
    noted = in_common_time(_noted(tables["notes"]), shifts)
    # Few: processes, and times of trouble.
    lives = [Life(*row) for row in _lives(tables["lives"], shifts).collect()]
    away = [Away(*row) for row in _away(tables, shifts).collect()]
    which = ("leaders", "elections").index(name)
    schema = to_arrow_schema(schema_of(name))

    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [row for batch in batches for row in batch.to_pylist()]
        folded = Leadership([_read(row) for row in rows], lives, away)
        found = as_rows(rows[0]["group"], folded)[which]
        if found:
            yield pa.RecordBatch.from_pylist(found, schema=schema)

    return noted.groupBy("group").applyInArrow(fold, schema_of(name))


def _noted(notes: DataFrame) -> DataFrame:
    """Roles, and votes but for those that were written again or count for nothing."""
    columns = ("node", "boot", "segment", "offset", "file", "group", "term", "index", "kind")
    told = [said(place).alias(f"said_{place}") for place in range(3)]
    of_roles = F.col("kind") == "role"
    voted = (F.col("kind") == "hard-state") & said(0).isNotNull() & said(1).isNull()
    found = notes.filter(of_roles | voted).select(*columns, F.col("wall_ns").alias("at_ns"), *told)
    return found.join(_repeated(notes), ["file", "offset", "kind"], "left_anti")


def _repeated(notes: DataFrame) -> DataFrame:
    """Hard states that the cleaner wrote once more, with all that the log says of the group."""
    place = ("file", "group", "offset")
    created = notes.filter(F.col("kind") == "group-created").select(*place)
    marks = notes.filter(F.col("kind") == "snapshot").select(*place)
    near = F.col("mark.offset") - F.col("created.offset")
    same = (F.col("mark.file") == F.col("created.file")) & (
        F.col("mark.group") == F.col("created.group")
    )
    return (
        created.alias("created")
        .join(marks.alias("mark"), same & near.between(1, REPEATED_BYTES_MAX), "left_semi")
        .select(
            "file",
            (F.col("offset") + RECORD_HEADER).alias("offset"),
            F.lit("hard-state").alias("kind"),
        )
    )


def _lives(lives: DataFrame, shifts: DataFrame) -> DataFrame:
    timed = in_common_time(lives, shifts, "to_ns")
    shift = F.col("shift_ns")
    return timed.select("node", "boot", F.col("from_ns") + shift, F.col("to_ns") + shift, "ended")


def _away(tables: Tables, shifts: DataFrame) -> DataFrame:
    """When nodes could not be heard: they stood still, synced, or their link was down."""
    nobody = F.lit(None).cast("string").alias("peer")
    still = tables["standstills"].select("node", nobody, "from_ns", "to_ns")
    took_ns = (F.col("longest_ms") * MS_NS).cast("bigint")
    slow = (
        tables["syncs"]
        .filter(F.col("longest_ms") >= LONG_SYNC_MS)
        .select("node", nobody, (F.col("at_ns") - took_ns).alias("from_ns"), "at_ns")
    )
    timed = in_common_time(still.union(slow), shifts, "to_ns")
    shift = F.col("shift_ns")
    own = timed.select("node", "peer", F.col("from_ns") + shift, F.col("to_ns") + shift)
    # A cut that a peer noted is one of the node that it heard no more.
    return own.union(_cuts(in_common_time(tables["links"], shifts)))


def _cuts(links: DataFrame) -> DataFrame:
    of_pair = Window.partitionBy("node", "peer").orderBy("ref_ns", "file", "offset")
    return (
        links.withColumn("ref_ns", F.col("at_ns") + F.col("shift_ns"))
        .withColumn("until_ns", F.lead("ref_ns").over(of_pair))
        .filter(F.col("event") == "down")
        .select(
            F.col("peer").alias("node"),
            F.col("node").alias("peer"),
            "ref_ns",
            F.coalesce("until_ns", F.col("ref_ns") + F.lit(3_600 * S_NS)),
        )
    )


def _read(row: dict[str, Any]) -> Noted:
    common: dict[str, Any] = {
        "node": row["node"],
        "boot": row["boot"],
        "place": (row["segment"], row["offset"]),
        "at_ns": row["at_ns"],
        "shift_ns": row["shift_ns"],
        "term": row["term"],
        "file": row["file"],
    }
    if row["kind"] == "hard-state":
        return Vote(**common, candidate=row["said_0"])
    asked = {"role": row["said_0"], "leader": row["said_1"], "asked_by": row["said_2"]}
    return Said(**common, **asked, index=row["index"])
