"""How long publishers wait when their queue's leader is killed: many kills, one after the other.

Each publisher has one message outstanding, so that its own gap is seen: from its last confirm
before the kill to the first confirm of what it published after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import quorate
from chaos.history import Op, Recorder
from chaos.live.disks import FolderDisks
from chaos.live.live_cluster import NODES, LiveCluster
from chaos.live.loopback import PlainNetwork
from chaos.live.whole import until_whole
from chaos.load.client import Client, publish_until
from chaos.load.door import PROTOCOLS
from chaos.load.doors import Doors
from chaos.load.workload import Scene
from chaos.report.series import NEMESIS, protocol_of
from cluster.types import NodeId

PUBLISHERS = 2  # of each protocol
PUBLISHES_PER_S = 100.0  # of each publisher
QUEUE = "leader.orders"
#: Between a node's return and the next kill, so that each kill meets a whole cluster.
CALM_S = 1.0
GAP_S_MAX = 30.0
LOOK_S = 0.02
MEDIAN_MS_TARGET = 300.0
P95_MS_TARGET = 1000.0


class MeasureFailed(Exception):
    """The cluster did not come back, or nothing was confirmed any more."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What one publisher saw of one kill."""

    kill: int
    protocol: str
    client: str
    gap_ms: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Of many gaps."""

    count: int
    min_ms: float
    median_ms: float
    p95_ms: float
    max_ms: float

    @property
    def on_target(self) -> bool:
        return self.median_ms <= MEDIAN_MS_TARGET and self.p95_ms <= P95_MS_TARGET


def spread_of(gaps_ms: Sequence[float]) -> Spread:
    ranked = sorted(gaps_ms)
    p95 = ranked[max(-(-len(ranked) * 95 // 100) - 1, 0)]  # nearest rank
    return Spread(len(ranked), ranked[0], statistics.median(ranked), p95, ranked[-1])


def gaps_after_kills(ops: Sequence[Op]) -> list[Gap]:
    """Of each kill and each publisher; one that never came back has none, and is missing."""
    kills = [op for op in ops if op.f == "fault" and op.process == NEMESIS and op.type == "invoke"]
    publishes = [op for op in ops if op.f == "publish" and op.type == "ok"]
    asked_ns = {op.index: op.monotonic_ns for op in ops if op.type == "invoke"}
    gaps: list[Gap] = []
    for number, kill in enumerate(kills):
        until_ns = kills[number + 1].monotonic_ns if number + 1 < len(kills) else None
        before: dict[str, int] = {}
        after: dict[str, int] = {}
        for op in publishes:
            assert op.invoke is not None
            if op.monotonic_ns < kill.monotonic_ns:
                before[op.process] = op.monotonic_ns
            elif asked_ns[op.invoke] >= kill.monotonic_ns and (
                until_ns is None or op.monotonic_ns < until_ns
            ):
                after.setdefault(op.process, op.monotonic_ns)
        gaps += [
            Gap(
                number + 1,
                protocol_of(client.partition("/")[0]),
                client,
                (after[client] - before[client]) / 1e6,
            )
            for client in sorted(before.keys() & after.keys())
        ]
    return gaps


class Measurement:
    """One cluster, and all kills on it."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._cluster = LiveCluster(
            folder / "cluster", NODES, PlainNetwork(), FolderDisks(folder / "disks")
        )
        self._recorder = Recorder(folder / "history.jsonl")
        addresses = [self._cluster.address(node) for node in self._cluster.nodes]
        self._scene = Scene(self._recorder, Doors(addresses, 0).open, seed=0)

    async def run(self, kills: int) -> list[Op]:
        """The history; every publisher has confirmed again after each kill."""
        try:
            self._cluster.start_all()
            await self._cluster.until_ready()
            clients = [
                Client(self._scene, f"leader-{protocol}/{role}", protocol)
                for protocol in PROTOCOLS
                for role in (*(f"p{number}" for number in range(PUBLISHERS)), "c0")
            ]
            await clients[0].declare_all({QUEUE: {"x-queue-type": "quorum"}})
            load = asyncio.gather(*(self._work(client) for client in clients))
            try:
                for number in range(kills):
                    await self._kill(number + 1, kills)
            finally:
                self._scene.ending.set()
                load.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await load
                await asyncio.gather(*(client.close() for client in clients))
        finally:
            self._cluster.close()
            self._recorder.close()
        return self._recorder.ops

    async def _work(self, client: Client) -> None:
        ending = self._scene.ending
        if client.name.endswith("c0"):
            await client.consume(QUEUE, ending, client.settle_all)
        else:
            await publish_until(ending, client, PUBLISHES_PER_S, lambda: client.publish(QUEUE))

    async def _kill(self, number: int, kills: int) -> None:
        await self._confirmed_since(len(self._recorder))
        await asyncio.sleep(CALM_S)
        node = await self._leader()
        value = {"kind": "kill", "nodes": [node]}
        begun = self._recorder.invoke(NEMESIS, "fault", value)
        self._cluster.kill(node)
        await self._confirmed_since(begun.index)
        self._cluster.start(node)
        if (why := await until_whole(self._cluster, node)) is not None:
            raise MeasureFailed(why)
        self._recorder.end(begun, "ok")
        mine = [gap for gap in gaps_after_kills(self._recorder.ops) if gap.kill == number]
        seen = ", ".join(f"{gap.client.partition('-')[2]} {gap.gap_ms:.0f}" for gap in mine)
        self._say(f"kill {number} of {kills}: {node}, gaps in ms: {seen}")

    async def _confirmed_since(self, index: int) -> None:
        """Each publisher has a confirm of something that it asked for after that op."""
        waiting = {
            f"leader-{protocol}/p{number}" for protocol in PROTOCOLS for number in range(PUBLISHERS)
        }
        seen = index
        try:
            async with asyncio.timeout(GAP_S_MAX):
                while waiting:
                    for op in self._recorder.ops[seen:]:
                        if op.type == "ok" and op.f == "publish" and (op.invoke or 0) > index:
                            waiting.discard(op.process)
                    seen = len(self._recorder)
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            names = ", ".join(sorted(waiting))
            raise MeasureFailed(f"no confirm within {GAP_S_MAX:g} s: {names}") from None

    async def _leader(self) -> NodeId:
        """Of the queue's group, once a running node leads it."""
        urls = [self._cluster.url(node) for node in self._cluster.nodes]
        async with asyncio.timeout(GAP_S_MAX), quorate.connect(urls) as client:
            while True:
                with contextlib.suppress(quorate.QuorateError):
                    node = NodeId(str((await client.info(QUEUE)).get("leader")))
                    if node in self._cluster.nodes and self._cluster.running(node):
                        return node
                await asyncio.sleep(LOOK_S)


def by_protocol(gaps: Sequence[Gap]) -> dict[str, list[Gap]]:
    return {
        protocol: [gap for gap in gaps if gap.protocol == protocol]
        for protocol in sorted({gap.protocol for gap in gaps})
    }
