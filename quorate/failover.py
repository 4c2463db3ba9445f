"""The proof in a minute: kill the leader again and again, and account for every confirmed message.

A message is *lost* when its publish was confirmed and no consumer ever got it. A *duplicate* came
more than once; that is allowed when the broker says so (`redelivered`), since the first delivery
may have died with the leader before it was settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import quorate
from quorate import numbered
from quorate.cli.output import EXIT_INTERRUPTED, complain, emit, percentile, run_async, say, stdout
from quorate.errors import OutcomeUnknown, QuorateError
from quorate.local import LocalCluster, LocalNode
from quorate.numbered import SequenceCheck

QUEUE = "failover"
#: Publishing goes in bursts this far apart.
TICK_S = 0.01
#: Between a node's return and the next kill, so that each kill meets a whole cluster.
CALM_S = 1.0
GAP_S_MAX = 30.0
DRAIN_IDLE_S_MAX = 10.0
IN_FLIGHT_MAX = 200
PUBLISH_TIMEOUT_S = 60.0
WHOLE_S_MAX = 60.0


class Publishing:
    """Numbered messages at a steady rate; knows which were confirmed, and when."""

    def __init__(self, client: quorate.Client, run: str, rate: int) -> None:
        self._client = client
        self._run = run
        self._rate = rate
        self._waiters: list[tuple[float, asyncio.Future[float]]] = []
        self.confirmed = bytearray()  # by number
        self.unknown = 0
        self.refused = 0
        self.next = 0
        self.stopping = False

    @property
    def confirmed_count(self) -> int:
        return self.confirmed.count(1)

    async def work(self) -> None:
        """Until `stopping`; all outcomes are known when it returns."""
        slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        due = 0.0
        async with asyncio.TaskGroup() as group:
            while not self.stopping:
                due += self._rate * TICK_S
                count, due = int(due), due % 1
                if count:
                    await slots.acquire()
                    task = group.create_task(self._burst(self.next, count))
                    task.add_done_callback(lambda _: slots.release())
                    self.next += count
                await asyncio.sleep(TICK_S)

    async def _burst(self, first: int, count: int) -> None:
        bodies = numbered.bodies(self._run, first, count, numbered.HEAD_BYTES)
        sent_s = time.monotonic()
        try:
            await self._client.publish_many(QUEUE, bodies, timeout=PUBLISH_TIMEOUT_S)
        except OutcomeUnknown:
            self.unknown += count
            return
        except quorate.Refused as refused:
            complain(f"a publish was refused: {refused}")
            self.refused += count
            return
        now_s = time.monotonic()
        if len(self.confirmed) < first + count:
            self.confirmed.extend(bytes(first + count - len(self.confirmed)))
        self.confirmed[first : first + count] = b"\1" * count
        for since_s, waiter in self._waiters:
            if sent_s >= since_s and not waiter.done():
                waiter.set_result(now_s)

    async def confirmed_after(self, since_s: float) -> float:
        """The moment of the first confirm of something published after `since_s`."""
        waiter: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiters.append((since_s, waiter))
        try:
            async with asyncio.timeout(GAP_S_MAX):
                return await waiter
        finally:
            self._waiters.remove((since_s, waiter))


class Consuming:
    """Settles all that comes; knows which numbers came, and which came again."""

    def __init__(self, client: quorate.Client) -> None:
        self._client = client
        self.sequence = SequenceCheck()
        self.heard_at_s = time.monotonic()

    async def work(self) -> None:
        async with self._client.consume(QUEUE) as consumer:
            async for batch in consumer.batches():
                for chunk in batch.chunks:
                    self.sequence.add(chunk.bodies, redelivered=chunk.acquired_count > 0)
                self.heard_at_s = time.monotonic()
                await batch.settle()


class Failover:
    """One run on one cluster."""

    def __init__(self, cluster: LocalCluster, client: quorate.Client, rate: int) -> None:
        self.cluster = cluster
        self.run = numbered.new_run()
        self.publishing = Publishing(client, self.run, rate)
        self.consuming = Consuming(client)
        self.gaps: list[dict[str, Any]] = []
        self._client = client

    async def kill_often(self, kills: int) -> None:
        await self.publishing.confirmed_after(time.monotonic())
        for number in range(1, kills + 1):
            await asyncio.sleep(CALM_S)
            leader = await self.leader()
            before_s = time.monotonic()
            await self.cluster.kill(leader)
            confirmed_s = await self.publishing.confirmed_after(before_s)
            gap_ms = (confirmed_s - before_s) * 1000
            follower = await self.leader()
            self.gaps.append(
                {"kill": number, "killed": leader.name, "then": follower.name, "gap_ms": gap_ms}
            )
            say(f"kill {number}: {leader.name} → {follower.name}, {gap_ms:.0f} ms")
            await self.cluster.start(leader)
            await self.whole()

    async def leader(self) -> LocalNode:
        """The node that leads the queue's group, once a running one does."""
        async with asyncio.timeout(WHOLE_S_MAX):
            while True:
                with contextlib.suppress(QuorateError):
                    name = (await self._client.info(QUEUE)).get("leader")
                    if name is not None and self.cluster.named(str(name)).running:
                        return self.cluster.named(str(name))
                await asyncio.sleep(0.02)

    async def whole(self) -> None:
        """Every node is ready and every group has a leader."""
        await self.cluster.until_ready(timeout_s=WHOLE_S_MAX)
        async with asyncio.timeout(WHOLE_S_MAX):
            while True:
                with contextlib.suppress(QuorateError):
                    groups = (await self._client.status(timeout=2)).get("groups", [])
                    if groups and all(row.get("leader") for row in groups):
                        return
                await asyncio.sleep(0.05)

    async def drain(self) -> None:
        """Wait for what was confirmed and has not come yet."""
        while self.lost_count():
            idle_s = time.monotonic() - self.consuming.heard_at_s
            if idle_s > DRAIN_IDLE_S_MAX:
                return
            await asyncio.sleep(0.05)

    def lost_count(self) -> int:
        seen = self.consuming.sequence.seen(self.run)
        confirmed = self.publishing.confirmed
        size = len(confirmed)
        known = int.from_bytes(seen[:size].ljust(size, b"\0"))
        return (int.from_bytes(confirmed) & ~known).bit_count()


@contextlib.asynccontextmanager
async def _started(folder: Path) -> AsyncGenerator[LocalCluster]:
    cluster = LocalCluster.prepare(folder, preferred_ports=False)
    try:
        await cluster.start_all()
        await cluster.until_ready()
        yield cluster
    finally:
        for line in await cluster.stop():
            complain(line)


async def _failover(kills: int, rate: int, folder: Path) -> Failover:
    say(f"starting three nodes in {folder}")
    async with (
        _started(folder) as cluster,
        quorate.connect(cluster.urls, name="quorate-failover") as client,
    ):
        await client.declare(QUEUE)
        run = Failover(cluster, client, rate)
        say(f"publishing {rate} messages a second, consuming, killing the leader {kills} times")
        publishing = asyncio.create_task(run.publishing.work())
        consuming = asyncio.create_task(run.consuming.work())
        killing = asyncio.create_task(run.kill_often(kills))
        try:
            await asyncio.wait(
                (publishing, consuming, killing), return_when=asyncio.FIRST_COMPLETED
            )
            for task in (publishing, consuming, killing):
                if task.done():
                    task.result()
            run.publishing.stopping = True
            await publishing
            run.consuming.heard_at_s = time.monotonic()
            await run.drain()
        finally:
            for task in (publishing, consuming, killing):
                task.cancel()
            await asyncio.gather(publishing, consuming, killing, return_exceptions=True)
        return run


async def _until_interrupted(kills: int, rate: int, folder: Path) -> Failover | None:
    """None: a signal ended it before its time. Its nodes are stopped all the same."""
    work = asyncio.ensure_future(_failover(kills, rate, folder))
    signals: list[str] = []

    def stop(number: signal.Signals) -> None:
        if not signals:  # a second one does not hurry: nodes are being stopped
            say(f"{number.name}: stopping the nodes")
            work.cancel()
        signals.append(number.name)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        return await work
    except asyncio.CancelledError:
        if not signals:
            raise
        return None


def run_failover(kills: int, *, rate: int, folder: Path | None, as_json: bool) -> int:
    """The command `quorate failover`."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            temporary = tempfile.TemporaryDirectory(prefix="quorate-failover-")
            folder = Path(stack.enter_context(temporary))
        run = run_async(_until_interrupted(kills, rate, folder))
    if run is None:
        complain("stopped before its end: nothing can be said about lost messages")
        return EXIT_INTERRUPTED
    return report(run, as_json=as_json)


def report(run: Failover, *, as_json: bool) -> int:
    """The table and the verdict; 1 when a guarantee was broken."""
    gaps_ms = sorted(row["gap_ms"] for row in run.gaps)
    spread = {
        "median": statistics.median(gaps_ms) if gaps_ms else 0.0,
        "p95": percentile(gaps_ms, 0.95),
        "max": gaps_ms[-1] if gaps_ms else 0.0,
    }
    sequence, publishing = run.consuming.sequence, run.publishing
    lost = run.lost_count()
    flagged = sequence.duplicates - sequence.unflagged_duplicates
    if as_json:
        emit(
            {
                "gaps": [{**row, "gap_ms": round(row["gap_ms"], 1)} for row in run.gaps],
                **{f"{name}_ms": round(gap_ms, 1) for name, gap_ms in spread.items()},
                "confirmed": publishing.confirmed_count,
                "unknown": publishing.unknown,
                "lost": lost,
                "duplicated": sequence.duplicates,
                "flagged": flagged,
            }
        )
    else:
        _show(run, spread)
        if publishing.unknown:
            stdout().print(f"{publishing.unknown} with unknown outcome: may be there or not")
        stdout().print(
            f"confirmed {publishing.confirmed_count}, lost {lost},"
            f" duplicated {sequence.duplicates} (flagged redelivered: {flagged})",
            highlight=False,
        )
    return 1 if lost or sequence.unflagged_duplicates or publishing.refused else 0


def _show(run: Failover, spread: Mapping[str, float]) -> None:
    from rich.table import Table

    table = Table("kill", "killed", "next leader", "gap ms", show_footer=False)
    for row in run.gaps:
        table.add_row(str(row["kill"]), row["killed"], row["then"], f"{row['gap_ms']:.0f}")
    table.add_section()
    for name, gap_ms in spread.items():
        table.add_row("", "", name, f"{gap_ms:.0f}")
    stdout().print(table)
