"""Watches who leads what, for the history and for whoever wants to strike a leader."""

from __future__ import annotations

import asyncio
from typing import Any

from chaos.history import History
from chaos.live.live_cluster import LiveCluster
from chaos.report.series import WATCH
from cluster.types import NodeId

PERIOD_S = 0.15


class Watch:
    """Asks every node again and again what it leads; `run` until cancelled."""

    def __init__(self, cluster: LiveCluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._claims: dict[NodeId, dict[str, int]] = {}  # node -> group -> term, as last heard
        self._answers: set[NodeId] = set()

    def leader_of(self, group: str) -> NodeId | None:
        """Who said so last, of those that answer, in the newest term."""
        terms = {
            node: claims[group]
            for node, claims in self._claims.items()
            if node in self._answers and group in claims
        }
        return max(terms, key=lambda node: terms[node], default=None)

    def groups(self) -> list[str]:
        """All that some node has led."""
        return sorted({group for claims in self._claims.values() for group in claims})

    async def run(self) -> None:
        watched: set[NodeId] = set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                for node in self._cluster.nodes:
                    if node not in watched:
                        watched.add(node)
                        tasks.create_task(self._look_at(node), name=f"watch {node}")
                await asyncio.sleep(PERIOD_S)

    async def _look_at(self, node: NodeId) -> None:
        while True:
            running = self._cluster.running(node)
            self.heard(node, await self._cluster.status(node) if running else None)
            await asyncio.sleep(PERIOD_S)

    def heard(self, node: NodeId, status: dict[str, Any] | None) -> None:
        """What a node answered; None: nothing."""
        if status is None:
            self._answers.discard(node)
            return
        self._answers.add(node)
        before = self._claims.get(node, {})
        claims = {
            str(group["name"]): int(group["term"])
            for group in status["groups"]
            if group["role"] == "leader"
        }
        for group, term in claims.items():
            if before.get(group) != term:
                value = {"node": node, "group": group, "term": term}
                self._history.saw(WATCH, "leads", value, node=node)
        self._claims[node] = claims
