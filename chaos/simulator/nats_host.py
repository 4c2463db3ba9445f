"""A node's end of NATS clients' connections: the real ones, over channels in place of sockets."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from chaos.simulator.channel import Channel, Closed
from node.access.auth import Auth, User
from node.parts import Parts
from node.protocols.connection_limiter import ConnectionLimiter
from node.protocols.nats.connection import Origin
from node.protocols.nats.server import NatsServer
from node.protocols.tls import Certificates


@dataclass(frozen=True, slots=True)
class NatsHello:
    """A NATS client is there; everything else that it says is bytes."""


class _AnyPassword:
    """Checking one is work for a thread, and there are none here."""

    def user(self, name: str) -> User:
        return User(name)

    async def login(self, name: str, _password: str, **_how: Any) -> User:
        return User(name)


class SimNats(NatsServer):
    """Listens nowhere: connections are brought to it."""

    def __init__(self, parts: Parts, begun: AsyncExitStack) -> None:
        settings = parts.settings
        super().__init__(
            settings,
            parts.subjects,
            auth=cast(Auth, _AnyPassword()),
            clients=parts.clients,
            tasks=parts.tasks,
            incarnation=parts.cluster.links.incarnation,
            limiter=ConnectionLimiter(per_address_max=10_000, handshake_s_max=10.0),
            certificates=Certificates(settings.tls),
            jetstream=parts.jetstream,
        )
        self.address = f"{parts.cluster.node}:4222"
        begun.push_async_callback(self.stop)
        self.subjects.routes.start((self.address, None))

    async def serve(self, link: Channel, inbox: asyncio.Queue[Any]) -> None:
        connection = self.connection(Origin())
        transport = SimTransport(link, connection)
        connection.connection_made(transport)
        while True:
            await transport.may_read.wait()
            data = await inbox.get()
            if data is None:
                break
            if not transport.is_closing():
                connection.data_received(data)
        transport.lose()


class SimTransport(asyncio.Transport):
    """As much of one as a connection uses."""

    def __init__(self, link: Channel, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._link = link
        self._protocol = protocol
        self._closing = self._lost = self._behind = False
        self._high_bytes = 64 << 10
        self._untaken_bytes = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self._high_bytes = high

    def get_write_buffer_size(self) -> int:
        return self._untaken_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        size = len(data)
        self._link.to_client(bytes(data))
        self._untaken_bytes += size
        self._link.soon_at_node(partial(self._taken, size))
        if not self._behind and self._untaken_bytes > self._high_bytes:
            self._behind = True
            self._protocol.pause_writing()

    def _taken(self, size: int) -> None:
        self._untaken_bytes -= size
        if self._behind and self._untaken_bytes * 4 <= self._high_bytes and not self._lost:
            self._behind = False
            self._protocol.resume_writing()

    def pause_reading(self) -> None:
        self.may_read.clear()

    def resume_reading(self) -> None:
        self.may_read.set()

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._link.to_client(Closed(""))
            self.may_read.set()
            asyncio.get_running_loop().call_soon(self.lose)

    def abort(self) -> None:
        self.close()

    def lose(self) -> None:
        self._closing = True
        if not self._lost:
            self._lost = True
            self._protocol.connection_lost(None)
