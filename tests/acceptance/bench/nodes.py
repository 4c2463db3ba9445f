"""Real nodes on loopback for a benchmark: what `quorate up` starts, and who leads what."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp

from quorate.local import LocalCluster, LocalNode

LEADER_S_MAX = 60.0
READY_S_MAX = 120.0
POLL_S = 0.02
HTTP_S_MAX = 5.0
SETTINGS = """log_level = "warning"
[limits]
message_bytes_max = "512MiB"
"""


class NodesError(Exception):
    """The nodes did not do what the benchmark needs."""


class Kill(NamedTuple):
    """Monotonic moments: just before the signal, and when the process was surely gone."""

    at_s: float
    dead_s: float


class Nodes:
    """A cluster under one folder. All waiting has a limit, and every process ends with `stop`."""

    def __init__(self, folder: Path, nodes: int = 3, settings: str = "") -> None:
        """`settings`: TOML before that of all benchmarks."""
        self.folder = folder
        self._cluster = LocalCluster.prepare(
            folder, nodes=nodes, preferred_ports=False, settings=settings + SETTINGS
        )

    @property
    def all(self) -> list[LocalNode]:
        return self._cluster.nodes

    @property
    def urls(self) -> list[str]:
        return self._cluster.urls

    def named(self, name: str) -> LocalNode:
        return self._cluster.named(name)

    def pids(self) -> list[int]:
        return [node.pid for node in self.all if node.pid is not None]

    async def start(self) -> None:
        """All nodes, until they serve."""
        await self._cluster.start_all()
        await self._cluster.until_ready(timeout_s=READY_S_MAX)

    async def launch(self, node: LocalNode) -> None:
        """Start its process; see `until_ready`."""
        await self._cluster.start(node)

    async def until_ready(self) -> None:
        await self._cluster.until_ready(timeout_s=READY_S_MAX)

    async def kill(self, node: LocalNode) -> Kill:
        at_s = time.monotonic()
        await self._cluster.kill(node)
        return Kill(at_s, dead_s=time.monotonic())

    async def stop(self) -> None:
        await self._cluster.stop()

    async def leader(self, queue: str) -> LocalNode:
        """The node that leads this queue's group now, and is alive."""
        return self._cluster.named(str((await self.about(queue))["leader"]))

    async def about(self, queue: str) -> dict[str, Any]:
        """What a node says of it, once its group has a leader that is alive."""
        path = f"/v1/queues/%2F/{quote(queue, safe='')}"
        end_s = time.monotonic() + LEADER_S_MAX
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HTTP_S_MAX)) as http:
            while time.monotonic() < end_s:
                for node in self.all:
                    about = await _ask(http, node, path) if node.running else None
                    name = about.get("leader") if about else None
                    if about and name and self._cluster.named(str(name)).running:
                        return about
                await asyncio.sleep(POLL_S)
        raise NodesError(f"{queue} has no leader after {LEADER_S_MAX:.0f} s; see {self.folder}")


async def _ask(http: aiohttp.ClientSession, node: LocalNode, path: str) -> dict[str, Any] | None:
    try:
        async with http.get(f"{node.url}{path}") as answer:
            return dict(await answer.json()) if answer.status == 200 else None
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError):
        return None
