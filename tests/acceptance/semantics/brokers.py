"""The brokers that checks may visit: one that runs already, or three Quorate nodes of our own."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pika.exceptions

from quorate.local import LocalNode
from tests.acceptance.rows.nodes import HTTP_S_MAX, OwnNodes
from tests.acceptance.rows.suite import ServerError

#: What checks may need beyond AMQP itself, as it is told to people.
NEEDS = {
    "management": "the management HTTP API",
    "cluster": "several nodes of its own, to stop and kill",
    "restart": "a broker of its own, to kill and start again",
    "settings": "a broker of its own, to start with other settings",
    "alarm": "a broker of its own, to raise its memory alarm",
}


@dataclass
class Broker:
    """A running broker: where it is, and what may be done to it."""

    url: str
    management: str | None = None
    offers: frozenset[str] = frozenset[str]()
    properties: dict[str, Any] = field(default_factory=dict[str, Any])

    def start(self) -> None:
        """See who answers, and whether it has a management API."""
        try:
            connection: Any = pika.BlockingConnection(pika.URLParameters(self.url))
        except pika.exceptions.AMQPError as error:
            at = urlsplit(self.url)
            why = str(error) or type(error).__name__
            raise ServerError(
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


class QuorateNodes(OwnNodes, Broker):
    """Three nodes on loopback, as real processes."""

    def __init__(self, folder: Path) -> None:
        OwnNodes.__init__(self, folder)
        Broker.__init__(
            self,
            self.url_of(self.nodes[0]),
            self.nodes[0].url,
            frozenset({"cluster", "restart", "settings", "alarm"}),
        )

    def url_of(self, node: LocalNode) -> str:
        return f"amqp://guest:guest@127.0.0.1:{node.amqp}/%2F"

    def start(self) -> None:
        OwnNodes.start(self)
        Broker.start(self)
