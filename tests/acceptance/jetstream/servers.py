"""The servers that checks may visit: one that runs, three Quorate nodes of our own, or three nodes
of nats-server.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.acceptance.bench.compare.peers import Missing, bring_nats
from tests.acceptance.rows.nodes import HTTP_S_MAX, OwnNodes
from tests.acceptance.rows.suite import ServerError
from tests.node.nats.wire import Wire
from tests.testkit.nats_server import NatsServers

READY_S_MAX = 60.0
POLL_S = 0.05
#: Long: it is waited for what must come, on a machine that may be slow.
WAIT_S = 30.0

#: What checks may need beyond NATS itself, as it is told to people.
NEEDS = {
    "cluster": "several nodes",
    "users": "a server of its own, with users that may do little",
}
#: What every node offers that is there.
OFFERED = frozenset({"cluster", "users"})

#: May publish to and subscribe to these, and to inboxes.
NARROW: dict[str, Any] = {"user": "narrow", "pass": "narrow-password"}
OPEN = "open"

#: The same for nats-server.
USERS = """\
authorization {
  users = [
    { user: guest, password: guest }
    { user: narrow, password: narrow-password, permissions: {
        publish: [ "open.>", "_INBOX.>" ], subscribe: [ "open.>", "_INBOX.>" ] } }
  ]
}
"""


class NatsServer:
    """One that runs: where its nodes are, and what they say of themselves."""

    def __init__(self, url: str, management: str | None = None) -> None:
        parts = urlsplit(url)
        self.addresses = [f"{parts.hostname}:{parts.port or 4222}"]
        self.login = {
            "user": unquote(parts.username or "guest"),
            "pass": unquote(parts.password or "guest"),
        }
        self.offers = frozenset[str]()
        self._info: dict[str, Any] = {}

    @property
    def product(self) -> str:
        return f"{'Quorate' if self.is_quorate else 'nats-server'}, {self._info.get('version')}"

    @property
    def is_quorate(self) -> bool:
        return self._info.get("go") == "none"  # built without it

    def start(self) -> None:
        """See who answers. Raises ServerError."""
        try:
            with contextlib.closing(Wire(self.addresses[0], wait_s=WAIT_S)) as wire:
                self._info = wire.info
        except (AssertionError, OSError, ValueError) as error:
            raise ServerError(f"nobody serves NATS at {self.addresses[0]}: {error}") from error

    def end(self) -> None:
        """It is not ours."""


class QuorateServers(OwnNodes, NatsServer):
    """Three nodes on loopback, as real processes."""

    def __init__(self, folder: Path) -> None:
        OwnNodes.__init__(self, folder)
        NatsServer.__init__(self, f"nats://127.0.0.1:{self.nodes[0].nats}")
        self.addresses = [f"127.0.0.1:{node.nats}" for node in self.nodes]
        self.offers = OFFERED

    def start(self) -> None:
        OwnNodes.start(self)
        NatsServer.start(self)
        self._put("/api/users/narrow", {"password": NARROW["pass"], "tags": ""})
        may = r"^(open|_INBOX)\."
        self._put("/api/permissions/%2F/narrow", {"configure": "^$", "write": may, "read": may})

    def _put(self, path: str, body: Any) -> None:
        request = urllib.request.Request(
            self.nodes[0].url + path,
            method="PUT",
            data=json.dumps(body).encode(),
            headers={
                "content-type": "application/json",
                "authorization": "Basic " + b64encode(b"guest:guest").decode(),
            },
        )
        urllib.request.urlopen(request, timeout=HTTP_S_MAX).close()


class NatsReference(NatsServer):
    """Three nodes of nats-server."""

    def __init__(self, folder: Path) -> None:
        try:
            program, self._version = bring_nats()
        except Missing as missing:
            raise ServerError(str(missing)) from missing
        self._servers = NatsServers(program, folder, cluster="", other=USERS)
        ports = list(self._servers.ports.values())
        super().__init__(f"nats://127.0.0.1:{ports[0]}")
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        self.offers = frozenset(NEEDS)

    def start(self) -> None:
        self._servers.start()
        super().start()
        end_s = time.monotonic() + READY_S_MAX
        while not self._is_ready():
            if time.monotonic() > end_s:
                raise ServerError(f"nats-server does not serve JetStream within {READY_S_MAX:g} s")
            time.sleep(POLL_S)

    def _is_ready(self) -> bool:
        """A stream of three copies can be made."""
        body = b'{"name":"ready","subjects":["ready"],"num_replicas":3}'
        try:
            with contextlib.closing(Wire(self.addresses[0], wait_s=2.0)) as wire:
                wire.connect(**self.login).send(b"SUB _INBOX.r 1\r\n")
                for verb, content in ((b"CREATE", body), (b"DELETE", b"")):
                    sent = (verb, len(content), content)
                    wire.send(b"PUB $JS.API.STREAM.%b.ready _INBOX.r %d\r\n%b\r\n" % sent)
                    answer = wire.delivery()[1]
                    if answer.status or "error" in answer.json:
                        return False
        except (AssertionError, OSError, ValueError):
            return False
        return True

    def end(self) -> None:
        self._servers.stop()
