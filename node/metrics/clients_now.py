"""The clients of this node at this moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.metrics.client_counters import PROTOCOLS


def _none() -> dict[str, int]:
    return dict.fromkeys(PROTOCOLS, 0)


@dataclass(slots=True)
class ClientsNow:
    publishers: dict[str, int] = field(default_factory=_none)
    consumers: dict[str, int] = field(default_factory=_none)
    channels: int = 0
    unacked: int = 0
    unconfirmed: int = 0
    uncommitted: int = 0
    acks_uncommitted: int = 0
