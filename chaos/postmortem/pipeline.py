"""From folders of logs to tables, findings and a report: each step in its order, written once.

A step reads tables that are there and makes one more. That is all that they know of each other.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import partial, reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.findings import cluster as of_cluster
from chaos.postmortem.findings import given as of_what_was_given
from chaos.postmortem.findings import queues as of_queues
from chaos.postmortem.findings import replication as of_replication
from chaos.postmortem.findings.catalogue import exit_status
from chaos.postmortem.findings.clients import client_anomalies
from chaos.postmortem.findings.replayed import not_replayed, state_mismatch
from chaos.postmortem.life import clocks, elections, nodes, standstills
from chaos.postmortem.limits import Limits
from chaos.postmortem.options import Options
from chaos.postmortem.queues import clients, messages, traffic
from chaos.postmortem.queues.receipts import receipts
from chaos.postmortem.reading import ingest
from chaos.postmortem.reading.inputs import BadInput, Inputs, discover
from chaos.postmortem.reading.receipts import read_receipts
from chaos.postmortem.reading.remote_files import files_of
from chaos.postmortem.reading.until import begun_by
from chaos.postmortem.replay.bases import bad_snapshots
from chaos.postmortem.replay.events import Build, events, replays, states
from chaos.postmortem.replay.spans import Plan, spans
from chaos.postmortem.replication import chains, commits, copies, entries, lacks, lag
from chaos.postmortem.replication.breaches import breaches
from chaos.postmortem.replication.members import members, told_members
from chaos.postmortem.report import About, write_report
from chaos.postmortem.report.units import stamp
from chaos.postmortem.session import fit
from chaos.postmortem.tables import Tables, conformed, schema_of
from chaos.postmortem.whole_tables import WholeTables, as_given, made_of

Known = TypeVar("Known")
Table = Callable[[Tables], DataFrame]
Finding = Callable[[Tables, Limits], DataFrame]
#: What begins, and None; what is done, and the seconds that it took.
Progress = Callable[[str, float | None], None]

#: Of what `records` say. Each comes behind what it needs, and what takes long comes early.
LOGS: Final[dict[str, Table]] = {
    "notes": nodes.notes,
    "beats": nodes.beats,
    "entries": entries.entries,
    "lacks": lacks.lacks,
    "merged": copies.merged,
    "links": nodes.links,
    "lives": nodes.lives,
    "syncs": nodes.syncs,
    "clocks": clocks.clocks,
    "shifts": clocks.shifts,
    "clock_jumps": clocks.clock_jumps,
    "standstills": standstills.standstills,
    "elections": elections.elections,
    "leaders": elections.leaders,
    "divergence": copies.divergence,
    "missing": lacks.missing,
    "commit_latency": commits.commit_latency,
    "snapshots": commits.snapshots,
    "lag": lag.lag,
}
#: Of what `events` say.
QUEUES: Final[dict[str, Table]] = {
    "messages": messages.messages,
    "latency": traffic.latency,
    "throughput": traffic.throughput,
    "unacked": traffic.unacked,
    "redelivery": traffic.redelivery,
    "sac": traffic.sac,
}
#: They need the plan of the replay.
OF_PLAN: Final = ("events", "members", "corruption", "breaches", "replays", "states")
#: What logs alone say is judged while their entries are replayed.
OF_LOGS: Final[tuple[Finding, ...]] = (
    of_what_was_given.breaches,
    of_replication.divergence,
    of_replication.missing_entry,
    of_what_was_given.member_not_given,
    of_what_was_given.foreign_segment,
    of_what_was_given.unread_file,
    of_replication.corrupt_segment,
    of_replication.archive_gap,
    of_replication.lagging_replica,
    of_cluster.two_leaders,
    of_cluster.leader_lost,
    of_cluster.flapping_leader,
    of_cluster.standstill,
    of_cluster.slow_sync,
    of_cluster.slow_disk,
    of_cluster.clock_jump,
    of_cluster.clock_offset,
)
OF_EVENTS: Final[tuple[Finding, ...]] = (
    state_mismatch,
    not_replayed,
    of_queues.settled_again,
    of_queues.unflagged_duplicate,
    of_queues.sac_overlap,
    of_queues.stuck_unacked,
    of_queues.late_settle,
    of_queues.redelivery_storm,
    of_queues.poison_message,
    of_queues.dead_letter_loop,
    client_anomalies,
)
FINDINGS: Final = OF_LOGS + OF_EVENTS
#: What can only be judged with a history of the clients.
OF_CLIENTS: Final = ("lost_message", "client_anomaly")
NO_HISTORY: Final = "no history or record of the clients was given"
#: Tables that are made side by side: plans are made by one thread each, and small jobs leave cores
#: idle.
AT_ONCE: Final = 3
#: Findings that a result carries; all of them are in the table.
FINDINGS_MAX: Final = 1_000
#: Queues that are named when another one was asked for.
QUEUES_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Result:
    """`status` is the command's exit status; `findings` are rows of that table."""

    status: int
    findings: list[dict[str, Any]]
    folder: Path
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Asked:
    """What else was asked for. Times in ns since 1970. `build`: whose machine replays, in the
    place of this release's.
    """

    limits: Limits = field(default_factory=Limits)
    history: Path | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    queue: str | None = None
    message: str | None = None
    confirmed: Path | None = None
    build: Build = nullcontext

    @classmethod
    def of(cls, options: Options) -> Asked:
        return cls(**{each.name: getattr(options, each.name) for each in fields(options)})


class Steps:
    """Tells of each step when it begins, and when it is done how long it took."""

    def __init__(self, tell: Progress | None) -> None:
        self._tell = tell
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        if self._tell is not None:
            self._tell(what, None)
        began_s = time.monotonic()
        yield
        self.seconds[what] = time.monotonic() - began_s
        if self._tell is not None:
            self._tell(what, self.seconds[what])


def run(
    paths: Sequence[str],
    out: Path,
    *,
    spark: SparkSession,
    tables: str | None = None,
    progress: Progress | None = None,
    asked: Asked | None = None,
    at_once: int = AT_ONCE,
) -> Result:
    """All of it. The report is in `out`, and so are the tables unless `tables` names another
    folder. BadInput: what was given cannot be looked at.
    """
    asked, steps, began_s = asked or Asked(), Steps(progress), time.monotonic()
    with steps.step("look for logs"):
        given = [str(path) for path in paths]
        inputs = discover(given, files_of(spark), since_ns=asked.since_ns, until_ns=asked.until_ns)
        if asked.until_ns is not None:
            inputs = begun_by(inputs, asked.until_ns)
        inputs = inputs.of_one_cluster()
        fit(spark, sum(segment.bytes for segment in inputs.segments))
    made = Tables(spark, tables or (out / "tables").absolute())
    plan = ingest.planned(made, inputs, asked.until_ns)
    count, new = len(inputs.segments), sum(map(len, plan.new.values()))
    what = f"read {count} segments" if new == count else f"read {new} new of {count} segments"
    # What is not whole any more must not look so while records change.
    whole = WholeTables(spark, made.folder, _made_of(inputs, asked))
    with steps.step(what):
        ingest.ingest(made, inputs, asked.until_ns, plan)
    if len(whole):
        with steps.step(f"take {len(whole)} tables as they are"):
            pass
    with ThreadPoolExecutor(at_once) as pool:
        _make(made, inputs, asked, steps, pool, whole)
    status, found = _told(made)
    with steps.step("report"):
        seconds = time.monotonic() - began_s
        write_report(made, out, _about(made, paths, asked, status, seconds))
    return Result(status, found, out, steps.seconds)


def _made_of(inputs: Inputs, asked: Asked) -> dict[str, str]:
    """By table. Nothing is kept of what is cut off at a time, or replayed by another machine."""
    if asked.until_ns is not None or asked.build is not nullcontext:
        return {}
    of_logs, of_queues = made_of(inputs), made_of(inputs, asked.queue)
    of_clients = made_of(inputs, asked.queue, *map(as_given, (asked.history, asked.confirmed)))
    return {
        **dict.fromkeys((*LOGS, *OF_PLAN), of_logs),
        **dict.fromkeys(QUEUES, of_queues),
        "client_findings": of_clients,
    }


def _make(
    made: Tables,
    inputs: Inputs,
    asked: Asked,
    steps: Steps,
    pool: ThreadPoolExecutor,
    whole: WholeTables,
) -> None:
    """All tables, side by side where they do not need each other."""

    def begin(name: str, table: Table, tables: Tables = made) -> None:
        def work() -> DataFrame:
            return table(tables)

        if name not in whole:
            timed = partial(steps.step, name.replace("_", " "))
            made.begin(pool, name, work, timed, whole.finish)

    for name, table in LOGS.items():
        begin(name, table)
    plan, told, cut = Plan([], [], {}, []), {}, asked.until_ns is not None
    if not whole.has(OF_PLAN):
        made.wait("merged")  # which is no part of the plan's time
        with steps.step("plan of the replay"):
            plan = spans(made, inputs.snapshots, cut=cut)
            told = told_members(made, plan.bases)
    begin("events", partial(events, plan=plan, build=asked.build))
    # What does not wait for the replay comes first: a pool has few places to wait in.
    begin("members", partial(members, told=told))
    begin("corruption", partial(_corruption, plan=plan))
    begin("breaches", partial(breaches, told=told, cut=cut))

    def judge(rules: Iterable[Finding], tables: Tables) -> list[Future[list[Row]]]:
        """Each is a query of its own, and finds little: together they would be a plan that takes
        longer to make than to run.
        """
        return [pool.submit(lambda r=rule: r(tables, asked.limits).collect()) for rule in rules]

    judged = judge(OF_LOGS, made)
    begin("replays", partial(replays, plan=plan))
    begin("states", partial(states, plan=plan))
    seen = of_queue(made, asked.queue)
    for name, table in QUEUES.items():
        begin(name, table, seen)
    begin("client_findings", partial(_clients, asked=asked), seen)
    judged += judge(OF_EVENTS, seen)
    made.finish()  # what rules wait for is not their time
    with steps.step("findings"):
        rows = [row for rule in judged for row in rule.result()]
        made.write("findings", _findings(seen, rows, asked.since_ns))


def _corruption(tables: Tables, plan: Plan) -> DataFrame:
    found = [
        ingest.damage(tables),
        bad_snapshots(tables.spark, plan.unusable),
        chains.broken_chains(tables),
        lacks.missing_entries(tables),
        lacks.missing_segments(tables),
    ]
    return _union([conformed(each, "corruption") for each in found])


def of_queue(tables: Tables, named: str | None) -> Tables:
    """With no other events than those of this queue: NAME in any vhost, or VHOST/NAME. BadInput:
    there is none.
    """
    if named is None:
        return tables
    seen = tables.only("events", _of_queue(named))
    if seen["events"].where("name is not null").isEmpty():
        all_of_them = tables["events"].where("name is not null").select("name", "vhost").distinct()
        some = all_of_them.orderBy("name", "vhost").limit(QUEUES_NAMED + 1).collect()
        told = [f"{row.name} in vhost {row.vhost}" for row in some[:QUEUES_NAMED]]
        if told:
            more = ["..."] if len(some) > QUEUES_NAMED else []
            raise BadInput(f"no queue {named} in these logs: {', '.join(told + more)}")
    return seen


def _of_queue(named: str) -> Column:
    """Both may have slashes in their names; vhost / may be left away before one. What belongs to no
    queue stays.
    """
    name, vhost = F.col("name"), F.col("vhost")
    same = (name == named) | (F.concat_ws("/", vhost, name) == named)
    return same | ((vhost == "/") & (F.concat(vhost, name) == named)) | name.isNull()


def _clients(tables: Tables, asked: Asked) -> DataFrame:
    found = tables.empty("client_findings")
    if asked.history is None and asked.confirmed is None:
        return found
    named = tables["events"].where("name is not null").groupBy("vhost", "name")
    newest = F.max(F.struct("queue", "group", F.coalesce("sac", F.lit(False)).alias("sac")))
    rows = named.agg(newest.alias("it")).collect()
    queues = called((row.vhost, row.name, row.it) for row in rows)
    if asked.history is not None:
        single = [name for name, it in queues.items() if it.sac]
        # Some thirty rules read it, and to parse it takes longer than any of them.
        ops = clients.read_history(tables.spark, str(asked.history.absolute())).cache()
        seen = clients.provable(ops, clients.anomalies(ops, single))
        found = found.unionByName(conformed(seen, "client_findings"))
    if asked.confirmed is not None:
        keys = {name: (it.group, it.queue) for name, it in queues.items()}
        found = found.unionByName(receipts(tables, read_receipts(asked.confirmed), keys))
    return found if asked.queue is None else found.where(F.col("queue").isin(list(queues)))


def called(queues: Iterable[tuple[str, str, Known]]) -> dict[str, Known]:
    """By what clients call these queues, what is known of each: those of vhost / by name, others by
    VHOST/NAME; by name alone where there is but one of that name.
    """
    queues = list(queues)
    found = {f"{vhost}/{name}": known for vhost, name, known in queues}
    found |= {name: known for vhost, name, known in queues if vhost == "/"}
    count = Counter(name for _, name, _ in queues)
    for _, name, known in queues:
        if count[name] == 1:
            found.setdefault(name, known)
    return found


def _findings(tables: Tables, rows: list[Row], since_ns: int | None) -> DataFrame:
    if since_ns is not None:
        rows = [row for row in rows if (row.to_ns or row.from_ns or since_ns) >= since_ns]
    return tables.spark.createDataFrame(rows, schema_of("findings")).coalesce(1)


def _told(tables: Tables) -> tuple[int, list[dict[str, Any]]]:
    found = tables["findings"].orderBy("from_ns", "code", "group", "first").limit(FINDINGS_MAX)
    severities = tables["findings"].select("severity").distinct().collect()
    status = exit_status({row.severity for row in severities})
    return status, [row.asDict() for row in found.collect()]


def _about(
    tables: Tables, paths: Sequence[str], asked: Asked, status: int, seconds: float
) -> About:
    reached = tables["segments"].agg(F.min("first_ns").alias("a"), F.max("last_ns").alias("b"))
    span = reached.first()
    from_ns, to_ns = (span.a, span.b) if span is not None else (None, None)
    return About(
        inputs=tuple(str(path) for path in paths),
        from_ns=max(from_ns or 0, asked.since_ns or 0),
        to_ns=to_ns or 0,
        status=status,
        version=version("quorate"),
        seconds=seconds,
        limits=asked.limits,
        history=None if asked.history is None else str(asked.history),
        message=asked.message,
        queue=asked.queue,
        since=stamp(asked.since_ns) if asked.since_ns else None,
        until=stamp(asked.until_ns) if asked.until_ns else None,
        confirmed=None if asked.confirmed is None else str(asked.confirmed),
        skipped=dict.fromkeys(OF_CLIENTS, NO_HISTORY)
        if asked.history is None and asked.confirmed is None
        else {},
    )


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)
