"""What nodes and groups did, as few rows: pure transformations first, then what collects them."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.report import said
from chaos.postmortem.report.facts import (
    PLANNED,
    ClockRow,
    Curve,
    Damage,
    Election,
    Lead,
    Life,
    Moment,
    NodeRow,
    ReplayRow,
    Standstill,
    Window,
)
from chaos.postmortem.report.reading import Cut, curve, made, placed, table
from chaos.postmortem.tables import Tables
from cluster.machine.runs import ranges_of

GROUPS_MAX: Final = 40
LEADERS_MAX: Final = 3_000
LIVES_MAX: Final = 500
STANDSTILLS_MAX: Final = 300
MOMENTS_MAX: Final = 200
NOTES_MAX: Final = 5_000
ELECTIONS_MAX: Final = 200
DAMAGES_MAX: Final = 200
NODES_MAX: Final = 50
RANGES_MAX: Final = 20
MINUTE_NS: Final = 60_000_000_000

#: Curves of all nodes, for each window.
ByWindow = list[tuple[Curve, ...]]

_SOUND: Final = ("sound", "empty")


def groups_by_changes(leaders: DataFrame) -> DataFrame:
    """Those with the most leaders first: where something happened."""
    changes = leaders.groupBy("group").agg(F.count("*").alias("terms"))
    return changes.orderBy(F.desc("terms"), "group")


def commit_by_leader(latencies: DataFrame, windows: Sequence[Window]) -> DataFrame:
    """p50: the mean of the groups', weighted by entries; p99: the worst group's."""
    leading = latencies.where(F.col("leads") & (F.col("entries") > 0))
    minutes = placed(leading, F.col("minute_ns"), windows, lasts_ns=MINUTE_NS)
    return minutes.groupBy("window", "node", "bucket").agg(
        (F.sum(F.col("commit_p50") * F.col("entries")) / F.sum("entries")).alias("p50"),
        F.max("commit_p99").alias("p99"),
    )


def longest_syncs(syncs: DataFrame, windows: Sequence[Window]) -> DataFrame:
    noted = placed(syncs, F.col("at_ns"), windows)
    return noted.groupBy("window", "node", "bucket").agg(F.max("longest_ms").alias("value"))


def largest_lags(lag: DataFrame, windows: Sequence[Window]) -> DataFrame:
    """Of a node over all groups. A node that is down has none."""
    up = placed(lag.where(~F.coalesce("down", F.lit(False))), F.col("at_ns"), windows)
    return up.groupBy("window", "node", "bucket").agg(F.max("lag_entries").alias("value"))


def files_by_node(segments: DataFrame) -> DataFrame:
    """A copy counts as a file, but what is in it was read elsewhere. A torn end is sound where a
    crash may leave one.
    """
    mine = ~F.coalesce("copy", F.lit(False))
    sound = F.col("status").isin(*_SOUND) | ((F.col("status") == "torn") & F.col("last"))

    def of_mine(column: str) -> Any:
        return F.coalesce(F.sum(F.when(mine, F.col(column))), F.lit(0)).alias(column)

    return segments.groupBy("node", "source").agg(
        F.count("*").alias("files"),
        F.count_if(~mine).alias("copies"),
        F.count_if(~sound).alias("unsound"),
        of_mine("bytes"),
        of_mine("records"),
        of_mine("entries"),
        F.min("first_ns").alias("from_ns"),
        F.max("last_ns").alias("to_ns"),
        F.collect_set("segment").alias("numbers"),
    )


def clocks_by_pair(clocks: DataFrame) -> DataFrame:
    return clocks.groupBy("node", "peer").agg(
        F.min("offset_ms").alias("lowest_ms"),
        F.max("offset_ms").alias("highest_ms"),
        F.max("bound_ms").alias("bound_ms"),
        F.sum("samples").alias("samples"),
    )


def replays_by_group(replays: DataFrame, states: DataFrame) -> DataFrame:
    replayed = replays.groupBy("group").agg(
        F.count("*").alias("spans"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.coalesce(F.sum("entries"), F.lit(0)).alias("entries"),
        F.coalesce(F.sum("messages"), F.lit(0)).alias("messages"),
        F.max("failed").alias("failed"),
    )
    compared = states.groupBy("group").agg(
        F.count_if("agrees").alias("agreed"), F.count_if(~F.col("agrees")).alias("differed")
    )
    return replayed.join(compared, on="group", how="left").fillna(0, ["agreed", "differed"])


def moments_of(jumps: DataFrame, snapshots: DataFrame, links: DataFrame) -> DataFrame:
    """Instants that explain what follows them."""
    jumped = F.format_string("the clock jumped by %.1f s", F.col("jump_ms") / 1_000)
    installed = F.format_string("installed a snapshot of group %d", F.col("group"))
    lost = F.format_string("lost the link to %s", F.col("peer"))
    return (
        jumps.select("node", "at_ns", jumped.alias("text"))
        .unionByName(snapshots.where("installed").select("node", "at_ns", installed.alias("text")))
        .unionByName(
            links.where(F.col("event") == "down").select("node", "at_ns", lost.alias("text"))
        )
    )


def leaders(tables: Tables, cut: Cut) -> list[Lead]:
    """Of GROUPS_MAX groups."""
    every = table(tables, "leaders")
    order = (F.desc("terms"), "group")
    chosen = cut.rows("groups", groups_by_changes(every), order, GROUPS_MAX)
    is_chosen = F.col("group").isin([row["group"] for row in chosen])
    known = every.where(is_chosen & F.col("to_ns").isNotNull())
    return cut.made(Lead, "leaders", known, ("from_ns",), LEADERS_MAX)


def elections(tables: Tables, cut: Cut) -> list[Election]:
    """Unplanned ones first, if there are too many."""
    frame = table(tables, "elections")
    order = (F.coalesce("cause", F.lit("")).isin(*PLANNED), "at_ns", "group")
    rows = cut.rows("elections", frame, order, ELECTIONS_MAX)
    found = [made(Election, row, voters=_voters(row)) for row in rows]
    return sorted(found, key=lambda each: (each.at_ns, each.group))


def _voters(row: Any) -> tuple[str, ...]:
    return tuple(voter["node"] for voter in row["voters"] or ())


def lives(tables: Tables, cut: Cut) -> list[Life]:
    return cut.made(Life, "lives", table(tables, "lives"), ("from_ns", "node"), LIVES_MAX)


def standstills(tables: Tables, cut: Cut) -> list[Standstill]:
    """The longest, if there are too many."""
    frame = table(tables, "standstills")
    order = (F.desc("ms"), "from_ns")
    found = cut.made(Standstill, "standstills", frame, order, STANDSTILLS_MAX)
    return sorted(found, key=lambda each: each.from_ns)


def moments(tables: Tables, cut: Cut) -> list[Moment]:
    frame = moments_of(
        table(tables, "clock_jumps"), table(tables, "snapshots"), table(tables, "links")
    )
    seen = cut.made(Moment, "moments", frame, ("at_ns",), MOMENTS_MAX)
    return sorted([*seen, *noted(tables, cut)], key=lambda each: (each.at_ns, each.node))


def noted(tables: Tables, cut: Cut) -> list[Moment]:
    """What nodes said of themselves, and of each other's alarms."""
    rows = (
        table(tables, "notes")
        .where(F.col("kind").isin(*said.KINDS))
        .select("node", "kind", F.col("wall_ns").alias("at_ns"), "detail", "created_ns", "offset")
    )
    found = cut.rows("notes", rows, ("node", "created_ns", "offset"), NOTES_MAX)
    notes = [said.Note(row.node, row.kind, row.at_ns, row.detail) for row in found]
    told = said.moments(notes)
    if len(told) > MOMENTS_MAX:
        cut.more["noted"] = len(told) - MOMENTS_MAX
    return told[:MOMENTS_MAX]


def nodes(tables: Tables, cut: Cut) -> list[NodeRow]:
    frame = files_by_node(table(tables, "segments"))
    unread = {
        row.node: row["count"] for row in table(tables, "unread").groupBy("node").count().collect()
    }
    found = list[NodeRow]()
    for row in cut.rows("nodes", frame, ("node", "source"), NODES_MAX):
        beside = 0 if found and found[-1].node == row.node else unread.get(row.node, 0)
        found.append(made(NodeRow, row, segments=ranges(row.numbers), unread=beside))
    absent = table(tables, "members").where("not given").orderBy("node").limit(NODES_MAX)
    for row in absent.collect():
        source = "not given" if row.member else "not given, was removed"
        found.append(NodeRow(row.node, source, 0, 0, 0, 0, 0, 0, None, None))
    return found


def ranges(numbers: Iterable[int]) -> str:
    """1-4, 7: without what is missing."""
    told = ranges_of(sorted(set(numbers)))
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in told[:RANGES_MAX]]
    more = [f"and {len(told) - RANGES_MAX} more"] if len(told) > RANGES_MAX else []
    return ", ".join([*shown, *more])


def damages(tables: Tables, cut: Cut) -> list[Damage]:
    order = ("node", "file", "offset")
    return cut.made(Damage, "damages", table(tables, "corruption"), order, DAMAGES_MAX)


def clocks(tables: Tables, cut: Cut) -> list[ClockRow]:
    frame = clocks_by_pair(table(tables, "clocks"))
    return cut.made(ClockRow, "clocks", frame, ("node", "peer"), NODES_MAX**2)


def replays(tables: Tables, cut: Cut) -> list[ReplayRow]:
    """Those that failed first."""
    frame = replays_by_group(table(tables, "replays"), table(tables, "states"))
    order = (F.desc_nulls_last("failed"), F.desc("differed"), "group")
    return cut.made(ReplayRow, "replays", frame, order, 100)


def commit_curves(tables: Tables, windows: Sequence[Window]) -> tuple[ByWindow, ByWindow]:
    """p50 and p99 of the commits of each leader."""
    rows = commit_by_leader(table(tables, "commit_latency"), windows).collect()
    return _curves(rows, "p50", windows), _curves(rows, "p99", windows)


def sync_curves(tables: Tables, windows: Sequence[Window]) -> ByWindow:
    return _curves(longest_syncs(table(tables, "syncs"), windows).collect(), "value", windows)


def lag_curves(tables: Tables, windows: Sequence[Window]) -> ByWindow:
    return _curves(largest_lags(table(tables, "lag"), windows).collect(), "value", windows)


def _curves(rows: list[Any], column: str, windows: Sequence[Window]) -> ByWindow:
    by_node: list[defaultdict[str, dict[int, float]]] = [defaultdict(dict) for _ in windows]
    for row in rows:
        if row[column] is not None:
            by_node[row["window"]][row["node"]][row["bucket"]] = row[column]
    return [
        tuple(curve(node, values, window) for node, values in sorted(nodes.items()))
        for nodes, window in zip(by_node, windows, strict=True)
    ]
