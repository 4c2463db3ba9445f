"""Where clients of HTTP connect, in the clear and by TLS: one application behind both."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from typing import Final

import structlog
from aiohttp import web

from node.protocols.basic_auth import host_of
from node.protocols.connection_limiter import (
    BACKLOG,
    ConnectionLimiter,
    SecureListener,
    bound_socket,
)
from node.protocols.http_listener import HEADER_BYTES_MAX, LINE_BYTES_MAX, HttpListener
from node.protocols.tls import Certificates
from node.settings.settings import Settings

log = structlog.get_logger(__name__)

SHUTDOWN_S: Final = 1.0
#: Connections of HTTP beyond `connections_max`: to be told so, and for probes and scrapes.
SPARE: Final = 256
#: What stands for all addresses includes this one.
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- compared, not bound


class HttpServer:
    """Bound before it serves: which port, when it was 0, is told to the cluster."""

    def __init__(
        self,
        settings: Settings,
        limiter: ConnectionLimiter,
        certificates: Certificates,
        listens: Mapping[str, tuple[str | None, str | None]],
    ) -> None:
        """`listens`: by setting, where it listens, or None, and what clients are told instead."""
        limits = settings.limits
        self._listens = listens
        self._limiter = limiter
        self._certificates = certificates
        self.listener = HttpListener(
            limiter,
            connections_max=limits.connections_max + SPARE,
            body_s_max=limits.request_ms_max / 1000,
        )
        self.app = web.Application(
            client_max_size=limits.frame_bytes_max, middlewares=[self.listener.middleware]
        )
        self._runner = web.AppRunner(
            self.app,
            access_log=None,
            shutdown_timeout=SHUTDOWN_S,
            keepalive_timeout=limits.idle_ms_max / 1000,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
        )
        self._sockets: dict[str, socket.socket] = {}
        self._servers: list[asyncio.Server | SecureListener] = []
        #: By setting, as clients are told.
        self.addresses: dict[str, str] = {}

    async def bind(self) -> None:
        """SettingsError: it cannot."""
        for key, (at, advertised) in self._listens.items():
            if at is None:
                continue
            self._sockets[key] = await bound_socket(key, at)
            bound = self._sockets[key].getsockname()[1]
            self.addresses[key] = advertised or f"{at.rpartition(':')[0]}:{bound}"

    @property
    def hosts(self) -> list[str]:
        """Names and addresses by which clients are told to reach it."""
        hosts = [host_of(address) for address in self.addresses.values()]
        return [host for host in hosts if host not in _LOOPBACK]

    @property
    def local_url(self) -> str:
        """Where this machine itself reaches it."""
        scheme = "http" if "http" in self._sockets else "https"
        host, port = self._sockets[scheme].getsockname()[:2]
        host = _LOOPBACK.get(str(host), str(host))
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def start(self) -> None:
        """Routes cannot be added any more."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self.listener.make = server
        loop = asyncio.get_running_loop()
        make = self.listener.connection
        for key, bound in self._sockets.items():
            self._servers.append(
                self._limiter.secured(bound, self._context, make)
                if key == "https"
                else await loop.create_server(make, sock=bound, backlog=BACKLOG)
            )
            log.info("http_listening", address=self.addresses[key], tls=key == "https")

    def _context(self) -> ssl.SSLContext:
        assert self._certificates.https is not None
        return self._certificates.https

    async def stop(self) -> None:
        """No more requests; those under way get a moment. Safe at any point of the start."""
        for server in self._servers:
            server.close()
        await self._runner.cleanup()

    def unbind(self) -> None:
        """The last."""
        for bound in self._sockets.values():
            bound.close()
