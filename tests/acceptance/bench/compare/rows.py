"""The rows of the comparison: what is run at which brokers, and the targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.acceptance.bench.compare import workloads
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
}
UNITS = {
    "rate": "/s",
    "p50_ms": " ms",
    "p99_ms": " ms",
    "cpu_us": " us",
    "percent": " %",
    "declares": "/s",
    "p99_times": "x",
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
            QUORATE: workloads.native_batches,
            NATS: workloads.nats_publish,
            NATS_SYNC: workloads.nats_publish,
        },
        (Target("rate", 1.5, NATS), Target("rate", 5, NATS_SYNC)),
    ),
    Row(
        "native-singles",
        "native: publish 100 B one a call, 256 in flight, by both Python clients",
        {
            QUORATE: workloads.native_singles,
            NATS: workloads.nats_singles,
            NATS_SYNC: workloads.nats_singles,
        },
        (Target("rate", 0.8, NATS),),
    ),
)


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
