"""Whether the cluster has been up since before this process: then it is *warm*.

What is not durable in the catalog outlives the restart of any node, and must not outlive a moment
in which all nodes were down. When nobody is warm, the catalog's leader has it forgotten; a node
turns warm by a peer that is, or by seeing that it was forgotten since it started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from cluster.types import NodeId

#: A change waits so long for the node to turn warm, lest it be forgotten at once.
CONTINUITY_S_MAX = 5.0


class ClusterContinuity:
    def __init__(self, recovered_index: int) -> None:
        self._recovered_index = recovered_index
        self._generation: int | None = None  # when what was recovered had been applied
        self._of_peers: dict[NodeId, bool] = {}  # by the peers that are up
        self._established = asyncio.Event()

    @property
    def continuous(self) -> bool:
        return self._established.is_set()

    def establish(self) -> None:
        self._established.set()

    async def established(self) -> None:
        """Or it takes too long."""
        if not self.continuous:
            try:
                async with asyncio.timeout(CONTINUITY_S_MAX):
                    await self._established.wait()
            except TimeoutError:
                pass

    def on_peer(self, peer: NodeId, *, continuous: bool) -> None:
        self._of_peers[peer] = continuous
        if continuous:
            self.establish()

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
        """This node is, and all these have said that they are."""
        return not self.continuous and all(self._of_peers.get(peer) is False for peer in connected)
