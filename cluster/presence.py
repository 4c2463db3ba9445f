"""Who is here, as it is told: nodes to groups, and what this node leads to its peers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cluster.forwarding import ASK_AGAIN_S, NODE_LEVEL
from cluster.group_like import GroupLike
from cluster.machine.commands import Command
from cluster.outcome import Outcome
from cluster.raft.member import Role
from cluster.reconcile import presence_commands
from cluster.types import CATALOG_GROUP, GroupId, NodeId

if TYPE_CHECKING:
    from cluster.cluster_node import ClusterNode
    from cluster.group import Group

LEADS = "leads"
LEAVING = "leaving"
STAYING = "staying"
WAITING = "waiting"  # for the others to do without it; until then it does its share
STOP_PATIENCE_S = 3.0


class Presence:
    """One a node."""

    def __init__(self, cluster: ClusterNode) -> None:
        self._cluster = cluster
        self._untold: set[GroupId] = set()  # may have missed which nodes came and went
        self.word = STAYING  # LEAVING: about to stop, or drained: wants no leadership

    def tell_groups(self, command: Command) -> None:
        """A node came or went."""
        for group in self._cluster.groups.values():
            if group.id != CATALOG_GROUP and group.role is Role.LEADER:
                self._tell(group, command)
        own = self._cluster.transient.own
        if own is not None:
            self._tell(own, command)

    def tell_all(self, group: GroupLike) -> None:
        """This node leads the group since a moment ago."""
        nodes = self._cluster.catalog_machine.nodes_ever()
        for command in presence_commands(self._cluster.peers.states, nodes):
            self._tell(group, command)

    def tell_again(self) -> None:
        """Those that did not hear it."""
        untold, self._untold = self._untold, set()
        for group_id in sorted(untold):
            group = self._cluster.group(group_id)
            if group is not None and group.ready:
                self.tell_all(group)

    def _tell(self, group: GroupLike, command: Command) -> None:
        def done(outcome: Outcome) -> None:
            if outcome.reply is None:  # refused or lost; another leader would tell it by itself
                self._untold.add(group.id)

        group.propose(command, done)

    def tell_peers(self, peers: Sequence[NodeId]) -> None:
        """Which groups this node leads, as whom it knows each of them, and whether it is warm."""
        cluster = self._cluster
        led: list[int] = [g.id for g in cluster.groups.values() if g.role is Role.LEADER]
        for peer in peers:
            info = cluster.catalog_machine.node(peer)
            known = 0 if info is None else info.incarnation
            cluster.links.send(peer, [NODE_LEVEL, LEADS, led, known, cluster.continuity.warm])
            if self.word != STAYING:  # it may have come after it was said
                cluster.links.send(peer, [NODE_LEVEL, self.word])
        cluster.links.flush()

    # --- who leaves

    def leave(self) -> None:
        """Tell the others that this node wants no leaderships."""
        self._say(LEAVING)

    def wait(self) -> None:
        """It will leave as soon as the others can do without it."""
        self._say(WAITING)

    def stay(self) -> None:
        """It takes leaderships again."""
        self._say(STAYING)

    def _say(self, word: str) -> None:
        links = self._cluster.links
        for peer in links.peers() if word != self.word else ():
            links.send(peer, [NODE_LEVEL, word])
        self.word = word
        links.flush()

    async def hand_over(self, *, lacks_max: float = math.inf) -> None:
        """This node is about to stop: the leaderships that it has go to others first, but not to
        those that are about to stop too, nor to those that lack more entries.
        """
        cluster = self._cluster
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_PATIENCE_S
        self.leave()
        while loop.time() < deadline and cluster.failed is None:
            led = [group for group in cluster.groups.values() if group.role is Role.LEADER]
            heirs = {group: self._heir(group, lacks_max) for group in led}
            if not any(heirs.values()):
                return
            for group, heir in heirs.items():
                if heir is not None:
                    group.transfer(heir)
            await asyncio.sleep(ASK_AGAIN_S)

    def _heir(self, group: Group, lacks_max: float) -> NodeId | None:
        """Of the voters that stay the one that lacks least, and not the same one of all groups."""
        peers, own = self._cluster.peers, self._cluster.node
        able = [n for n in group.configuration.voters if n != own and peers.stays(n)]
        able = [node for node in able if group.lacks(node) <= lacks_max]
        turn = {node: (place + group.id) % len(able) for place, node in enumerate(able)}
        return min(able, key=lambda node: (group.lacks(node), turn[node]), default=None)
