"""The runs that hurt: a backlog of a million messages, restarts, leaders that are killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

import quorate
from tests.acceptance.bench.measure import percentile, rss_bytes
from tests.acceptance.bench.nodes import Kill
from tests.acceptance.bench.report import Goal, Row
from tests.acceptance.bench.runs import BATCH, WINDOW, Bench, fill
from tests.acceptance.bench.workers import Consume, Publish, Work, run_all, span_s, worker

MB = 1_000_000
BACKLOG_SMALL = 1_024
BACKLOG_LARGE = 1_000_192  # whole batches
RATE_MESSAGES = 204_800
RATE_ROUNDS = 3
KILLS = 10
CALM_S = 1.5  # between a node's return and the next kill
FAILOVER_RATE = 500
FAILOVER_WINDOW = 100
GAP_S_MAX = 30.0


class Confirm(NamedTuple):
    number: int
    sent_s: float
    at_s: float


async def backlog(bench: Bench) -> None:
    """Rates at a small and at a large backlog, memory of the large one, restarts with it."""
    large = BACKLOG_LARGE if not bench.quick else 102_400
    async with bench.queues() as (name,):
        await fill(bench, name, BACKLOG_SMALL)
        small_rates = await _rates(bench, name, BACKLOG_SMALL, None)
        before = {node.name: rss_bytes(node.pid) for node in bench.nodes.all if node.pid}
        start = time.monotonic()
        await fill(bench, name, large - BACKLOG_SMALL)
        took_s = time.monotonic() - start
        growth = {
            node.name: (rss_bytes(node.pid) - before[node.name]) / MB
            for node in bench.nodes.all
            if node.pid
        }
        worst = max(growth.values())
        bench.rows.append(
            Row(
                "backlog",
                f"memory for {large:,} ready messages of 100 B",
                messages=large,
                rate=(large - BACKLOG_SMALL) / took_s,
                detail="more RSS: "
                + ", ".join(f"{node} {grown:.0f} MB" for node, grown in growth.items()),
                figures={"rss_growth_mb": growth},
                goals=[Goal("≤ 100 MB more RSS a node", worst <= 100)],
            )
        )
        await _rates(bench, name, large, small_rates)
        await _restart_leader(bench, name, large)
        await _restart_all(bench, name, large)


async def _rates(
    bench: Bench, name: str, ready: int, small: tuple[float, float] | None
) -> tuple[float, float]:
    """Publish and consume rates around `ready` waiting messages; the best of some rounds of each.

    The best, because what disturbs a run only ever slows it.
    """
    count = bench.count(RATE_MESSAGES)
    best: dict[str, Row] = {}
    for _ in range(1 if bench.quick else RATE_ROUNDS):
        for verb, work in (
            ("publish", Publish(bench.nodes.urls, name, count, 100, BATCH, WINDOW)),
            ("consume", Consume(bench.nodes.urls, name, count)),
        ):
            outcomes, cost = await bench.run([work])
            row = Row(
                "backlog",
                f"{verb} 100 B at a backlog of {ready:,}",
                messages=count,
                rate=count / span_s(outcomes),
                cost=cost,
            )
            if verb not in best or (row.rate or 0) > (best[verb].rate or 0):
                best[verb] = row
    rates = (best["publish"].rate or 0.0, best["consume"].rate or 0.0)
    if small is not None:
        for row, before, now in zip(best.values(), small, rates, strict=True):
            change = 100 * (now / before - 1)
            row.detail = f"{change:+.0f} % of the rate at {BACKLOG_SMALL:,}"
            row.goals = [Goal("within 20 % of the small backlog", change >= -20)]
    bench.rows.extend(best.values())
    return rates


async def _restart_leader(bench: Bench, name: str, ready: int) -> None:
    leader = await bench.nodes.leader(name)
    await bench.nodes.kill(leader)
    await bench.nodes.leader(name)
    start = time.monotonic()
    await bench.nodes.launch(leader)
    await bench.nodes.until_ready()
    took_s = time.monotonic() - start
    bench.rows.append(
        Row(
            "backlog",
            f"killed leader of {ready:,} messages started again: until ready",
            detail=f"{took_s:.2f} s",
            figures={"restart_s": took_s},
            goals=[Goal("serves within 10 s", took_s <= 10)],
        )
    )


async def _messages(bench: Bench, name: str) -> int:
    async with quorate.connect(bench.nodes.urls) as client:
        info = await client.info(name)
    return int(info["ready"]) + int(info["unsettled"])


async def _restart_all(bench: Bench, name: str, ready: int) -> None:
    before = await _messages(bench, name)
    for node in bench.nodes.all:
        await bench.nodes.kill(node)
    start = time.monotonic()
    await bench.nodes.start()
    async with quorate.connect(bench.nodes.urls) as client:
        await client.publish(name, b"still there")
        took_s = time.monotonic() - start
    there = await _messages(bench, name)
    bench.rows.append(
        Row(
            "backlog",
            f"all three nodes killed with {ready:,} messages, started again: until a confirm",
            detail=f"{took_s:.2f} s; {there:,} messages there, {before + 1:,} confirmed",
            figures={"restart_s": took_s, "messages": there},
            goals=[
                Goal("serves within 10 s", took_s <= 10),
                Goal("nothing lost", there == before + 1),
            ],
        )
    )


async def failover(bench: Bench) -> None:
    """kill -9 of the leader while one publisher goes on; then all is read back and compared."""
    async with bench.queues() as (name,):
        work = Publish(
            bench.nodes.urls,
            name,
            0,
            100,
            window=FAILOVER_WINDOW,
            rate=FAILOVER_RATE,
            publisher="bench",
            times=True,
        )

        def read_back(count: int) -> Work:
            return Consume(bench.nodes.urls, name, count, numbers=True, idle_s=10)

        await measure_gaps(bench, name, work, read_back)


async def measure_gaps(
    bench: Bench, name: str, work: Work, read_back: Callable[[int], Work], how: str = ""
) -> None:
    """Of a publisher that keeps on, in one row."""
    kills = 3 if bench.quick else KILLS
    moments: list[Kill] = []
    bench.expect(kills)
    async with worker(work, lambda _: None) as publisher:
        await publisher.ready.wait()
        for _ in range(kills):
            await asyncio.sleep(CALM_S)
            leader = await bench.nodes.leader(name)
            moments.append(await bench.nodes.kill(leader))
            await asyncio.sleep(CALM_S)
            await bench.nodes.launch(leader)
            await bench.nodes.until_ready()
            bench.progress(1)
        await asyncio.sleep(CALM_S)
        publisher.close_input()
        published = await publisher.result()
    (consumed,) = await run_all([read_back(published.count)], lambda _: None)
    confirms = [Confirm(*each) for each in published.extra["confirmed"]]
    gaps_ms = [_gap_ms(confirms, moment) for moment in moments]
    seen = [int(number) for number in consumed.extra["numbers"]]
    lost = {confirm.number for confirm in confirms} - set(seen)
    duplicated = len(seen) - len(set(seen))
    median = percentile(gaps_ms, 50)
    bench.rows.append(
        Row(
            "failover",
            f"{kills} kills of the leader at {FAILOVER_RATE} msgs/s{how}: ms to the next confirm",
            messages=len(confirms),
            rate=len(confirms) / span_s([published]),
            p50_ms=median,
            p99_ms=max(gaps_ms),
            detail=f"{' '.join(f'{gap:.0f}' for gap in gaps_ms)}; confirmed {len(confirms):,}, "
            f"lost {len(lost)}, stored twice {duplicated}",
            figures={"gaps_ms": gaps_ms, "lost": sorted(lost)[:100], "duplicated": duplicated},
            goals=[Goal("median ≤ 300 ms", median <= 300), Goal("nothing lost", not lost)],
        )
    )


def _gap_ms(confirms: list[Confirm], kill: Kill) -> float:
    """From the kill to the first confirm of a message that was published when the leader was dead.

    What was on its way at the kill may still be confirmed by the dead leader, just after.
    """
    later = [confirm.at_s for confirm in confirms if confirm.sent_s > kill.dead_s]
    return (min(later) - kill.at_s) * 1000 if later else GAP_S_MAX * 1000
