"""The brokers that checks may visit: one that runs already, or three Quorate nodes of our own."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import pika
import pika.exceptions

from quorate.local import LocalCluster, LocalNode, Probe

T = TypeVar("T")
READY_S_MAX = 120.0
HTTP_S_MAX = 60.0
POLL_S = 0.05

#: What checks may need beyond AMQP itself, as it is told to people.
NEEDS = {
    "management": "the management HTTP API",
    "cluster": "several nodes of its own, to stop and kill",
    "restart": "a broker of its own, to kill and start again",
    "settings": "a broker of its own, to start with other settings",
    "alarm": "a broker of its own, to raise its memory alarm",
}


class BrokerError(Exception):
    """A broker cannot be used; the text says why."""


@dataclass
class Broker:
    """A running broker: where it is, and what may be done to it."""

    title: str
    url: str
    management: str | None = None
    offers: frozenset[str] = frozenset[str]()
    properties: dict[str, Any] = field(default_factory=dict[str, Any])

    def arrive(self) -> None:
        """See who answers, and whether it has a management API."""
        try:
            connection: Any = pika.BlockingConnection(pika.URLParameters(self.url))
        except pika.exceptions.AMQPError as error:
            at = urlsplit(self.url)
            why = str(error) or type(error).__name__
            raise BrokerError(
                f"nobody serves AMQP at {at.hostname}:{at.port or 5672}: {why}"
            ) from error
        self.properties = dict(connection._impl.server_properties)
        connection.close()
        if self.management is not None and self._has_management():
            self.offers |= {"management"}

    @property
    def product(self) -> str:
        if self.is_quorate:
            return self._platform.split(",")[0]
        return f"{self.properties.get('product', '?')} {self.properties.get('version', '')}".strip()

    @property
    def is_quorate(self) -> bool:
        # As `product` it says RabbitMQ: there are clients that ask for that.
        return self._platform.startswith("Quorate")

    @property
    def _platform(self) -> str:
        platform = self.properties.get("platform", "")
        return platform.decode() if isinstance(platform, bytes) else str(platform)

    def ask(
        self, method: str, path: str, body: Any = None, *, at: str | None = None
    ) -> tuple[int, Any]:
        """One request to the management API, here or at another node: (status, answer)."""
        base = at or self.management
        assert base is not None
        amqp = urlsplit(self.url)
        request = urllib.request.Request(
            base.rstrip("/") + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        passwords = f"{amqp.username or 'guest'}:{amqp.password or 'guest'}"
        request.add_unredirected_header("authorization", _basic(passwords))
        try:
            with urllib.request.urlopen(request, timeout=HTTP_S_MAX) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")

    def _has_management(self) -> bool:
        try:
            return self.ask("GET", "/api/overview")[0] == 200
        except (OSError, ValueError):
            return False

    # What only a broker of our own can do; a check that needs it says so.

    def restart(self) -> None:
        """Kill every process at once, start them again, wait until they serve."""
        raise NotImplementedError

    def restart_with(self, settings: str) -> None:
        """As `restart`, with these lines added to the settings; '' takes them away."""
        raise NotImplementedError

    def alarm(self, raised: bool) -> None:
        """Raise or end a memory alarm."""
        raise NotImplementedError

    def end(self) -> None:
        """Stop what we started."""


def _basic(passwords: str) -> str:
    return "Basic " + base64.b64encode(passwords.encode()).decode()


class QuorateNodes(Broker):
    """Three nodes on loopback, as real processes."""

    def __init__(self, folder: Path) -> None:
        self._cluster = LocalCluster.prepare(
            folder, preferred_ports=False, settings='log_level = "warning"\n'
        )
        self.nodes = self._cluster.nodes
        self._plain = {node.name: _settings_file(node).read_text() for node in self.nodes}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nodes", daemon=True)
        self._thread.start()
        super().__init__(
            "Quorate, 3 nodes",
            self.url_of(self.nodes[0]),
            self.nodes[0].url,
            frozenset({"cluster", "restart", "settings", "alarm"}),
        )

    def url_of(self, node: LocalNode) -> str:
        return f"amqp://guest:guest@127.0.0.1:{node.amqp}/%2F"

    def start(self) -> None:
        self._run(self._start_all())
        self.arrive()

    def restart(self) -> None:
        self._run(self._restart())

    def restart_with(self, settings: str) -> None:
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
