"""The rows of the comparison: what is run at which brokers, and the targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.acceptance.bench.compare import jetstream, workloads
from tests.acceptance.bench.compare.workloads import Figures, Run

QUORATE, RABBITMQ, NATS, NATS_SYNC = "quorate", "rabbitmq", "nats", "nats-sync"
DISK, TMPFS = "disk", "tmpfs"
TITLES = {
    QUORATE: "Quorate",
    RABBITMQ: "RabbitMQ",
    NATS: "NATS",
    NATS_SYNC: "NATS, sync_interval: always",
}
FIGURES = {
    "rate": "rate",
    "p50_ms": "p50",
    "p99_ms": "p99",
    "cpu_us": "CPU",
    "percent": "CPU",
    "declares": "declares",
    "p99_times": "p99 by that without",
    "p50_times": "p50 by that of our own protocol",
    "gap_ms": "gap",
    "start_s": "start of a node",
}
UNITS = {
    "rate": "/s",
    "p50_ms": " ms",
    "p99_ms": " ms",
    "cpu_us": " us",
    "percent": " %",
    "declares": "/s",
    "p99_times": "x",
    "p50_times": "x",
    "gap_ms": " ms",
    "start_s": " s",
}


@dataclass(frozen=True)
class Target:
    """A figure of Quorate, by itself or divided by the same of a peer."""

    figure: str
    bound: float
    peer: str | None = None

    @property
    def at_least(self) -> bool:
        return self.figure in {"rate", "declares"}

    @property
    def text(self) -> str:
        unit = "x" if self.peer else UNITS[self.figure]
        sign = "≥" if self.at_least else "≤"
        return f"{FIGURES[self.figure]} {sign} {self.bound:,g}{unit}"

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    runs: Mapping[str, Run]  # by broker
    targets: tuple[Target, ...] = ()
    place: str = DISK


def beside(run: Run, *peers: str) -> dict[str, Run]:
    return dict.fromkeys((QUORATE, *peers), run)


def against(peer: str, **bounds: float) -> tuple[Target, ...]:
    return tuple(Target(figure, bound, peer) for figure, bound in bounds.items())


_single = partial(workloads.publish, window=1)
ROWS = (
    Row(
        "publish-varied",
        "publish, realistic: content type, message id, timestamp, one header, 50 to 150 B,"
        " ten routing keys in turn, window 1000",
        beside(partial(workloads.publish, varied=True), RABBITMQ),
        against(RABBITMQ, rate=4, cpu_us=0.2),
    ),
    Row(
        "publish-uniform",
        "publish, all alike: 100 B, window 1000",
        beside(workloads.publish, RABBITMQ),
    ),
    Row(
        "large-1",
        "publish 64 KiB, window 100, one publisher",
        beside(workloads.publish_large, RABBITMQ),
        against(RABBITMQ, rate=1.5, cpu_us=0.6),
    ),
    Row(
        "large-4",
        "the same, four publishers to four queues",
        beside(partial(workloads.publish_large, publishers=4), RABBITMQ),
        against(RABBITMQ, rate=1.5, cpu_us=0.6),
    ),
    Row(
        "large-tmpfs",
        "the same, one publisher, on tmpfs",
        beside(workloads.publish_large, RABBITMQ),
        against(RABBITMQ, rate=1.5, cpu_us=0.6),
        TMPFS,
    ),
    Row(
        "single",
        "publish 100 B, one outstanding",
        beside(_single, RABBITMQ),
        against(RABBITMQ, p50_ms=0.8, cpu_us=0.4),
    ),
    Row(
        "single-tmpfs",
        "the same, on tmpfs",
        beside(_single, RABBITMQ),
        against(RABBITMQ, p50_ms=0.8, cpu_us=0.4),
        TMPFS,
    ),
    Row(
        "single-follower",
        "the same, at a node that does not lead the queue",
        beside(partial(workloads.publish, window=1, follower=True), RABBITMQ),
        against(RABBITMQ, cpu_us=0.5),
    ),
    Row(
        "paced",
        "publish and consume 500/s: end to end",
        beside(partial(workloads.both, rate=workloads.RATE_SLOW), RABBITMQ),
        against(RABBITMQ, p50_ms=0.8, cpu_us=0.4),
    ),
    Row(
        "both",
        "publish and consume at once, prefetch 300, acks per 100: end to end",
        beside(workloads.both, RABBITMQ),
        against(RABBITMQ, p50_ms=1, rate=3),
    ),
    Row(
        "both-wide",
        "the same with a prefetch of 1000, as many as the publisher has unconfirmed",
        beside(partial(workloads.both, prefetch=workloads.WINDOW), RABBITMQ),
    ),
    Row(
        "consume",
        "consume a backlog, ack per 100",
        beside(workloads.consume, RABBITMQ),
        against(RABBITMQ, rate=2),
    ),
    Row(
        "thousand-queues",
        "1,000 queues at 10 messages/s each: confirms",
        {QUORATE: workloads.thousand_queues},
        (Target("rate", 9_900), Target("p50_ms", 20)),  # the last confirms are waited for
    ),
    Row(
        "idle-queues",
        "500/s end to end beside 10,000 idle queues (QUICK: 2,000)",
        {QUORATE: workloads.idle_queues},
        (Target("p99_times", 1.2), Target("declares", 1000)),
    ),
    Row(
        "fan-out",
        "3,000 consumers, fan-out to 100 queues at 20/s: deliveries",
        {QUORATE: workloads.fan_out},
        (Target("p99_ms", 100), Target("cpu_us", 150)),
    ),
    Row(
        "idle",
        "idle: CPU of a node, in percent of a core",
        beside(workloads.idle, RABBITMQ, NATS, NATS_SYNC),
        (Target("percent", 0.4),),
    ),
    Row(
        "native-batches",
        "native: publish 100 B, Quorate in batches of 256 by its Python client, NATS by a C client",
        {
            QUORATE: partial(workloads.native, batch=workloads.BATCH, window=workloads.BATCHES),
            NATS: jetstream.publish,
            NATS_SYNC: jetstream.publish,
        },
        (Target("rate", 1.5, NATS), Target("rate", 5, NATS_SYNC)),
    ),
    Row(
        "native-singles",
        "native: publish 100 B one a call, 256 in flight, by both Python clients",
        {
            QUORATE: workloads.native,
            NATS: jetstream.publish_by_python,
            NATS_SYNC: jetstream.publish_by_python,
        },
        (Target("rate", 0.8, NATS),),
    ),
)


NATS_ROWS = (
    Row(
        "publish",
        "publish to a stream, 100 B, window 1000",
        beside(jetstream.publish, NATS, NATS_SYNC),
        (
            Target("rate", 1.5, NATS),
            Target("rate", 3, NATS_SYNC),
            Target("cpu_us", 1.5, NATS),
        ),
    ),
    Row(
        "single",
        "publish to a stream, 100 B, one outstanding",
        {
            QUORATE: jetstream.single_beside_native,
            NATS: partial(jetstream.publish, window=1),
            NATS_SYNC: partial(jetstream.publish, window=1),
        },
        (Target("p50_times", 1.2),),
    ),
    Row(
        "pull",
        "pull what is there already: batches of 100, each message acknowledged",
        beside(jetstream.pull, NATS, NATS_SYNC),
        against(NATS, rate=1),
    ),
    Row(
        "read",
        "read a stream of 1 KiB messages: batches of 500, not acknowledged (100 MB/s are 97,657/s)",
        beside(jetstream.read, NATS),
        (Target("rate", 97_657), Target("rate", 1, NATS)),
    ),
    Row(
        "core",
        "core publish-subscribe, 100 B, both at one node",
        beside(jetstream.core, NATS),
        against(NATS, rate=0.5),
    ),
    Row(
        "core-across",
        "the same, each at a node of its own",
        beside(partial(jetstream.core, across=True), NATS),
        against(NATS, rate=0.5),
    ),
    Row(
        "failover",
        "kill -9 of the node that leads a stream: from the kill to the next ack of a new message",
        beside(jetstream.failover, NATS, NATS_SYNC),
        against(NATS, gap_ms=0.1),
    ),
    Row(
        "thousand-streams",
        "1,000 streams with 3 consumers each (QUICK: 200), idle: CPU of a node in percent"
        " of a core; start of a node that was killed",
        beside(jetstream.many_streams, NATS),
        (Target("percent", 2), Target("start_s", 10)),
    ),
)


@dataclass(frozen=True)
class Table:
    """A comparison: its rows, and the name of its page and its template."""

    name: str
    rows: tuple[Row, ...]
    synced: tuple[str, ...]  # rows whose fsyncs are counted, after the rounds


TABLES = {
    table.name: table
    for table in (
        Table(
            "performance",
            ROWS,
            ("publish-varied", "large-1", "single", "native-batches", "native-singles"),
        ),
        Table("performance-nats", NATS_ROWS, ("publish", "single", "pull")),
    )
}


@dataclass(frozen=True)
class Summary:
    """Of several runs."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary:
        ranked = sorted(values)
        return cls(statistics.median(ranked), ranked[0], ranked[-1])


def by_round(runs: Iterable[Mapping[str, Any]], row: Row, broker: str) -> dict[int, Figures]:
    return {
        run["round"]: run["figures"]
        for run in runs
        if run["row"] == row.name and run["broker"] == broker
    }


def figure(runs: Iterable[Mapping[str, Any]], row: Row, broker: str, name: str) -> Summary | None:
    values = [each[name] for each in by_round(runs, row, broker).values() if name in each]
    return Summary.of(values) if values else None


def ratio(runs: Iterable[Mapping[str, Any]], row: Row, peer: str, name: str) -> Summary | None:
    """Quorate's by the peer's, round by round: they were measured one after the other."""
    runs = list(runs)
    ours, theirs = by_round(runs, row, QUORATE), by_round(runs, row, peer)
    values = [
        ours[each][name] / theirs[each][name]
        for each in ours.keys() & theirs.keys()
        if name in ours[each] and theirs[each].get(name)
    ]
    return Summary.of(values) if values else None


def measured(runs: Iterable[Mapping[str, Any]], row: Row, target: Target) -> Summary | None:
    if target.peer is None:
        return figure(runs, row, QUORATE, target.figure)
    return ratio(runs, row, target.peer, target.figure)
