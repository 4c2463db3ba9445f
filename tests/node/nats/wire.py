"""A NATS client that says exactly what it is told to."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Callable
from typing import Any, Self

from tests.testkit.waiting import WAIT_S

OPTIONS = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
GUEST = {"user": "guest", "pass": "guest"}


class Wire:
    """One connection. `said` is all that came and was not asked for yet."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=WAIT_S)
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
        while not (line := self.line()).startswith((b"MSG ", b"HMSG ")):
            pass
        words = line.split()
        size = int(words[-1])
        data = self._take(lambda: size + 2 if len(self.said) >= size + 2 else 0)
        numbers = 1 if words[0] == b"MSG" else 2
        reply = words[3] if len(words) == 4 + numbers else b""
        return words[1], words[2], reply, data[:-2]

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
