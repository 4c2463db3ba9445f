"""The way in for clients of all protocols: how many may come from where, TLS, and no dawdling."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

import structlog

from node.settings.settings import SettingsError

log = structlog.get_logger(__name__)

#: Lines a second about connections that were turned away: a flood must not fill the disk.
LINES_A_SECOND_MAX: Final = 10
BACKLOG: Final = 1024
ACCEPT_AGAIN_S: Final = 0.5


class ConnectionLimiter:
    """One per node, for all its listeners."""

    def __init__(self, *, per_address_max: int, handshake_s_max: float) -> None:
        self.handshake_s_max = handshake_s_max
        self._per_address_max = per_address_max
        self._counts: dict[str, int] = {}
        self._shaking: dict[str, int] = {}
        self._second = 0.0
        self._lines = 0

    # --- by address -------------------------------------------------------------------------------

    def enter(self, address: str) -> bool:
        """False: too many are here from there."""
        count = self._counts.get(address, 0)
        if count >= self._per_address_max:
            self.turned_away(address, f"{count} connections are open from there")
            return False
        self._counts[address] = count + 1
        return True

    def leave(self, address: str) -> None:
        """Of each that has entered, once."""
        _less(self._counts, address)

    def begin(self, address: str) -> bool:
        """A handshake. False: too many are here from there, or in their handshakes."""
        shaking = self._shaking.get(address, 0)
        if shaking + self._counts.get(address, 0) >= self._per_address_max:
            self.turned_away(address, f"{shaking} TLS handshakes are going on from there")
            return False
        self._shaking[address] = shaking + 1
        return True

    def end(self, address: str) -> None:
        _less(self._shaking, address)

    def turned_away(self, address: str, reason: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._second >= 1.0:
            self._second, self._lines = now_s, 0
        self._lines += 1
        if self._lines <= LINES_A_SECOND_MAX:
            log.warning("connection_turned_away", address=address, reason=reason)

    # --- TLS --------------------------------------------------------------------------------------

    def secured(
        self,
        server: socket.socket,
        context: Callable[[], ssl.SSLContext],
        make: Callable[[], asyncio.Protocol],
    ) -> SecureListener:
        """Serves at a bound socket: TLS by the context of the moment, then what `make` makes."""
        return SecureListener(self, server, context, make)


def _less(counts: dict[str, int], address: str) -> None:
    count = counts[address] - 1
    if count:
        counts[address] = count
    else:
        del counts[address]


class SecureListener:
    """In place of a server of the event loop, which knows one context for good, and connections
    only after their handshake.
    """

    def __init__(
        self,
        limiter: ConnectionLimiter,
        server: socket.socket,
        context: Callable[[], ssl.SSLContext],
        make: Callable[[], asyncio.Protocol],
    ) -> None:
        self.sockets = [server]
        self._limiter = limiter
        self._context = context
        self._make = make
        server.setblocking(False)
        server.listen(BACKLOG)
        accepting = asyncio.create_task(self._accept(server), name="tls_accept")
        # Not before: the loop still looks at its number.
        accepting.add_done_callback(lambda _: server.close())
        self._tasks = {accepting}

    def close(self) -> None:
        """Handshakes end too."""
        for task in self._tasks:
            task.cancel()

    async def _accept(self, server: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, where = await loop.sock_accept(server)
            except OSError as error:  # such as too many open files
                self._limiter.turned_away("", f"cannot accept: {error.strerror}")
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            address = str(where[0])
            if not self._limiter.begin(address):
                connection.close()
                continue
            task = asyncio.create_task(self._shake(connection, address), name="tls_handshake")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _shake(self, connection: socket.socket, address: str) -> None:
        limiter = self._limiter
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                connection,
                ssl=self._context(),
                ssl_handshake_timeout=limiter.handshake_s_max,
            )
        except OSError as error:  # ssl's errors and aborted handshakes are such
            limiter.turned_away(address, f"TLS handshake: {error or type(error).__name__}")
            connection.close()
        except BaseException:
            connection.close()
            raise
        finally:
            limiter.end(address)


async def bound_socket(key: str, address: str) -> socket.socket:
    """SettingsError, in which `key` is the setting, when it cannot be."""
    host, _, port = address.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, where = found[0]
        server = socket.socket(family, kind, protocol)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(where)
    except OSError as error:
        raise SettingsError(
            f"{key}: cannot listen on {address}: {error.strerror}; "
            "allowed: an address of this machine with a free port"
        ) from error
    return server


def address_of(transport: asyncio.BaseTransport) -> str:
    """Of the peer; empty when it has gone already."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else ""
