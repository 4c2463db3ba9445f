"""Connections of HTTP: who sends too slowly, or comes too often, is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from node.protocols.connection_limiter import ConnectionLimiter, address_of

#: What of a request's head is kept at most: aiohttp's own defaults, by name.
LINE_BYTES_MAX: Final = 8190
HEADER_BYTES_MAX: Final = 8190


class HttpListener:
    """One per node, for its listeners of HTTP and HTTPS."""

    def __init__(
        self, limiter: ConnectionLimiter, *, connections_max: int, body_s_max: float
    ) -> None:
        self.limiter = limiter
        self.connections_max = connections_max
        self.make: Callable[[], web.RequestHandler]
        self.connections: dict[web.RequestHandler, HttpConnection] = {}
        self._body_s_max = body_s_max

    def connection(self) -> HttpConnection:
        return HttpConnection(self)

    def upgraded(self, request: web.Request, to: asyncio.Protocol) -> None:
        """What was asked for speaks another protocol from now on, to which it is told how the
        socket does: `pause_writing`, `resume_writing`, `connection_lost`.
        """
        connection = self.connections.get(request.protocol)
        if connection is not None:
            connection.upgraded = to

    @property
    def middleware(self) -> Middleware:
        """Runs once a request's head is complete."""

        @web.middleware
        async def watched(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = self.connections.get(request.protocol)
            if connection is None:
                return await handler(request)
            connection.begun()
            slow = None
            if request.can_read_body:
                loop = asyncio.get_running_loop()
                slow = loop.call_later(self._body_s_max, connection.slow_body, request)
            try:
                return await handler(request)
            except ConnectionError:
                # It is gone, by itself or by us, and nobody hears an answer: no bug to tell of.
                return web.Response(status=400)
            finally:
                if slow is not None:
                    slow.cancel()
                connection.done()

        return watched


class HttpConnection(asyncio.Protocol):
    """In front of aiohttp's own protocol."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self.upgraded = asyncio.Protocol()  # nobody
        self._inner: web.RequestHandler | None = None
        self._transport: asyncio.Transport
        self._address = ""
        self._awaited = True  # the head of a request, or more of it
        self._timer: asyncio.TimerHandle | None = None

    # --- asyncio ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self._listener
        self._transport = cast(asyncio.Transport, transport)
        self._address = address_of(transport)
        if len(listener.connections) >= listener.connections_max:
            listener.limiter.turned_away(
                self._address, f"{listener.connections_max} are connected by HTTP"
            )
            self._transport.abort()
            return
        if not listener.limiter.enter(self._address):
            self._transport.abort()
            return
        self._inner = listener.make()
        listener.connections[self._inner] = self
        self._inner.connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            return
        if self._awaited and self._timer is None:
            self._expect()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()
            self.upgraded.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()
            self.upgraded.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
        if self._inner is not None:
            self._listener.connections.pop(self._inner, None)
            self._listener.limiter.leave(self._address)
            self._inner.connection_lost(exc)
            self._inner = None
            self.upgraded.connection_lost(cast("Exception | None", exc))

    # --- time -------------------------------------------------------------------------------------

    def _expect(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._listener.limiter.handshake_s_max, self._slow_head)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begun(self) -> None:
        """The head of a request is here."""
        self._awaited = False
        self._stop_timer()

    def done(self) -> None:
        """The request is carried out. What begins the next one starts the clock."""
        self._awaited = True

    def _slow_head(self) -> None:
        self._listener.limiter.turned_away(self._address, "no whole head of a request came in time")
        self._transport.abort()

    def slow_body(self, request: web.Request) -> None:
        if not request.content.is_eof():
            self._listener.limiter.turned_away(
                self._address, "the body of a request came too slowly"
            )
            self._transport.abort()
