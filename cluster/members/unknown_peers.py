"""Nodes that call, and are no members as far as is known here.

Some were removed from the cluster and do not know it: they were down meanwhile, or their folder
was wiped. They are told. What they are told comes from a read of the catalog that began when their
process was connected already. So a member that lags tells nobody, and a process that started after
its node was let in again is never told.

Others are members of which this node has not heard, since it was away when they were let in. One of
them may lead the catalog, and then nobody else brings its entries (Raft thesis, 4.1). Where they
can be reached is asked of the members that are known.

With that member gone too, nobody is left to say who calls, and the two may be the majority that has
to elect a leader. So while a group of this node has no leader, whoever proves that it holds the
cluster's secret is listened to.

All of them are linked for a while. Their Raft messages are taken, as Raft wants it (thesis,
4.1: the sender's configuration counts, which may be newer), and which start of this node they know
of, since its votes rest on that. They count for nothing else. A node that was removed cannot win:
it lacks the entry that removed it, which some member of every majority that it asks has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import structlog

from cluster.groups.group import Group
from cluster.machine.catalog import CatalogMachine
from cluster.machine.catalog_tables import NodeInfo
from cluster.raft.messages import NODE_LEVEL, PRE_VOTE, VOTE
from cluster.seams import Links
from cluster.types import CATALOG_GROUP, GroupId, NodeId, era_of

REMOVED = "removed"  # index: as of it the catalog does not count the receiver any more
WHO = "who?"  # node: is it a member?
MEMBER = "member"  # node, address: it is one
#: A link to an unknown peer is kept this long after its last Raft message. Requests for votes do
#: not count: a removed node may send them for ever.
UNKNOWN_PEER_S = 10.0
#: At a time, of those that no member vouched for.
UNKNOWN_PEERS_MAX = 16
#: The members are asked about strangers no more often: anybody can call.
WHO_S = 0.5
#: A process that was told, and goes on, is told again after so long: it may not have heard.
NOTIFY_AGAIN_S = 60.0
#: After a read of the catalog that nobody answered.
READ_AGAIN_S = 0.05

log = structlog.stdlib.get_logger(__name__)


@dataclass(slots=True)
class _UnknownPeer:
    until_s: float
    incarnation: int = 0  # of the process that is connected; 0: none is
    notified: bool = False


class UnknownPeers:
    """One per node. It also learns when its own node was removed."""

    def __init__(
        self,
        node: NodeId,
        links: Links,
        *,
        joins: bool,  # as its settings say
        groups: Mapping[GroupId, Group],
        read_catalog: Callable[[], Awaitable[bool]],  # all that is in it now is in `catalog` then
        ask_lost: Callable[[NodeId], None],  # one that was declared lost: what its folder holds
    ) -> None:
        self._node = node
        self._links = links
        self._joins = joins
        self._groups = groups
        self._read_catalog = read_catalog
        self._ask_lost = ask_lost
        links.on_unknown_peer = self._on_unknown_peer
        self._unknown: dict[NodeId, _UnknownPeer] = {}
        self._notified: dict[NodeId, tuple[int, float]] = {}  # incarnation, when
        self._may_ask_s = 0.0
        self._arrived = asyncio.Event()
        self.removal_heard = False  # somebody said so of this node
        self.is_removed = False  # and it has nothing to wait for

    # --- links

    def _on_unknown_peer(self, node: NodeId, incarnation: int) -> bool:
        """A node called to which there is no link. True: it may stay as it came."""
        if node in self._unknown:
            return node not in self._links.peers()
        info = self._removed(node)
        now = asyncio.get_running_loop().time()
        if info is None:
            if now >= self._may_ask_s:
                self._may_ask_s = now + WHO_S
                for peer in self._links.peers():
                    self._links.send(peer, [NODE_LEVEL, WHO, node])
                self._links.flush()
            leaderless = any(group.leader is None for group in self._groups.values())
            return leaderless and len(self._unknown) < UNKNOWN_PEERS_MAX
        notified, when_s = self._notified.get(node, (0, 0.0))
        address = info.addresses.get("peer")
        if address is not None and (notified != incarnation or now - when_s >= NOTIFY_AGAIN_S):
            self._let_in(node, address)
        return False

    def _let_in(self, node: NodeId, address: str) -> None:
        self._unknown[node] = _UnknownPeer(asyncio.get_running_loop().time() + UNKNOWN_PEER_S)
        self._links.add_peer(node, address)

    def on_who(self, peer: NodeId, node: NodeId) -> None:
        info = self._info(node)
        if info is not None and info.state != "removed" and "peer" in info.addresses:
            self._links.send(peer, [NODE_LEVEL, MEMBER, node, info.addresses["peer"]])
            self._links.flush()

    def on_member(self, node: NodeId, address: str) -> None:
        if node != self._node and node not in self._links.peers() and node not in self._unknown:
            self._let_in(node, address)

    def takes(self, unknown: NodeId, message: list[Any]) -> bool:
        """Whether it is one of Raft that this node's copy of the group may hear."""
        match message:
            case [int(group_id), str(kind), int(term), *_] if group_id in self._groups:
                group = self._groups[GroupId(group_id)]
            case _:
                return False
        if era_of(term) > era_of(group.term) and group.last_index > 1:
            return False  # a recovery of which this copy with all that it holds was no part
        if kind not in (PRE_VOTE, VOTE):
            self._unknown[unknown].until_s = asyncio.get_running_loop().time() + UNKNOWN_PEER_S
        return True

    def is_unknown_peer(self, node: NodeId) -> bool:
        return node in self._unknown

    @property
    def connected(self) -> list[NodeId]:
        """Unknown peers with a link now."""
        return [node for node, unknown in self._unknown.items() if unknown.incarnation]

    def on_up(self, node: NodeId, incarnation: int) -> bool:
        """Whether it is an unknown peer."""
        if node not in self._unknown:
            if node in self._links.peers():
                return False
            self._unknown[node] = _UnknownPeer(asyncio.get_running_loop().time() + UNKNOWN_PEER_S)
        unknown = self._unknown[node]
        unknown.incarnation, unknown.notified = incarnation, False
        self._arrived.set()
        return True

    def on_down(self, node: NodeId) -> None:
        if node in self._links.peers():
            self._unknown[node].incarnation = 0
        else:  # it calls again, if it wants
            del self._unknown[node]

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            here = {n: g.incarnation for n, g in self._unknown.items() if g.incarnation}
            here = {node: start for node, start in here.items() if not self._unknown[node].notified}
            if not here:
                continue
            if await self._read_catalog():
                self._notify_removed(here)
            else:
                await asyncio.sleep(READ_AGAIN_S)
                self._arrived.set()

    def _notify_removed(self, here: dict[NodeId, int]) -> None:
        """These processes were connected before the read of the catalog began."""
        now = asyncio.get_running_loop().time()
        index = self._catalog.applied_index
        for node, incarnation in here.items():
            unknown = self._unknown.get(node)
            if unknown is None or unknown.incarnation != incarnation:
                continue
            if self._removed(node) is not None:
                self._ask_lost(node)  # first: the others may not have what its folder holds
                unknown.notified = self._links.send(node, [NODE_LEVEL, REMOVED, index])
                self._notified[node] = (incarnation, now)
        self._links.flush()

    def look(self) -> None:
        """Ends the links to those that had their time, or are members by now: they are connected
        anew, as such.
        """
        now = asyncio.get_running_loop().time()
        for node, unknown in list(self._unknown.items()):
            info = self._info(node)
            if now >= unknown.until_s or (info is not None and info.state != "removed"):
                self._links.remove_peer(node)
                self._unknown.pop(node, None)

    @property
    def _catalog(self) -> Group:
        return self._groups[CATALOG_GROUP]

    def _info(self, node: NodeId) -> NodeInfo | None:
        """As this node's copy of the catalog has it."""
        return cast(CatalogMachine, self._catalog.machine).node(node)

    def _removed(self, node: NodeId) -> NodeInfo | None:
        info = self._info(node)
        return info if info is not None and info.state == "removed" else None

    # --- being told

    def on_message(self, peer: NodeId, index: int) -> None:
        """As of this index of the catalog this node is no member. It may have been let in since;
        and a node that waits to be let in goes on waiting, since it was started for that.
        """
        if not self.removal_heard:
            log.warning("removed_from_cluster", node=self._node, told_by=peer)
        self.removal_heard = True
        if not self.waits_to_be_let_in and self._catalog.commit_index <= index:
            self.is_removed = True

    @property
    def waits_to_be_let_in(self) -> bool:
        return self._joins and self._node not in self._catalog.members
