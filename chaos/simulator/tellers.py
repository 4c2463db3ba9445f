"""On every node somebody who publishes the same message to two queues as one transaction.

They are part of the node's process, as a channel of an AMQP client is: when it dies in the middle,
nobody knows what became of the transaction, but it is all or nothing.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from chaos.history import Op, OpType
from chaos.simulator.clients import Scene
from chaos.simulator.sim_cluster import Machine
from cluster.machine.commands import Enqueue, Step
from cluster.types import GroupId
from node.errors import BrokerError, OutcomeUnknown

PAUSE_S = 0.1
#: Transactions that one node has under way.
TELLERS_A_NODE = 3


class Tellers:
    """Of all nodes."""

    def __init__(self, scene: Scene, queues: tuple[str, str]) -> None:
        self._scene = scene
        self._queues = queues
        self._open: dict[str, list[Op]] = {}  # by teller; of dead processes too

    def serve(self, machine: Machine) -> None:
        """A node's process has started."""
        assert machine.process is not None
        for number in range(TELLERS_A_NODE):
            name = f"t{number}-{machine.name}-{machine.incarnation}"
            machine.process.spawn(self._run(machine, name), name)

    def waiting(self, machines: list[Machine]) -> str | None:
        """A teller whose process lives, and who waits for an answer."""
        for machine in machines:
            for number in range(TELLERS_A_NODE if machine.alive else 0):
                name = f"t{number}-{machine.name}-{machine.incarnation}"
                if self._open.get(name):
                    return name
        return None

    def give_up(self) -> None:
        """The run ends: nobody knows what became of the rest."""
        for name in list(self._open):
            self._end(name, "unknown")

    async def _run(self, machine: Machine, name: str) -> None:
        scene = self._scene
        dice = random.Random(f"teller/{scene.cluster.plan.seed}/{name}")
        door, cluster = machine.door, machine.cluster
        assert door is not None
        assert cluster is not None
        number = 0
        while not scene.stopping:
            await asyncio.sleep(dice.expovariate(1.0) * PAUSE_S)
            found = [cluster.queue_info("/", queue) for queue in self._queues]
            infos = [info for info in found if info is not None]
            if len(infos) < len(found):
                continue  # its catalog is behind
            number += 1
            body = f"{name}:{number}|".encode() + bytes(dice.randint(0, 200))
            steps: dict[GroupId, list[Step]] = {}
            for info in infos:
                step = Enqueue(info.queue, None, 0, [body])
                steps.setdefault(info.group, []).append(step)
            self._begin(name, number, machine)
            try:
                await door.transactions.commit(steps)
                self._end(name, "ok")
            except OutcomeUnknown:
                self._end(name, "unknown")
            except BrokerError:
                self._end(name, "refused")

    def _begin(self, name: str, number: int, machine: Machine) -> None:
        self._open[name] = [
            self._scene.history.invoke(
                name,
                "publish",
                {"queue": queue, "publisher": name, "first": number, "count": 1, "ordered": False},
                node=machine.name,
                **self._scene.now(),
            )
            for queue in self._queues
        ]

    def _end(self, name: str, kind: OpType) -> None:
        ops = self._open.pop(name)
        extra: dict[str, Any] = {"refused": []} if kind == "ok" else {}
        for op in ops:
            self._scene.history.end(op, kind, extra, **self._scene.now())
        trace = self._scene.cluster.trace
        trace.count(f"transactions {'committed' if kind == 'ok' else kind}")
        if kind == "ok":
            trace.count("messages confirmed", len(ops))
