"""The clients of this node at this moment: walked when asked, once a scrape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from node.metrics.client_counters import PROTOCOLS

if TYPE_CHECKING:
    from node.metrics.sources import Process


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


def clients_now(process: Process | None) -> ClientsNow:
    now = ClientsNow()
    if process is None:
        return now
    for channel in process.amqp.open_channels():
        publishes, settles = channel.publishes, channel.deliveries.settles
        now.channels += 1
        now.publishers["amqp091"] += publishes.used
        now.consumers["amqp091"] += len(channel.deliveries.consumers)
        now.unacked += settles.unacked.count
        now.unconfirmed += 0 if publishes.confirms is None else publishes.confirms.open
        now.uncommitted += publishes.uncommitted
        now.acks_uncommitted += settles.uncommitted
    for connection in process.sessions.connections:
        if connection.counted is not None:
            now.publishers["quorate"] += connection.published
            now.consumers["quorate"] += len(connection.consumers)
    return now
