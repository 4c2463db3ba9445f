"""Where NATS clients connect: the listeners, the connections, and what clients are told of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog

from node.access.auth import Auth
from node.clients.clients import Clients
from node.protocols.connection_limiter import (
    ConnectionLimiter,
    SecureListener,
    bound_socket,
)
from node.protocols.nats.connection import (
    NatsConnection,
    NatsCounters,
    NatsPhase,
    Origin,
)
from node.protocols.nats.jetstream.api import LEVEL
from node.protocols.nats.jetstream.requests import prefix_of
from node.protocols.nats.jetstream.service import JetStream
from node.protocols.nats.reader import Publish
from node.protocols.nats.subjects import Subjects
from node.protocols.tls import Certificates
from node.settings.settings import Settings
from node.tasks import Tasks

#: Clients switch features on by it.
VERSION: Final = "2.12.0"
PAYLOAD_BYTES_MAX: Final = 1 << 20
BACKLOG: Final = 1024
#: A stop closes connections in so many steps, for clients must not all come back at once.
LEAVE_STEPS: Final = 100
LEAVE_STEP_S: Final = 0.01
#: How long a stop waits for what was written to clients.
GOODBYE_S_MAX: Final = 1.0
EVERYWHERE: Final = frozenset({"0.0.0.0", "[::]"})  # noqa: S104 -- not bound, but recognized

log = structlog.get_logger(__name__)


class NatsServer:
    """One per node, if it listens: `NatsHome` of its connections, and `Listener` of a drain."""

    protocol = "nats"
    unconfirmed = 0  # nothing is ever confirmed

    def __init__(
        self,
        settings: Settings,
        subjects: Subjects,
        *,
        auth: Auth,
        clients: Clients,
        tasks: Tasks,
        incarnation: int,
        limiter: ConnectionLimiter,
        certificates: Certificates,
        jetstream: JetStream,
    ) -> None:
        self.jetstream = jetstream
        jetstream.api.domain = settings.nats_domain or ""
        self.domain_prefix = prefix_of(jetstream.api.domain)
        self.in_flight_bytes_max: int = settings.limits.in_flight_bytes_max
        self.auth = auth
        self.clients = clients
        self.subjects = subjects
        self.tasks = tasks
        self.slow_counts: Counter[str] = Counter()
        self.opened_count = 0
        self._of_closed: defaultdict[str, NatsCounters] = defaultdict(NatsCounters)  # by vhost
        self.connected: dict[NatsConnection, None] = {}  # logged in or not
        self.payload_bytes_max = min(PAYLOAD_BYTES_MAX, settings.limits.message_bytes_max)
        self.subscriptions_max = settings.limits.consumers_max
        self.address: str | None = None  # None: not listening
        self.tls_address: str | None = None
        self._settings = settings
        self._limiter = limiter
        self._certificates = certificates
        self._numbers = itertools.count(1)
        self.id = f"{settings.node}.{incarnation}"
        self._servers: list[asyncio.Server | SecureListener] = []
        self._bound: dict[str, str] = {}  # by setting
        self.leaving = False  # no more connections
        self._empty = asyncio.Event()
        self._empty.set()
        #: Takes what a client asks under `$SYS`: see `node.protocols.nats.system`.
        self.on_system: Callable[[NatsConnection, Publish], bool] = lambda _connection, _asked: (
            False
        )
        #: See `node.protocols.nats.tracing`.
        self.on_traced: Callable[[NatsConnection, Publish, Callable[[Publish], None]], None] = (
            lambda _connection, message, go_on: go_on(message)
        )
        subjects.on_peers_changed = self._tell_clients

    # --- life -------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """After `stop_reading` again, on the same ports. SettingsError: it cannot."""
        if self._servers:
            return
        self.leaving = False
        settings = self._settings
        if settings.nats is not None:
            self.address = await self._listen("nats", settings.nats, Origin())
        if settings.nats_tls is not None:
            secured = Origin(tls=True, upgrades=not settings.nats_tls_first)
            self.tls_address = await self._listen("nats_tls", settings.nats_tls, secured)
        self.subjects.routes.start((self._told, _told(self.tls_address)))

    async def _listen(self, key: str, address: str, origin: Origin) -> str:
        address = self._bound.get(key, address)
        socket = await bound_socket(key, address)
        make = partial(self.connection, origin)
        self._servers.append(
            self._limiter.secured(socket, self._context, make)
            if origin.tls and not origin.upgrades
            else await asyncio.get_running_loop().create_server(make, sock=socket, backlog=BACKLOG)
        )
        bound = self._bound[key] = f"{address.rpartition(':')[0]}:{socket.getsockname()[1]}"
        log.info("nats_listening", address=bound, tls=origin.tls)
        return bound

    def _context(self) -> ssl.SSLContext:
        assert self._certificates.amqps is not None
        return self._certificates.amqps

    def connection(self, origin: Origin) -> NatsConnection:
        return NatsConnection(self, next(self._numbers), origin)

    def stop_reading(self) -> None:
        """No more connections. Those that are there are served, and told to expect the end."""
        for server in self._servers:
            server.close()
        if self._servers:
            self._servers.clear()
            self.leaving = True
            self.subjects.routes.start((None, None))
            self._tell_clients()

    async def expel(self, text: str) -> tuple[int, int]:
        """Every connection is closed: how many there were, and no consumers. No client of this
        protocol reads a text.
        """
        connections = list(self.connected)
        step = -(-len(connections) // LEAVE_STEPS)
        for number, connection in enumerate(connections, 1):
            connection.leave()
            if number % step == 0:
                await asyncio.sleep(LEAVE_STEP_S)
        try:
            async with asyncio.timeout(GOODBYE_S_MAX):
                await self._empty.wait()
        except TimeoutError:
            for connection in list(self.connected):
                connection.abort()
        return len(connections), 0

    async def stop(self) -> None:
        """Safe without `listen` or `stop_reading`."""
        self.stop_reading()
        await self.expel("")
        self.subjects.routes.stop()

    # --- what connections use ---------------------------------------------------------------------

    def add(self, connection: NatsConnection) -> bool:
        if len(self.connected) >= self._settings.limits.connections_max:
            return False
        counted = connection.origin.websocket  # by the listener of HTTP
        if not counted and not self._limiter.enter(connection.address):
            return False
        self.connected[connection] = None
        self.opened_count += 1
        self._empty.clear()
        return True

    def remove(self, connection: NatsConnection) -> None:
        if connection in self.connected:
            del self.connected[connection]
            if not connection.origin.websocket:
                self._limiter.leave(connection.address)
            self._of_closed[connection.vhost].add(connection.counters)
        if not self.connected:
            self._empty.set()

    @property
    def slow_count(self) -> int:
        return self.slow_counts.total()

    def counted(self, vhost: str | None = None) -> NatsCounters:
        """Of all connections that ever were; or of those in one virtual host."""
        found = NatsCounters()
        for name, counters in self._of_closed.items():
            if vhost in (None, name):
                found.add(counters)
        for connection in self.connected:
            if vhost in (None, connection.vhost):
                found.add(connection.counters)
        return found

    async def secure(self, connection: NatsConnection, transport: asyncio.Transport) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                connection,
                self._context(),
                server_side=True,
                ssl_handshake_timeout=self._limiter.handshake_s_max,
            )
        except OSError as error:  # ssl's errors and aborted handshakes are such
            reason = f"TLS handshake: {error or type(error).__name__}"
            self._limiter.turned_away(connection.address, reason)
            transport.abort()
            return
        if secured is not None:
            connection.secured(secured)

    def info(self, connection: NatsConnection, **more: Any) -> bytes:
        origin = connection.origin
        if origin.websocket:
            host, port = connection.ends.host, connection.ends.port
        else:
            own = self.tls_address if origin.tls else self.address
            assert own is not None
            host, _, port = own.rpartition(":")
        found: dict[str, Any] = {
            "server_id": self.id,
            "server_name": self._settings.node,
            "version": VERSION,
            "proto": 1,
            "go": "none",
            "host": host,
            "port": int(port),
            "headers": True,
            "jetstream": True,
            "api_lvl": LEVEL,
            "auth_required": True,
            "max_payload": self.payload_bytes_max,
            "client_id": connection.number,
            "client_ip": connection.address,
            "nonce": connection.nonce,
            "cluster": self._settings.cluster,
        }
        if self._settings.nats_domain:
            found["domain"] = self._settings.nats_domain
        if not origin.websocket:  # whose clients know an address only as a URL with a path
            found["connect_urls"] = self.urls(tls=origin.tls)
            if origin.tls:
                found |= {"tls_required": True, "tls_verify": self._verifies}
        if self.leaving:
            found["ldm"] = True
        return b"INFO %b\r\n" % json.dumps(found | more).encode()

    # --- for people ---------------------------------------------------------------------------

    def connections(self) -> list[dict[str, Any]]:
        """Those that are logged in, as RabbitMQ's management API names things."""
        return [self._row(each) for each in self._open]

    def _row(self, each: NatsConnection) -> dict[str, Any]:
        named = {"name": "connection_name", "lang": "product", "version": "version"}
        return {
            **each.ends.as_shown(),
            "user_provided_name": each.about.get("name"),
            "id": f"{self.id}.{each.number}",
            "node": self._settings.node,
            "type": "network",
            "protocol": "NATS",
            "state": each.phase.value,
            "user": each.user_name,
            "user_who_performed_action": each.user_name,
            "vhost": each.vhost,
            "channels": 0,
            "recv_oct": each.received_bytes,
            "send_oct": each.sent_bytes,
            "send_pend": each.pending_bytes,
            "connected_at": time.time_ns() // 1_000_000 - round(each.up_s * 1000),
            "client_properties": {named[key]: value for key, value in each.about.items()},
        }

    def channels(self) -> list[dict[str, Any]]:
        """There are none: a connection is all that a client has."""
        return []

    def close_connection(self, name: str, reason: str) -> bool:
        """Nothing is said: a client that is told an error might not come back."""
        found = [each for each in self._open if str(each.ends) == name]
        for connection in found:
            connection.leave()
        return bool(found)

    @property
    def _open(self) -> list[NatsConnection]:
        return [each for each in self.connected if each.phase is NatsPhase.RUNNING]

    def urls(self, *, tls: bool) -> list[str]:
        """Where clients may connect."""
        own = _told(self.tls_address) if tls else self._told
        urls = self.subjects.routes.addresses(tls=tls)
        return urls if own is None or self.leaving else [own, *urls]

    @property
    def _told(self) -> str | None:
        """To others, of the listener without TLS."""
        if self.address is None:
            return None
        return self._settings.nats_advertise or _told(self.address)

    @property
    def _verifies(self) -> bool:
        tls = self._settings.tls
        return tls.client_ca is not None and tls.amqps_verify == "required"

    def _tell_clients(self) -> None:
        for connection in self._open:
            connection.send_info()


def _told(address: str | None) -> str | None:
    """To others; not if it says no more than that it is this machine."""
    if address is None or address.rpartition(":")[0] in EVERYWHERE:
        return None
    return address
