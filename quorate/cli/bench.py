"""`quorate bench`: a quick look, through the client."""

from __future__ import annotations

import time
from typing import Any

import quorate
from quorate import numbered
from quorate.cli.api import Cluster
from quorate.cli.output import emit, percentile, stdout
from quorate.cli.progress import Bar
from quorate.numbered import SequenceCheck

LATENCY_SAMPLES = 300


def run_bench(cluster: Cluster, count: int, size: int, batch: int) -> int:
    run = numbered.new_run()

    async def work(client: quorate.Client) -> list[dict[str, Any]]:
        queue = f"bench-{run}"
        await client.declare(queue)
        try:
            return [
                await _publish(client, queue, run, count, size, batch, shown=not cluster.as_json),
                await _consume(client, queue, count, shown=not cluster.as_json),
                await _latency(client, queue, size),
            ]
        finally:
            await client.delete(queue)

    rows = cluster.client(work)
    if cluster.as_json:
        for row in rows:
            emit(row)
    else:
        _show(rows)
    return 1 if any(row.get("missing") for row in rows) else 0


async def _publish(
    client: quorate.Client,
    queue: str,
    run: str,
    count: int,
    size: int,
    batch: int,
    *,
    shown: bool,
) -> dict[str, Any]:
    latencies_s: list[float] = []
    with Bar("publish", count, shown=shown) as bar:

        def confirmed(number: int, latency_s: float) -> None:
            latencies_s.append(latency_s)
            bar.add(number)

        start_s = time.perf_counter()
        await client.publish_many(
            queue, numbered.bodies(run, 0, count, size), batch=batch, on_confirm=confirmed
        )
        span_s = time.perf_counter() - start_s
    return _row(f"publish, batches of {batch}", count, span_s, latencies_s)


async def _consume(
    client: quorate.Client, queue: str, count: int, *, shown: bool
) -> dict[str, Any]:
    sequence = SequenceCheck()
    with Bar("consume", count, shown=shown) as bar:
        start_s = time.perf_counter()
        async with client.consume_batches(queue, credit=8_192) as consumer:
            async for batch in consumer:
                sequence.add(batch.bodies)
                await batch.settle()
                bar.add(len(batch))
                if sequence.received >= count:
                    break
            await consumer.flush()
        span_s = time.perf_counter() - start_s
    row = _row("consume and settle", count, span_s, [])
    return {**row, "missing": sequence.missing, "duplicates": sequence.duplicates}


async def _latency(client: quorate.Client, queue: str, size: int) -> dict[str, Any]:
    latencies_s: list[float] = []
    start_s = time.perf_counter()
    for _ in range(LATENCY_SAMPLES):
        sent_s = time.perf_counter()
        await client.publish(queue, bytes(size))
        latencies_s.append(time.perf_counter() - sent_s)
    span_s = time.perf_counter() - start_s
    return _row("publish, one at a time", LATENCY_SAMPLES, span_s, latencies_s)


def _row(what: str, count: int, span_s: float, latencies_s: list[float]) -> dict[str, Any]:
    latencies_s.sort()
    return {
        "run": what,
        "messages": count,
        "seconds": round(span_s, 6),
        "rate": round(count / span_s, 1),
        "p50_ms": round(percentile(latencies_s, 0.5) * 1000, 3) if latencies_s else None,
        "p99_ms": round(percentile(latencies_s, 0.99) * 1000, 3) if latencies_s else None,
    }


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("run", "messages", "msgs/s", "p50 ms", "p99 ms", "missing")
    for row in rows:
        table.add_row(
            row["run"],
            f"{row['messages']:,}",
            f"{row['rate']:,.0f}",
            "-" if row["p50_ms"] is None else f"{row['p50_ms']:.2f}",
            "-" if row["p99_ms"] is None else f"{row['p99_ms']:.2f}",
            str(row.get("missing", "-")),
        )
    stdout().print(table)
