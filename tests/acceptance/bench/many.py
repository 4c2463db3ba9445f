"""Many queues: what they cost while they are idle, while all are used a little, and while they are
made; many consumers of what goes to many queues; and nodes that nobody uses.
"""

from __future__ import annotations

import asyncio

from tests.acceptance.bench.many_works import Declare, FanOut, Spread
from tests.acceptance.bench.measure import Meter, cpu_s, percentile
from tests.acceptance.bench.report import Goal, Row
from tests.acceptance.bench.runs import Bench
from tests.acceptance.bench.workers import Outcome, Work, run_all, span_s

IDLE_QUEUES = 10_000
QUIET_RATE = 500
BUSY_QUEUES = 1_000
BUSY_RATE = 10_000
CHANNELS = 100
FANNED_QUEUES = 100
CONSUMERS = 3_000
#: Nodes that have just met hand leaderships over to where they belong.
BALANCED_S = 8.0
UNUSED_S = 20.0


async def _run(bench: Bench, name: str, what: str, works: list[Work]) -> tuple[Row, list[Outcome]]:
    bench.expect(sum(work.count for work in works))
    meter = Meter(bench.nodes.pids)
    outcomes = await run_all(works, bench.progress)
    row = Row(
        name,
        what,
        messages=sum(outcome.count for outcome in outcomes),
        rate=sum(outcome.count for outcome in outcomes) / span_s(outcomes),
        p50_ms=percentile(outcomes[0].latencies_ms or [0.0], 50),
        p99_ms=percentile(outcomes[0].latencies_ms or [0.0], 99),
        cost=meter.stop(),
    )
    bench.rows.append(row)
    return row, outcomes


def _ports(bench: Bench) -> list[int]:
    return [node.amqp for node in bench.nodes.all]


async def declare(bench: Bench) -> None:
    """New queues a second: one after the other, from many channels, without waiting."""
    await asyncio.sleep(BALANCED_S)
    port, first = _ports(bench)[0], 0
    for what, count, channels, nowait in (
        ("one after the other", 200, 1, False),
        (f"{CHANNELS} channels", 5_000, CHANNELS, False),
        ("no-wait, one channel", 5_000, 1, True),
    ):
        count = count // 5 if bench.quick and count > 1000 else count
        row, _ = await _run(
            bench,
            "many declare",
            f"declare {count:,} queues, {what}",
            [Declare(port, first, count, channels, nowait)],
        )
        first += count
        if channels > 1 or nowait:
            row.goals = [Goal("≥ 1,000/s", (row.rate or 0) >= 1_000)]


async def idle(bench: Bench) -> None:
    """A few messages in one queue, beside none and beside many that nobody uses."""
    await asyncio.sleep(BALANCED_S)
    ports, seconds = _ports(bench), 12 if bench.quick else 40
    await run_all([Declare(ports[0], 0, 1)], lambda _: None)
    p99_ms: list[float] = []
    queues = IDLE_QUEUES
    for number, what in ((0, "alone"), (queues, f"beside {queues:,} idle queues")):
        if number:
            await run_all([Declare(ports[0], 1, number, CHANNELS)], lambda _: None)
            await asyncio.sleep(3.0)
        work = Spread(ports, 0, 1, QUIET_RATE, seconds, 1, 1000, consume=True)
        row, outcomes = await _run(
            bench, "many idle", f"{QUIET_RATE} msgs/s in one queue, {what}; end to end", [work]
        )
        ages_ms = outcomes[0].extra["ages_ms"]
        row.p50_ms, row.p99_ms = percentile(ages_ms, 50), percentile(ages_ms, 99)
        row.detail = f"longest {max(ages_ms):.0f} ms"
        p99_ms.append(row.p99_ms)
    times = p99_ms[1] / p99_ms[0]
    bench.rows[-1].goals = [Goal("p99 ≤ x 1.2", times <= 1.2)]
    bench.rows[-1].detail += f"; p99 x {times:.2f}"


async def busy(bench: Bench) -> None:
    """All queues get a little."""
    await asyncio.sleep(BALANCED_S)
    ports, seconds = _ports(bench), 10 if bench.quick else 30
    await run_all([Declare(ports[0], 0, BUSY_QUEUES, CHANNELS)], lambda _: None)
    for window, consume in ((1, False), (100, False), (100, True)):
        row, outcomes = await _run(
            bench,
            "many busy",
            f"{BUSY_RATE:,} msgs/s to {BUSY_QUEUES:,} queues, {window} of each unconfirmed"
            + ", consumed" * consume,
            [Spread(ports, 0, BUSY_QUEUES, BUSY_RATE, seconds, 10, window, consume=consume)],
        )
        row.goals = [
            Goal(f"{BUSY_RATE:,} msgs/s", (row.rate or 0) >= 0.98 * BUSY_RATE),
            Goal("p50 ≤ 20 ms", (row.p50_ms or 0) <= 20),
        ]
        ages_ms = outcomes[0].extra["ages_ms"] or [0.0]
        row.detail = f"asked {outcomes[0].extra['asked']:,}, sent {outcomes[0].extra['sent']:,}"
        if consume:
            p50_ms, p99_ms = percentile(ages_ms, 50), percentile(ages_ms, 99)
            row.detail += f"; end to end p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms"


async def fan_out(bench: Bench) -> None:
    """One exchange to many queues, each with several consumers."""
    await asyncio.sleep(BALANCED_S)
    ports, seconds = _ports(bench), 10 if bench.quick else 30
    declares = Declare(ports[0], 0, FANNED_QUEUES, 10, bound=True)
    await run_all([declares], lambda _: None)
    work = FanOut(ports, 0, FANNED_QUEUES, CONSUMERS, 20, seconds)
    row, outcomes = await _run(
        bench,
        "many fan-out",
        f"20 msgs/s to {FANNED_QUEUES} queues, {CONSUMERS:,} consumers; end to end",
        [work],
    )
    assert row.cost is not None
    each_ms = row.cost.nodes_cpu_s * 1000 / max(1, row.messages)
    row.detail = f"{each_ms:.2f} ms of CPU a delivery; {outcomes[0].extra['wanted']:,} wanted"
    row.goals = [Goal("p99 ≤ 100 ms", (row.p99_ms or 0) <= 100), Goal("≤ 0.15 ms", each_ms <= 0.15)]


async def unused(bench: Bench) -> None:
    """What nodes take that nobody uses."""
    await asyncio.sleep(BALANCED_S)
    seconds = UNUSED_S / 2 if bench.quick else UNUSED_S
    meter, before = Meter(bench.nodes.pids), cpu_s(bench.nodes.pids())
    await asyncio.sleep(seconds)
    share = (cpu_s(bench.nodes.pids()) - before) / seconds / len(bench.nodes.all) * 100
    bench.rows.append(
        Row(
            "many unused",
            f"three nodes without clients, {seconds:.0f} s",
            cost=meter.stop(),
            detail=f"{share:.2f} % of a core each",
            goals=[Goal("≤ 0.4 %", share <= 0.4)],
        )
    )
