"""From folders of logs to tables, findings and a report: each step in its order, written once.

A step reads tables that are there and makes one more. That is all that they know of each other.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem import (
    chains,
    clients,
    clocks,
    copies,
    elections,
    entries,
    ingest,
    lacks,
    lag,
    messages,
    nodes,
    queues,
    replay,
    replication,
)
from chaos.postmortem.findings import cluster as of_cluster
from chaos.postmortem.findings import queues as of_queues
from chaos.postmortem.findings import replication as of_replication
from chaos.postmortem.findings.catalogue import exit_status
from chaos.postmortem.findings.clients import client_anomalies
from chaos.postmortem.findings.replayed import state_mismatch
from chaos.postmortem.inputs import Inputs, discover
from chaos.postmortem.limits import Limits
from chaos.postmortem.remote_files import AnyFiles
from chaos.postmortem.report import About, write_report
from chaos.postmortem.report.units import stamp
from chaos.postmortem.session import fit
from chaos.postmortem.tables import Tables, conformed
from chaos.postmortem.wanted import EVERYTHING, Bounds, Wanted

Table = Callable[[Tables], DataFrame]
Finding = Callable[[Tables, Limits], DataFrame]

#: Of what `records` say, in an order in which each finds what it needs.
CLUSTER: Final[dict[str, Table]] = {
    "notes": nodes.notes,
    "beats": nodes.beats,
    "links": nodes.links,
    "lives": nodes.lives,
    "syncs": nodes.syncs,
    "standstills": nodes.standstills,
    "clocks": clocks.clocks,
    "shifts": clocks.shifts,
    "clock_jumps": clocks.clock_jumps,
    "elections": elections.elections,
    "leaders": elections.leaders,
}
REPLICATION: Final[dict[str, Table]] = {
    "entries": entries.entries,
    "merged": copies.merged,
    "divergence": copies.divergence,
    "lacks": lacks.lacks,
    "missing": lacks.missing,
    "commit_latency": replication.commit_latency,
    "snapshots": replication.snapshots,
    "lag": lag.lag,
}
#: Of what `events` say.
QUEUES: Final[dict[str, Table]] = {
    "messages": messages.messages,
    "latency": queues.latency,
    "throughput": queues.throughput,
    "unacked": queues.unacked,
    "redelivery": queues.redelivery,
    "sac": queues.sac,
}
FINDINGS: Final[tuple[Finding, ...]] = (
    of_replication.divergence,
    of_replication.missing_entry,
    of_replication.corrupt_segment,
    of_replication.archive_gap,
    of_replication.lagging_replica,
    state_mismatch,
    of_cluster.two_leaders,
    of_cluster.leader_lost,
    of_cluster.flapping_leader,
    of_cluster.standstill,
    of_cluster.slow_sync,
    of_cluster.clock_jump,
    of_cluster.clock_offset,
    of_queues.queue_findings,
    client_anomalies,
)
#: What can only be judged with a history of the clients.
OF_CLIENTS: Final = ("lost_message", "client_anomaly")
NO_HISTORY: Final = "no history of the clients was given"
#: Findings that a result carries; all of them are in the table.
FINDINGS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Result:
    """`status` is the command's exit status; `findings` are rows of that table."""

    status: int
    findings: list[dict[str, Any]]
    folder: Path
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Asked:
    """What else was asked for. Times in ns since 1970. `build`: replay as that broken build of
    `chaos.builds`, in the place of the release that was running.
    """

    limits: Limits = field(default_factory=Limits)
    history: Path | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    queue: str | None = None
    message: str | None = None
    build: str | None = None


class Steps:
    """Says which step begins, and knows how long each took."""

    def __init__(self, tell: Callable[[str], None] | None) -> None:
        self._tell = tell
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        if self._tell is not None:
            self._tell(what)
        began_s = time.monotonic()
        yield
        self.seconds[what] = time.monotonic() - began_s


def run(
    paths: Sequence[str],
    out: Path,
    *,
    spark: SparkSession,
    tables: str | None = None,
    progress: Callable[[str], None] | None = None,
    asked: Asked | None = None,
) -> Result:
    """All of it. The report is in `out`, and so are the tables unless `tables` names another
    folder. BadInput: what was given cannot be looked at.
    """
    asked, steps = asked or Asked(), Steps(progress)
    with steps.step("looking for logs"):
        inputs = discover([str(path) for path in paths], AnyFiles(spark))
        inputs = _in_time(inputs, asked).of_one_cluster()
        fit(spark, sum(segment.bytes for segment in inputs.segments))
    made = Tables(spark, tables or (out / "tables").absolute())
    with steps.step(f"reading {len(inputs.segments)} segments"):
        ingest.ingest(made, inputs, _wanted(asked))
    for name, table in {**CLUSTER, **REPLICATION}.items():
        with steps.step(name.replace("_", " ")):
            made.write(name, table(made))
    with steps.step("corruption"):
        made.write("corruption", _corruption(made, inputs))
    with steps.step("replay"):
        plan = replay.spans(made, inputs.snapshots)
        made.write("events", replay.events(made, plan, build=asked.build))
        made.write("replays", replay.replays(made, plan))
        made.write("states", replay.states(made, plan))
    if asked.queue is not None:
        made = made.only("events", _of_queue(asked.queue))
    for name, table in QUEUES.items():
        with steps.step(name):
            made.write(name, table(made))
    with steps.step("clients"):
        made.write("client_findings", _clients(made, asked.history))
    with steps.step("findings"):
        made.write("findings", _findings(made, asked))
    status, found = _told(made)
    with steps.step("report"):
        write_report(made, out, _about(made, paths, asked, status, steps))
    return Result(status, found, out, steps.seconds)


def _in_time(inputs: Inputs, asked: Asked) -> Inputs:
    """An archive may begin anywhere, so what it holds of earlier times need not be read. What a log
    folder holds is needed to judge it.
    """
    following: dict[str, int] = {}
    kept = []
    for segment in reversed(inputs.segments):
        ended_ns = following.get(segment.node)
        too_old = (
            asked.since_ns is not None
            and segment.source == "archive"
            and ended_ns is not None
            and ended_ns < asked.since_ns
        )
        too_new = asked.until_ns is not None and segment.created_ns > asked.until_ns
        if not too_old and not too_new:
            kept.append(segment)
        following[segment.node] = segment.created_ns
    return replace(inputs, segments=kept[::-1])


def _wanted(asked: Asked) -> Wanted:
    if asked.until_ns is None:
        return EVERYTHING
    return EVERYTHING.also("wall_ns", Bounds(high=asked.until_ns))


def _corruption(tables: Tables, inputs: Inputs) -> DataFrame:
    found = [
        ingest.damage(tables, inputs),
        chains.broken_chains(tables),
        lacks.missing_entries(tables),
        lacks.missing_segments(tables),
    ]
    return _union([conformed(each, "corruption") for each in found])


def _of_queue(named: str) -> Column:
    """NAME in any vhost, or VHOST/NAME. What belongs to no queue stays."""
    vhost, slash, name = named.rpartition("/")
    same = F.col("name") == (name if slash else named)
    if slash:
        same &= F.col("vhost") == (vhost or "/")
    return same | F.col("name").isNull()


def _clients(tables: Tables, history: Path | None) -> DataFrame:
    if history is None:
        return tables.empty("client_findings")
    single = tables["events"].where("sac").select("name").distinct().collect()
    ops = clients.read_history(tables.spark, str(history.absolute()))
    seen = clients.anomalies(ops, [row.name for row in single])
    return seen.where(F.col("kind") != clients.UNDECIDED)


def _findings(tables: Tables, asked: Asked) -> DataFrame:
    found = _union([rule(tables, asked.limits) for rule in FINDINGS])
    if asked.since_ns is not None:
        found = found.where(F.coalesce("to_ns", "from_ns", F.lit(asked.since_ns)) >= asked.since_ns)
    return found.coalesce(1)


def _told(tables: Tables) -> tuple[int, list[dict[str, Any]]]:
    found = tables["findings"].orderBy("from_ns", "code", "group", "first").limit(FINDINGS_MAX)
    severities = tables["findings"].select("severity").distinct().collect()
    status = exit_status({row.severity for row in severities})
    return status, [row.asDict() for row in found.collect()]


def _about(tables: Tables, paths: Sequence[str], asked: Asked, status: int, steps: Steps) -> About:
    reached = tables["segments"].agg(F.min("first_ns").alias("a"), F.max("last_ns").alias("b"))
    span = reached.first()
    from_ns, to_ns = (span.a, span.b) if span is not None else (None, None)
    return About(
        inputs=tuple(str(path) for path in paths),
        from_ns=max(from_ns or 0, asked.since_ns or 0),
        to_ns=to_ns or 0,
        status=status,
        version=version("quorate"),
        seconds=sum(steps.seconds.values()),
        limits=asked.limits,
        history=None if asked.history is None else str(asked.history),
        message=asked.message,
        queue=asked.queue,
        since=stamp(asked.since_ns) if asked.since_ns else None,
        until=stamp(asked.until_ns) if asked.until_ns else None,
        skipped={} if asked.history else dict.fromkeys(OF_CLIENTS, NO_HISTORY),
    )


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)
