"""Tables -> `Facts`: the only part of the report that needs Spark."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyarrow import parquet
from pyspark.sql import DataFrame
from pyspark.sql import Window as SqlWindow
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.engine import is_local
from chaos.postmortem.findings.catalogue import OF_REPLAY, RULES
from chaos.postmortem.report import gather_cluster, gather_impact, gather_queues
from chaos.postmortem.report.about import About
from chaos.postmortem.report.causes import by_queue, chains
from chaos.postmortem.report.facts import (
    Check,
    Facts,
    Finding,
    Incident,
    Picture,
    Queue,
    Window,
)
from chaos.postmortem.report.reading import Cut, made, table
from chaos.postmortem.report.windows import closer_looks, window
from chaos.postmortem.schemas import TABLES
from chaos.postmortem.tables import Tables

#: Of each rule: the rest is in the table `findings`.
EXAMPLES_MAX: Final = 20
INCIDENTS_MAX: Final = 60
#: That are linked to each other.
LINKED_MAX: Final = 1_000
NOT_REPLAYED: Final = "not all was replayed: see not_replayed"


def first_of_each_rule(findings: DataFrame) -> DataFrame:
    """The earliest EXAMPLES_MAX. With so few ranks asked for, Spark cuts before it shuffles."""
    order = SqlWindow.partitionBy("code").orderBy(
        F.asc_nulls_last("from_ns"), "group", "queue", "first", "node", "file", "offset"
    )
    ranked = findings.withColumn("rank", F.row_number().over(order))
    return ranked.where(F.col("rank") <= EXAMPLES_MAX).orderBy("code", "rank").drop("rank")


def gather(tables: Tables, about: About) -> Facts:
    """A few dozen small jobs over Parquet; what comes back has a limit each."""
    cut = Cut()
    findings = table(tables, "findings")
    checks = _checks(findings, about)
    earliest = (F.asc_nulls_last("from_ns"), "code", "group", "node", "file", "offset")
    linked = cut.made(Finding, "linked", findings, earliest, LINKED_MAX)
    harms = gather_impact.harms(tables, cut) if linked else []
    incidents = incidents_of(checks, cut)
    named = {each.queue for check in checks for each in check.examples if each.queue}
    queues = gather_queues.queues(tables, cut, named)
    shown = [row.queue for row in queues[: gather_queues.PICTURED_MAX]]
    whole = window(about.from_ns, about.to_ns)
    windows = [whole, *closer_looks(incidents, whole)]
    return Facts(
        checks=checks,
        incidents=incidents,
        impact=by_queue(harms),
        chains=chains(linked, harms, gather_impact.shifts(tables)),
        pictures=_pictures(tables, windows, shown) if about.to_ns else (),
        lives=gather_cluster.lives(tables, cut),
        standstills=gather_cluster.standstills(tables, cut),
        moments=gather_cluster.moments(tables, cut),
        leaders=gather_cluster.leaders(tables, cut),
        elections=gather_cluster.elections(tables, cut),
        active=gather_queues.active(tables, cut),
        nodes=gather_cluster.nodes(tables, cut),
        damages=gather_cluster.damages(tables, cut),
        queues=queues,
        storms=gather_queues.storms(tables, cut),
        clocks=gather_cluster.clocks(tables, cut),
        replays=gather_cluster.replays(tables, cut),
        clients=gather_queues.clients(tables, cut),
        messages=gather_queues.messages(tables, cut, about.message) if about.message else (),
        rows=_rows(tables),
        more=cut.more,
    )


def _checks(findings: DataFrame, about: About) -> list[Check]:
    """Of every rule, in the order of the catalogue: also of those that found nothing."""
    counts = {row["code"]: row["count"] for row in findings.groupBy("code").count().collect()}
    examples: dict[str, list[Finding]] = {}
    for row in first_of_each_rule(findings).collect():
        examples.setdefault(row["code"], []).append(made(Finding, row, count=row["count"]))
    skipped = not_judged(counts, about)
    return [
        Check(
            rule,
            counts.get(code, 0),
            tuple(examples.get(code, ())),
            skipped.get(code) if not counts.get(code) else None,
        )
        for code, rule in RULES.items()
    ]


def not_judged(counts: Mapping[str, int], about: About) -> dict[str, str]:
    """Codes of rules that can say nothing when they found nothing, and why."""
    unknown = OF_REPLAY if counts.get("not_replayed") else ()
    return {**dict.fromkeys(unknown, NOT_REPLAYED), **about.skipped}


def incidents_of(checks: Sequence[Check], cut: Cut) -> list[Incident]:
    """All examples that have a time, numbered as they happened; the less severe are left out when
    there are too many.
    """
    timed = [each for check in checks for each in check.examples if each.from_ns is not None]
    if len(timed) > INCIDENTS_MAX:  # the catalogue has the worst rules first
        cut.more["incidents"] = len(timed) - INCIDENTS_MAX
    kept = sorted(timed[:INCIDENTS_MAX], key=lambda each: (each.from_ns or 0, each.code))
    return [
        Incident(number, each, each.from_ns or 0, max(each.to_ns or 0, each.from_ns or 0))
        for number, each in enumerate(kept, start=1)
    ]


def _pictures(tables: Tables, windows: Sequence[Window], shown: list[Queue]) -> list[Picture]:
    p50, p99 = gather_cluster.commit_curves(tables, windows)
    traffic = gather_queues.traffic(tables, shown, windows)
    syncs = gather_cluster.sync_curves(tables, windows)
    lags = gather_cluster.lag_curves(tables, windows)
    return [Picture(*each) for each in zip(windows, traffic, p50, p99, syncs, lags, strict=True)]


def _rows(tables: Tables) -> dict[str, int]:
    """Of all tables, by one look at the ends of all files: no column of them is read."""
    counts = _rows_here(tables) if is_local() else _rows_anywhere(tables)
    return {name: counts.get(name, 0) for name in TABLES}


def _rows_here(tables: Tables) -> dict[str, int]:
    return {
        name: sum(
            parquet.read_metadata(file).num_rows
            for file in Path(tables.path(name)).rglob("*.parquet")
        )
        for name in TABLES
    }


def _rows_anywhere(tables: Tables) -> dict[str, int]:
    files = (
        tables.spark.read.schema("nothing int")
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.parquet")
        .parquet(tables.path(""))
    )
    folders = F.split("_metadata.file_path", "/")
    name = F.element_at(F.filter(folders, lambda folder: folder.isin(list(TABLES))), -1)
    return {
        row["name"]: row["count"]
        for row in files.select(name.alias("name")).groupBy("name").count().collect()
    }
