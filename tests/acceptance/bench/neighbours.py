"""Two queues on one node: what the one takes from the other.

`cold`: how long messages of a queue take while a large backlog of another one is read from disk.
`shares`: what a consumer of a backlog and the publishers of another queue leave each other.
`large`: how long confirms of small messages take, and how long the event loop stands still, while
large bodies are published and delivered.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import aiohttp

from quorate.local import LocalNode
from tests.acceptance.bench.amqp_works import AmqpConsume, AmqpPublish
from tests.acceptance.bench.measure import Meter, forget_peak, percentile, rss_bytes
from tests.acceptance.bench.nodes import NodesError
from tests.acceptance.bench.probe import Probe
from tests.acceptance.bench.report import Goal, Row
from tests.acceptance.bench.runs import Bench
from tests.acceptance.bench.workers import Outcome, Work, run_all, worker

BACKLOG = 1_000_192
NEIGHBOUR_RATE = 500
NEIGHBOUR_S = 8
LAG = "quorate_event_loop_lag_seconds_bucket"
#: Nodes that have just met hand leaderships over to where they belong.
BALANCED_S = 8.0
SHARE_S = 4.0
#: More than a consumer takes in a second.
FILLED_A_S = 250_000
PUBLISHERS = 4
#: Of what each has alone, when both take all they can get.
SHARE_MIN = 0.4
MIB = 1 << 20
LARGE_SIZES = (64 * MIB, 128 * MIB)
LARGE_BODIES = 4
SMALL_RATE = 200
SMALL_S = 8.0
STANDSTILL_MS_MAX = 50.0


class Pair(NamedTuple):
    """Two queues that the same node leads."""

    one: str
    other: str
    node: LocalNode


@asynccontextmanager
async def two_queues(bench: Bench) -> AsyncGenerator[Pair]:
    count = len(bench.nodes.all) + 1
    async with bench.queues(count) as names:
        await asyncio.sleep(BALANCED_S)
        led: dict[str, str] = {}
        for name in names:
            node = await bench.nodes.leader(name)
            if node.name in led:
                yield Pair(led[node.name], name, node)
                return
            led[node.name] = name
    raise NodesError(f"of {count} queues no two have one leader")


async def lags(node: LocalNode) -> dict[float, float]:
    """How often the loop of the node was late by up to so many seconds."""
    async with aiohttp.ClientSession() as http, http.get(f"{node.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    found = [line for line in lines if line.startswith(LAG)]
    return {float(line.split('le="')[1].split('"')[0]): float(line.split()[-1]) for line in found}


def worst_lag(before: dict[float, float], after: dict[float, float]) -> str:
    """The bucket of the longest wait of the loop between the two."""
    last = 0.0
    for bound in sorted(after):
        counted = after[bound] - before.get(bound, 0)
        if counted >= after[float("inf")] - before.get(float("inf"), 0):
            return f"the loop was late by {last:g} to {bound:g} s at most"
        last = bound
    return "no lag was counted"


def forget_pages(node: LocalNode) -> int:
    """The log's files leave the page cache; bytes of them."""
    total = 0
    for path in sorted(node.folder.rglob("*.log")):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            total += os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    return total


# --- cold -----------------------------------------------------------------------------------------


async def cold(bench: Bench) -> None:
    """Publish to delivery of a quiet queue, alone and while a cold backlog is consumed."""
    large = bench.count(BACKLOG)
    async with two_queues(bench) as pair:
        port = [pair.node.amqp]
        count = NEIGHBOUR_RATE * NEIGHBOUR_S
        neighbour: list[Work] = [
            AmqpConsume(port, pair.other, count),
            AmqpPublish(port, pair.other, count, rate=NEIGHBOUR_RATE),
        ]
        await run_all([AmqpPublish(port, pair.one, large)], lambda _: None)
        alone = await _neighbour(bench, pair, "alone", neighbour)
        for what, prefetch, every in (
            ("with prefetch 300", 300, 100),
            ("without prefetch", 0, 100),
            ("auto-ack", 0, 0),
        ):
            forget_pages(pair.node)
            reader = AmqpConsume(port, pair.one, large, prefetch=prefetch, ack_every=every)
            beside = await _neighbour(
                bench,
                pair,
                f"beside a cold backlog of {large:,} read {what}",
                [*neighbour, reader],
            )
            times = (beside.p99_ms or 0) / (alone.p99_ms or 1)
            beside.detail = f"p99 x {times:.2f}; {beside.detail}"
            await run_all([AmqpPublish(port, pair.one, large)], lambda _: None)


async def _neighbour(bench: Bench, pair: Pair, what: str, works: Sequence[Work]) -> Row:
    before = await lags(pair.node)
    outcomes, cost = await bench.run(works)
    latencies = outcomes[0].latencies_ms
    row = Row(
        "amqp cold",
        f"a neighbour at {NEIGHBOUR_RATE} msgs/s, {what}; latency is end to end",
        messages=outcomes[0].count,
        rate=_rate(outcomes[0]),
        p50_ms=percentile(latencies, 50),
        p99_ms=percentile(latencies, 99),
        cost=cost,
        detail=f"longest {max(latencies):.0f} ms; {worst_lag(before, await lags(pair.node))}",
    )
    if len(outcomes) > len(("consumer", "publisher")):
        row.detail += f"; the backlog at {_rate(outcomes[-1]):,.0f} msgs/s"
    bench.rows.append(row)
    return row


def _rate(outcome: Outcome) -> float:
    return outcome.count / (outcome.end_s - outcome.start_s)


# --- shares ---------------------------------------------------------------------------------------


async def shares(bench: Bench) -> None:
    """A consumer of a backlog, and publishers of another queue: alone, and beside each other."""
    seconds = SHARE_S / 2 if bench.quick else SHARE_S
    async with two_queues(bench) as pair:
        port = [pair.node.amqp]
        flood = AmqpPublish(port, pair.other, 0, connections=PUBLISHERS)
        (published,) = await _for(bench, pair, f"{PUBLISHERS} publishers, alone", [flood], seconds)
        for name, prefetch, every in (
            ("prefetch 20", 20, 1),
            ("prefetch 200", 200, 1),
            ("auto-ack", 0, 0),
        ):
            consumer = AmqpConsume(port, pair.one, 0, prefetch=prefetch, ack_every=every)
            await _fill(pair, seconds)
            (alone,) = await _for(bench, pair, f"{name}, alone", [consumer], seconds)
            for beside, rate in (("2,000 publishes/s", 2000), ("publishers at full speed", 0)):
                work = AmqpPublish(port, pair.other, 0, rate=rate) if rate else flood
                await _fill(pair, seconds)
                ours, theirs = await _for(
                    bench, pair, f"{name}, beside {beside}", [consumer, work], seconds
                )
                row = bench.rows[-1]
                share, other = ours / alone, theirs / (rate or published)
                row.detail = f"consumer x {share:.2f}, publishers x {other:.2f}; {row.detail}"
                row.figures = {"consumer": share, "publishers": other}
                if not rate:
                    row.goals = [Goal(f"each ≥ x {SHARE_MIN}", min(share, other) >= SHARE_MIN)]


async def _fill(pair: Pair, seconds: float) -> None:
    """What a consumer cannot drain in this time."""
    count = round(FILLED_A_S * seconds)
    await run_all([AmqpPublish([pair.node.amqp], pair.one, count)], lambda _: None)


async def _for(
    bench: Bench, pair: Pair, what: str, works: Sequence[Work], seconds: float
) -> list[float]:
    """So long, all at once; messages a second of each."""
    before, meter = await lags(pair.node), Meter(bench.nodes.pids)
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(worker(work, lambda _: None)) for work in works]
        for each in started:
            await each.ready.wait()
        await asyncio.sleep(seconds)
        for each in started:
            each.close_input()
        outcomes = [await each.result() for each in started]
    rates = [_rate(outcome) for outcome in outcomes]
    bench.rows.append(
        Row(
            "amqp shares",
            what,
            messages=sum(outcome.count for outcome in outcomes),
            rate=rates[0],
            cost=meter.stop(),
            detail=worst_lag(before, await lags(pair.node)),
        )
    )
    return rates


# --- large ----------------------------------------------------------------------------------------


class Calm(NamedTuple):
    """Without large bodies: the slowest of a hundred confirms in each group, and what each node
    had in memory.
    """

    p99_ms: list[float]
    held_bytes: list[int]


async def large(bench: Bench) -> None:
    """Small messages in the group of the large bodies and in another one of the same leader."""
    bodies = 2 if bench.quick else LARGE_BODIES
    async with two_queues(bench) as pair:
        group = str((await bench.nodes.about(pair.one))["group"])
        async with bench.queues(1, group) as (beside,):
            queues = (beside, pair.other)
            calm = await _beside(bench, pair, queues, "no large body")
            for size in LARGE_SIZES:
                ports = [pair.node.amqp]
                works: list[tuple[str, Work]] = [
                    ("published", AmqpPublish(ports, pair.one, bodies, size, window=1)),
                    ("delivered", AmqpConsume(ports, pair.one, bodies, prefetch=1)),
                ]
                for what, work in works:
                    about = f"{bodies} bodies of {size // MIB} MiB {what}"
                    now = await _beside(bench, pair, queues, about, work)
                    _compare(bench.rows[-1], calm, now, size)


async def _beside(
    bench: Bench, pair: Pair, queues: Sequence[str], what: str, work: Work | None = None
) -> Calm:
    """Confirms of small messages, and answers of the nodes, until the work is done."""
    nodes = [pair.node, *[node for node in bench.nodes.all if node is not pair.node]]
    pids = [node.pid for node in nodes if node.pid is not None]
    small = [AmqpPublish([pair.node.amqp], queue, 0, rate=SMALL_RATE) for queue in queues]
    probes = [Probe(node.amqp, pid) for node, pid in zip(nodes, pids, strict=True)]
    before, meter = await lags(pair.node), Meter(bench.nodes.pids)
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(worker(each, _quiet)) for each in small + probes]
        for each in started:
            await each.ready.wait()
        for pid in pids:
            forget_peak(pid)
        if work is None:
            await asyncio.sleep(SMALL_S)
            rate = None
        else:
            rate = _rate((await run_all([work], _quiet))[0])
        peaks = [rss_bytes(pid, peak=True) for pid in pids]
        for each in started:
            each.close_input()
        outcomes = [await each.result() for each in started]
    confirms, answers = outcomes[: len(small)], outcomes[len(small) :]
    now = Calm([percentile(each.latencies_ms, 99) for each in confirms], peaks)
    own = [max(each.extra["own_ms"]) for each in answers]
    row = Row(
        "amqp large",
        f"{what}; confirms of small messages in the same group",
        messages=confirms[0].count,
        rate=_rate(confirms[0]),
        p50_ms=percentile(confirms[0].latencies_ms, 50),
        p99_ms=now.p99_ms[0],
        cost=meter.stop(),
        figures={
            "nodes": [node.name for node in nodes],  # the leader first
            "other_group_p99_ms": now.p99_ms[1],
            "standstill_ms": own,
            "answer_ms_max": [max(each.latencies_ms) for each in answers],
            "bodies_a_s": rate,
            "peak_bytes": peaks,
        },
    )
    row.detail = (
        f"in another group p99 {now.p99_ms[1]:.1f} ms; the loop of the leader stood still for "
        f"{own[0]:.0f} ms at most, of a follower for {max(own[1:]):.0f}; with waits for a core "
        f"{worst_lag(before, await lags(pair.node))}"
    )
    bench.rows.append(row)
    return now


def _compare(row: Row, calm: Calm, now: Calm, size: int) -> None:
    times = [ours / alone for ours, alone in zip(now.p99_ms, calm.p99_ms, strict=True)]
    peaks = zip(now.held_bytes, calm.held_bytes, strict=True)
    grown = [(peak - held) / size for peak, held in peaks]
    rate = row.figures["bodies_a_s"] * size / MIB
    own = max(row.figures["standstill_ms"])
    row.figures |= {"p99_times": times, "memory_times": grown}
    row.detail = (
        f"p99 x {times[0]:.1f}, in another group x {times[1]:.1f}; {rate:.0f} MiB/s; memory of the "
        f"leader + {grown[0]:.2f} bodies, of a follower + {max(grown[1:]):.2f}; {row.detail}"
    )
    row.goals = [Goal(f"loop ≤ {STANDSTILL_MS_MAX:.0f} ms", own <= STANDSTILL_MS_MAX)]


def _quiet(_: int) -> None: ...
