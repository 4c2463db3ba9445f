"""What a node remembers of each peer, and how often it complains about strangers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

import structlog

from cluster.raft.link_auth import LinkRefused
from cluster.raft.link_protocol import LinkConnection
from cluster.seams import Down
from cluster.types import NodeId

#: The same refusal of the same address is logged once in this time, with a count of the others.
REFUSAL_LOG_S = 10.0
REFUSALS_REMEMBERED_MAX = 256

log = structlog.stdlib.get_logger(__name__)


@dataclass(eq=False, slots=True)
class LinkPeer:
    """One other node, connected or not."""

    node: NodeId
    host: str
    port: int
    unknown: bool = False  # it called, and is no peer: nobody calls it
    reported: Down | Literal["nothing", "up"] = "nothing"  # by the last callback
    refused_since_s: float | None = None  # since then every attempt to connect to it was refused
    connection: LinkConnection | None = None
    up_since_s: float = 0.0
    queue: list[bytes] = field(default_factory=list[bytes])  # encoded messages, until the flush
    queued_bytes: int = 0
    plain: bool = False  # call it in the form of the first release
    by_previous: bool = False  # call it by the secret that was replaced
    dropped: int = 0  # messages, since the process started
    sampled_s: float = float("-inf")
    pinged_s: float = float("-inf")
    down: asyncio.Event = field(default_factory=asyncio.Event)
    dialer: asyncio.Task[None] | None = None


class RefusalLog:
    """One clear line for a refusal, however often somebody tries."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], tuple[float, int]] = {}  # when logged, how many since

    def write(self, event: str, address: str, error: LinkRefused, now_s: float) -> None:
        key = (address.rpartition(":")[0], error.code)
        logged_s, suppressed = self.seen.pop(key, (float("-inf"), 0))
        if now_s - logged_s < REFUSAL_LOG_S:
            self.seen[key] = (logged_s, suppressed + 1)
            return
        if len(self.seen) >= REFUSALS_REMEMBERED_MAX:
            del self.seen[next(iter(self.seen))]
        self.seen[key] = (now_s, 0)
        log.warning(
            event,
            peer_address=address,
            code=error.code,
            reason=error.reason,
            suppressed=suppressed,
        )


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of "host:port"; an IPv6 address stands in brackets."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{address!r} is not an address: write host:port, such as 10.0.0.1:7400")
    return host.removeprefix("[").removesuffix("]"), int(port)
