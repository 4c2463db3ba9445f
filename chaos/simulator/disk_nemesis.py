"""Who strikes at disks, and when: folders wiped, put back from an old copy, damaged, disks that are
full, and nodes that are asked to end.

It has dice of its own, so that a seed means without it what it always meant. A disk that forgot is
as good as new once its node is trusted again; until then no other may forget when that would make
a majority of some group: what most of its disks forgot nobody can know, so it would stand still.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable

from chaos.faults import Damage
from chaos.simulator.machine import Machine
from chaos.simulator.sim_cluster import SimCluster
from cluster.types import GroupId, NodeId

#: How often it looks whether something has happened.
LOOK_S = 0.01
#: A node that is damaged must say so within this, however slow its disk.
REFUSE_S_MAX = 20.0
#: A node whose disk is full must end itself within this.
END_S_MAX = 3.0
#: Members of a group, however many nodes there are.
REPLICATION = 3
#: `log_end` is not drawn: a log whose newest end is gone cannot be told from one that was never
#: written further, so such a node may have forgotten and not know it.
DAMAGES: tuple[Damage, ...] = ("log_bit", "snapshot_bit")


class DiskNemesis:
    """Runs beside the other one until told to stop."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.dice = random.Random(f"disks/{cluster.plan.seed}")
        self._forgot = set[NodeId]()
        self._faults: dict[str, Callable[[NodeId], Awaitable[None]]] = {
            "wipe": self._wipe,
            "old_copy": self._old_copy,
            "damage": self._damage,
            "disk_full": self._disk_full,
            "terminate": self._terminate,
        }

    async def run(self) -> None:
        plan = self.cluster.plan
        kinds = [kind for kind, _ in plan.disk_weights]
        weights = [weight for _, weight in plan.disk_weights]
        while True:
            await self._wait(0.3, 2.0)
            kind = self.dice.choices(kinds, weights)[0]
            node = self.dice.choice(self.cluster.nodes)
            # In a task of its own, which mends what it did though this one is told to stop.
            strike = self.cluster.world.kernel.spawn(self._strike(kind, node), kind)
            while not strike.done():
                await asyncio.sleep(LOOK_S)

    async def _strike(self, kind: str, node: NodeId) -> None:
        await self._faults[kind](node)

    async def _wait(self, shortest_s: float, longest_s: float) -> None:
        await asyncio.sleep(self.dice.uniform(shortest_s, longest_s))

    async def _may_forget(self, node: NodeId) -> bool:
        """Wait until this disk may; False: it never may, since it is a majority by itself."""
        most = (min(REPLICATION, len(self.cluster.nodes)) - 1) // 2
        while most > 0 and (len(self._forgetful() | {node}) > most or self._members_differ()):
            await asyncio.sleep(LOOK_S)
        return most > 0

    def _members_differ(self) -> bool:
        """Some copy may know of other voters than the rest. If the disk of a leader is lost then,
        one that has an entry about members which that leader did not have may need its vote.
        """
        if not self.cluster.plan.members:
            return False
        voters = defaultdict[GroupId, set[frozenset[NodeId]]](set)
        for node in self.cluster.nodes:
            machine = self.cluster.machines[node]
            if not machine.serves or machine.cluster is None:
                return True
            for group in machine.cluster.groups.values():
                voters[group.id].add(frozenset(group.configuration.voters))
        return any(len(each) > 1 for each in voters.values())

    def _forgetful(self) -> set[NodeId]:
        self._forgot = {n for n in self._forgot if not self.cluster.machines[n].trusted}
        return self._forgot

    def _known_to_all(self, node: NodeId) -> bool:
        start = self.cluster.machines[node].incarnation
        for machine in self.cluster.machines.values():
            cluster = machine.cluster if machine.serves else None
            info = None if cluster is None else cluster.catalog_machine.node(node)
            if info is None or info.incarnation != start:
                return False
        return True

    def _off(self, node: NodeId) -> Machine:
        self.cluster.kill(node, power_loss=self.dice.random() < 0.5)
        return self.cluster.machines[node]

    async def _wipe(self, node: NodeId) -> None:
        if await self._may_forget(node):
            self._off(node)
            self._forgot.add(node)
            self.cluster.wipe(node)
            await self._wait(0.0, 2.0)
            self.cluster.start(node)

    async def _old_copy(self, node: NodeId) -> None:
        """Its folder is copied; some time later the copy takes its place. All others must know of
        the start in between by then: if the only one that does is away, nobody can tell that the
        folder is old.
        """
        if not await self._may_forget(node):
            return
        self._off(node)
        self.cluster.copy_data(node)
        self.cluster.start(node)
        await self._wait(0.5, 5.0)
        await self._until(lambda: self._known_to_all(node))
        if await self._may_forget(node) and self._known_to_all(node):
            self._off(node)
            self._forgot.add(node)
            self.cluster.restore_data(node)
            await self._wait(0.0, 1.0)
            self.cluster.start(node)

    async def _damage(self, node: NodeId) -> None:
        """The node must see it and refuse to start; an operator then gives it a new folder."""
        if not await self._may_forget(node):
            return
        machine = self._off(node)
        kind = self.dice.choice(DAMAGES)
        where = self.cluster.damage(node, kind)
        self.cluster.start(node)
        if where is None:
            return
        self._forgot.add(node)
        await self._until(lambda: machine.refused_to_start or machine.serves)
        if machine.refused_to_start:
            self.cluster.trace.count("damage refused")
            await self._wait(0.0, 1.0)
            self._off(node)
            self.cluster.wipe(node)
            self.cluster.start(node)
        elif machine.serves and kind == "log_bit":
            self.cluster.broke("damage is seen", f"{node} serves although {where} was damaged")

    async def _disk_full(self, node: NodeId) -> None:
        """It ends itself when it can write no more, and comes back when there is room."""
        machine = self.cluster.machines[node]
        process = machine.process
        self.cluster.fill_disk(node)
        await self._wait(0.2, 4.0)
        if machine.process is process and machine.disk_failed:
            # A round that is syncing meanwhile hears of it when that is done, on a slow disk late.
            await self._wait(END_S_MAX, END_S_MAX)
        if machine.process is process and machine.disk_failed:
            self.cluster.check_failed(node)
        self.cluster.make_room(node)
        if machine.disk_failed:
            self._off(node)
            self.cluster.start(node)

    async def _terminate(self, node: NodeId) -> None:
        machine = self.cluster.machines[node]
        process = machine.process
        self.cluster.terminate(node)
        await self._until(lambda: not machine.alive or machine.process is not process)
        await self._wait(0.0, 1.0)
        self.cluster.start(node)

    async def _until(self, come: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + REFUSE_S_MAX
        while loop.time() < until and not come():
            await asyncio.sleep(LOOK_S)
