"""One client of a benchmark, in a process of its own: says how far it is, then what it measured.

Started with a JSON description of the work; writes JSON lines.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import sys
import time
from dataclasses import asdict
from typing import Any

import uvloop

import quorate
from tests.acceptance.bench.workers import Consume, Outcome, Publish

HEAD = struct.Struct("<QQ")  # number, monotonic ns when it was made
SAY_EVERY_S = 0.2
TIMEOUT_S = 120.0
SAMPLED_ALL_MAX = 16  # of a larger chunk only the first and the last are looked at


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


class Progress:
    """Says now and then how many are done."""

    def __init__(self) -> None:
        self.done = 0
        self._next_s = 0.0

    def add(self, count: int) -> None:
        self.done += count
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + SAY_EVERY_S
            say({"done": self.done})


class Publishing:
    def __init__(self, work: Publish) -> None:
        self.work = work
        self.pad = b"x" * max(0, work.size - HEAD.size)
        self.latencies_ms: list[float] = []
        self.confirmed: list[tuple[int, float, float]] = []
        self.progress = Progress()
        self.stopping = False
        self.started = 0
        self.numbers = itertools.count()

    def bodies(self, count: int) -> tuple[int, list[bytes]]:
        now_ns = time.monotonic_ns()
        first = next(self.numbers)
        numbers = [first, *itertools.islice(self.numbers, count - 1)]
        return first, [HEAD.pack(number, now_ns) + self.pad for number in numbers]

    def left(self) -> int:
        """Messages of the next batch; 0 when all are published."""
        if self.stopping:
            return 0
        if not self.work.count:
            return self.work.batch
        return min(self.work.batch, self.work.count - self.started)

    async def one(self, publisher: quorate.Publisher, count: int) -> None:
        self.started += count
        first, bodies = self.bodies(count)
        sent_s = time.monotonic()
        if self.work.batch == 1:
            await publisher.publish(bodies[0], timeout=TIMEOUT_S)
        else:
            await publisher.publish_many(bodies, batch=count, timeout=TIMEOUT_S)
        now_s = time.monotonic()
        self.latencies_ms.append((now_s - sent_s) * 1000)
        if self.work.times:
            self.confirmed.append((first, sent_s, now_s))
        self.progress.add(count)

    async def flat_out(self, publisher: quorate.Publisher) -> None:
        """As fast as confirms come, with a window of batches."""

        async def lane() -> None:
            while count := self.left():
                await self.one(publisher, count)

        async with asyncio.TaskGroup() as group:
            for _ in range(self.work.window):
                group.create_task(lane())

    async def paced(self, publisher: quorate.Publisher) -> None:
        """At a rate, unless more than a window are unconfirmed."""
        slots = asyncio.Semaphore(self.work.window)

        async def one(count: int) -> None:
            try:
                await self.one(publisher, count)
            finally:
                slots.release()

        due_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not self.stopping and (not self.work.count or self.started < self.work.count):
                await slots.acquire()
                group.create_task(one(self.work.batch))
                due_s = max(due_s + self.work.batch / self.work.rate, time.monotonic() - 0.1)
                # Even when late: the message that was just made must be on its way.
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    async def run(self) -> Outcome:
        work = self.work
        async with quorate.connect(work.urls) as client:
            # A new queue knows no publisher: the first number is 1.
            publisher = client.publisher(work.queue, name=work.publisher, next_seqno=1)
            say({"done": 0})
            start_s = time.monotonic()
            watch = None if work.count else asyncio.create_task(self.until_told())
            await (self.paced(publisher) if work.rate else self.flat_out(publisher))
            end_s = time.monotonic()
            if watch:
                await watch
        extra = {"confirmed": self.confirmed} if work.times else {}
        return Outcome(self.progress.done, start_s, end_s, self.latencies_ms, extra)

    async def until_told(self) -> None:
        await asyncio.to_thread(sys.stdin.read)
        self.stopping = True


async def consume(work: Consume) -> Outcome:
    latencies_ms: list[float] = []
    numbers: list[int] = []
    progress = Progress()
    start_s = end_s = 0.0
    async with quorate.connect(work.urls) as client:
        say({"done": 0})
        start_s = time.monotonic()
        async with client.consume_batches(work.queue, credit=work.credit) as consumer:
            while progress.done < work.count:
                try:
                    async with asyncio.timeout(work.idle_s):
                        batch = await anext(consumer)
                except TimeoutError:
                    break
                now_ns = time.monotonic_ns()
                for chunk in batch.chunks:
                    bodies = chunk.bodies
                    sample = bodies if len(bodies) <= SAMPLED_ALL_MAX else (bodies[0], bodies[-1])
                    latencies_ms += [(now_ns - HEAD.unpack_from(b)[1]) / 1e6 for b in sample]
                    if work.numbers:
                        numbers += [HEAD.unpack_from(body)[0] for body in bodies]
                if work.one_by_one:
                    for delivery in batch.deliveries:
                        await delivery.settle()
                else:
                    await batch.settle()
                progress.add(len(batch))
            await consumer.flush()
            end_s = time.monotonic()
    return Outcome(
        progress.done, start_s, end_s, latencies_ms, {"numbers": numbers} if work.numbers else {}
    )


def main() -> None:
    fields = json.loads(sys.argv[1])
    work = Publish(**fields) if fields["verb"] == "publish" else Consume(**fields)
    run = Publishing(work).run() if isinstance(work, Publish) else consume(work)
    say(asdict(uvloop.run(run)))


if __name__ == "__main__":
    main()
