"""On every node somebody who publishes the same message to two queues as one transaction.

They are part of the node's process, as a channel of an AMQP client is: when it dies in the middle,
nobody knows what became of the transaction, but it is all or nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, ClassVar

from chaos.history import Op, OpType, publish_value
from chaos.simulator.clients import Scene
from chaos.simulator.sim_cluster import Machine
from cluster.machine.commands import Enqueue, Step
from cluster.types import GroupId
from node.errors import BrokerError, OutcomeUnknown

PAUSE_S = 0.1


class TransactionClients:
    """Of all nodes."""

    #: Begins the name of each: nobody else has such a name.
    letter: ClassVar = "t"
    #: Transactions that one node has under way.
    a_node: ClassVar = 3
    #: What the report calls them.
    what: ClassVar = "transactions"

    def __init__(self, scene: Scene, queues: tuple[str, str]) -> None:
        self._scene = scene
        self._queues = queues
        self._open: dict[str, list[Op]] = {}  # by teller; of dead processes too

    def begin(self) -> None:
        """At every node that serves, now or later."""
        cluster = self._scene.cluster
        cluster.on_serving.append(self.serve)
        for machine in cluster.machines.values():
            if machine.running and machine.broker is not None:
                self.serve(machine)

    def queues(self) -> tuple[str, str]:
        """Those that the next transaction publishes to."""
        return self._queues

    def bodies(self, dice: random.Random, name: str, first: int) -> list[bytes]:
        """All of these go to both queues."""
        return [f"{name}:{first}|".encode() + bytes(dice.randint(0, 200))]

    def _names(self, machine: Machine) -> list[str]:
        numbers = range(self.a_node)
        return [f"{self.letter}{number}-{machine.name}-{machine.incarnation}" for number in numbers]

    def serve(self, machine: Machine) -> None:
        """A node's process has started."""
        assert machine.process is not None
        for name in self._names(machine):
            machine.process.spawn(self._run(machine, name), name)

    def waiting(self, machines: list[Machine]) -> str | None:
        """A teller whose process lives, and who waits for an answer."""
        for machine in machines:
            for name in self._names(machine) if machine.alive else ():
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
        broker, cluster = machine.broker, machine.cluster
        assert broker is not None
        assert cluster is not None
        first = 1
        while not scene.stopping:
            await asyncio.sleep(dice.expovariate(1.0) * PAUSE_S)
            queues = self.queues()
            found = [cluster.queue_info("/", queue) for queue in queues]
            infos = [info for info in found if info is not None]
            if len(infos) < len(found):
                continue  # its catalog is behind
            bodies = self.bodies(dice, name, first)
            steps: dict[GroupId, list[Step]] = {}
            for info in infos:
                step = Enqueue(info.queue, None, 0, bodies)
                steps.setdefault(info.group, []).append(step)
            self._begin(name, first, len(bodies), queues, machine)
            first += len(bodies)
            try:
                await broker.transactions.commit(steps)
                self._end(name, "ok")
            except OutcomeUnknown:
                self._end(name, "unknown")
            except BrokerError:
                self._end(name, "refused")

    def _begin(
        self, name: str, first: int, count: int, queues: Sequence[str], machine: Machine
    ) -> None:
        self._open[name] = [
            self._scene.history.invoke(
                name,
                "publish",
                {**publish_value(queue, name, first, count), "ordered": False},
                node=machine.name,
            )
            for queue in queues
        ]

    def _end(self, name: str, kind: OpType) -> None:
        ops = self._open.pop(name)
        extra: dict[str, Any] = {"refused": []} if kind == "ok" else {}
        self._scene.history.end_all(ops, kind, extra)
        trace = self._scene.cluster.trace
        trace.count(f"{self.what} {'committed' if kind == 'ok' else kind}")
        if kind == "ok":
            self.committed(len(ops))

    def committed(self, messages: int) -> None:
        self._scene.cluster.trace.count("messages confirmed", messages)
