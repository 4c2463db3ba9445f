"""How fast the log is on this machine: `python -m tests.acceptance.bench.bench_log [FOLDER]`."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time

from cluster.log import Log, LogIdentity, LogOptions, RealDisk, SystemClock

BODY = b"\0" + b"0123456789abcde\n" * 1600  # 25.6 KB: a batch of 256 messages of 100 bytes
SMALL = b"\0" + b"x" * 99


async def opened(folder: str) -> Log:
    return await Log.open(
        folder,
        disk=RealDisk(),
        clock=SystemClock(),
        identity=LogIdentity("bench", "bench"),
        options=LogOptions(),
    )


async def append(folder: str, *, entries: int, a_round: int) -> None:
    log = await opened(folder)
    journal = log.journal(1)
    syncs = list[float]()
    started = time.perf_counter()
    for index in range(2, entries + 2):
        journal.add(BODY, index, 1)
        if index % a_round == 0:
            log.write()
            syncs.append(await log.sync())
    log.write()
    await log.sync()
    seconds = time.perf_counter() - started
    rate = entries / seconds
    print(
        f"append 25.6 KB, {a_round:3} a round: {rate:8.0f} entries/s"
        f" {rate * len(BODY) / 1e6:6.0f} MB/s"
        f"  {rate * 256:10.0f} messages/s  sync p50 {sorted(syncs)[len(syncs) // 2] * 1e6:.0f} us"
    )
    await log.close()


async def add_only(folder: str, *, entries: int) -> None:
    log = await opened(folder)
    journal = log.journal(1)
    adding = 0.0
    for first in range(2, entries + 2, 1000):
        started = time.perf_counter()
        for index in range(first, first + 1000):
            journal.add(SMALL, index, 1)
        adding += time.perf_counter() - started
        log.write()
    print(f"add() of 100 bytes: {adding / entries * 1e6:.2f} us")
    await log.close()


async def recover(folder: str, what: str) -> None:
    started = time.perf_counter()
    log = await opened(folder)
    seconds = time.perf_counter() - started
    size = sum(segment.size for segment in log.wal.segments.values())
    print(
        f"recovery of {what}: {log.recovered_records / seconds:,.0f} records/s"
        f" {size / seconds / 1e6:,.0f} MB/s"
    )
    await log.close()


async def main(base: str | None) -> None:
    folder = tempfile.mkdtemp(prefix="quorate-bench-", dir=base)
    try:
        for a_round in (1, 8, 64):
            await append(f"{folder}/large-{a_round}", entries=8000, a_round=a_round)
        await recover(f"{folder}/large-64", "25.6 KB entries")
        await add_only(f"{folder}/small", entries=1_000_000)
        await recover(f"{folder}/small", "1,000,000 entries of 100 bytes")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
