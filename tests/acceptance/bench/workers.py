"""Starts clients as processes of their own, and collects what they measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from tests.acceptance.bench.nodes import NodesError

WORKER_S_MAX = 600.0
LINE_BYTES_MAX = 256 * 1024 * 1024


class Work(Protocol):
    """What a client process is to do. It writes lines as `tests.acceptance.bench.worker` does."""

    @property
    def count(self) -> int: ...
    def command(self) -> list[str]: ...


def _command(work: Publish | Consume) -> list[str]:
    return [sys.executable, "-m", "tests.acceptance.bench.worker", json.dumps(asdict(work))]


@dataclass(frozen=True)
class Publish:
    """One publisher. It keeps `window` batches unconfirmed, or `rate` messages a second."""

    urls: list[str]
    queue: str
    count: int  # 0: until standard input is closed
    size: int
    batch: int = 1
    window: int = 16
    rate: float = 0
    publisher: str | None = None
    times: bool = False  # report when each message was confirmed
    verb: str = "publish"

    def command(self) -> list[str]:
        return _command(self)


@dataclass(frozen=True)
class Consume:
    """One consumer: settles what it got, range by range as it came, or one by one."""

    urls: list[str]
    queue: str
    count: int
    credit: int = 8192
    one_by_one: bool = False
    numbers: bool = False  # report the number that each body starts with
    idle_s: float = 30.0  # gives up after this long without a message
    verb: str = "consume"

    def command(self) -> list[str]:
        return _command(self)


@dataclass
class Outcome:
    """What a client says at its end. Times: monotonic seconds, one clock in all processes."""

    count: int
    start_s: float
    end_s: float
    latencies_ms: list[float] = field(default_factory=list[float])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


class Worker:
    def __init__(self, process: asyncio.subprocess.Process, on_done: Callable[[int], None]) -> None:
        self._process = process
        self._on_done = on_done
        self._result: dict[str, Any] | None = None
        self.ready = asyncio.Event()  # connected, and about to begin
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        seen = 0
        async for line in self._process.stdout:
            said = json.loads(line)
            if "done" in said:
                self.ready.set()
                self._on_done(said["done"] - seen)
                seen = said["done"]
            else:
                self._result = said
        self.ready.set()

    def close_input(self) -> None:
        """Tell a publisher without a count to come to its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def result(self) -> Outcome:
        async with asyncio.timeout(WORKER_S_MAX):
            await self._reader
            await self._process.wait()
        if self._process.returncode or self._result is None:
            raise NodesError(f"a client ended with status {self._process.returncode}")
        return Outcome(**self._result)

    async def end(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._reader


@contextlib.asynccontextmanager
async def worker(work: Work, on_done: Callable[[int], None]) -> AsyncGenerator[Worker]:
    process = await asyncio.create_subprocess_exec(
        *work.command(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
    )
    started = Worker(process, on_done)
    try:
        yield started
    finally:
        await started.end()


async def run_all(works: Sequence[Work], on_done: Callable[[int], None]) -> list[Outcome]:
    """All at once; the outcomes in the same order."""
    async with contextlib.AsyncExitStack() as stack:
        started = [await stack.enter_async_context(worker(work, on_done)) for work in works]
        return [await each.result() for each in started]


def span_s(outcomes: list[Outcome]) -> float:
    """From the first start to the last end."""
    return max(o.end_s for o in outcomes) - min(o.start_s for o in outcomes)
