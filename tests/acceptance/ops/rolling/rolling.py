"""All nodes of a cluster are drained and restarted, one after the other, while clients work.

Nothing that was confirmed may be lost. How long each client went without service is measured: a
publisher from confirm to confirm, with one message outstanding; a consumer from delivery to
delivery of a queue that is published to all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from chaos.checker import ack_finality, total_queue
from chaos.checker.verdict import Verdict
from chaos.history import Op, Recorder
from chaos.live.disks import FolderDisks
from chaos.live.live_cluster import NODES, LiveCluster
from chaos.live.loopback import PlainNetwork
from chaos.load.client import Client, Handle, close_all, publish_until
from chaos.load.draining import Left, drain
from chaos.load.driver import PROTOCOLS, Consumption, Protocols, Received
from chaos.load.drivers import Drivers
from chaos.load.workload import Scene
from cluster.types import NodeId

ROOT = Path(__file__).parents[4]
PUBLISHERS = 2  # of each protocol
PUBLISHES_PER_S = 50.0  # of each of them
#: Between a node's return and the drain of the next one.
CALM_S = 2.0
DRAIN_S_MAX = 60.0
STOP_S_MAX = 60.0
DRAINED_S_MAX = 120.0
GAP_MS_TARGET = 1000.0


class RollFailed(Exception):
    """A node was not drained, did not stop or did not come back; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time that a client went without service."""

    client: str
    gap_ms: float
    at_s: float  # since the first node was drained; when it began
    events: int  # confirms or deliveries in all
    median_ms: float  # between two of them


@dataclass(frozen=True, slots=True)
class Restart:
    """Of one node."""

    node: str
    at_s: float  # since the first node was drained
    drain_s: float
    stop_s: float
    ready_s: float  # from its start


@dataclass(frozen=True, slots=True)
class Result:
    gaps: Sequence[Gap]
    restarts: Sequence[Restart]
    verdicts: Sequence[Verdict]
    silent: Sequence[str]  # clients that had no service after the last restart


class Side:
    """The clients of one protocol, on a queue of theirs."""

    def __init__(self, scene: Scene, protocol: Protocols) -> None:
        self.name = f"rolling-{protocol}"
        self.queue = f"{self.name}.orders"
        self._ending = scene.ending
        self.publishers = [Client(scene, f"{self.name}/p{n}", protocol) for n in range(PUBLISHERS)]
        self.consumer = Client(scene, f"{self.name}/c0", protocol)
        self._left = Left()

    @property
    def clients(self) -> list[Client]:
        return [*self.publishers, self.consumer]

    async def prepare(self) -> None:
        await self.consumer.declare_all({self.queue: {"x-queue-type": "quorum"}})

    async def run(self) -> None:
        await asyncio.gather(
            *(
                publish_until(self._ending, each, PUBLISHES_PER_S, partial(self._publish, each))
                for each in self.publishers
            ),
            self.consumer.consume(self.queue, self._ending, self._take()),
        )

    async def drain(self) -> None:
        await close_all(self.publishers)
        await drain(self.name, self._left, {self.queue: (self.consumer, self._take())})
        await self.consumer.close()

    async def _publish(self, client: Client) -> None:
        first = client.published
        answer = await client.publish(self.queue)
        if answer.ok:
            self._left.confirmed(self.queue, client.name, first, 1)

    def _take(self) -> Handle:
        async def take(consumption: Consumption, received: Received) -> bool:
            self._left.out(self.queue, received.messages)
            await self.consumer.soon(self.consumer.settle(consumption, received))
            return True

        return take


class Rolling:
    """One cluster, and all restarts of its nodes."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._cluster = LiveCluster(
            folder / "cluster", NODES, PlainNetwork(), FolderDisks(folder / "disks")
        )
        self._recorder = Recorder(folder / "history.jsonl")
        addresses = [self._cluster.address(node) for node in self._cluster.nodes]
        self._scene = Scene(self._recorder, Drivers(addresses, 0).open, seed=0)
        self._restarts: list[Restart] = []
        self._begun_s = 0.0

    async def run(self, rounds: int) -> Result:
        cluster, scene = self._cluster, self._scene
        try:
            cluster.start_all()
            await cluster.until_ready()
            sides = [Side(scene, protocol) for protocol in PROTOCOLS]
            for side in sides:
                await side.prepare()
            load = asyncio.gather(*(side.run() for side in sides))
            try:
                begun, last = await self._roll(rounds)
            finally:
                scene.ending.set()
                await load
            async with asyncio.timeout(DRAINED_S_MAX):
                await asyncio.gather(*(side.drain() for side in sides))
        finally:
            cluster.close()
            self._recorder.close()
        ops = self._recorder.ops
        names = [client.name for side in sides for client in side.clients]
        return Result(
            gaps=[gap_of(name, ops[begun:], self._begun_s) for name in names],
            restarts=self._restarts,
            verdicts=[
                check([op for op in ops if op.process.startswith(side.name)])
                for side in sides
                for check in (total_queue, ack_finality)
            ],
            silent=[name for name in names if not served(name, ops[last:])],
        )

    async def _roll(self, rounds: int) -> tuple[int, int]:
        """Where in the history it began, and where all was done."""
        await asyncio.sleep(CALM_S)
        begun, self._begun_s = len(self._recorder), _now_s()
        for _ in range(rounds):
            for node in self._cluster.nodes:
                await self._restart(node)
                await asyncio.sleep(CALM_S)
        last = len(self._recorder)
        await asyncio.sleep(CALM_S)
        return begun, last

    async def _restart(self, node: NodeId) -> None:
        """As an operator or Kubernetes does it: drain, SIGTERM, start, wait until it is ready."""
        cluster = self._cluster
        at_s = _now_s()
        await self._drain(node)
        drained_s = _now_s()
        cluster.terminate(node)
        if not await cluster.until_ended(node, timeout_s=STOP_S_MAX):
            raise RollFailed(f"{node} did not stop within {STOP_S_MAX:g} s after SIGTERM")
        if cluster.exit_code(node) != 0:
            raise RollFailed(cluster.obituary(node))
        ended_s = _now_s()
        cluster.start(node)
        await cluster.until_ready([node])
        made = Restart(
            node,
            at_s - self._begun_s,
            drained_s - at_s,
            ended_s - drained_s,
            _now_s() - ended_s,
        )
        self._restarts.append(made)
        self._say(
            f"{node}: drained in {made.drain_s:.2f} s, stopped in {made.stop_s:.2f} s,"
            f" ready after {made.ready_s:.2f} s"
        )

    async def _drain(self, node: NodeId) -> None:
        settings = self._cluster.log_file(node).parent / "quorate.toml"
        command = ("-m", "quorate", "node", "drain", "--config", str(settings))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            "--timeout",
            f"{DRAIN_S_MAX:g}s",
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if not k.startswith("QUORATE_")},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if process.returncode:
            raise RollFailed(f"{node} was not drained: {said.decode()}")


def gap_of(client: str, ops: Sequence[Op], begun_s: float) -> Gap:
    """Between two of its confirms or deliveries."""
    times = [op.monotonic_ns / 1e9 for op in ops if is_service(client, op)]
    gaps = [(later - before, before) for before, later in pairwise(times)]
    longest, at_s = max(gaps, default=(float("inf"), begun_s))
    median = statistics.median(gap for gap, _ in gaps) if gaps else float("inf")
    return Gap(client, longest * 1000, at_s - begun_s, len(times), median * 1000)


def served(client: str, ops: Sequence[Op]) -> bool:
    return any(is_service(client, op) for op in ops)


def is_service(client: str, op: Op) -> bool:
    return op.process == client and op.type == "ok" and op.f in {"publish", "deliver"}


def _now_s() -> float:
    return time.monotonic()  # as the history does
