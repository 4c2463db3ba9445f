"""Where transient queues are: each node has one group of its own for them, under its number."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.agreed_time import AgreedTime
from cluster.groups.local_group import LocalGroup
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import DeleteQueue
from cluster.machine.effects import Effect, QueueRemoved
from cluster.peers.peers import Peers
from cluster.seams import Clock
from cluster.types import TRANSIENT_GROUPS, GroupId, NodeId


class TransientGroups:
    """This node's own group, and which node has which."""

    def __init__(
        self,
        node: NodeId,
        incarnation: Callable[[], int],
        peers: Peers,
        clock: Clock,
        *,
        bytes_max: int,
        confirm_hold_ms_max: int,
        agreed_time: AgreedTime,
    ) -> None:
        self.own: LocalGroup | None = None  # once this start of the node is registered
        self._node = node
        self._incarnation = incarnation
        self._peers = peers
        self._clock = clock
        self._bytes_max = bytes_max
        self._confirm_hold_ms_max = confirm_hold_ms_max
        self._agreed_time = agreed_time
        self._nodes: dict[GroupId, NodeId] = {}  # a node keeps its number for ever

    def start(self, catalog: CatalogMachine) -> LocalGroup | None:
        """This node's group, when it can be made and has not been yet."""
        info = catalog.node(self._node)
        if self.own is not None or info is None or info.incarnation != self._incarnation():
            return None
        name = f"transient-{self._node}"
        self.own = LocalGroup(
            info.transient_group,
            name,
            self._node,
            clock=self._clock,
            bytes_max=self._bytes_max,
            confirm_hold_ms_max=self._confirm_hold_ms_max,
            agreed_time=self._agreed_time,
        )
        return self.own

    def stop(self) -> None:
        if self.own is not None:
            self.own.stop()

    def leader_of(self, group: GroupId, catalog: CatalogMachine) -> NodeId | None:
        """The node itself, while it is up."""
        node = self._nodes.get(group)
        if node is None:
            self._nodes = {info.transient_group: info.node for info in catalog.nodes()}
            node = self._nodes.get(group)
        if node is None or (node == self._node and self.own is None):
            return None
        return node if self._peers.is_up(node) else None

    def is_lost(self, group: GroupId, catalog: CatalogMachine) -> bool:
        """Transient queues were there, and went with their node."""
        if group < TRANSIENT_GROUPS or self.leader_of(group, catalog) is not None:
            return False
        return not catalog.queues_of(group)

    def removed(self, effects: Sequence[Effect]) -> None:
        """The catalog dropped queues; those of this node that are left end at once."""
        own = self.own
        for effect in effects:
            if own is None or type(effect) is not QueueRemoved or effect.group != own.id:
                continue
            if own.machine.find(effect.queue) is not None:
                own.propose(DeleteQueue(effect.queue))
