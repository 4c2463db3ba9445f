"""After a start: have this node's copies what was committed when it came back?

Until then the cluster bears no further loss of the others, so the node is not ready, and who
restarts one node after the other waits. A cluster without a quorum cannot say what was committed:
when nothing has moved for a while the node counts as caught up, since waiting longer helps nobody.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import structlog

from cluster.cluster_node import ClusterNode
from cluster.machine.catalog import GroupInfo
from cluster.types import CATALOG_GROUP, GroupId, NodeId
from node.peer_rpc import PeerRpc

log = structlog.get_logger(__name__)

KIND = "commits"
LOOK_S = 0.1
NAMED_MAX = 3


class CatchUp:
    """One per node; `run` ends when it has caught up."""

    def __init__(self, cluster: ClusterNode, peer_rpc: PeerRpc, *, patience_s: float) -> None:
        self.done = False
        self._cluster = cluster
        self._peer_rpc = peer_rpc
        self._patience_s = patience_s
        self._waits = ["the catalog: its copy here has not been looked at yet"]
        self._targets: dict[GroupId, int] = {}  # committed of each group when we came
        peer_rpc.on(KIND, self._answer)

    def why_not(self) -> list[str]:
        if self.done:
            return []
        more = len(self._waits) - NAMED_MAX
        named = "; ".join(self._waits[:NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
        named = named or "the catalog has told of more copies just now"
        return [f"copies here are behind: {named}"]

    def _answer(self, _: NodeId, fields: list[Any]) -> list[list[int]]:
        """What is committed of the groups that this node leads."""
        groups = self._cluster.groups.values()
        return [[group.id, group.commit_index] for group in groups if group.ready]

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        moved_s, before = loop.time(), -1
        while True:
            wanted = self._wanted()
            if wanted - self._targets.keys():
                await self._request()
            self._waits = [why for group in sorted(wanted) if (why := self._why_not(group))]
            if not self._waits and wanted == self._wanted():
                break
            moved = len(self._targets) + sum(g.applied_index for g in self._cluster.groups.values())
            if moved != before:
                moved_s, before = loop.time(), moved
            elif loop.time() - moved_s > self._patience_s:
                log.warning("catch_up_given_up", reason=self.why_not()[0])
                break
            await asyncio.sleep(LOOK_S)
        self.done = True
        log.info("caught_up", groups=len(self._targets))

    def _wanted(self) -> set[GroupId]:
        """The catalog first: it says what else is to be here."""
        if self._why_not(CATALOG_GROUP) is not None:
            return {CATALOG_GROUP}
        own = self._cluster.node
        groups = self._cluster.catalog_machine.groups()
        return {CATALOG_GROUP, *(info.id for info in groups if _is_member(info, own))}

    async def _request(self) -> None:
        for answer in (await self._peer_rpc.request_others(KIND)).values():
            for group, commit in cast("list[list[int]]", answer):
                self._targets.setdefault(GroupId(group), commit)
        for group in self._cluster.groups.values():
            if group.ready:
                self._targets.setdefault(group.id, group.commit_index)

    def _why_not(self, group_id: GroupId) -> str | None:
        group = self._cluster.groups.get(group_id)
        if group is None:
            return f"group {group_id} has not been started yet"
        target = self._targets.get(group_id)
        if target is None:
            return f"{group.name}: no leader has said yet what is committed"
        if group.applied_index < target:
            return f"{group.name}: has applied {group.applied_index} of {target}"
        if group.votes_suspended:
            return f"{group.name}: does not vote yet"
        return None


def _is_member(info: GroupInfo, node: NodeId) -> bool:
    """Its copy is known to be here; one that only moves here is not waited for."""
    return node in (info.held or info.members) and node in info.members
