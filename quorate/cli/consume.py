"""`quorate consume`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import quorate
from quorate.cli.api import InVhost
from quorate.cli.output import emit, human_rate, say
from quorate.cli.progress import Bar
from quorate.numbered import SequenceCheck

IDLE_S_DEFAULT = 10.0
#: Without --print or --quiet, bodies are written when no more than this many are asked for.
PRINTED_BY_DEFAULT_MAX = 20


@dataclass(frozen=True)
class How:
    """Options of one call."""

    count: int | None
    show: bool | None
    batch: bool
    credit: int
    idle_s: float | None
    keep: bool

    def limit_s(self) -> float | None:
        """Seconds without a message after which it ends."""
        if self.idle_s is None and self.count is not None:
            return IDLE_S_DEFAULT
        return self.idle_s

    def prints(self) -> bool:
        if self.show is None:
            return self.count is not None and self.count <= PRINTED_BY_DEFAULT_MAX
        return self.show


class _Run:
    """One consumption: what came, and when."""

    def __init__(self, how: How, *, as_json: bool) -> None:
        self.how = how
        self.as_json = as_json
        self.sequence = SequenceCheck()
        self.redelivered = 0
        self.first_at_s = self.last_at_s = 0.0
        self.stopped = asyncio.Event()

    def left(self) -> int | None:
        return None if self.how.count is None else self.how.count - self.sequence.received

    def take(self, deliveries: list[quorate.Delivery]) -> None:
        """Count and show them."""
        for delivery in deliveries:
            self.sequence.add((delivery.body,), redelivered=delivery.redelivered)
            self.redelivered += delivery.redelivered
            if self.how.prints():
                self.show(delivery)

    def show(self, delivery: quorate.Delivery) -> None:
        if self.as_json:
            emit(
                {
                    "position": delivery.position,
                    "body": delivery.body,
                    "redelivered": delivery.redelivered,
                    "meta": dict(delivery.meta),
                }
            )
        else:
            sys.stdout.buffer.write(delivery.body + b"\n")
            sys.stdout.flush()

    async def batches(self, client: quorate.Client, queue: str, bar: Bar) -> None:
        """Until enough came, nothing comes, or Ctrl-C."""
        how = self.how
        credit = min(how.credit, how.count) if how.keep and how.count else how.credit
        async with client.consume(queue, credit=credit) as consumer:
            batches = consumer.batches(min(how.count or 1_000, 1_000) if how.batch else 1)
            ended = asyncio.ensure_future(self.stopped.wait())
            try:
                while self.left() != 0 and not ended.done():
                    batch = await self._next(batches, ended)
                    if batch is None:
                        break
                    self.last_at_s = time.perf_counter()
                    self.first_at_s = self.first_at_s or self.last_at_s
                    await self._handle(batch, bar)
            finally:
                ended.cancel()
            await consumer.flush()

    async def _next(self, batches: Any, ended: asyncio.Future[Any]) -> quorate.Batch | None:
        following = asyncio.ensure_future(anext(batches))
        await asyncio.wait(
            (following, ended),
            timeout=self.how.limit_s(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if following.done():
            return following.result()
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        return None

    async def _handle(self, batch: quorate.Batch, bar: Bar) -> None:
        left = self.left()
        if self.how.batch and (left is None or len(batch) <= left):
            if self.how.prints():
                self.take(list(batch.deliveries))
            else:
                for chunk in batch.chunks:
                    again = chunk.acquired_count > 0
                    self.sequence.add(chunk.bodies, redelivered=again)
                    self.redelivered += len(chunk.bodies) * again
            bar.add(len(batch))
            if not self.how.keep:
                await batch.settle()
            return
        for delivery in batch.deliveries:
            if self.left() == 0:
                return  # goes back when the consumer ends
            self.take([delivery])
            bar.add(1)
            if not self.how.keep:
                await delivery.settle()


def run_consume(cluster: InVhost, queue: str, how: How) -> int:
    async def work(client: quorate.Client) -> _Run:
        run = _Run(how, as_json=cluster.as_json)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, run.stopped.set)
        shown = not cluster.as_json and not how.prints()
        with Bar(f"consume {queue}", how.count, shown=shown) as bar:
            await run.batches(client, queue, bar)
        return run

    run = cluster.client(work)
    return report(queue, run)


def report(queue: str, run: _Run) -> int:
    """What came, and what did not."""
    sequence, how = run.sequence, run.how
    span_s = run.last_at_s - run.first_at_s
    short = max(0, (how.count or 0) - sequence.received)
    missing = sequence.missing + (0 if run.stopped.is_set() else max(0, short - sequence.missing))
    if run.as_json:
        emit(
            {
                "queue": queue,
                "consumed": sequence.received,
                "seconds": round(span_s, 6),
                "rate": round(sequence.received / span_s, 1) if span_s else None,
                "missing": missing,
                "duplicates": sequence.duplicates,
                "out_of_order": sequence.out_of_order,
                "redelivered": run.redelivered,
                "numbered": sequence.received - sequence.foreign,
            }
        )
    else:
        say(
            f"consumed {sequence.received:,} messages in {span_s:.2f} s:"
            f" {human_rate(sequence.received, span_s)}"
        )
        if sequence.numbered or missing:
            say(
                f"missing {missing:,}, duplicates {sequence.duplicates:,},"
                f" out of order {sequence.out_of_order:,}, redelivered {run.redelivered:,}"
            )
    if missing and not run.as_json:
        say(
            f"quorate: {missing:,} messages did not come: `quorate queue show {queue}`"
            " tells what it still holds"
        )
    return 1 if missing else 0
