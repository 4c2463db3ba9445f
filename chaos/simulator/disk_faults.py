"""What can befall the disks of simulated machines, and the files on them."""

from __future__ import annotations

import random

from chaos.faults import Damage
from chaos.simulator import decay
from chaos.simulator.invariants import LogWatch
from chaos.simulator.machine import Machine
from chaos.simulator.plan import Plan
from chaos.simulator.trace import Trace
from cluster.types import NodeId

DATA_DIR = "data"


class DiskFaults:
    """The part of a simulated cluster that is about disks."""

    machines: dict[NodeId, Machine]

    def __init__(self, plan: Plan, trace: Trace, watch: LogWatch, dice: random.Random) -> None:
        self.plan = plan
        self.trace = trace
        self.watch = watch
        self._decay = dice

    def slow_disk(self, node: NodeId, sync_ms: float | None) -> None:
        sync_ms = self.plan.sync_ms if sync_ms is None else sync_ms
        self.machines[node].platter.options.sync_ms_typical = sync_ms
        self.trace.event(node, "!", f"disk: fsync takes about {sync_ms:.1f} ms")
        self.trace.count("slow disks")

    def fail_fsync(self, node: NodeId) -> None:
        if self.machines[node].broker is not None:
            self.machines[node].platter.options.fails_next = True
            self.trace.event(node, "!", "disk: the next fsync fails")
            self.trace.count("failing fsyncs")

    def fill_disk(self, node: NodeId) -> None:
        self.machines[node].platter.options.full = True
        self.trace.event(node, "!", "disk: full")
        self.trace.count("full disks")

    def make_room(self, node: NodeId) -> None:
        self.machines[node].platter.options.full = False
        self.trace.event(node, "+", "disk: has room again")

    def wipe(self, node: NodeId) -> None:
        machine = self.machines[node]
        if not machine.alive:
            decay.wipe(machine.platter)
            self._forgot(machine, "all its data is gone", "wiped disks")

    def copy_data(self, node: NodeId) -> None:
        machine = self.machines[node]
        if not machine.alive:
            machine.copy = decay.copy(machine.platter)
            self.trace.event(node, "!", "its data is copied")

    def restore_data(self, node: NodeId) -> None:
        machine = self.machines[node]
        if not machine.alive and machine.copy is not None:
            decay.restore(machine.platter, machine.copy)
            self._forgot(machine, "an old copy is in the place of its data", "old copies")

    def damage(self, node: NodeId, kind: Damage) -> str | None:
        machine = self.machines[node]
        if machine.alive:
            return None
        where = decay.damage(machine.platter, DATA_DIR, kind, self._decay)
        if where is not None:
            self._forgot(machine, f"{kind}: {where}", f"damage: {kind}")
            machine.damaged = True
        return where

    def _forgot(self, machine: Machine, what: str, counted: str) -> None:
        machine.damaged = False
        self.watch.lost_disk(machine.name)
        self.trace.event(machine.name, "!", f"disk: {what}")
        self.trace.count(counted)
