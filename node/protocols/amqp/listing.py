"""Connections as people see them: the fields of RabbitMQ's /api/connections."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from node.protocols.amqp.connection import AmqpConnection


def describe(connection: AmqpConnection, node: str) -> dict[str, Any]:
    """One that is open."""
    ends, wire = connection.ends, connection.wire
    handshake = connection.opening.handshake
    properties = plain(handshake.client_properties)
    return {
        **ends.as_shown(),
        "user_provided_name": properties.get("connection_name"),
        "id": connection.id,
        "node": node,
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "state": "blocked" if connection.blocked else connection.phase.value,
        "user": connection.user.name,
        "user_who_performed_action": connection.user.name,
        "vhost": connection.vhost,
        "auth_mechanism": handshake.mechanism,
        "channels": connection.channel_count,
        "channel_max": handshake.terms.channel_max,
        "frame_max": handshake.terms.frame_bytes_max,
        "timeout": handshake.terms.heartbeat_s,
        "recv_oct": wire.received_bytes,
        "send_oct": wire.sent_bytes,
        "send_pend": 0,
        "connected_at": connection.connected_at_ms,
        "client_properties": properties,
    }


def details(connection: AmqpConnection) -> dict[str, Any]:
    """Whose a channel is."""
    ends = connection.ends
    return {
        "name": connection.name,
        "peer_host": ends.peer_host,
        "peer_port": ends.peer_port,
    }


def plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """A field table as JSON can hold it."""
    return {name: _plain(each) for name, each in value.items()}


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return value.decode(errors="replace")
        case datetime():
            return int(value.timestamp())
        case dict():
            return plain(cast("dict[str, Any]", value))
        case list():
            return [_plain(each) for each in cast("list[Any]", value)]
        case _:
            return str(value)
