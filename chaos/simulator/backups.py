"""Backups of a run: cut under load and faults, restored as a cluster of their own when it is over.

What was confirmed before a cut began, and nobody had set out to settle before it was done, must
come out of what is restored.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from chaos.checker.deliveries import published, settled_keys
from chaos.checker.verdict import Verdict, judge
from chaos.history import History, Op
from chaos.simulator.clients import Scene
from chaos.simulator.clock import new_history
from chaos.simulator.consumers import Consumer
from chaos.simulator.disk import SimDisk
from chaos.simulator.disk_faults import DATA_DIR
from chaos.simulator.invariants import LogWatch
from chaos.simulator.ledger import Ledger
from chaos.simulator.loop import Process
from chaos.simulator.machine import Machine
from chaos.simulator.sim_cluster import SimCluster
from chaos.simulator.trace import Trace
from cluster.log import Log, LogIdentity
from cluster.machine import QueueMachine
from cluster.members.disk_identity import DiskIdentity
from cluster.recovery.backup import Cut, NotContained, stream
from cluster.recovery.restoring import Beginning, Replayed, begin, beginnings, replay
from cluster.types import GroupId
from node.errors import BrokerError

#: Queues that messages leave otherwise than into hands, or that end before the run does.
LEAVES = ("swept", "owned-", "w5-")
#: What is restored must serve, and all of it must come out, within this.
RESTORED_S_MAX = 60.0
SLICE_S = 0.25


Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Backup:
    """One moment of a cluster."""

    begun: int  # ops of the history so far
    ended: int
    cuts: Sequence[Cut]
    files: dict[GroupId, bytes]


class Backups:
    """Those of one run; the newest one is kept."""

    def __init__(self, cluster: SimCluster, history: History) -> None:
        self.cluster = cluster
        self.newest: Backup | None = None
        self._history = history

    async def take(self, machine: Machine) -> None:
        """Asked of one node. It may say that there was no moment for it, or die meanwhile."""
        process, broker, begun = machine.process, machine.broker, len(self._history.ops)
        if process is None or broker is None:
            return
        cuts = await _outcome(process, broker.backups.attempt(), "backup")
        ended = len(self._history.ops)
        if cuts is None:
            self.cluster.trace.count("backups refused")
            return
        files: dict[GroupId, bytes] = {}
        for cut in cuts:
            source = self.cluster.machines[cut.node]
            process, cluster = source.process, source.cluster
            group = source.groups().get(cut.group)
            if process is None or cluster is None or group is None:
                return
            identity = LogIdentity(cluster.config.node, cluster.config.cluster)
            reading = _read(stream(group, cut, identity, source.clock))
            data = await _outcome(process, reading, "read backup")
            if data is None:
                self.cluster.trace.count("backups not read")
                return
            files[cut.group] = data
        self.cluster.trace.count("backups")
        self.cluster.trace.event("backup", "+", f"of {len(files)} groups")
        self.newest = Backup(begun, ended, cuts, files)

    def restore(self, queues: Collection[str]) -> list[Verdict]:
        """The newest, as a cluster of its own on the same world. The old one has ended."""
        if self.newest is None:
            return []
        history = new_history(self.cluster.world)
        restored = self._found(self.newest, history)
        problem = self._drain(restored, history, queues)
        self.cluster.trace.count("backups restored")
        return [restored_verdict(self._history.ops, self.newest, history.ops, problem)]

    def _found(self, backup: Backup, history: History) -> SimCluster:
        """Its nodes have the folders that a restore makes."""
        old = self.cluster
        world, plan = old.world, replace(old.plan, write_back=False)
        names = {cut.group: cut.name for cut in backup.cuts}
        new = SimCluster(plan, world, Trace(world), LogWatch(), Ledger(history))
        making = Process(world, "restore")
        with tempfile.TemporaryDirectory(prefix="quorate-simulated-") as folder:
            groups: list[Replayed] = []
            for group, data in backup.files.items():
                path = Path(folder) / f"{group}.backup"
                path.write_bytes(data)
                groups.append(replay(group, names[group], str(path)))
            made, starts = beginnings(groups, plan.nodes, 1)
            for node in plan.nodes:
                machine = new.machines[node]
                work = making.spawn(_make(machine, making, made, starts[node]), "make")
                world.run(world.now_s + RESTORED_S_MAX, work.done)
                work.result()
                machine.incarnation = starts[node]
        making.kill()
        return new

    def _drain(self, new: SimCluster, history: History, queues: Collection[str]) -> str | None:
        """Everything is consumed. What is wrong; None: nothing."""
        scene = Scene(new, history, stopping=True)
        for node in new.nodes:
            new.start(node)
        consumers = [Consumer(scene, f"z-{queue}", queue) for queue in queues]
        for consumer in consumers:
            consumer.process.spawn(consumer.run(), "run")
        until_s = new.world.now_s + RESTORED_S_MAX
        problem: str | None = "nothing was looked at"
        while problem is not None and new.world.now_s < until_s:
            new.world.run(new.world.now_s + SLICE_S)
            crashes = new.crashes() + [c for each in consumers for c in each.process.crashes]
            broken = [violation.describe() for violation in (*new.watch.violations, *new.broken)]
            if crashes or broken:
                return f"the restored cluster: {[*broken, *crashes][0]!r}"
            problem = new.converged() or left(new)
        for node in new.nodes:
            new.kill(node)
        return problem


async def _outcome(
    process: Process, work: Coroutine[Any, Any, Outcome], name: str
) -> Outcome | None:
    """Of something that a node does; None: it could not, or is no more."""

    async def attempted() -> Outcome | None:
        try:
            return await work
        except (BrokerError, NotContained):
            return None

    task = process.spawn(attempted(), name)
    while not task.done() and process.alive:
        await asyncio.sleep(SLICE_S / 10)
    done = task.done() and not task.cancelled() and task.exception() is None
    return task.result() if done else None


async def _read(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


async def _make(machine: Machine, process: Process, made: Sequence[Beginning], start: int) -> None:
    """As `node.operating.restore` does it on real disks."""
    disk = SimDisk(machine.platter, process)
    log = await Log.open(
        DATA_DIR, disk=disk, clock=machine.clock, identity=LogIdentity(machine.name, "simulated")
    )
    await begin(log, made)
    await log.close()
    if start:
        disk_identity = DiskIdentity(disk, DATA_DIR)
        await disk_identity.open()
        await disk_identity.record(start)
        disk_identity.close()


def left(cluster: SimCluster, but: Collection[str] = ()) -> str | None:
    """A queue that still holds something, in words. `but`: those that the catalog does not know."""
    for machine in cluster.machines.values():
        for group in machine.groups().values():
            if isinstance(group.machine, QueueMachine):
                for queue in group.machine.queues():
                    if group.machine.stream(queue) is not None:
                        continue  # what it holds stays
                    view = group.machine.queue(queue)
                    if view is None or view.name in but:
                        continue
                    if view.messages or view.dead_letter_count:
                        return f"queue {view.name} still holds {view.messages} messages"
    return None


def confirmed_to_stay(ops: Sequence[Op]) -> set[str]:
    """Messages that must come out again, unless somebody has them settled."""
    return {
        message
        for op in ops
        if op.f == "publish" and op.type == "ok"
        if not (op.value["queue"] or op.value["key"]).startswith(LEAVES)
        for message in published(op)
    }


def restored_verdict(
    before: Sequence[Op], backup: Backup, after: Sequence[Op], problem: str | None
) -> Verdict:
    confirmed = confirmed_to_stay(before[: backup.begun])
    settled = {key[1] for op in before[: backup.ended] for key in settled_keys(op)}
    came = {m for op in after if op.f == "deliver" for m in op.value["messages"]}
    lost = sorted(confirmed - settled - came)
    return judge(
        "backup",
        {"lost": lost, "not served": [problem] if problem else []},
        reported={"held": len(confirmed - settled), "came out": len(came)},
    )
