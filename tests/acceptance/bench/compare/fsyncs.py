"""How often processes ask the disk to sync, counted by strace: they are slower meanwhile."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

SYSCALLS = ("fsync", "fdatasync", "sync_file_range", "msync")
ATTACHED_S_MAX = 20.0
END_S_MAX = 30.0


class TraceError(Exception):
    """strace cannot follow these processes; the text is its own."""


@asynccontextmanager
async def counted(pids: Sequence[int]) -> AsyncGenerator[list[int]]:
    """How often each process synced, in the list when the context has ended."""
    found: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder) / str(pid) for pid in pids]
        tracers: list[asyncio.subprocess.Process] = []
        try:
            for pid, report in zip(pids, reports, strict=True):
                tracers.append(await _attach(pid, report))
            yield found
        finally:
            for tracer in tracers:
                if tracer.returncode is None:
                    tracer.send_signal(signal.SIGINT)
            for tracer in tracers:
                async with asyncio.timeout(END_S_MAX):
                    await tracer.wait()
        found += [_total(report.read_text()) for report in reports]


async def _attach(pid: int, report: Path) -> asyncio.subprocess.Process:
    tracer = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-c", "-U", "calls,name", "-e", f"trace={','.join(SYSCALLS)}"),
        *("-o", str(report), "-p", str(pid)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert tracer.stderr is not None
    async with asyncio.timeout(ATTACHED_S_MAX):
        first = (await tracer.stderr.readline()).decode()
    if "attached" not in first:
        await tracer.wait()
        raise TraceError(first.strip())
    return tracer


def _total(report: str) -> int:
    """Of a table whose columns are the number of calls and their name."""
    rows = [line.split() for line in report.splitlines()]
    return sum(int(row[0]) for row in rows if len(row) == 2 and row[1] in SYSCALLS)
