"""Whether the cluster has been up continuously since before this process started.

Entries of the catalog that are not durable outlive the restart of any node, and must not outlive a
moment in which all nodes were down. When no node knows the cluster to be continuous, the catalog's
leader removes those entries. A node learns it from a peer that knows it, or from seeing that the
entries were removed since the node started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from cluster.types import NodeId

#: A change waits this long for continuity, or it might be removed again at once.
CONTINUITY_S_MAX = 5.0


class ClusterContinuity:
    def __init__(self, recovered_index: int) -> None:
        self._recovered_index = recovered_index
        self._generation: int | None = None  # when what was recovered had been applied
        self._of_peers: dict[NodeId, bool] = {}  # what the peers that are up have reported
        self._established = asyncio.Event()

    @property
    def continuous(self) -> bool:
        return self._established.is_set()

    def establish(self) -> None:
        self._established.set()

    async def established(self) -> None:
        """Returns when it is established, or after `CONTINUITY_S_MAX`."""
        if not self.continuous:
            try:
                async with asyncio.timeout(CONTINUITY_S_MAX):
                    await self._established.wait()
            except TimeoutError:
                pass

    def on_peer(self, peer: NodeId, *, continuous: bool) -> bool:
        """Whether that is news."""
        before = self.continuous, self._of_peers.get(peer)
        self._of_peers[peer] = continuous
        if continuous:
            self.establish()
        return (self.continuous, continuous) != before

    def down(self, peer: NodeId) -> None:
        self._of_peers.pop(peer, None)

    def moved(self, index: int, generation: int) -> None:
        """The copy of the catalog is at `index`."""
        if self._generation is None:
            if index >= self._recovered_index:
                self._generation = generation
        elif generation > self._generation:
            self.establish()

    def all_cold(self, connected: Iterable[NodeId]) -> bool:
        """Neither this node nor any of these peers knows the cluster to be continuous."""
        return not self.continuous and all(self._of_peers.get(peer) is False for peer in connected)
