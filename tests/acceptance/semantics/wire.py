"""A connection in plain frames: what comes back, in the order in which it comes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from pamqp import base, commands
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Connection
from pamqp.frame import marshal, unmarshal
from pamqp.header import ContentHeader, ProtocolHeader
from pamqp.heartbeat import Heartbeat

#: Long: it is waited for what must come, on a machine that may be slow.
WAIT_S = 60.0
FRAME_MAX = 131_072
FRAME_HEADER_BYTES = 7
FRAME_OVERHEAD_BYTES = 8
READ_BYTES = 65_536

F = TypeVar("F", bound=base.Frame)
Properties = commands.Basic.Properties


class Received(NamedTuple):
    """A method, and its content when it has one."""

    channel: int
    method: Any  # one of pamqp's
    properties: Any = None
    body: bytes = b""


class Closed(Exception):
    """The broker closed the channel or the connection."""

    def __init__(self, level: str, code: int, text: str) -> None:
        super().__init__(f"{level} closed: {code} {text}")
        self.level = level
        self.code = code
        self.text = text


class Wire:
    """One connection; methods of channel 1 unless told otherwise."""

    def __init__(self, url: str, *, capabilities: dict[str, bool] | None = None) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection(
            (parts.hostname or "127.0.0.1", parts.port or 5672), timeout=WAIT_S
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self._waiting: list[Received] = []
        user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        self._socket.sendall(ProtocolHeader().marshal())
        self.expect(Connection.Start, 0)
        self.send(
            Connection.StartOk(
                {"product": "semantics", "capabilities": {**(capabilities or _CAPABILITIES)}},
                "PLAIN",
                f"\0{user}\0{password}",
            ),
            channel=0,
        )
        tune = self.expect(Connection.Tune, 0)
        self.frame_max = min(tune.frame_max or FRAME_MAX, FRAME_MAX)
        self.send(Connection.TuneOk(tune.channel_max, self.frame_max, 0), channel=0)
        self.send(Connection.Open(unquote(parts.path[1:]) or "/"), channel=0)
        self.expect(Connection.OpenOk, 0)

    def open(self, channel: int = 1) -> None:
        self.call(Channel.Open(), Channel.OpenOk, channel)

    def send(self, *frames: Any, channel: int = 1) -> None:
        self.send_on(*((channel, frame) for frame in frames))

    def send_on(self, *frames: tuple[int, Any]) -> None:
        """Frames of several channels in one write."""
        self._socket.sendall(b"".join(marshal(frame, channel) for channel, frame in frames))

    def send_bytes(self, data: bytes) -> None:
        """As they are, right or wrong."""
        self._socket.sendall(data)

    def call(self, frame: base.Frame, answer: type[F], channel: int = 1) -> F:
        self.send(frame, channel=channel)
        return self.expect(answer, channel)

    def publish(
        self,
        key: str,
        *bodies: bytes | str,
        exchange: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        properties: Properties | None = None,
        channel: int = 1,
    ) -> None:
        """All bodies in one write."""
        piece = self.frame_max - FRAME_OVERHEAD_BYTES
        frames: list[Any] = []
        for body in bodies:
            data = body.encode() if isinstance(body, str) else body
            frames += [
                Basic.Publish(0, exchange, key, mandatory, immediate),
                ContentHeader(0, len(data), properties or Properties(delivery_mode=2)),
                *(ContentBody(data[at : at + piece]) for at in range(0, len(data), piece)),
            ]
        self.send(*frames, channel=channel)

    def next(self) -> Received:
        """The next method with its content. Raises Closed, TimeoutError."""
        if self._waiting:
            return self._waiting.pop(0)
        channel, method = self.frame()
        if isinstance(method, Channel.Close):
            self.send(Channel.CloseOk(), channel=channel)
            raise Closed("channel", method.reply_code or 0, method.reply_text)
        if isinstance(method, Connection.Close):
            self.send(Connection.CloseOk(), channel=0)
            raise Closed("connection", method.reply_code or 0, method.reply_text)
        if not isinstance(method, Basic.Deliver | Basic.Return | Basic.GetOk):
            return Received(channel, method)
        _, header = self.frame()
        body = b""
        while len(body) < header.body_size:
            body += self.frame()[1].value
        return Received(channel, method, header.properties, body)

    def expect(self, kind: type[F], channel: int = 1) -> F:
        """The next method of this kind on the channel; what comes before it is kept for later."""
        kept: list[Received] = []
        while True:
            received = self.next()
            if received.channel == channel and isinstance(received.method, kind):
                self._waiting = kept + self._waiting
                return received.method
            kept.append(received)

    def take(self, count: int, *kinds: type[base.Frame]) -> list[Received]:
        """The next methods, each of which must be of one of these kinds."""
        found: list[Received] = []
        while len(found) < count:
            received = self.next()
            assert isinstance(received.method, kinds), f"not expected: {received.method!r}"
            found.append(received)
        return found

    def outcomes(self, count: int, *, first: int = 1) -> dict[int, str]:
        """Number of each publish from `first` on -> "ack" or "nack"; fails if any has two."""
        found: dict[int, str] = {}
        while len(found) < count:
            method = self.next().method
            if isinstance(method, Basic.Return):
                continue
            assert isinstance(method, Basic.Ack | Basic.Nack), f"not expected: {method!r}"
            tag = method.delivery_tag
            outcome = "ack" if isinstance(method, Basic.Ack) else "nack"
            assert first <= tag < first + count, f"an outcome for {tag}, which was not published"
            open_until = [each for each in range(first, tag) if each not in found]
            for each in [*(open_until if method.multiple else []), tag]:
                assert each not in found, f"a second outcome for {each}: {outcome}"
                found[each] = outcome
        return found

    def refusal(self) -> Closed:
        """How the broker closes the channel or the connection; other methods are passed over."""
        try:
            while True:
                self.next()
        except Closed as closed:
            return closed

    def reset(self) -> None:
        """The connection is gone without a word, as when a process dies."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def hang_up(self) -> None:
        """Without a word as well, but what was sent arrives."""
        self._socket.close()

    def close(self) -> None:
        with suppress(OSError, Closed):
            self.call(Connection.Close(200, "bye", 0, 0), Connection.CloseOk, 0)
        self._socket.close()

    def frame(self) -> tuple[int, Any]:
        """The next one as it came: channel, and what pamqp makes of it."""
        while True:
            while len(self._data) < FRAME_HEADER_BYTES or len(self._data) < self._size():
                data = self._socket.recv(READ_BYTES)
                if not data:
                    raise ConnectionResetError("the broker closed the connection without a word")
                self._data += data
            size, channel, frame = unmarshal(self._data)
            self._data = self._data[size:]
            if not isinstance(frame, Heartbeat):
                return channel, frame

    def _size(self) -> int:
        return int.from_bytes(self._data[3:7], "big") + FRAME_OVERHEAD_BYTES


def methods(received: Sequence[Received]) -> list[str]:
    """Their names, for a message: "Basic.Return", "Basic.Ack"."""
    return [each.method.name for each in received]


_CAPABILITIES = {
    "basic.nack": True,
    "publisher_confirms": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
