"""Between which two sockets a connection is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ends:
    """Who is connected with what."""

    host: str
    port: int
    peer_host: str
    peer_port: int
    tls: bool

    @classmethod
    def of(cls, transport: asyncio.BaseTransport | None, *, tls: bool | None = None) -> Ends:
        """`tls`: not as this transport has it, for the handshake is still to come, or another one
        did it.
        """
        if transport is None:  # it is gone
            return cls("", 0, "", 0, bool(tls))
        host, port = (transport.get_extra_info("sockname") or ("", 0))[:2]
        peer_host, peer_port = (transport.get_extra_info("peername") or ("", 0))[:2]
        if tls is None:
            tls = transport.get_extra_info("ssl_object") is not None
        return cls(host, port, peer_host, peer_port, tls)

    def __str__(self) -> str:
        """By which a connection is known to people."""
        return f"{self.peer_host}:{self.peer_port} -> {self.host}:{self.port}"

    def as_shown(self) -> dict[str, Any]:
        """As RabbitMQ's management API names them."""
        return {
            "name": str(self),
            "host": self.host,
            "port": self.port,
            "peer_host": self.peer_host,
            "peer_port": self.peer_port,
            "ssl": self.tls,
        }


#: Of a connection within this process: where it comes from, and how its name begins.
LOCAL_ENDS = Ends("127.0.0.1", 0, "127.0.0.1", 0, tls=False)
LOCAL = "(local)"
