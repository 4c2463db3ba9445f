"""Would stopping this node cost a group its majority? One answer for probes, drains and tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from cluster.cluster_node import ClusterNode
from cluster.types import GroupId, NodeId
from node.errors import BrokerError, Refused
from node.peer_rpc import PeerRpc

KIND = "caught_up"
ANSWER_S_MAX = 2.0
#: What a node of an earlier version says to a question that it does not know.
UNKNOWN = "unknown_question"


class Critical(NamedTuple):
    """A group that would have no majority without this node."""

    group: GroupId
    name: str
    lacks: tuple[NodeId, ...]  # voters that are down, leaving or behind; none: it has too few

    def __str__(self) -> str:
        if not self.lacks:
            return f"{self.name} has too few copies to go on without one"
        return f"{self.name} lacks {', '.join(self.lacks)}"


class Quorum:
    """One per node."""

    def __init__(
        self, cluster: ClusterNode, peer_rpc: PeerRpc, *, caught_up: Callable[[], bool]
    ) -> None:
        self._cluster = cluster
        self._peer_rpc = peer_rpc
        peer_rpc.on(KIND, lambda _, __: caught_up())

    async def critical(self) -> list[Critical]:
        """By the voters that are up and stay, and have caught up since they came."""
        others = self._peer_rpc.others()
        answers = await asyncio.gather(*(self._counts(node) for node in others))
        fit = {node for node, counts in zip(others, answers, strict=True) if counts}
        return critical_groups(self._cluster, fit)

    async def _counts(self, node: NodeId) -> bool:
        peers = self._cluster.peers
        if not peers.stays(node):
            return False
        try:
            answer: Any = await self._peer_rpc.request(node, KIND, wait_s=ANSWER_S_MAX)
        except Refused as refused:
            return refused.code == UNKNOWN and peers.stays(node)
        except BrokerError:
            return False
        # It may have said meanwhile that it leaves.
        return answer is True and peers.stays(node)


def critical_groups(cluster: ClusterNode, fit: Collection[NodeId]) -> list[Critical]:
    """`fit`: the other nodes that can do their share. A node that is alone in its cluster is
    missed by nobody else's group.
    """
    own = cluster.node
    found: list[Critical] = []
    if len(cluster.peers.states) == 1 and len(cluster.catalog.configuration.voters) == 1:
        return found
    for _, group in sorted(cluster.groups.items()):
        voters = group.configuration.voters
        left = [node for node in voters if node != own and node in fit]
        if own in voters and len(left) <= len(voters) // 2:
            lacks = [node for node in voters if node != own and node not in fit]
            found.append(Critical(group.id, group.name, tuple(lacks)))
    return found
