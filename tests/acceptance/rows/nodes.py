"""Three Quorate nodes on loopback, as real processes, for checks that block their thread."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import urllib.request
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from quorate.local import LocalCluster, LocalNode, Probe

T = TypeVar("T")
READY_S_MAX = 120.0
HTTP_S_MAX = 60.0
POLL_S = 0.05


class OwnNodes:
    """They are stopped, killed and started again as checks need it."""

    def __init__(self, folder: Path) -> None:
        self._cluster = LocalCluster.prepare(
            folder, preferred_ports=False, settings='log_level = "warning"\n'
        )
        self.nodes = self._cluster.nodes
        self._plain = {node.name: _settings_file(node).read_text() for node in self.nodes}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nodes", daemon=True)
        self._thread.start()

    def start(self) -> None:
        self._run(self._start_all())

    def restart(self) -> None:
        """Kill every process at once, start them again, wait until they serve."""
        self._run(self._restart())

    def restart_with(self, settings: str) -> None:
        """As `restart`, with these lines added to the settings; '' takes them away."""
        for node in self.nodes:
            _settings_file(node).write_text(self._plain[node.name] + settings)
        self.restart()

    def alarm(self, raised: bool) -> None:
        """One node starts with a limit that it is over at once: an alarm anywhere counts."""
        node = self.nodes[-1]
        more = "limits.memory_high_watermark = 1000000\n" if raised else ""
        _settings_file(node).write_text(self._plain[node.name] + more)
        self.kill(node)
        self.revive(node, probe="startup" if raised else "ready")

    def kill(self, node: LocalNode) -> None:
        self._run(self._cluster.kill(node))

    def revive(self, node: LocalNode, probe: Probe = "ready") -> None:
        self._run(self._cluster.start(node))
        self._run(self._cluster.until_ready(timeout_s=READY_S_MAX, probe=probe))

    @contextmanager
    def paused(self, node: LocalNode) -> Generator[None]:
        """The process stands still: its connections stay, and nothing is heard of it."""
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            node.process.send_signal(signal.SIGCONT)
            self._run(self._cluster.until_ready(timeout_s=READY_S_MAX))

    def leader(self, queue: str) -> LocalNode:
        """The node that leads the queue, by what the first node that runs says."""
        return self._run(self._leader(queue))

    def end(self) -> None:
        try:
            self._run(self._cluster.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _start_all(self) -> None:
        await self._cluster.start_all()
        await self._cluster.until_ready(timeout_s=READY_S_MAX)

    async def _restart(self) -> None:
        await asyncio.gather(*(self._cluster.kill(node) for node in self.nodes))
        await self._start_all()

    async def _leader(self, queue: str) -> LocalNode:
        path = f"/v1/queues/%2F/{quote(queue, safe='')}"
        async with asyncio.timeout(READY_S_MAX):
            while True:
                for node in self.nodes:
                    about = await asyncio.to_thread(_json, f"{node.url}{path}")
                    name = about.get("leader")
                    if name and self._cluster.named(str(name)).running:
                        return self._cluster.named(str(name))
                await asyncio.sleep(POLL_S)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _settings_file(node: LocalNode) -> Path:
    return node.folder / "quorate.toml"


def _json(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=HTTP_S_MAX) as answer:
            return dict(json.loads(answer.read()))
    except (OSError, ValueError):
        return {}
