"""`quorate publish`."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import quorate
from quorate import numbered
from quorate.cli.api import InVhost
from quorate.cli.output import CommandError, emit, human_rate, percentile, say
from quorate.cli.progress import Bar
from quorate.errors import QuorateError, Refused


@dataclass(frozen=True)
class What:
    """The messages of one call."""

    bodies: list[str]
    count: int
    size: int
    file: Path | None
    batch: int
    key: str | None
    priority: int | None
    ttl_ms: int | None

    def check(self) -> None:
        """One source of messages, not two."""
        if bool(self.bodies) + bool(self.count) + (self.file is not None) > 1:
            raise CommandError("give messages, --count or --file, not several of them", 2)

    def total(self) -> int | None:
        """How many, when that is known."""
        return self.count or len(self.bodies) or None

    def stream(self, run: str) -> Iterator[bytes]:
        if self.count:
            yield from numbered.bodies(run, 0, self.count, self.size)
        elif self.bodies:
            yield from (body.encode() for body in self.bodies)
        elif self.file is None or str(self.file) == "-":
            yield from (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        else:
            with self.file.open("rb") as lines:
                yield from (line.rstrip(b"\r\n") for line in lines)

    def begun(self, run: str) -> Iterator[bytes]:
        """With the first message at hand, so that nothing is made for none. CommandError."""
        messages = self.stream(run)
        try:
            first = None if self._nobody_types() else next(messages, None)
        except OSError as error:
            raise CommandError(f"{self.file} cannot be read: {error.strerror}", 2) from error
        if first is None:
            raise CommandError(
                "nothing to publish: give messages, --count N, or --file FILE"
                " (a pipe on standard input works too)",
                2,
            )
        return itertools.chain((first,), messages)

    def _nobody_types(self) -> bool:
        return self.total() is None and self.file is None and sys.stdin.isatty()


async def declare_if_missing(client: quorate.Client, queue: str) -> None:
    """So that a first publish works; what is made is said."""
    try:
        await client.info(queue)
    except Refused as refused:
        if refused.code != "no_queue":
            raise
        await client.declare(queue)
        say(f"queue {queue} did not exist: declared it, without arguments")


def run_publish(cluster: InVhost, queue: str, what: What) -> int:
    what.check()
    run = numbered.new_run()
    messages = what.begun(run)
    latencies_s: list[float] = []
    done = 0

    async def work(client: quorate.Client) -> tuple[quorate.Confirmed, float]:
        await declare_if_missing(client, queue)
        with Bar(f"publish to {queue}", what.total(), shown=not cluster.as_json) as bar:

            def confirmed(count: int, latency_s: float) -> None:
                nonlocal done
                done += count
                latencies_s.append(latency_s)
                bar.add(count)

            start_s = time.perf_counter()
            result = await _publish(client, queue, what, messages, confirmed)
            return result, time.perf_counter() - start_s

    try:
        result, span_s = cluster.client(work)
    except QuorateError:
        if done:
            say(f"{done:,} messages had been confirmed before this:")
        raise
    latencies_s.sort()
    p50_ms, p99_ms = (percentile(latencies_s, share) * 1000 for share in (0.5, 0.99))
    if cluster.as_json:
        emit(
            {
                "queue": queue,
                "confirmed": result.count,
                "duplicates": result.duplicates,
                "seconds": round(span_s, 6),
                "rate": round(result.count / span_s, 1) if span_s else None,
                "p50_ms": round(p50_ms, 3),
                "p99_ms": round(p99_ms, 3),
                "run": run if what.count else None,
            }
        )
    else:
        say(
            f"confirmed {result.count:,} messages in {span_s:.2f} s:"
            f" {human_rate(result.count, span_s)},"
            f" confirm p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms"
        )
    return 0


async def _publish(
    client: quorate.Client, queue: str, what: What, messages: Iterator[bytes], confirmed: Any
) -> quorate.Confirmed:
    options: dict[str, Any] = {
        "meta": {"key": what.key} if what.key is not None else None,
        "priority": what.priority,
        "ttl_ms": what.ttl_ms,
        "batch": what.batch,
        "on_confirm": confirmed,
    }
    return await client.publish_many(queue, messages, **options)
