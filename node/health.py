"""GET /health/live and /health/ready: facts that this node knows of itself, nothing of others."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from cluster.cluster_node import ClusterNode


class Health:
    """`live`: a restart would not help. `ready`: clients may come."""

    def __init__(self, cluster: ClusterNode, *, stopping: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._stopping = stopping

    def why_not_live(self) -> list[str]:
        failed = self._cluster.failed
        return [] if failed is None else [f"the node stopped working: {failed}"]

    def why_not_ready(self) -> list[str]:
        reasons = self.why_not_live()
        if self._stopping():
            reasons.append("the node is stopping")
        if self._cluster.catalog.leader is None:
            reasons.append("the catalog has no leader that this node knows")
        reasons += [
            f"group {group.name} stopped because of a bug: {group.poisoned}"
            for group in (*self._cluster.groups.values(), self._cluster.transient.own)
            if group is not None and group.poisoned is not None
        ]
        return reasons

    async def live(self, request: web.Request) -> web.Response:
        return _answer(self.why_not_live())

    async def ready(self, request: web.Request) -> web.Response:
        return _answer(self.why_not_ready())


def _answer(reasons: list[str]) -> web.Response:
    return web.json_response(
        {"ok": not reasons, "reasons": reasons}, status=503 if reasons else 200
    )
