"""Rules about the cluster itself: its leaders, its nodes, their disks and their clocks."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.engine import quantiles
from chaos.postmortem.life.clocks import MINUTE_NS, in_common_time
from chaos.postmortem.life.nodes import MS_NS, S_NS
from chaos.postmortem.limits import Limits
from chaos.postmortem.tables import Tables, as_findings

#: Causes of an election that nobody asked for.
LOST: Final = ("killed", "silent", "stepped down")
#: Losses of one node's leaderships belong together when they are no further apart.
INCIDENT_NS: Final = 5 * S_NS
#: Slow syncs of one disk belong together when they are no further apart.
SPELL_NS: Final = MINUTE_NS
#: Of so many notes of a minute, one a second, the median says how quick a disk is.
NOTES_MIN: Final = 5
#: Around a jump, what two clocks differ by may be measured before it or behind it.
AROUND_JUMP_NS: Final = 2 * MINUTE_NS


def _in_sessions(frame: DataFrame, by: Sequence[str], at_ns: str, apart_ns: int) -> DataFrame:
    """Adds `session`: another number when nothing happened for so long."""
    in_order = Window.partitionBy(*by).orderBy(at_ns)
    quiet = F.col(at_ns) - F.lag(at_ns).over(in_order) > apart_ns
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return frame.withColumn("_new", F.when(quiet, 1).otherwise(0)).withColumn(
        "session", F.sum("_new").over(so_far)
    )


def _listed(column: str, order: str | None = None) -> Column:
    """Its values in a group, sorted, as text."""
    values = F.array_sort(F.collect_set(F.col(order or column)))
    return F.array_join(values, ", ")


def _seconds(ms: Column) -> Column:
    return F.concat(F.round(ms / 1e3, 1).cast("string"), F.lit(" s"))


# --- leaders


def two_leaders(tables: Tables, limits: Limits) -> DataFrame:
    of_term = Window.partitionBy("group", "term").orderBy("from_ns", "leader")
    told = F.format_string("%s in %s at offset %d", "leader", "file", "offset")
    found = (
        tables["leaders"]
        .withColumn("nth", F.row_number().over(of_term))
        .groupBy("group", "term")
        .agg(
            F.count_distinct("leader").alias("count"),
            F.max_by("leader", "nth").alias("node"),
            F.max_by("file", "nth").alias("file"),
            F.max_by("offset", "nth").alias("offset"),
            F.min("from_ns").alias("from_ns"),
            F.max("to_ns").alias("to_ns"),
            F.array_join(F.array_sort(F.collect_set(told)), "; ").alias("said"),
        )
        .filter("count > 1")
        .withColumn("detail", F.concat(F.lit("said that they lead: "), "said"))
    )
    return as_findings(found, "two_leaders")


def losses(elections: DataFrame, shifts: DataFrame) -> DataFrame:
    """Elections that replaced a leader without being asked to, with `lost_ns` and `back_ns`."""
    won = elections.filter((F.col("candidate") == F.col("leader")) & F.col("cause").isin(*LOST))
    timed = in_common_time(
        won.withColumnRenamed("candidate", "node"), shifts, "led_ns"
    ).withColumnRenamed("node", "successor")
    led_ns = F.col("led_ns") + F.col("shift_ns")
    without_ns = (F.col("without_leader_ms") * MS_NS).cast("bigint")
    return timed.withColumn("back_ns", led_ns).withColumn("lost_ns", led_ns - without_ns)


def leader_lost(tables: Tables, limits: Limits) -> DataFrame:
    lost = losses(tables["elections"], tables["shifts"]).withColumnRenamed("before", "node")
    sessions = _in_sessions(lost, ["node"], "lost_ns", INCIDENT_NS)
    last = F.row_number().over(
        Window.partitionBy("group", "node", "session").orderBy(F.desc("term"))
    )
    incidents = (
        sessions.withColumn("of_group", F.format_string("%d: %s", "group", "successor"))
        .withColumn("nth", last)
        .groupBy("node", "session")
        .agg(
            F.count_distinct("group").alias("count"),
            F.min("group").alias("only"),
            F.max("term").alias("term"),
            F.min("lost_ns").alias("from_ns"),
            F.max("back_ns").alias("to_ns"),
            F.min("without_leader_ms").alias("least_ms"),
            F.max("without_leader_ms").alias("most_ms"),
            F.array_sort(F.collect_set("cause")).alias("causes"),
            F.min_by("file", "back_ns").alias("successor_file"),
            F.min_by("offset", "back_ns").alias("successor_offset"),
            F.array_join(
                F.transform(
                    F.array_sort(F.collect_list(F.struct("group", "of_group"))),
                    lambda x: x["of_group"],
                ),
                ", ",
            ).alias("successors"),
            F.when(F.min("successor") == F.max("successor"), F.min("successor")).alias(
                "one_successor"
            ),
        )
    )
    known = _explained(incidents, tables)
    why = F.coalesce(
        F.when(F.array_contains("causes", "killed"), F.lit("was killed")),
        F.concat(F.lit("stood still for "), _seconds(F.col("still_ms"))),
        F.concat(F.lit("waited for its disk for "), _seconds(F.col("sync_ms"))),
        F.when(F.col("cut"), F.lit("was cut off from others")),
        F.when(
            F.array_contains("causes", "stepped down"),
            F.lit("gave up leading, as it heard no majority"),
        ),
        F.lit("fell silent; its own log does not say why"),
    )
    span = F.when(F.col("most_ms") - F.col("least_ms") < 100, _seconds(F.col("most_ms"))).otherwise(
        F.format_string("%.1f to %s", F.col("least_ms") / 1e3, _seconds(F.col("most_ms")))
    )
    # Mostly one node follows in all of its groups: nobody wants to read their numbers.
    led = F.when(
        F.col("one_successor").isNotNull(), F.format_string("%s led since then", "one_successor")
    ).otherwise(F.format_string("led since then, by group: %s", "successors"))
    detail = F.format_string("%s %s; without a leader for %s; %s", "node", why, span, led)
    only = F.when(F.col("count") == 1, F.col("only"))
    return as_findings(known.withColumn("group", only).withColumn("detail", detail), "leader_lost")


def _explained(incidents: DataFrame, tables: Tables) -> DataFrame:
    """What was wrong with that node at that time, and the place in its log that says so."""
    shifts = tables["shifts"]
    still = in_common_time(tables["standstills"], shifts, "to_ns").select(
        "node",
        F.lit("still").alias("what"),
        (F.col("from_ns") + F.col("shift_ns")).alias("since_ns"),
        (F.col("to_ns") + F.col("shift_ns")).alias("until_ns"),
        "ms",
        "file",
        "offset",
    )
    done_ns = F.col("at_ns") + F.col("shift_ns")
    sync = (
        in_common_time(tables["syncs"], shifts)
        .filter(F.col("longest_ms") >= 500)
        .select(
            "node",
            F.lit("sync"),
            done_ns - (F.col("longest_ms") * MS_NS).cast("bigint"),
            done_ns,
            "longest_ms",
            "file",
            "offset",
        )
    )
    cut = (
        in_common_time(tables["links"], shifts)
        .filter(F.col("event") == "down")
        .select("node", F.lit("cut"), done_ns - S_NS, done_ns + S_NS, F.lit(0.0), "file", "offset")
    )
    died = (
        in_common_time(tables["lives"].filter("ended = 'killed'"), shifts, "to_ns")
        .withColumn("died_ns", F.col("to_ns") + F.col("shift_ns"))
        .select(
            "node", F.lit("died"), F.col("died_ns") - S_NS, "died_ns", F.lit(0.0), "file", "offset"
        )
    )
    troubles = still.union(sync).union(cut).union(died)
    during = (F.col("since_ns") <= F.col("to_ns") + S_NS) & (
        F.col("until_ns") >= F.col("from_ns") - S_NS
    )
    rank = F.create_map(*(F.lit(each) for each in ("died", 0, "still", 1, "sync", 2, "cut", 3)))[
        F.col("what")
    ]

    def longest(what: str) -> Column:
        return F.max(F.when(F.col("what") == what, F.col("ms")))

    # Without a place in its own log, that of who stood for it.
    places = {name: F.coalesce(name, f"successor_{name}") for name in ("file", "offset")}
    found = (
        incidents.select("node", "session", "from_ns", "to_ns")
        .join(troubles, "node")
        .filter(during)
        .groupBy("node", "session")
        .agg(
            longest("still").alias("still_ms"),
            longest("sync").alias("sync_ms"),
            F.max(F.col("what") == "cut").alias("cut"),
            F.min_by("file", rank).alias("file"),
            F.min_by("offset", rank).alias("offset"),
        )
    )
    return incidents.join(found, ["node", "session"], "left").withColumns(places)


def flapping_leader(tables: Tables, limits: Limits) -> DataFrame:
    span_ns = int(limits.flapping_minutes * MINUTE_NS)
    of_group = Window.partitionBy("group").orderBy("back_ns")
    within = of_group.rangeBetween(-span_ns, 0)
    changes = (
        losses(tables["elections"], tables["shifts"])
        .withColumn("changes", F.count("*").over(within))
        .withColumn("since_ns", F.min("lost_ns").over(within))
    )
    detail = F.format_string(
        "%d changes of leader within %s minutes that nobody asked for; leaders: %s",
        "count",
        F.lit(f"{limits.flapping_minutes:g}"),
        "successors",
    )
    found = (
        _in_sessions(
            changes.filter(F.col("changes") >= limits.flapping_changes),
            ["group"],
            "back_ns",
            span_ns,
        )
        .groupBy("group", "session")
        .agg(
            F.max("changes").alias("count"),
            F.min("since_ns").alias("from_ns"),
            F.max("back_ns").alias("to_ns"),
            F.max("term").alias("term"),
            F.max_by("successor", "term").alias("node"),
            F.max_by("file", "term").alias("file"),
            F.max_by("offset", "term").alias("offset"),
            _listed("successor").alias("successors"),
        )
    )
    return as_findings(found.withColumn("detail", detail), "flapping_leader")


# --- nodes and disks


def standstill(tables: Tables, limits: Limits) -> DataFrame:
    cause = F.col("cause")
    why = (
        F.when(cause == "process", "the process did not run")
        .when(cause == "loop", "its event loop did not turn, though other threads ran")
        .when(cause == "machine", "its clocks stood still, too: the machine was paused")
        .otherwise("nothing was noted although others were heard: the process did not run")
    )
    syncing = F.when(F.col("syncing"), "; an fsync that was under way seems as long").otherwise("")
    told = F.format_string("for %s %s%s", _seconds(F.col("ms")), why, syncing)
    found = tables["standstills"].filter(F.col("ms") >= limits.standstill_ms)
    return as_findings(found.withColumn("detail", told), "process_stood_still")


def slow_sync(tables: Tables, limits: Limits) -> DataFrame:
    """But for the time in which the whole process stood still, which is no fault of the disk."""
    slow = (
        tables["syncs"]
        .filter(F.col("longest_ms") >= limits.slow_sync_ms)
        .withColumn("begun_ns", F.col("at_ns") - (F.col("longest_ms") * MS_NS).cast("bigint"))
    )
    still = tables["standstills"].select(
        "node", F.col("from_ns").alias("still_ns"), F.col("to_ns").alias("moved_ns")
    )
    # Both by the clock as it was before it was set, if it was in between.
    ended, begun = F.col("at_ns") - F.col("set_by_ns"), F.col("begun_ns") - F.col("set_by_ns")
    shared = F.least(ended, "moved_ns") - F.greatest(begun, "still_ns")
    # `least` and `greatest` pass over nulls: a node that never stood still shares nothing.
    held_ms = F.when(F.col("still_ns").isNull(), 0).otherwise(F.greatest(shared, F.lit(0))) / MS_NS
    own = (
        _with_jumps(slow, tables["clock_jumps"])
        .join(still, "node", "left")
        .withColumn("held_ms", held_ms)
        .groupBy("node", "at_ns", "begun_ns", "longest_ms", "file", "offset")
        .agg(F.sum("held_ms").alias("held_ms"))
        .filter(F.col("longest_ms") - F.col("held_ms") >= limits.slow_sync_ms)
    )
    found = (
        _in_sessions(own, ["node"], "at_ns", SPELL_NS)
        .groupBy("node", "session")
        .agg(
            F.count("*").alias("count"),
            F.min("begun_ns").alias("from_ns"),
            F.max("at_ns").alias("to_ns"),
            F.max("longest_ms").alias("longest_ms"),
            F.max_by("file", "longest_ms").alias("file"),
            F.max_by("offset", "longest_ms").alias("offset"),
        )
        .withColumn(
            "detail",
            F.format_string("%d slow, the longest took %s", "count", _seconds(F.col("longest_ms"))),
        )
    )
    return as_findings(found, "slow_sync")


def slow_disk(tables: Tables, limits: Limits) -> DataFrame:
    """A disk that need never be as slow as `slow_sync` says, and yet is much slower than those of
    its peers, minute after minute.
    """
    middle = quantiles("longest_ms", 0.5)[0].alias("ms")
    first = [F.min_by(name, "at_ns").alias(name) for name in ("file", "offset")]
    minutes = (
        tables["syncs"]
        .withColumn("minute_ns", F.col("at_ns") - F.col("at_ns") % MINUTE_NS)
        .groupBy("node", "minute_ns")
        .agg(F.count("*").alias("notes"), middle, *first)
        .filter(F.col("notes") >= NOTES_MIN)
    )
    spells = slow_spells([Syncs(**row.asDict()) for row in minutes.collect()], limits)
    rows = [
        (one.node, one.minute_ns, last.minute_ns + MINUTE_NS, count, one.file, one.offset, told)
        for one, last, count, told in spells
    ]
    columns = (
        "node string, from_ns bigint, to_ns bigint, count bigint, file string, offset bigint,"
        " detail string"
    )
    return as_findings(tables.spark.createDataFrame(rows, columns), "slow_disk")


@dataclass(frozen=True, slots=True)
class Syncs:
    """A minute of a node's disk. ms: of half of its notes the longest fsync took no longer."""

    node: str
    minute_ns: int
    notes: int
    ms: float
    file: str | None = None
    offset: int | None = None


def slow_spells(minutes: Sequence[Syncs], limits: Limits) -> list[tuple[Syncs, Syncs, int, str]]:
    """Minutes on end in which a disk took many times as long as the median one of its peers: the
    first and the last one, how many, and in words.
    """
    peers: dict[int, dict[str, float]] = {}
    for each in minutes:
        peers.setdefault(each.minute_ns, {})[each.node] = each.ms
    spells: list[list[Syncs]] = []
    usual = list[float]()
    for each in sorted(minutes, key=lambda it: (it.node, it.minute_ns)):
        others = [ms for node, ms in peers[each.minute_ns].items() if node != each.node]
        if not others or each.ms < max(
            limits.slow_disk_ms, median(others) * limits.slow_disk_times
        ):
            continue
        last = spells[-1][-1] if spells else None
        if last and last.node == each.node and last.minute_ns + MINUTE_NS == each.minute_ns:
            spells[-1].append(each)
        else:
            spells.append([each])
            usual.append(median(others))
    return [
        (
            spell[0],
            spell[-1],
            len(spell),
            _slower(spell, ms),
        )
        for spell, ms in zip(spells, usual, strict=True)
        if len(spell) >= limits.slow_disk_minutes
    ]


def _slower(spell: Sequence[Syncs], peers_ms: float) -> str:
    own_ms = median(each.ms for each in spell)
    return (
        f"for {len(spell)} minutes its longest fsync of a second took {own_ms:.0f} ms, that of its"
        f" peers {peers_ms:.1f} ms"
    )


def _with_jumps(slow: DataFrame, jumps: DataFrame) -> DataFrame:
    """Adds `set_by_ns`: by how much its clock was set while a sync was under way."""
    clock = jumps.select("node", F.col("at_ns").alias("set_ns"), "jump_ms")
    meanwhile = F.col("set_ns").between(F.col("begun_ns"), F.col("at_ns"))
    by_ms = F.sum(F.when(meanwhile, F.col("jump_ms")).otherwise(0))
    return (
        slow.join(clock, "node", "left")
        .groupBy("node", "at_ns", "begun_ns", "longest_ms", "file", "offset")
        .agg((by_ms * MS_NS).cast("bigint").alias("set_by_ns"))
    )


# --- clocks


def clock_jump(tables: Tables, limits: Limits) -> DataFrame:
    ahead = F.when(F.col("jump_ms") > 0, "forward").otherwise("back")
    found = (
        _jumps(tables)
        .filter(F.abs("jump_ms") >= limits.clock_jump_ms)
        .withColumn("from_ns", F.col("at_ns"))
        .withColumn("to_ns", F.col("at_ns"))
        .withColumn(
            "detail", F.format_string("it went %s by %s", ahead, _seconds(F.abs("jump_ms")))
        )
    )
    return as_findings(found, "clock_jump")


def _jumps(tables: Tables) -> DataFrame:
    """But for those of machines that were paused: only their monotonic clocks stood still."""
    paused = tables["standstills"].where("cause = 'machine'").select("file", "offset")
    return tables["clock_jumps"].join(F.broadcast(paused), ["file", "offset"], "left_anti")


def clock_offset(tables: Tables, limits: Limits) -> DataFrame:
    """But for what jumps explain, which are findings of their own."""
    apart = _unexplained(tables["clocks"], _jumps(tables))
    beyond = F.abs("apart_ms") - F.col("bound_ms") > limits.clock_offset_ms
    pair = [F.least("node", "peer").alias("one"), F.greatest("node", "peer").alias("other")]
    ahead = F.when(F.col("node") < F.col("peer"), F.col("apart_ms")).otherwise(-F.col("apart_ms"))
    found = (
        apart.filter(beyond)
        .select(*pair, "minute_ns", "bound_ms", ahead.alias("ahead_ms"))
        .groupBy("one", "other")
        .agg(
            F.count_distinct("minute_ns").alias("count"),
            F.min("minute_ns").alias("from_ns"),
            (F.max("minute_ns") + MINUTE_NS).alias("to_ns"),
            F.max_by("ahead_ms", F.abs("ahead_ms")).alias("ahead_ms"),
            F.max("bound_ms").alias("bound_ms"),
        )
    )
    detail = F.format_string(
        "the clock of %s is %s %s that of %s (measured to within %.1f ms) in %d minutes",
        "other",
        _seconds(F.abs("ahead_ms")),
        F.when(F.col("ahead_ms") > 0, "ahead of").otherwise("behind"),
        "one",
        "bound_ms",
        "count",
    )
    return as_findings(
        found.withColumn("detail", detail).withColumnRenamed("one", "node"), "clock_offset"
    )


def _unexplained(clocks: DataFrame, jumps: DataFrame) -> DataFrame:
    """Adds `apart_ms`: the offset without the jumps that either clock has made so far. Around a
    jump it is not known whether the sample is of before or behind it: what explains more counts.
    """
    moved = jumps.select(F.col("node").alias("who"), F.col("at_ns").alias("jumped_ns"), "jump_ms")
    until = {
        "before": F.col("minute_ns") - AROUND_JUMP_NS,
        "behind": F.col("minute_ns") + MINUTE_NS + AROUND_JUMP_NS,
    }
    rows = ["node", "peer", "minute_ns", "offset_ms", "bound_ms"]
    found = clocks.select(*rows)
    for side in ("node", "peer"):
        sums = [
            F.coalesce(
                F.sum(F.when(F.col("jumped_ns") <= ends, F.col("jump_ms"))), F.lit(0.0)
            ).alias(f"{side}_{when}")
            for when, ends in until.items()
        ]
        by = list(found.columns)
        found = (
            found.join(F.broadcast(moved), F.col(side) == F.col("who"), "left")
            .groupBy(*by)
            .agg(*sums)
        )
    left = [
        F.col("offset_ms") - F.col(f"peer_{one}") + F.col(f"node_{other}")
        for one in until
        for other in until
    ]
    least = F.array_sort(F.array(*(F.struct(F.abs(each), each.alias("apart")) for each in left)))
    return found.withColumn("apart_ms", least[0]["apart"])
