"""Who moves groups and takes nodes out and in again, while the other nemeses strike.

Groups keep three members or more, and the cluster three nodes, so what a majority is stays as the
others know it. It has dice of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from chaos.simulator.clients import change
from chaos.simulator.sim_cluster import SimCluster
from cluster.groups.outcome import Outcome
from cluster.machine.commands import AddNode, Command, MoveGroup, RemoveNode
from cluster.machine.replies import NO_NODE
from cluster.types import CATALOG_GROUP, NodeId

LOOK_S = 0.01
MEMBERS_MIN = 3


class MembersNemesis:
    """Runs beside the others; what it began it ends though it is told to stop."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.dice = random.Random(f"members/{cluster.plan.seed}")
        self.doing: str | None = None
        self._let_in_at = 0  # its start before it was let in again
        #: A node that was removed is left running, wiped or not, until it knows.
        self._patience = random.Random(f"patience/{cluster.plan.seed}")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0.3, 2.5))
            many = len(self.cluster.nodes) > MEMBERS_MIN
            kind = self._replace if many and self.dice.random() < 0.35 else self._move
            strike = self.cluster.world.kernel.spawn(kind(), "members")
            while not strike.done():
                await asyncio.sleep(LOOK_S)

    async def _move(self) -> None:
        """A group gets other members; the next strike may come before it is done."""
        groups = [group for group in self.cluster.group_ids() if group != CATALOG_GROUP]
        if not groups:
            return
        group, nodes = self.dice.choice(groups), self.cluster.nodes
        members = sorted(self.dice.sample(nodes, self.dice.randint(MEMBERS_MIN, len(nodes))))
        await self._change(MoveGroup(group, members))
        self.cluster.trace.event("members", "+", f"group {group} shall be at {members}")
        self.cluster.trace.count("groups moved")

    async def _replace(self) -> None:
        """A node goes for good, and comes back later, perhaps with an empty disk."""
        node = self.dice.choice(self.cluster.nodes)
        successors = [other for other in self.cluster.nodes if other != node]
        successor = self.dice.choice(successors) if self.dice.random() < 0.5 else None
        self.doing = f"{node} leaves"
        self.cluster.trace.event("members", "!", f"{node} is removed, successor {successor}")
        outcome = await self._change(RemoveNode(node, successor))
        # An earlier try, of which no answer came, may have removed it.
        if outcome.kind != "ok" and outcome.code != NO_NODE:
            self.doing = None
            return
        if self._patience.random() < 0.5:
            await self._until(lambda: self._state(node) == "removed")
            if self._patience.random() < 0.5:
                self.cluster.kill(node)
                self.cluster.wipe(node)
            await self._until(lambda: self._knows(node))
        else:
            await self._until(lambda: self._is_out(node))
        self.cluster.kill(node)
        await self._until(lambda: self._state(node) == "removed")
        if self.dice.random() < 0.5:
            self.cluster.wipe(node)
        self.doing = f"{node} comes back"
        await asyncio.sleep(self.dice.uniform(0.0, 2.0))
        await self._change(AddNode(node, {"peer": node}))
        self._let_in_at = self.cluster.machines[node].incarnation
        self.cluster.trace.event("members", "+", f"{node} may come back")
        self.cluster.trace.count("nodes replaced")
        await self._until(lambda: self._votes_again(node))
        self.doing = None

    def _is_out(self, node: NodeId) -> bool:
        cluster = self.cluster.machines[node].cluster
        left = cluster is not None and self.cluster.machines[node].serves and cluster.left
        return left or self._state(node) == "removed"

    def _knows(self, node: NodeId) -> bool:
        self.cluster.start(node)
        machine = self.cluster.machines[node]
        return machine.serves and machine.cluster is not None and machine.cluster.left

    def _state(self, node: NodeId) -> str | None:
        """As the others say it."""
        for cluster in self.cluster.serving():
            info = cluster.catalog_machine.node(node)
            if cluster.node != node and cluster.catalog.ready and info is not None:
                return info.state
        return None

    def _votes_again(self, node: NodeId) -> bool:
        self.cluster.start(node)
        machine = self.cluster.machines[node]
        serving = machine.cluster if machine.serves else None
        told = serving is not None and serving.unknown_peers.is_removed
        if told and machine.incarnation > self._let_in_at:
            self.cluster.broke(
                "only removed nodes are told so", f"{node} was let in before it started"
            )
            return True
        if told:
            return False  # it is about to end, and was not started since
        catalogs = [each.catalog for each in self.cluster.serving()]
        return any(group.ready and node in group.configuration.voters for group in catalogs)

    async def _change(self, command: Command) -> Outcome:
        return await change(self.cluster, self.dice, command)

    async def _until(self, come: Callable[[], bool]) -> None:
        while not come():
            await asyncio.sleep(LOOK_S)
