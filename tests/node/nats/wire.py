"""A NATS client that says exactly what it is told to."""

from __future__ import annotations

import json
import re
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from tests.testkit.waiting import WAIT_S

OPTIONS = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
GUEST = {"user": "guest", "pass": "guest"}


class Message(NamedTuple):
    subject: str
    reply: str
    header: bytes
    body: bytes

    @property
    def status(self) -> int:
        """0: it is none."""
        found = re.match(rb"NATS/1\.0 (\d{3})", self.header)
        return 0 if found is None else int(found[1])

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


class Wire:
    """One connection. `said` is all that came and was not asked for yet."""

    def __init__(
        self, address: str, *, wait_s: float = WAIT_S, first: ssl.SSLContext | None = None
    ) -> None:
        """`first`: TLS begins before INFO."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=wait_s)
        if first is not None:
            self.secure(first)
        self.said = b""
        self.info: dict[str, Any] = self._read_info()

    def _read_info(self) -> dict[str, Any]:
        return json.loads(self.line().removeprefix(b"INFO "))

    def secure(self, context: ssl.SSLContext) -> Self:
        self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        return self

    def connect(self, **options: Any) -> Self:
        """What was said until it is let in is gone."""
        self.send(b"CONNECT %b\r\n" % json.dumps({**OPTIONS, **GUEST, **options}).encode())
        self.sync()
        return self

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def sync(self) -> bytes:
        """What has been said when all that was sent before is done."""
        self.send(b"PING\r\n")
        return self.until(b"PONG\r\n").removesuffix(b"PONG\r\n")

    def until(self, end: bytes) -> bytes:
        """All up to and with this."""
        return self._take(lambda: (at := self.said.find(end)) + 1 and at + len(end))

    def line(self) -> bytes:
        return self.until(b"\r\n").removesuffix(b"\r\n")

    def message(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Subject, sid, reply, and what it carries. What is said before it is dropped."""
        sid, (subject, reply, header, body) = self.delivery()
        return subject.encode(), sid, reply.encode(), header + body

    def delivery(self) -> tuple[bytes, Message]:
        """By its sid, with its header block apart."""
        while not (line := self.line()).startswith((b"MSG ", b"HMSG ")):
            pass
        words = line.split()
        size = int(words[-1])
        data = self._take(lambda: size + 2 if len(self.said) >= size + 2 else 0)
        numbers = 1 if words[0] == b"MSG" else 2
        reply = words[3] if len(words) == 4 + numbers else b""
        header_bytes = int(words[-2]) if numbers == 2 else 0
        header, body = data[:header_bytes], data[header_bytes:-2]
        return words[2], Message(words[1].decode(), reply.decode(), header, body)

    def wait(self, seconds: float) -> bytes:
        """All that is said meanwhile, with what was not asked for yet."""
        end_s = time.monotonic() + seconds
        while select.select([self._socket], [], [], max(0.0, end_s - time.monotonic()))[0]:
            data = self._socket.recv(1 << 16)
            if not data:
                break
            self.said += data
        return self.said

    def until_closed(self) -> bytes:
        """All that was said before."""
        while data := self._socket.recv(1 << 16):
            self.said += data
        return self.said

    def close(self) -> None:
        self._socket.close()

    def _take(self, size: Callable[[], int]) -> bytes:
        while not (count := size()):
            data = self._socket.recv(1 << 16)
            assert data, f"closed: {self.said!r}"
            self.said += data
        found, self.said = self.said[:count], self.said[count:]
        return found


def without_info(said: bytes) -> bytes:
    return re.sub(rb"INFO [^\r]*\r\n", b"", said)
