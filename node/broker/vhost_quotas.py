"""Virtual hosts that hold as many bytes as they may (`max-bytes`): publishes to them are refused,
and to no other.

Each node counts the queues that it leads and tells the others once a second, so a limit may be
passed by what is published within about two seconds. Nothing is counted while no virtual host has
such a limit.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import structlog

from cluster.types import GroupId, NodeId
from node.peer_rpc import PeerRpc

if TYPE_CHECKING:
    from cluster.cluster_node import ClusterNode
    from cluster.machine.interface import QueueView
    from node.metrics.queue_rows import QueueRows

log = structlog.get_logger(__name__)

KIND = "vhost_bytes"
LIMIT = "max-bytes"


class VhostQuotas:
    """One per node. `sample` is called once a second."""

    def __init__(self, cluster: ClusterNode, peer_rpc: PeerRpc, rows: QueueRows) -> None:
        #: Why publishes to a virtual host are refused, by its name. Replaced, never changed.
        self.full: dict[str, str] = {}
        self._cluster = cluster
        self._peer_rpc = peer_rpc
        self._rows = rows
        self._queues: dict[tuple[GroupId, int], tuple[str, int]] = {}
        self._own: Counter[str] = Counter()
        self._others: dict[NodeId, dict[str, int]] = {}
        peer_rpc.on(KIND, self._on_notice)
        rows.on_look.append(self._looked)

    def bytes_of(self, vhost: str) -> int:
        """As far as this node knows."""
        up = self._peer_rpc.others()
        return self._own[vhost] + sum(self._others.get(node, {}).get(vhost, 0) for node in up)

    async def sample(self) -> None:
        """Count, tell, and conclude."""
        limits = self._limits()
        if limits:
            await self._rows.freshen()
            for _ in self._rows.sums():  # groups that are led elsewhere now are dropped
                pass
            self._peer_rpc.notify_others(KIND, {vhost: self._own[vhost] for vhost in limits})
        full = {
            vhost: f"virtual host '{vhost}' holds {held} bytes, and may hold {limit}"
            f" ({LIMIT}): consume first"
            for vhost, limit in limits.items()
            if (held := self.bytes_of(vhost)) >= limit
        }
        for vhost in full.keys() ^ self.full.keys():
            log.warning("vhost_full" if vhost in full else "vhost_has_room", vhost=vhost)
        self.full = full

    def _limits(self) -> dict[str, int]:
        entries = self._cluster.catalog_machine.entries("vhost_limits")
        found = {key[0]: cast("int", entry.get(LIMIT, -1)) for key, entry in entries.items()}
        return {vhost: limit for vhost, limit in found.items() if limit >= 0}

    def _looked(self, group: GroupId, queue: int, view: QueueView | None) -> None:
        vhost, held = self._queues.pop((group, queue), ("", 0))
        if held:
            self._own[vhost] -= held
        held = 0 if view is None else view.bytes + view.upload_bytes
        if view is not None and held:
            self._queues[group, queue] = (view.vhost, held)
            self._own[view.vhost] += held

    def _on_notice(self, peer: NodeId, fields: list[Any]) -> None:
        match fields:
            case [dict()]:
                reported = cast("dict[Any, Any]", fields[0])
                self._others[peer] = {v: n for v, n in reported.items() if type(n) is int}
            case _:
                log.warning("vhost_bytes_unreadable", peer=peer)
