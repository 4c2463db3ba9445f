"""What is measured of a broker: each workload as a function from it to figures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from tests.acceptance.bench.amqp_works import PREFETCH, AmqpConsume, AmqpPublish
from tests.acceptance.bench.compare.brokers import (
    BALANCED_S,
    AmqpContender,
    Contender,
    Quorate,
)
from tests.acceptance.bench.measure import Meter, cpu_s, percentile
from tests.acceptance.bench.workers import Outcome, Publish, Work, run_all, worker

KIB = 1024
WINDOW = 1000
LARGE_WINDOW = 100
KEYS = 10
RATE_SLOW = 500
QUEUES_BUSY, RATE_A_QUEUE = 1000, 10
FANNED, FANNED_RATE, CONSUMERS = 100, 20, 3000
BATCH, BATCHES = 256, 16
SINGLES = 256
#: By name: "messages", "rate" a second, "p50_ms", "p99_ms", "cpu_us" of the three nodes for a
#: message, "others_percent" of the machine taken by what is neither the nodes nor the clients.
Figures = dict[str, float]
#: What a row of the table does at one broker.
Run = Callable[[Any, "Scale"], Awaitable[Figures]]


@dataclass(frozen=True)
class Scale:
    """How long a run lasts and how much there is of what is declared or consumed."""

    seconds: float = 5.0
    consumed: int = 200_000
    queues: int = 10_000
    streams: int = 1_000
    idle_s: float = 15.0


FULL = Scale()
QUICK = Scale(seconds=2.5, consumed=60_000, queues=2_000, streams=200, idle_s=6.0)


async def load(works: Sequence[Work], seconds: float) -> list[Outcome]:
    """Clients without a count: all at once, and so long. The first ends last."""
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(worker(work, lambda _: None)) for work in works]
        for each in started:
            await each.ready.wait()
        await asyncio.sleep(seconds)
        for each in started[1:]:
            each.close_input()
        later = [await each.result() for each in started[1:]]
        started[0].close_input()
        return [await started[0].result(), *later]


async def metered(
    broker: Contender, works: Sequence[Work], seconds: float = 0
) -> tuple[list[Outcome], Figures]:
    """`seconds` 0: until each has its count. Rate, latency and CPU are by the first client's
    messages.
    """
    meter = Meter(broker.pids)
    outcomes = await (load(works, seconds) if seconds else run_all(works, lambda _: None))
    cost = meter.stop()
    first = outcomes[0]
    if refused := sum(outcome.extra.get("refused", 0) for outcome in outcomes):
        raise RuntimeError(f"{broker.name}: {refused} publishes were refused")
    timed = {
        f"p{percent}_ms": percentile(first.latencies_ms, percent)
        for percent in ((50, 99) if first.latencies_ms else ())
    }
    return outcomes, {
        "messages": first.count,
        "rate": first.count / (first.end_s - first.start_s),
        **timed,
        "cpu_us": 1e6 * cost.nodes_cpu_s / max(first.count, 1),
        "others_percent": cost.others_percent + cost.steal_percent,
    }


# --- beside RabbitMQ ------------------------------------------------------------------------------


async def publish(
    broker: AmqpContender,
    scale: Scale,
    *,
    size: int = 100,
    window: int = WINDOW,
    varied: bool = False,
    follower: bool = False,
) -> Figures:
    """One publisher, with its window unconfirmed."""
    async with broker.queues(exchange_keys=KEYS if varied else 0) as (place,):
        port = place.follower if follower else place.leader
        work = AmqpPublish([port], place.queue, 0, size, window)
        if varied:
            work = AmqpPublish(
                [port], place.queue, 0, window=window, exchange=place.queue, keys=KEYS, varied=True
            )
        _, figures = await metered(broker, [work], scale.seconds)
    return figures


async def publish_large(broker: AmqpContender, scale: Scale, *, publishers: int = 1) -> Figures:
    """64 KiB, each publisher to a queue of its own."""
    async with broker.queues(publishers) as places:
        works = [
            AmqpPublish([place.leader], place.queue, 0, 64 * KIB, LARGE_WINDOW) for place in places
        ]
        outcomes, figures = await metered(broker, works, scale.seconds)
    total = sum(outcome.count for outcome in outcomes)
    figures["rate"] = sum(o.count / (o.end_s - o.start_s) for o in outcomes)
    figures["cpu_us"] *= outcomes[0].count / total
    return figures


async def consume(broker: AmqpContender, scale: Scale) -> Figures:
    """What is there already, acked by the hundred."""
    async with broker.queues() as (place,):
        fill = AmqpPublish([place.leader], place.queue, scale.consumed)
        await run_all([fill], lambda _: None)
        work = AmqpConsume([place.leader], place.queue, scale.consumed, ack_every=100)
        _, figures = await metered(broker, [work])
    del figures["p50_ms"], figures["p99_ms"]  # the age of what waited
    return figures


async def both(
    broker: AmqpContender, scale: Scale, *, rate: float = 0, prefetch: int = PREFETCH
) -> Figures:
    """Published and consumed at once; latency is end to end."""
    async with broker.queues() as (place,):
        port = [place.leader]
        works: list[Work] = [
            AmqpConsume(port, place.queue, 0, prefetch, ack_every=1 if rate else 100),
            AmqpPublish(port, place.queue, 0, rate=rate),
        ]
        _, figures = await metered(broker, works, 2 * scale.seconds if rate else scale.seconds)
    return figures


# --- many of something: Quorate alone ------------------------------------------------------------


async def thousand_queues(broker: AmqpContender, scale: Scale) -> Figures:
    """Ten messages a second to each."""
    async with broker.many(QUEUES_BUSY) as (prefix, _):
        work = AmqpPublish(
            broker.ports()[:1],
            prefix,
            0,
            window=WINDOW,
            rate=QUEUES_BUSY * RATE_A_QUEUE,
            connections=10,
            keys=QUEUES_BUSY,
        )
        _, figures = await metered(broker, [work], 2 * scale.seconds)
    return figures


async def idle_queues(broker: AmqpContender, scale: Scale) -> Figures:
    """How fast they are declared; 500/s end to end without them, and beside them when they have
    been idle for a while: snapshots of so many declares are over.
    """
    without = await both(broker, scale, rate=RATE_SLOW)
    async with broker.many(scale.queues) as (_, declares_a_s):
        await asyncio.sleep(BALANCED_S)
        beside = await both(broker, scale, rate=RATE_SLOW)
    return {
        **beside,
        "declares": declares_a_s,
        "p99_without_ms": without["p99_ms"],
        "p99_times": beside["p99_ms"] / without["p99_ms"],
    }


async def fan_out(broker: AmqpContender, scale: Scale) -> Figures:
    """One message goes to each queue, which consumers of all connections have in turn."""
    async with broker.many(FANNED, fanout=True) as (prefix, _):
        port = broker.ports()[:1]
        works: list[Work] = [
            AmqpConsume(port, prefix, 0, queues=FANNED, connections=CONSUMERS // FANNED),
            AmqpPublish(port, prefix, 0, rate=FANNED_RATE, exchange=prefix),
        ]
        _, figures = await metered(broker, works, 2 * scale.seconds)
    return figures


# --- our own protocol ----------------------------------------------------------------------------


async def native(
    broker: Quorate, scale: Scale, *, batch: int = 1, window: int = SINGLES
) -> Figures:
    """The Python client: so many messages a call, so many calls at a time."""
    async with broker.queues() as (place,):
        work = Publish(broker.nodes.urls, place.queue, 0, 100, batch, window)
        _, figures = await metered(broker, [work], scale.seconds)
    return figures


async def idle(broker: Contender, scale: Scale) -> Figures:
    """Percent of a core that a node takes when nobody uses it."""
    before, start_s = cpu_s(broker.pids()), time.monotonic()
    await asyncio.sleep(scale.idle_s)
    spent = cpu_s(broker.pids()) - before
    return {"percent": 100 * spent / (time.monotonic() - start_s) / len(broker.pids())}
