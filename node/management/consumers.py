"""Consumers, as their queues know them, with the channels that they are on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from cluster.machine.catalog import QueueInfo
from node.management.facts import ConsumerFacts, QueueFacts

Json = dict[str, Any]

#: What a consumer says of its channel.
_DETAILS = ("name", "node", "number", "user")
#: What the channel knows better than the machine, which may see other settings than the client's.
_OF_CHANNEL = ("consumer_tag", "ack_required", "exclusive", "prefetch_count", "arguments")


def sessions_of(channels: Sequence[Json]) -> dict[str, Json]:
    """Channels by the session of their consumers."""
    return {channel["session"]: channel for channel in channels if "session" in channel}


def consumers_of(info: QueueInfo, facts: QueueFacts, sessions: Mapping[str, Json]) -> list[Json]:
    return [_consumer(info, each, sessions.get(each.session)) for each in facts.consumers]


def _consumer(info: QueueInfo, consumer: ConsumerFacts, channel: Json | None) -> Json:
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": info.name, "vhost": info.vhost},
        "channel_details": _details(consumer, channel),
        "ack_required": consumer.ack_required,
        "prefetch_count": consumer.credit,
        "active": consumer.active,
        "activity_status": consumer.status,
        "exclusive": consumer.exclusive,
        "arguments": {"x-priority": consumer.priority} if consumer.priority else {},
        **_said_by(channel, info.name, consumer),
    }


def _details(consumer: ConsumerFacts, channel: Json | None) -> Json:
    if channel is None:
        return {"name": consumer.session}
    connection = cast("Json", channel.get("connection_details", {}))
    return {
        **{name: channel.get(name) for name in _DETAILS},
        "connection_name": connection.get("name"),
        "peer_host": connection.get("peer_host"),
        "peer_port": connection.get("peer_port"),
    }


def _said_by(channel: Json | None, queue: str, consumer: ConsumerFacts) -> Json:
    """Keys are told apart within a group only; a name is the queue's alone in its vhost."""
    for each in cast("list[Json]", [] if channel is None else channel.get("consumers", [])):
        if each.get("key") == consumer.key and each.get("queue") == queue:
            return {name: each[name] for name in _OF_CHANNEL if name in each}
    return {}
