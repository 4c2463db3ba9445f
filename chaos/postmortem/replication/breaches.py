"""What must not be in any log, nor in all of them together: the table `breaches`."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name
from pyspark.sql.pandas.types import to_arrow_schema

from chaos.postmortem.life.ballots import SLACK_NS, Ballots, Breach, Known, Members, Noted
from chaos.postmortem.life.clocks import in_common_time
from chaos.postmortem.life.nodes import said
from chaos.postmortem.replication import entry_outcomes as fold
from chaos.postmortem.replication.copies import names
from chaos.postmortem.replication.logorder import LogOrder, local_frame, log_order, mark_flags
from chaos.postmortem.replication.members import Told, members_of, newest
from chaos.postmortem.replication.order import Placed
from chaos.postmortem.tables import Tables, conformed, schema_of
from cluster.log.format import MARK_RESETS
from cluster.log.snapshots import BIRTH

_PLACE: Final = ["group", "index"]
#: Groups and nodes of which so much is told.
NAMED_MAX: Final = 8


def breaches(tables: Tables, told: Told, *, cut: bool = False) -> DataFrame:
    """`cut`: what nodes wrote later than some time was not read."""
    order = log_order(tables)
    known = _known(tables, order)
    found = [
        _ballots(tables, order, known, members_of(told, tables)),
        _commits_back(tables, order),
        _needless(tables, order),
        _minority(tables, order, known, told),
        _rolled_back(tables, order, cut=cut),
    ]
    return reduce(DataFrame.unionByName, (conformed(each, "breaches") for each in found))


# --- votes, terms, leaders


def _known(tables: Tables, order: LogOrder) -> dict[str, Known]:
    """The log of each node, by the common clock."""
    shift = F.col("shift_ns")
    lives = in_common_time(tables["lives"], tables["shifts"], "to_ns")
    newest_life = F.struct("life")
    ends = {
        row.node: row
        for row in lives.groupBy("node")
        .agg(
            F.max_by(F.col("to_ns") + shift, newest_life).alias("ends_ns"),
            F.max_by("ended", newest_life).alias("ended"),
            F.max_by(shift, newest_life).alias("shift_ns"),
        )
        .collect()
    }
    found: dict[str, Known] = {}
    for node, own in _by_node(order).items():
        if node not in ends:
            continue
        end, disk = ends[node], [each for each in own if each.disk == own[-1].disk]
        # Of an archive the segment that was written to last may be missing.
        ended = end.ended != "open" and not own[-1].given.archived
        whole = disk[0].given.segment == 1 and not any(each.holes > disk[0].holes for each in disk)
        begins_ns = disk[0].given.created_ns + end.shift_ns
        found[node] = Known(begins_ns, end.ends_ns, ended, whole)
    return found


def _by_node(order: LogOrder) -> dict[str, list[Placed]]:
    found: dict[str, list[Placed]] = {}
    for each in order.segments:
        found.setdefault(each.given.node, []).append(each)
    return found


def _placed(frame: DataFrame, order: LogOrder) -> DataFrame:
    """Adds seq, disk, holes and place."""
    keys = order.frame.select("file", "seq", "disk", "holes")
    place = F.shiftleft("seq", fold.OFFSET_BITS) + F.col("offset")
    return frame.join(F.broadcast(keys), "file").withColumn("place", place)


def _ballots(
    tables: Tables, order: LogOrder, known: Mapping[str, Known], members: Mapping[int, Members]
) -> DataFrame:
    leads = (F.col("kind") == "role") & (said(0) == "leader")
    wanted = leads | F.col("kind").isin("hard-state", "group-removed")
    noted = in_common_time(
        _placed(tables["notes"].where(wanted), order).withColumnRenamed("wall_ns", "at_ns"),
        tables["shifts"],
    ).select(
        *("node", "group", "kind", "disk", "holes", "place", "at_ns", "index", "term"),
        *("file", "offset"),
        (F.col("at_ns") + F.col("shift_ns")).alias("ref_ns"),
        F.when(F.col("kind") == "hard-state", said(0)).alias("vote"),
    )
    given = set(names(tables))
    absent = frozenset(
        row.node for row in tables["members"].where("not given").select("node").collect()
    )
    absent -= given
    schema = to_arrow_schema(schema_of("breaches"))

    def judged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [row for batch in batches for row in batch.to_pylist()]
        group = rows[0]["group"]
        notes = [Noted(**{k: v for k, v in row.items() if k != "group"}) for row in rows]
        ballots = Ballots(known, members.get(group, Members()), absent)
        found = [_row(group, each) for each in ballots.judge(notes)]
        if found:
            yield pa.RecordBatch.from_pylist(found, schema=schema)

    return noted.groupBy("group").applyInArrow(judged, schema_of("breaches"))


def _row(group: int, breach: Breach) -> dict[str, Any]:
    at = breach.at
    return {
        "code": breach.code, "group": group, "node": at.node, "term": at.term, "at_ns": at.at_ns,
        "file": at.file, "offset": at.offset, "count": 1, "detail": breach.detail,
    }  # fmt: skip


# --- one log


def _commits_back(tables: Tables, order: LogOrder) -> DataFrame:
    """A commit below the one before it, of the same copy of the group."""
    records = tables["records"].where(F.col("kind").isin("commit", "group-removed"))
    own = _placed(
        records.select("node", "file", "offset", "group", "kind", "index", "term", "wall_ns"), order
    )
    in_order = Window.partitionBy("node", "group", "disk").orderBy("place")
    before = {
        f"last_{name}": F.lag(name).over(in_order) for name in ("kind", "index", "file", "offset")
    }
    told = F.format_string(
        "it said that %d is committed (%s at %d), then only %d",
        *("last_index", "last_file", "last_offset", "index"),
    )
    found = own.withColumns(before).where(
        "kind = 'commit' and last_kind = 'commit' and index < last_index"
    )
    return found.select(
        *(F.lit("commit_back").alias("code"), "group", "node", "term", "file", "offset"),
        (F.col("index") + 1).alias("first"),
        F.col("last_index").alias("last"),
        F.col("wall_ns").alias("at_ns"),
        F.lit(1).cast("bigint").alias("count"),
        told.alias("detail"),
    )


def _needless(tables: Tables, order: LogOrder) -> DataFrame:
    """Entries that were cut off, and came again as they had been: nothing contradicted them. Unless
    a snapshot replaced the log in between, or another entry had their place.
    """
    rows = (
        tables["entries"]
        .where("kind = 'entry'")
        .select("node", "file", "offset", "group", "index", "term", "hash", "outcome", "wall_ns")
    )
    voided = rows.where("outcome = 'voided'").select("node", *_PLACE).distinct()
    if not voided.take(1):
        return tables.empty("breaches")
    own = _placed(rows.join(F.broadcast(voided), ["node", *_PLACE]), order)
    again = Window.partitionBy("node", *_PLACE, "disk").orderBy("place")
    pairs = own.withColumns(
        {f"last_{name}": F.lag(name).over(again) for name in ("term", "hash", "outcome", "place")}
    ).where("last_outcome = 'voided' and last_term = term and last_hash <=> hash")
    installed = (F.col("kind") == "snapshot") & (mark_flags().bitwiseAND(F.lit(MARK_RESETS)) != 0)
    replaced = _placed(
        tables["notes"].where(installed | (F.col("kind") == "group-removed")), order
    ).select("node", "group", F.col("place").alias("replaced"))
    same = (F.col("pair.node") == F.col("other.node")) & (
        F.col("pair.group") == F.col("other.group")
    )
    between = F.col("other.replaced").between(F.col("pair.last_place"), F.col("pair.place"))
    left = pairs.alias("pair").join(
        F.broadcast(replaced.alias("other")), same & between, "left_anti"
    )
    stretch = Window.partitionBy("node", "group").orderBy("place")
    goes_on = (F.col("index") == F.lag("index").over(stretch) + 1) & (
        F.lag("file").over(stretch) == F.col("file")
    )
    begins = F.when(F.coalesce(goes_on, F.lit(False)), 0).otherwise(1)
    return (
        left.withColumn("begins", begins)
        .withColumn("run", F.sum("begins").over(stretch))
        .groupBy("node", "group", "run")
        .agg(
            F.min("index").alias("first"),
            F.max("index").alias("last"),
            F.count("*").alias("count"),
            F.min_by("term", "place").alias("term"),
            F.min_by("file", "place").alias("file"),
            F.min_by("offset", "place").alias("offset"),
            F.min("wall_ns").alias("at_ns"),
        )
        .select(
            *("group", "node", "term", "first", "last", "count", "file", "offset", "at_ns"),
            F.lit("needless_truncation").alias("code"),
            F.lit("they were cut off, and came again with the same hashes").alias("detail"),
        )
    )


# --- all logs together


def _minority(tables: Tables, order: LogOrder, known: Mapping[str, Known], told: Told) -> DataFrame:
    """Committed entries that so many voters lack that the others are no majority. A snapshot holds
    what is below it; who has gaps, or may have been read before the entry came, lacks nothing.
    """
    given = names(tables)
    groups = _voters(tables, order, told)
    doubtful = {
        (row.node, row.group)
        for row in tables["lacks"].select("node", "group").distinct().collect()
    }
    gaps = {node for node, own in _by_node(order).items() if any(each.holes for each in own)} | {
        row.node for row in tables["segments"].where("status = 'corrupt'").collect()
    }
    marks = {
        (row.node, row.group): row.base
        for row in tables["snapshots"]
        .groupBy("node", "group")
        .agg(F.max("index").alias("base"))
        .collect()
    }
    rows = [
        (group, len(voters), node, 1 << given.index(node), marks.get((node, group), BIRTH.index),
         known[node].ends_ns, known[node].ended)
        for group, voters in groups.items()
        for node in sorted(voters)
        if node in given and node in known and node not in gaps and (node, group) not in doubtful
    ]  # fmt: skip
    columns = (
        "group int, voters int, node string, bit bigint, base bigint, ends_ns bigint, ended boolean"
    )
    judged = local_frame(tables.spark, rows, columns)
    # Few of the committed entries are not on as many disks as there are voters.
    by_group = judged.groupBy("group").agg(
        F.bit_or("bit").alias("bits"), F.max("voters").alias("its_voters")
    )
    thin = (
        tables["merged"]
        .join(F.broadcast(by_group), "group")
        .where(
            F.bit_count(F.col("bits").bitwiseAND(F.bitwise_not("holders"))) * 2
            >= F.col("its_voters")
        )
    )
    entries = tables["entries"].select("node", *_PLACE, "hash", "wall_ns", "file", "offset")
    said_at = (
        in_common_time(
            entries.join(
                thin.select(*_PLACE, "hash").distinct(), [*_PLACE, "hash"]
            ).withColumnRenamed("wall_ns", "at_ns"),
            tables["shifts"],
        )
        .groupBy(*_PLACE)
        .agg(
            F.min(F.col("at_ns") + F.col("shift_ns")).alias("ref_ns"),
            F.min_by(F.struct("node", "file", "offset", "at_ns"), "at_ns").alias("held"),
            F.array_sort(F.collect_set("node")).alias("have"),
        )
    )
    lacking = (
        thin.join(said_at, _PLACE)
        .join(F.broadcast(judged), "group")
        .where((F.col("holders").bitwiseAND(F.col("bit")) == 0) & (F.col("base") < F.col("index")))
        .where(F.col("ended") | (F.col("ends_ns") >= F.col("ref_ns") + SLACK_NS))
        .groupBy(*_PLACE, "term", "held", "have", "voters")
        .agg(F.array_sort(F.collect_set("node")).alias("lack"))
        .where(F.size("lack") * 2 >= F.col("voters"))
    )
    by_index = Window.partitionBy("group", "term", "have", "lack").orderBy("index")
    detail = F.format_string(
        "only %s of %d voters has it; %s do not",
        F.array_join("have", ", "),
        "voters",
        F.array_join("lack", ", "),
    )
    return (
        lacking.withColumn("run", F.col("index") - F.row_number().over(by_index))
        .groupBy("group", "term", "have", "lack", "voters", "run")
        .agg(
            F.min("index").alias("first"),
            F.max("index").alias("last"),
            F.count("*").alias("count"),
            F.min_by("held", "index").alias("held"),
        )
        .select(
            *("group", "term", "first", "last", "count"),
            *(F.col(f"held.{name}").alias(name) for name in ("node", "file", "offset", "at_ns")),
            F.lit("minority_commit").alias("code"),
            detail.alias("detail"),
        )
    )


def _voters(tables: Tables, order: LogOrder, told: Told) -> dict[int, frozenset[str]]:
    """By group; where nobody says it, whoever has a copy, or may have one."""
    last = newest(told)
    absent = {row.node for row in tables["members"].where("not given").collect()}
    own = _placed(
        tables["notes"].where(F.col("kind").isin("group-created", "group-removed", "hard-state")),
        order,
    )
    held = own.groupBy("node", "group").agg(F.max_by("kind", "place").alias("kind"))
    copies: dict[int, set[str]] = {}
    for row in held.where("kind <> 'group-removed'").collect():
        copies.setdefault(row.group, set()).add(row.node)
    return {
        group: last[group][0] if group in last else frozenset(nodes | absent)
        for group, nodes in copies.items()
    }


# --- disks that are older than what others know


def _rolled_back(tables: Tables, order: LogOrder, *, cut: bool) -> DataFrame:
    """Starts of a node that others heard, and its own log, which is there from before and from
    behind, knows nothing of.
    """
    notes = tables["notes"]
    started = notes.where("kind = 'started'").select(
        "node", "file", said(0).try_cast("bigint").alias("start")
    )
    by_file = {each.given.file: each for each in order.segments}
    own: dict[str, dict[int, Placed]] = {}
    for row in started.collect():
        if row.file in by_file and row.start is not None:
            own.setdefault(row.node, {})[row.start] = by_file[row.file]
    heard = (
        notes.where(F.col("kind") == "link-up")
        .select(
            said(0).alias("node"),
            said(1).try_cast("bigint").alias("start"),
            F.struct("wall_ns", "node", "file", "offset").alias("told"),
        )
        .groupBy("node", "start")
        .agg(F.min("told").alias("told"), F.array_sort(F.collect_set("told.node")).alias("by"))
    )
    segments = _by_node(order)
    rows: list[tuple[Any, ...]] = []
    for row in heard.collect():
        starts = own.get(row.node, {})
        if row.start is None or row.start in starts:
            continue
        before = max((start for start in starts if start < row.start), default=None)
        behind = min((start for start in starts if start > row.start), default=None)
        if before is None or (behind is None and cut):
            continue
        after = None if behind is None else starts[behind]
        if not _nothing_between(segments[row.node], starts[before], after):
            continue
        told = f"{', '.join(row.by[:NAMED_MAX])} heard its start {row.start}; its own log has start"
        told += f" {before}, and behind that "
        told += "nothing" if behind is None else f"start {behind}, with no segment between"
        place = starts[before] if after is None else after
        rows.append(
            ("folder_rolled_back", row.node, row.told.wall_ns, place.given.file, 0, 1, told)
        )
    columns = (
        "code string, node string, at_ns bigint, file string, offset bigint, count bigint,"
        " detail string"
    )
    return local_frame(tables.spark, rows, columns)


def _nothing_between(own: Sequence[Placed], before: Placed, after: Placed | None) -> bool:
    """No segment is missing from the one to the other, or else to the end of the log folder."""
    part = [each for each in own if before.seq <= each.seq <= (after or own[-1]).seq]
    last = part[-1]
    if after is None and (last.given.archived or last.given.boot != before.given.boot):
        return False
    numbers = [each.given.segment for each in part]
    return all(each.disk == before.disk for each in part) and numbers == list(
        range(numbers[0], numbers[0] + len(numbers))
    )
