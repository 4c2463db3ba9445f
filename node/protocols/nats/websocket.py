"""NATS through a WebSocket: GET /nats of the HTTP listeners. The bytes are those of TCP, in binary
messages that need not begin and end where operations do.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import Any, Final

from aiohttp import WSCloseCode, WSMsgType, web

from node.errors import Refused
from node.protocols.basic_auth import comes_from_here
from node.protocols.http_listener import HttpListener
from node.protocols.native.http_answers import failure
from node.protocols.nats.connection import NatsConnection, Origin
from node.protocols.nats.server import NatsServer

PATH: Final = "/nats"
#: Of what a client is sent: clients read a message as a whole.
MESSAGE_BYTES_MAX: Final = 1 << 20

_BINARY: Final = 0x82  # and the last of its message
_CLOSE: Final = 0x88
_HEAD: Final = Struct("!BB")
_HEAD_16: Final = Struct("!BBH")
_HEAD_64: Final = Struct("!BBQ")
_CODE: Final = Struct("!H")


class NatsWebSockets:
    """Serves the route."""

    def __init__(self, server: NatsServer, listener: HttpListener, *, frame_bytes_max: int) -> None:
        self._server = server
        self._listener = listener
        self._frame_bytes_max = frame_bytes_max

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """One connection, to its end."""
        if self._server.leaving:
            reason = "this node is about to stop: connect to another one"
            return failure(request, Refused("stopping", reason))
        socket = web.WebSocketResponse(
            compress=False, autoclose=False, max_msg_size=self._frame_bytes_max
        )
        await socket.prepare(request)
        if request.transport is None:
            return socket
        origin = Origin(
            tls=request.secure,
            websocket=True,
            proxied=not comes_from_here(request, self._server.auth.hosts),
            page="Origin" in request.headers,
        )
        frames = FrameTransport(request.transport, self._server.connection(origin))
        self._listener.upgraded(request, frames)
        frames.begin()
        try:
            await _read(socket, frames)
        finally:
            frames.end()
        return socket


async def _read(socket: web.WebSocketResponse, frames: FrameTransport) -> None:
    """Until somebody ends it."""
    while True:
        await frames.readable.wait()
        message = await socket.receive()
        match message.type:
            case WSMsgType.BINARY:
                frames.connection.data_received(message.data)
            case WSMsgType.TEXT:
                frames.say_close(WSCloseCode.UNSUPPORTED_DATA)
                return
            case _:
                return


class FrameTransport(asyncio.Transport, asyncio.Protocol):
    """Between a connection and its socket: what the one writes is frames on the other, and it is
    told what becomes of the socket.
    """

    def __init__(self, socket: asyncio.Transport, connection: NatsConnection) -> None:
        super().__init__()
        self.connection = connection
        self.readable = asyncio.Event()
        self.readable.set()
        self._socket = socket
        self._said = False  # that it closes
        self._ended = False

    def begin(self) -> None:
        self.connection.connection_made(self)

    def end(self) -> None:
        """Idempotent: nothing is read any more."""
        self.close()
        self.connection_lost(None)

    # --- told by the socket -----------------------------------------------------------------------

    def pause_writing(self) -> None:
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        self.connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.readable.set()
        if not self._ended:
            self._ended = True
            self.connection.connection_lost(exc)

    # --- used by the connection -------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._said:
            return
        for start in range(0, len(data), MESSAGE_BYTES_MAX):
            piece = data[start : start + MESSAGE_BYTES_MAX]
            self._socket.write(_head(_BINARY, len(piece)) + piece)

    def pause_reading(self) -> None:
        self.readable.clear()

    def resume_reading(self) -> None:
        self.readable.set()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.say_close(WSCloseCode.OK)

    def say_close(self, code: int) -> None:
        if not self._said:
            self._said = True
            self.readable.set()  # for its answer
            self._socket.write(_head(_CLOSE, _CODE.size) + _CODE.pack(code))

    def is_closing(self) -> bool:
        return self._said or self._socket.is_closing()

    def close(self) -> None:
        self.say_close(WSCloseCode.GOING_AWAY)
        self._socket.close()

    def abort(self) -> None:
        self._socket.abort()


def _head(kind: int, size: int) -> bytes:
    """Of a frame that is not masked (RFC 6455, 5.2)."""
    if size < 126:
        return _HEAD.pack(kind, size)
    if size < 1 << 16:
        return _HEAD_16.pack(kind, 126, size)
    return _HEAD_64.pack(kind, 127, size)
