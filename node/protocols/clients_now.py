"""The clients of this node at this moment, those of all protocols: walked once a scrape."""

from __future__ import annotations

from node.clients.sessions import Sessions
from node.metrics.clients_now import ClientsNow
from node.protocols.amqp.server import AmqpServer


def clients_now(amqp: AmqpServer, sessions: Sessions) -> ClientsNow:
    now = ClientsNow()
    for channel in amqp.open_channels():
        publishes, settles = channel.publishes, channel.deliveries.settles
        now.channels += 1
        now.publishers["amqp091"] += publishes.used
        now.consumers["amqp091"] += len(channel.deliveries.consumers)
        now.unacked += settles.unacked.count
        now.unconfirmed += 0 if publishes.confirms is None else publishes.confirms.open
        now.uncommitted += publishes.uncommitted
        now.acks_uncommitted += settles.uncommitted
    for connection in sessions.clients:
        if connection.counted is not None:
            now.publishers["quorate"] += connection.published
            now.consumers["quorate"] += len(connection.consumers)
    return now
