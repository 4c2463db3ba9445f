"""Where clients of AMQP connect: the listeners, and the connections that they have made."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import structlog

from cluster.turns import next_turn
from node.broker.cluster_name import named
from node.clients.clients import Clients
from node.protocols.amqp.admission import Admission
from node.protocols.amqp.channel import Channel
from node.protocols.amqp.channel_context import ChannelHost
from node.protocols.amqp.connection import AmqpConnection
from node.protocols.amqp.handshake import Terms, server_properties
from node.protocols.amqp.listing import describe, details
from node.protocols.amqp.phase import Phase
from node.protocols.amqp.services import AmqpServices
from node.protocols.connection_limiter import ConnectionLimiter, SecureListener, bound_socket
from node.protocols.tls import Certificates
from node.settings.settings import SettingsError

log = structlog.get_logger(__name__)

BACKLOG: Final = 1024
#: How long a stop waits for clients to say that they have heard of it.
GOODBYE_S_MAX: Final = 1.0
#: How often is looked whether queues were split, when anything in the catalog changed.
FOLLOW_S: Final = 0.2


class AmqpServer:
    """One per node."""

    protocol = "amqp"

    def __init__(
        self,
        services: AmqpServices,
        *,
        clients: Clients,
        incarnation: int,
        limiter: ConnectionLimiter,
        certificates: Certificates,
        make_channel: Callable[[ChannelHost, int, AmqpServices], Channel] = Channel,
    ) -> None:
        settings = services.settings
        options = settings.amqp_options
        self.services = services
        self._limiter = limiter
        self._certificates = certificates
        self.clients = clients
        self.make_channel = make_channel
        self.offer = Terms(options.channel_max, options.frame_bytes_max, options.heartbeat_s)
        self.admission = Admission(services.auth, clients)
        self.address: str | None = None  # that clients are told; None: not listening
        self.tls_address: str | None = None
        self._id_prefix = f"{settings.node}.{incarnation}"
        self._numbers = itertools.count(1)
        self._connections: dict[AmqpConnection, None] = {}
        self._servers: list[asyncio.Server | SecureListener] = []
        self._bound: dict[str, str] = {}  # by setting
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def server_properties(self) -> Mapping[str, Any]:
        services = self.services
        catalog = services.broker.cluster.catalog_machine
        return server_properties(named(catalog, services.settings.cluster))

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listening when it returns. SettingsError: it cannot."""
        await self.listen()
        self.services.tasks.start(self._follow_shards(), name="follow_shards")
        self.services.alarms.on_change.append(self._alarms_changed)

    async def listen(self) -> None:
        """After `stop_reading` again, on the same ports; without it nothing is to be done."""
        if self._servers:
            return
        settings = self.services.settings
        if settings.amqp is not None:
            self.address = await self._listen("amqp", settings.amqp, self._connection)
            self.address = settings.amqp_advertise or self.address
        if settings.amqps is not None:
            self.tls_address = await self._listen_secured("amqps", settings.amqps)

    async def _follow_shards(self) -> None:
        """Consumers follow when a queue is split, and when it is joined again."""
        cluster = self.services.broker.cluster
        catalog, clock, followed = cluster.catalog_machine, cluster.log.wal.clock, -1
        while True:
            changes = catalog.changes
            if changes != followed:
                behind = [
                    each for each in self.open_channels() if not each.deliveries.follow_shards()
                ]
                if not behind:
                    followed = changes
            await next_turn(clock, FOLLOW_S)

    def _connection(self) -> AmqpConnection:
        return AmqpConnection(self)

    async def connect_locally(self, user: str) -> socket.socket:
        """A connection for this node's own work, as this user: the client's end of it."""
        client, server = socket.socketpair()
        client.setblocking(False)
        server.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(
            partial(AmqpConnection, self, user), server
        )
        return client

    def _context(self) -> ssl.SSLContext:
        assert self._certificates.amqps is not None
        return self._certificates.amqps

    async def _listen(self, key: str, address: str, make: Callable[[], asyncio.Protocol]) -> str:
        address = self._bound.get(key, address)
        host, _, port = address.rpartition(":")
        try:
            server = await asyncio.get_running_loop().create_server(
                make,
                host.strip("[]"),
                int(port),
                backlog=BACKLOG,
                reuse_address=True,
            )
        except OSError as error:
            raise SettingsError(
                f"{key}: cannot listen on {address}: {error.strerror}; "
                "allowed: an address of this machine with a free port"
            ) from error
        return self._listening(key, host, server)

    async def _listen_secured(self, key: str, address: str) -> str:
        address = self._bound.get(key, address)
        server = await bound_socket(key, address)
        listener = self._limiter.secured(server, self._context, self._connection)
        return self._listening(key, address.rpartition(":")[0], listener)

    def _listening(self, key: str, host: str, server: asyncio.Server | SecureListener) -> str:
        self._servers.append(server)
        bound = self._bound[key] = f"{host}:{server.sockets[0].getsockname()[1]}"
        log.info("amqp_listening", address=bound, tls=key == "amqps")
        return bound

    def stop_reading(self) -> None:
        """No more connections, and nothing more is read."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in list(self._connections):
            connection.stop_reading()

    @property
    def unconfirmed(self) -> int:
        """Publishes that wait for their confirms."""
        channels = (each for one in self._connections for each in one.channels.values())
        confirms = (channel.publishes.confirms for channel in channels)
        return sum(each.open for each in confirms if each is not None)

    async def expel(self, text: str) -> tuple[int, int]:
        """Every client is told to go elsewhere: how many there were, and how many consumers were
        told so before.
        """
        connections = list(self._connections)
        cancelled = 0
        for connection in connections:
            cancelled += connection.cancel_consumers()
            connection.force_close(text)
        try:
            async with asyncio.timeout(GOODBYE_S_MAX):
                await self._empty.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
        return len(connections), cancelled

    async def stop(self) -> None:
        """Every client is told. Safe without `start` or `stop_reading`."""
        self.stop_reading()
        await self.expel("broker forced connection closure with reason 'shutdown'")

    # --- what connections use ---------------------------------------------------------------------

    def next_id(self) -> str:
        return f"{self._id_prefix}.{next(self._numbers)}"

    def add(self, connection: AmqpConnection) -> bool:
        if len(self._connections) >= self.services.settings.limits.connections_max:
            return False
        if not self._limiter.enter(connection.ends.peer_host):
            return False
        self._connections[connection] = None
        self._empty.clear()
        return True

    def remove(self, connection: AmqpConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._limiter.leave(connection.ends.peer_host)
        if not self._connections:
            self._empty.set()

    @property
    def _open(self) -> list[AmqpConnection]:
        return [each for each in self._connections if each.phase is Phase.RUNNING]

    def _alarms_changed(self) -> None:
        for connection in list(self._connections):
            connection.look_at_alarms()

    # --- for people -------------------------------------------------------------------------------

    def connections(self) -> list[dict[str, Any]]:
        """The connections with an open vhost, as RabbitMQ's management API names things."""
        node = self.services.settings.node
        return [describe(connection, node) for connection in self._open]

    def channels(self) -> list[dict[str, Any]]:
        """All channels of all connections."""
        node = self.services.settings.node
        return [
            {**channel.describe(), "node": node, "connection_details": details(connection)}
            for connection in self._open
            for channel in list(connection.channels.values())
        ]

    def open_channels(self) -> Iterator[Channel]:
        for connection in self._open:
            yield from list(connection.channels.values())

    def close_connection(self, name: str, reason: str) -> bool:
        """Those of this name are told `reason`. False: there are none."""
        found = [each for each in self._connections if each.name == name]
        for connection in found:
            connection.force_close(reason)
        return bool(found)
