"""Where a connection is in its life, and between which two sockets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """Of the connection as a whole."""

    STARTING = "starting"
    RUNNING = "running"
    CLOSING = "closing"  # only an answer to our close is looked for
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Ends:
    """Who is connected with what."""

    host: str
    port: int
    peer_host: str
    peer_port: int
    tls: bool

    @classmethod
    def of(cls, transport: asyncio.Transport) -> Ends:
        ours = transport.get_extra_info("sockname") or ("", 0)
        theirs = transport.get_extra_info("peername") or ("", 0)
        tls = transport.get_extra_info("ssl_object") is not None
        return cls(ours[0], ours[1], theirs[0], theirs[1], tls)

    def __str__(self) -> str:
        return f"{self.peer_host}:{self.peer_port} -> {self.host}:{self.port}"
