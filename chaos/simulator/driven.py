"""The workloads of live chaos, driven in the simulated world by the same clients."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from chaos.checker import Verdict, check_all
from chaos.history import Op
from chaos.load import workload as load
from chaos.load.all import WORKLOADS
from chaos.load.expiry import DAILY, Expiry
from chaos.load.streams import Streams
from chaos.report.series import workload_of
from chaos.simulator.clients import LOOK_S, Scene
from chaos.simulator.features import TOLERANCE_MS, Feature, Occasional
from chaos.simulator.nats_sockets import SimNatsClients
from chaos.simulator.sockets import SimDrivers

#: Simulated time costs nothing, and a run is short.
PACE = 4.0


class LoadProcess(Occasional):
    """The process that a workload's clients live in."""

    def __init__(self, scene: Scene, workload: str) -> None:
        super().__init__(scene, workload, "")
        drivers = SimDrivers(scene.cluster, self.process)
        nats = SimNatsClients(scene.cluster, self.process)
        self.stage = load.Scene(
            scene.history, drivers.open, scene.cluster.plan.seed, PACE, open_nats=nats.open
        )
        self.workload = WORKLOADS[workload](self.stage)
        self.done = False

    async def run(self) -> None:
        await self.workload.run()
        await self.workload.drain()
        self.done = True


class Driven(Feature):
    """One workload: all that is judged of it is in its part of the history."""

    def __init__(self, scene: Scene, workload: str) -> None:
        super().__init__(scene)
        self._process = LoadProcess(scene, workload)
        self.workload = self._process.workload
        self.others.append(self._process)

    @property
    def name(self) -> str:
        """Of the workload, with which the names of its processes and queues begin."""
        return self.workload.name

    @property
    def declared(self) -> set[str]:
        """Its queues, so far."""
        return {
            str(op.value["queue"])
            for op in self.scene.history
            if op.f == "declare" and op.type == "ok" and "queue" in op.value
            if workload_of(op) == self.name
        }

    async def prepare(self) -> None:
        preparing = self._process.process.spawn(self.workload.prepare(), "prepare")
        while not preparing.done():
            await asyncio.sleep(LOOK_S)

    def healed(self) -> None:
        self._process.stage.ending.set()

    @property
    def waits(self) -> str | None:
        return None if self._process.done else f"{self.name} is not drained"

    def judge(self, ops: Sequence[Op], *, clocks_jumped: bool) -> list[Verdict]:
        mine = [op for op in ops if workload_of(op) == self.name]
        if isinstance(self.workload, Expiry):
            self.workload.tolerance_ms = None if clocks_jumped else TOLERANCE_MS
        if isinstance(self.workload, Streams):
            self.workload.true_clocks = not self.scene.cluster.trace.counts["most clocks wrong"]
            self.workload.steady_clocks = self.workload.true_clocks and not clocks_jumped
        checkers = dict(self.workload.checkers)
        if self.scene.cluster.trace.counts["most clocks wrong"]:
            # Nobody can tell that from the truth, so a message that may stay for a day may go.
            checkers = {name: each for name, each in checkers.items() if DAILY not in name}
        verdicts = check_all(mine, checkers)
        return [replace(each, checker=f"{self.name}: {each.checker}") for each in verdicts]
