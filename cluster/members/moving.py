"""What a node does about members: it leads groups to those that the catalog wants, and lets go of
copies that nobody counts any more.

By level, as `cluster.catalog.reconcile`: any of it may be repeated, skipped, or go on at another
leader.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from cluster.catalog.cluster_parts import ClusterParts
from cluster.catalog.reconcile import removed
from cluster.groups.group import Group
from cluster.groups.outcome import Done, Outcome
from cluster.machine.commands import Command, GroupHeld, NodeGone
from cluster.machine.versions import ERAS_SINCE
from cluster.members.liveness import LivenessBroadcast
from cluster.members.membership import Transfer, next_step
from cluster.members.readmission import Readmission
from cluster.members.unknown_peers import UnknownPeers
from cluster.types import CATALOG_GROUP, GroupId, NodeId

#: A learner may vote when it lacks no more than this: it gets the rest within a few round trips.
READY_ENTRIES = 100
#: A node that was removed has heard that it holds nothing when it lacks nothing for so long...
LEAVE_S = 1.0
#: ...and is not waited for when it does not come so far.
LEAVE_S_MAX = 10.0

log = structlog.stdlib.get_logger(__name__)


class MovingNode(ClusterParts, Protocol):
    """The node whose groups are moved."""

    liveness: LivenessBroadcast
    readmission: Readmission
    unknown_peers: UnknownPeers

    def propose(self, group_id: GroupId, command: Command, done: Done | None = None) -> None: ...
    def drop_group(self, group_id: GroupId) -> None: ...
    def forget(self, peer: NodeId) -> None: ...


class Moving:
    """Called by the maintenance loop, at least once a period."""

    def __init__(self, cluster: MovingNode) -> None:
        self._cluster = cluster
        self._empty_since_s: dict[NodeId, float] = {}  # nodes that leave
        self._removed: set[NodeId] = set()  # nodes of which the groups led here have heard that
        self._proposed: set[Command] = set()  # proposed to the catalog, and not answered yet
        #: At the last look groups that are led here had not the members that they shall have.
        self.moves = False

    def look(self) -> None:
        self._meet()
        self._retire()  # first: what is past changes no members
        self._cluster.readmission.ask()
        self.moves = False
        for group in list(self._cluster.groups.values()):
            if group.may_change_members:
                self._change(group)
            elif group.member.leads:
                self.moves = True

    # --- other nodes

    def _meet(self) -> None:
        """Links to nodes that came after this one's settings were written, none to those that
        left.
        """
        cluster = self._cluster
        cluster.unknown_peers.look()
        known = {cluster.node, *cluster.links.peers()}
        for info in cluster.catalog_machine.nodes_ever():
            address = info.addresses.get("peer")
            if info.state == "removed":
                linked = info.node in known and not cluster.unknown_peers.is_unknown_peer(info.node)
                if linked and info.node != cluster.node:
                    log.info("node_left", node=info.node)
                    cluster.forget(info.node)
                if info.node not in self._removed:
                    self._removed.add(info.node)
                    cluster.liveness.broadcast(removed(info))
                continue
            self._removed.discard(info.node)
            if info.node not in known and address is not None:
                log.info("node_met", node=info.node, address=address)
                cluster.links.add_peer(info.node, address)

    # --- groups that this node leads

    def _wanted(self, group: Group) -> set[NodeId]:
        cluster = self._cluster
        catalog = cluster.catalog_machine
        if group.id != CATALOG_GROUP:
            info = catalog.group(group.id)
            return set(group.members if info is None else info.members)
        # Every node has the catalog until it has nothing else any more. A founder that has not
        # registered yet is a member all the same.
        # Whoever was let in learns when it comes: it may never, and nobody goes while it learns.
        wanted, voters = {*group.members}, group.configuration.voters
        for node in catalog.nodes_ever():
            absent = node.node not in voters and not cluster.peers.is_up(node.node)
            if node.state == "member" and not absent:
                wanted.add(node.node)
            elif absent or node.state == "removed" or self._may_go(node.node):
                wanted.discard(node.node)
        return wanted

    def _may_go(self, node: NodeId) -> bool:
        """It holds nothing and has heard so. Until then it stays a part of the majority."""
        cluster = self._cluster
        self.moves = True
        if any(node in info.homes for info in cluster.catalog_machine.groups()):
            self._empty_since_s.pop(node, None)
            return False
        now = asyncio.get_running_loop().time()
        since = self._empty_since_s.setdefault(node, now)
        lacks = 0 if node == cluster.node else cluster.catalog.lacks(node)
        heard = now - since > LEAVE_S and lacks == 0
        return heard or not cluster.peers.is_up(node) or now - since > LEAVE_S_MAX

    def _change(self, group: Group) -> None:
        cluster = self._cluster
        configuration = group.configuration
        if group.id == CATALOG_GROUP and group.configured_at == 0:
            # From here on the log says it, whatever settings say at a later start.
            self.moves = True
            group.change_members(configuration)
            return
        info = cluster.catalog_machine.group(group.id)
        if info is not None and group.configured_at < info.held_at <= group.last_index:
            # The catalog heard of what was given up as lost: say again who is here, as news.
            self.moves = True
            group.change_members(configuration)
            return
        wanted = self._wanted(group)
        self.moves |= wanted != {*configuration.voters}
        step = next_step(
            configuration,
            wanted,
            leader=cluster.node,
            ready={node for node in group.members if group.lacks(node) <= READY_ENTRIES},
            up={node for node in group.members if cluster.peers.is_up(node)},
            refused=cluster.readmission.refused(group),
        )
        if isinstance(step, Transfer):
            log.info("leader_moves", group=group.name, to=step.to)
            group.transfer(step.to)
        elif step is not None:
            log.info("members_change", group=group.name, voters=step.voters, learners=step.learners)
            group.change_members(step)
        self._report_held(group)

    def _report_held(self, group: Group) -> None:
        """What is committed: who has a copy, and in the end who is gone."""
        catalog = self._cluster.catalog_machine
        at, members = group.configured_at, group.members
        if not group.may_change_members:
            return  # not committed yet
        if group.id == CATALOG_GROUP:
            for node in catalog.nodes():
                if node.state == "leaving" and node.node not in members:
                    self._propose(NodeGone(node.node))
            return
        info = catalog.group(group.id)
        if info is None:
            return
        era, lost = group.configuration.era, group.configuration.lost
        if catalog.version < ERAS_SINCE:
            era, lost = 0, ()
        if info.is_newer(era, at, {*members, *lost}):
            self._propose(GroupHeld(group.id, at, members, era, lost))

    def _propose(self, command: Command) -> None:
        if command in self._proposed:
            return

        def done(_: Outcome) -> None:
            self._proposed.discard(command)

        self._proposed.add(command)
        self._cluster.propose(CATALOG_GROUP, command, done)

    # --- copies that are not wanted here any more

    def _retire(self) -> None:
        cluster = self._cluster
        for group in list(cluster.groups.values()):
            if group.id != CATALOG_GROUP and self._is_past(group):
                log.info("copy_dropped", group=group.name, node=cluster.node)
                cluster.drop_group(group.id)

    def _is_past(self, group: Group) -> bool:
        info = self._cluster.catalog_machine.group(group.id)
        known = group.configuration
        at = known.era, group.configured_at
        return info is not None and info.is_past(self._cluster.node, *at, known.lost)
