"""The runs that need nothing but messages: publish, consume, both, latency."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import quorate
from tests.acceptance.bench.measure import Cost, Meter, percentile
from tests.acceptance.bench.nodes import Nodes
from tests.acceptance.bench.report import Goal, Row
from tests.acceptance.bench.workers import Consume, Outcome, Publish, Work, run_all, span_s

KIB = 1024
BATCH = 256
#: Batches that a publisher keeps unconfirmed: one is on its way while others are synced.
WINDOW = 16
#: The same for single messages.
WINDOW_SINGLE = 256
#: Bytes that a publisher keeps unconfirmed at most, well below what a node takes of a connection.
WINDOW_BYTES_MAX = 8 * 1024 * KIB
RATE_SLOW = 500
GROUPS_S_MAX = 60.0


@dataclass
class Bench:
    """What a run gets: the nodes, a scale for its counts, and where to tell how far it is."""

    nodes: Nodes
    quick: bool
    progress: Callable[[int], None] = lambda _: None
    expect: Callable[[int], None] = lambda _: None
    rows: list[Row] = field(default_factory=list[Row])
    _queues: int = 0

    def count(self, full: int) -> int:
        """Messages of a run; a tenth when it is to be quick, and never less than two batches."""
        return max(full // 10, 2 * BATCH) // BATCH * BATCH if self.quick else full

    @contextlib.asynccontextmanager
    async def queues(
        self,
        count: int = 1,
        group: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[list[str]]:
        """New queues, whose leader is known, deleted afterwards."""
        first = self._queues
        self._queues += count
        names = [f"bench-{first + i}" for i in range(count)]
        said = {**(arguments or {}), **({"x-queue-group": group} if group else {})}
        async with quorate.connect(self.nodes.urls) as client:
            for name in names:
                await _declare(client, name, said)
        for name in names:
            await self.nodes.leader(name)
        yield names
        async with quorate.connect(self.nodes.urls) as client:
            for name in names:
                await client.delete(name)

    async def run(self, works: Sequence[Work]) -> tuple[list[Outcome], Cost]:
        self.expect(sum(work.count for work in works))
        meter = Meter(self.nodes.pids)
        outcomes = await run_all(works, self.progress)
        return outcomes, meter.stop()


async def _declare(client: quorate.Client, name: str, arguments: Mapping[str, Any]) -> None:
    """A cluster that has just been born needs a moment for its groups."""
    async with asyncio.timeout(GROUPS_S_MAX):
        while True:
            try:
                await client.declare(name, arguments)
                return
            except quorate.Refused as refused:
                if refused.code != "no_group":
                    raise
            await asyncio.sleep(0.1)


def window_of(size: int, batch: int) -> int:
    window = WINDOW if batch > 1 else WINDOW_SINGLE
    return max(1, min(window, WINDOW_BYTES_MAX // (size * batch)))


def size_name(size: int) -> str:
    return f"{size // KIB} KiB" if size >= KIB else f"{size} B"


async def fill(bench: Bench, queue: str, count: int, size: int = 100) -> list[Outcome]:
    """Messages to work with; not measured."""
    bench.expect(count)
    work = Publish(bench.nodes.urls, queue, count, size, batch=BATCH, window=WINDOW)
    return await run_all([work], bench.progress)


async def publish(bench: Bench) -> None:
    """Confirmed publish: sizes, numbers of publishers, batches."""
    for size, batched, single in (
        (100, 512_000, 25_600),
        (KIB, 128_000, 25_600),
        (64 * KIB, 2_560, 2_560),
    ):
        for publishers in (1, 4):
            for batch in (BATCH, 1):
                count = bench.count(batched if batch > 1 else single) // publishers
                await _publish(bench, size, publishers, batch, count)


async def _publish(bench: Bench, size: int, publishers: int, batch: int, count: int) -> None:
    window = window_of(size, batch)
    async with bench.queues(publishers) as names:
        works: list[Work] = [
            Publish(bench.nodes.urls, name, count, size, batch, window) for name in names
        ]
        outcomes, cost = await bench.run(works)
    messages = sum(o.count for o in outcomes)
    latencies = [latency for o in outcomes for latency in o.latencies_ms]
    row = Row(
        "publish",
        f"{size_name(size)}, {publishers} publisher{'s' * (publishers > 1)}, batches of {batch}",
        messages=messages,
        rate=messages / span_s(outcomes),
        p50_ms=percentile(latencies, 50),
        p99_ms=percentile(latencies, 99),
        cost=cost,
        figures={"size": size, "publishers": publishers, "batch": batch, "window": window},
    )
    if (size, publishers, batch) == (100, 1, BATCH):
        per_100k = cost.nodes_cpu_s_per_100k(messages)
        row.goals = [
            Goal("≥ 100,000 msgs/s", row.rate is not None and row.rate >= 100_000),
            Goal("≤ 1.5 CPU s", per_100k <= 1.5),
        ]
    bench.rows.append(row)


async def consume(bench: Bench) -> None:
    """Consume with settles what is there already: by ranges as delivered, and one by one."""
    for one_by_one, full in ((False, 512_000), (True, 102_400)):
        count = bench.count(full)
        async with bench.queues() as (name,):
            await fill(bench, name, count)
            outcomes, cost = await bench.run(
                [Consume(bench.nodes.urls, name, count, one_by_one=one_by_one)]
            )
        rate = count / span_s(outcomes)
        bench.rows.append(
            Row(
                "consume",
                f"100 B, settled {'one by one' if one_by_one else 'by ranges'}",
                messages=count,
                rate=rate,
                cost=cost,
                goals=[] if one_by_one else [Goal("≥ 100,000 msgs/s", rate >= 100_000)],
            )
        )


async def both(bench: Bench) -> None:
    """Publish and consume the same queue at once."""
    for batch, full in ((BATCH, 512_000), (1, 25_600)):
        count = bench.count(full)
        async with bench.queues() as (name,):
            outcomes, cost = await bench.run(
                [
                    Consume(bench.nodes.urls, name, count),
                    Publish(bench.nodes.urls, name, count, 100, batch, window_of(100, batch)),
                ]
            )
        consumed, published = outcomes
        end_to_end = consumed.latencies_ms
        bench.rows.append(
            Row(
                "both",
                f"100 B, batches of {batch}, publish and consume at once; latency is end to end",
                messages=count,
                rate=count / span_s(outcomes),
                p50_ms=percentile(end_to_end, 50),
                p99_ms=percentile(end_to_end, 99),
                cost=cost,
                detail=f"confirms: p50 {percentile(published.latencies_ms, 50):.1f} ms, "
                f"p99 {percentile(published.latencies_ms, 99):.1f} ms",
            )
        )


async def latency(bench: Bench) -> None:
    """One message outstanding; then 500 a second, published and consumed."""
    for size in (100, KIB, 64 * KIB):
        count = bench.count(5_120 if size < 64 * KIB else 1_280)
        async with bench.queues() as (name,):
            outcomes, cost = await bench.run(
                [Publish(bench.nodes.urls, name, count, size, batch=1, window=1)]
            )
        p50 = percentile(outcomes[0].latencies_ms, 50)
        bench.rows.append(
            Row(
                "latency",
                f"{size_name(size)}, one message outstanding",
                messages=count,
                rate=count / span_s(outcomes),
                p50_ms=p50,
                p99_ms=percentile(outcomes[0].latencies_ms, 99),
                cost=cost,
                goals=[Goal("p50 ≤ 1.5 ms", p50 <= 1.5)] if size == 100 else [],
            )
        )
    count = bench.count(10_240)
    async with bench.queues() as (name,):
        outcomes, cost = await bench.run(
            [
                Consume(bench.nodes.urls, name, count),
                Publish(bench.nodes.urls, name, count, 100, rate=RATE_SLOW),
            ]
        )
    consumed, published = outcomes
    bench.rows.append(
        Row(
            "latency",
            f"100 B at {RATE_SLOW} msgs/s, published and consumed; latency is end to end",
            messages=count,
            rate=count / span_s(outcomes),
            p50_ms=percentile(consumed.latencies_ms, 50),
            p99_ms=percentile(consumed.latencies_ms, 99),
            cost=cost,
            detail=f"confirms: p50 {percentile(published.latencies_ms, 50):.2f} ms, "
            f"p99 {percentile(published.latencies_ms, 99):.2f} ms",
        )
    )
