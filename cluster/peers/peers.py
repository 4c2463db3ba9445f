"""What this node knows of the others: who is heard, since when, and which groups each of them
leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.types import GroupId, NodeId


@dataclass(frozen=True, slots=True)
class PeerState:
    """What this node last saw of another one (or of itself)."""

    up: bool
    incarnation: int  # of its process; 0: never heard
    gone: bool = False  # its process ended: see `Down`
    since: float = 0.0  # loop time of the last change, s


class Peers:
    """The nodes by id, this one included."""

    def __init__(self, node: NodeId, incarnation: int) -> None:
        self.states = {node: PeerState(up=True, incarnation=incarnation)}
        self._leads: dict[GroupId, NodeId] = {}
        self._leaving: set[NodeId] = set()
        self._waiting: set[NodeId] = set()  # would leave, as soon as the others can do without it

    def up(self, peer: NodeId, incarnation: int, now: float) -> None:
        self.states[peer] = PeerState(up=True, incarnation=incarnation, since=now)
        self._leaving.discard(peer)
        self._waiting.discard(peer)

    def down(self, peer: NodeId, *, gone: bool, now: float) -> int:
        """The incarnation that is gone or silent; 0 when it was never heard."""
        before = self.states.get(peer)
        incarnation = 0 if before is None else before.incarnation
        if before is not None and not before.up:  # more is known of it now
            gone, now = gone or before.gone, before.since
        self.states[peer] = PeerState(up=False, incarnation=incarnation, gone=gone, since=now)
        self.learn_leads(peer, ())
        return incarnation

    def forget(self, peer: NodeId) -> None:
        """It is no part of the cluster any more."""
        self.states.pop(peer, None)
        self._leaving.discard(peer)
        self._waiting.discard(peer)

    def begin(self, node: NodeId, incarnation: int, now: float) -> None:
        """This node itself starts."""
        self.states[node] = replace(self.states[node], incarnation=incarnation, since=now)

    def alone_s(self, now: float) -> float:
        """Seconds since the last of the others was up, or since this node started."""
        if sum(state.up for state in self.states.values()) > 1:
            return 0.0
        return now - max(state.since for state in self.states.values())

    def is_up(self, node: NodeId) -> bool:
        state = self.states.get(node)
        return state is not None and state.up

    def miss(self, node: NodeId, incarnation: int, now: float) -> bool:
        """It was a part of the cluster once; True when this is news and it was never heard."""
        before = self.states.get(node)
        if before is not None and (before.up or before.incarnation):
            return False
        gone = before is not None and before.gone
        self.states[node] = PeerState(up=False, incarnation=incarnation, gone=gone, since=now)
        return True

    def leaving(self, peer: NodeId, *, leaves: bool, waits: bool = False) -> None:
        """It is shutting down or drained, and hands over what it leads; or it waits for a drain; or
        neither any more.
        """
        for nodes, member in ((self._leaving, leaves), (self._waiting, waits)):
            if member:
                nodes.add(peer)
            else:
                nodes.discard(peer)

    def wants_to_leave(self, node: NodeId) -> bool:
        return node in self._leaving or node in self._waiting

    def stays(self, node: NodeId) -> bool:
        """It is up, and has not said that it is shutting down."""
        return self.is_up(node) and node not in self._leaving

    def stays_for(self, peer: NodeId, now: float) -> float:
        """Seconds for which it has been heard without a break; 0 when it is not, or is leaving."""
        state = self.states.get(peer)
        if state is None or not self.stays(peer):
            return 0.0
        return now - state.since

    def learn_leads(self, peer: NodeId, led: Sequence[int]) -> bool:
        """`peer` says that it leads these groups, and no others. Whether that is news."""
        before = self._leads
        self._leads = {group: node for group, node in self._leads.items() if node != peer}
        for group in led:
            self._leads[GroupId(group)] = peer
        return self._leads != before

    def forget_leader(self, group: GroupId) -> None:
        self._leads.pop(group, None)

    def leader_of(self, group: GroupId) -> NodeId | None:
        return self._leads.get(group)
