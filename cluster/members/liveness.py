"""Liveness broadcast: groups learn which nodes are up, peers which groups this node leads."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol

from cluster.catalog.cluster_parts import ClusterParts
from cluster.catalog.continuity import ClusterContinuity
from cluster.catalog.reconcile import liveness_commands
from cluster.groups.group import Group
from cluster.groups.group_like import GroupLike
from cluster.groups.outcome import Outcome
from cluster.machine.commands import Command
from cluster.members.known_incarnations import KnownIncarnations
from cluster.raft.member import Role
from cluster.raft.messages import NODE_LEVEL
from cluster.types import CATALOG_GROUP, GroupId, NodeId

LEADS = "leads"
LEAVING = "leaving"
STAYING = "staying"
WAITING = "waiting"  # for the others to do without it; until then it does its share
STOP_PATIENCE_S = 3.0
HAND_OVER_AGAIN_S = 0.05


class Broadcasting(ClusterParts, Protocol):
    """The node of which the others are told."""

    continuity: ClusterContinuity

    @property
    def failed(self) -> BaseException | None: ...
    def group(self, group_id: GroupId, /) -> GroupLike | None: ...


class LivenessBroadcast:
    """One per node."""

    def __init__(self, cluster: Broadcasting) -> None:
        self._cluster = cluster
        self._known_incarnations = KnownIncarnations()
        self._missed: set[GroupId] = set()  # groups that may lack a NodeUp or NodeDown
        self.word = STAYING  # LEAVING: about to stop, or drained: wants no leadership

    def broadcast(self, command: Command) -> None:
        """Proposes a NodeUp or NodeDown to every group that is led here."""
        for group in self._cluster.groups.values():
            if group.id != CATALOG_GROUP and group.role is Role.LEADER:
                self._propose(group, command)
        own = self._cluster.transient.own
        if own is not None:
            self._propose(own, command)

    def on_leadership(self, group: GroupLike) -> None:
        """This node has just become the group's leader: proposes the state of every node to it."""
        nodes = self._cluster.catalog_machine.nodes_ever()
        for command in liveness_commands(self._cluster.peers.states, nodes):
            self._propose(group, command)

    def retry(self) -> None:
        """Proposes again where a command was refused or lost."""
        missed, self._missed = self._missed, set()
        for group_id in sorted(missed):
            group = self._cluster.group(group_id)
            if group is not None and group.ready:
                self.on_leadership(group)

    def _propose(self, group: GroupLike, command: Command) -> None:
        def done(outcome: Outcome) -> None:
            if outcome.reply is None:  # refused or lost; another leader would do it by itself
                self._missed.add(group.id)

        group.propose(command, done)

    def announce(self, peers: Sequence[NodeId]) -> None:
        """Sends which groups this node leads, the incarnation it knows of the peer, and whether
        this node knows the cluster to be continuous.
        """
        cluster = self._cluster
        led: list[int] = [g.id for g in cluster.groups.values() if g.role is Role.LEADER]
        for peer in peers:
            known = self._known_incarnations.of(peer, cluster.catalog)
            cluster.links.send(peer, [NODE_LEVEL, LEADS, led, known, cluster.continuity.continuous])
            if self.word != STAYING:  # it may have come after it was said
                cluster.links.send(peer, [NODE_LEVEL, self.word])
        cluster.links.flush()

    # --- who leaves

    def leave(self) -> None:
        """This node wants no leaderships."""
        self._broadcast(LEAVING)

    def wait(self) -> None:
        """This node leaves as soon as the others can do without it."""
        self._broadcast(WAITING)

    def stay(self) -> None:
        """This node takes leaderships again."""
        self._broadcast(STAYING)

    def _broadcast(self, word: str) -> None:
        links = self._cluster.links
        for peer in links.peers() if word != self.word else ():
            links.send(peer, [NODE_LEVEL, word])
        self.word = word
        links.flush()

    async def hand_over(self, *, lacks_max: float = math.inf) -> None:
        """Transfers this node's leaderships before it stops: not to nodes that are about to stop
        too, nor to those that lack more than `lacks_max` entries.
        """
        cluster = self._cluster
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_PATIENCE_S
        self.leave()
        while loop.time() < deadline and cluster.failed is None:
            led = [group for group in cluster.groups.values() if group.role is Role.LEADER]
            successors = {group: self._successor(group, lacks_max) for group in led}
            if not any(successors.values()):
                return
            for group, successor in successors.items():
                if successor is not None:
                    group.transfer(successor)
            await asyncio.sleep(HAND_OVER_AGAIN_S)

    def _successor(self, group: Group, lacks_max: float) -> NodeId | None:
        """The voter that stays and lacks the fewest entries; ties differ from group to group."""
        peers, own = self._cluster.peers, self._cluster.node
        able = [n for n in group.configuration.voters if n != own and peers.stays(n)]
        able = [node for node in able if group.lacks(node) <= lacks_max]
        turn = {node: (place + group.id) % len(able) for place, node in enumerate(able)}
        return min(able, key=lambda node: (group.lacks(node), turn[node]), default=None)
