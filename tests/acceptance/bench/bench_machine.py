"""What the queue machine costs: time of a batch, memory of a backlog.

Run it: `python -m tests.acceptance.bench.bench_machine`.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable

from cluster.machine import QueueMachine
from cluster.machine.commands import (
    CreateQueue,
    Enqueue,
    OpenSession,
    Purge,
    QueueConfig,
    Settle,
    Subscribe,
)
from cluster.machine.effects import Applied, Deliver
from cluster.types import ConsumerKey, NodeId, QueueId, SessionId, Stamp

Q = QueueId(1)
BODY = b"x" * 100
BATCH = [BODY] * 256
ONE = [BODY]


class Bench:
    def __init__(self, config: QueueConfig | None = None) -> None:
        self.machine = QueueMachine()
        self.index = 1
        self.apply(CreateQueue(Q, "/", "q", config or QueueConfig()))
        self.apply(OpenSession(SessionId("s"), NodeId("n"), 1))

    def apply(self, command: object) -> Applied:
        self.index += 1
        return self.machine.apply(Stamp(self.index, 1, 1_000 + self.index), command)

    def enqueue(self, bodies: list[bytes]) -> Applied:
        return self.apply(Enqueue(Q, None, 0, bodies))

    def named(self, bodies: list[bytes], seqno: int) -> Applied:
        return self.apply(Enqueue(Q, "publisher", seqno, bodies))

    def subscribe(self, credit: int) -> ConsumerKey:
        reply = self.apply(Subscribe(Q, SessionId("s"), "t", credit=credit)).reply
        return reply.consumer  # type: ignore[union-attr]

    def settle_all(self, applied: Applied, consumer: ConsumerKey) -> None:
        for effect in applied.effects:
            if isinstance(effect, Deliver):
                first = effect.chunks[0].first
                last = effect.chunks[-1].first + effect.chunks[-1].bodies.count - 1
                self.apply(Settle(Q, consumer, [(first, last)]))


def timed(name: str, work: Callable[[], object], *, rounds: int, messages: int = 1) -> float:
    """Best of seven, in microseconds a round."""
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(rounds):
            work()
        best = min(best, (time.perf_counter() - start) / rounds)
    print(f"{name:58} {best * 1e6:9.1f} us {messages / best:12,.0f} msgs/s")
    return best * 1e6


def speed(bodies: list[bytes]) -> None:
    count = len(bodies)
    bench = Bench()
    timed(
        f"enqueue {count}, nobody waits",
        lambda: bench.enqueue(bodies),
        rounds=500,
        messages=count,
    )
    bench.apply(Purge(Q))
    key = bench.subscribe(10_000)
    timed(
        f"enqueue {count}, deliver, settle",
        lambda: bench.settle_all(bench.enqueue(bodies), key),
        rounds=500,
        messages=count,
    )
    seqno = 1 - count

    def named() -> None:
        nonlocal seqno
        seqno += count
        bench.settle_all(bench.named(bodies, seqno), key)

    timed(f"the same from a named publisher, {count}", named, rounds=500, messages=count)


def speed_at(backlog: int, bodies: list[bytes]) -> None:
    """Does the cost of a batch grow with the backlog?"""
    bench = Bench()
    count = len(bodies)
    for _ in range(backlog // count):
        bench.enqueue(bodies)
    key = bench.subscribe(count)
    first = 1

    def turn() -> None:
        nonlocal first
        bench.enqueue(bodies)
        bench.apply(Settle(Q, key, [(first, first + count - 1)]))
        first += count

    timed(
        f"backlog {backlog:,} in {count}s: enqueue, settle, deliver",
        turn,
        rounds=300,
        messages=count,
    )


def memory() -> None:
    for count in (256, 1):
        gc.collect()
        tracemalloc.start()
        bench = Bench()
        bodies = [BODY] * count
        for _ in range(1_000_000 // count):
            bench.enqueue(bodies)
        size, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        start = time.perf_counter()
        data = bench.machine.snapshot()
        took = time.perf_counter() - start
        start = time.perf_counter()
        QueueMachine().restore(data)
        restored = time.perf_counter() - start
        start = time.perf_counter()
        bench.machine.digest()
        digest = time.perf_counter() - start
        start = time.perf_counter()
        bench.machine.live_indexes()
        live = time.perf_counter() - start
        print(
            f"1,000,000 ready in batches of {count}: {size / 1e6:.2f} MB (peak {peak / 1e6:.2f}),"
            f" snapshot {len(data) / 1e6:.2f} MB in {took * 1e3:.0f} ms,"
            f" restore {restored * 1e3:.0f} ms, live_indexes {live * 1e3:.0f} ms,"
            f" digest {digest * 1e3:.1f} ms"
        )


if __name__ == "__main__":
    for batch in (BATCH, ONE):
        speed(batch)
        for backlog in (1_000, 1_000_000):
            speed_at(backlog, batch)
    memory()
