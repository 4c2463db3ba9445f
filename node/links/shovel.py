"""What a parameter of component `shovel` says, in the words of RabbitMQ's dynamic shovels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, cast

from pamqp import commands

from cluster.machine.checks import is_short_text, shown
from node.errors import Refused
from node.links.definition import (
    ACK_MODES,
    COUNT_MAX,
    PREFETCH_MAX,
    RECONNECT_S,
    Fields,
    wrong,
)
from node.links.moving import AckMode

COMPONENT: Final = "shovel"
PREFETCH: Final = 1_000
PROTOCOLS: Final = ("amqp091", "nats")
NATS_SCHEMES: Final = ("nats", "tls")
NEVER: Final = "never"
QUEUE_LENGTH: Final = "queue-length"

Protocol = Literal["amqp091", "nats"]

#: Properties that may be set on all messages, and what each is.
PROPERTIES: Final[Mapping[str, type]] = {
    "content_type": str,
    "content_encoding": str,
    "headers": dict,
    "delivery_mode": int,
    "priority": int,
    "correlation_id": str,
    "reply_to": str,
    "expiration": str,
    "message_id": str,
    "timestamp": int,
    "message_type": str,
    "type": str,
    "user_id": str,
    "app_id": str,
    "cluster_id": str,
}
_BOUNDS: Final = {"delivery_mode": (1, 2), "priority": (0, 255)}
_ALLOWED: Final[Mapping[type, str]] = {
    str: "text of at most 255 bytes",
    int: "a whole number from {} to {}",
    dict: "an object",
}
#: RabbitMQ's name of a property, and AMQP's.
_RENAMED: Final = {"message_type": "type"}


class Message(NamedTuple):
    """One on its way, beside its body, as AMQP has it. `identity`: the same whenever the source
    delivers the same message again, and never that of another one; None: nothing tells it from
    others.
    """

    properties: commands.Basic.Properties
    exchange: str
    routing_key: str
    identity: str | None


@dataclass(frozen=True, slots=True)
class AmqpSource:
    """Either a queue, or an exchange, from which a queue of its own takes for it."""

    uris: tuple[str, ...]
    queue: str | None
    exchange: str | None
    exchange_key: str
    queue_arguments: dict[str, Any]
    consumer_arguments: dict[str, Any]
    predeclared: bool


@dataclass(frozen=True, slots=True)
class AmqpDestination:
    """A queue, an exchange, or neither: where the message was published before. None as the key of
    an exchange: the message's own.
    """

    uris: tuple[str, ...]
    queue: str | None
    exchange: str | None
    exchange_key: str | None
    queue_arguments: dict[str, Any]
    properties: dict[str, Any]
    predeclared: bool


@dataclass(frozen=True, slots=True)
class NatsSource:
    """A durable consumer of a stream, which is there already or made."""

    uris: tuple[str, ...]
    stream: str
    consumer: str
    filter: str | None


@dataclass(frozen=True, slots=True)
class NatsDestination:
    """None: the subject of the message, or its routing key."""

    uris: tuple[str, ...]
    subject: str | None


@dataclass(frozen=True, slots=True)
class Shovel:
    source: AmqpSource | NatsSource
    destination: AmqpDestination | NatsDestination
    ack_mode: AckMode
    prefetch: int
    reconnect_delay_s: float
    delete_after: int | Literal["never", "queue-length"]
    forward_headers: bool
    timestamp_header: bool
    given: dict[str, Any] = field(compare=False)  # all of it, as it was put


def parse(_: str, value: Any) -> Shovel:
    """Refused: which field is wrong, and what it may be."""
    fields = Fields(COMPONENT, value)
    source_protocol = _protocol(fields, "src-protocol")
    destination_protocol = _protocol(fields, "dest-protocol")
    source = _nats_source(fields) if source_protocol == "nats" else _amqp_source(fields)
    if destination_protocol == "nats":
        destination: AmqpDestination | NatsDestination = _nats_destination(fields)
    else:
        destination = _amqp_destination(fields)
    mode = cast("AckMode", fields.choice("ack-mode", ACK_MODES, "on-confirm"))
    name = fields.only_one("src-delete-after", "delete-after") or "src-delete-after"
    delete_after = fields.count_or(name, (NEVER, QUEUE_LENGTH), NEVER)
    if delete_after != NEVER and mode == "no-ack":
        raise wrong(name, "never where ack-mode is no-ack")
    if delete_after == QUEUE_LENGTH and not (isinstance(source, AmqpSource) and source.queue):
        raise wrong(name, "never or a number where there is no src-queue")
    prefetch = fields.only_one("src-prefetch-count", "prefetch-count") or "src-prefetch-count"
    forward = fields.only_one("dest-add-forward-headers", "add-forward-headers")
    stamp = fields.only_one("dest-add-timestamp-header", "add-timestamp-header")
    shovel = Shovel(
        source,
        destination,
        mode,
        fields.integer(prefetch, 1, PREFETCH_MAX, PREFETCH),
        fields.seconds("reconnect-delay", RECONNECT_S),
        cast("Any", delete_after),
        fields.boolean(forward or "dest-add-forward-headers", default=False),
        fields.boolean(stamp or "dest-add-timestamp-header", default=False),
        dict(cast("Mapping[str, Any]", value)),
    )
    fields.end()
    return shovel


def _protocol(fields: Fields, name: str) -> Protocol:
    if fields.raw(name) == "amqp10":
        raise Refused(
            "bad_argument",
            f"Validation failed\n\n{name} amqp10 is not supported: amqp091 or nats",
        )
    return cast("Protocol", fields.choice(name, PROTOCOLS, "amqp091"))


def _amqp_source(fields: Fields) -> AmqpSource:
    uris = fields.uris("src-uri")
    which = fields.only_one("src-queue", "src-exchange")
    if which is None:
        reason = "Validation failed\n\nMust specify 'src-exchange' or 'src-queue'"
        raise Refused("bad_argument", reason)
    return AmqpSource(
        uris,
        fields.text("src-queue") if which == "src-queue" else None,
        fields.text("src-exchange") if which == "src-exchange" else None,
        fields.text("src-exchange-key", ""),
        fields.mapping("src-queue-args"),
        fields.mapping("src-consumer-args"),
        fields.boolean("src-predeclared", default=False),
    )


def _amqp_destination(fields: Fields) -> AmqpDestination:
    uris = fields.uris("dest-uri")
    which = fields.only_one("dest-queue", "dest-exchange")
    name = fields.only_one("dest-publish-properties", "publish-properties")
    return AmqpDestination(
        uris,
        fields.text("dest-queue") if which == "dest-queue" else None,
        fields.text("dest-exchange") if which == "dest-exchange" else None,
        fields.text("dest-exchange-key") if "dest-exchange-key" in fields else None,
        fields.mapping("dest-queue-args"),
        _properties(fields, name or "dest-publish-properties"),
        fields.boolean("dest-predeclared", default=False),
    )


def _nats_source(fields: Fields) -> NatsSource:
    return NatsSource(
        fields.uris("src-uri", NATS_SCHEMES),
        fields.text("src-stream"),
        fields.text("src-consumer"),
        fields.text("src-subject") if "src-subject" in fields else None,
    )


def _nats_destination(fields: Fields) -> NatsDestination:
    return NatsDestination(
        fields.uris("dest-uri", NATS_SCHEMES),
        fields.text("dest-subject") if "dest-subject" in fields else None,
    )


def _properties(fields: Fields, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in fields.mapping(name).items():
        kind = PROPERTIES.get(key)
        if kind is None:
            raise wrong(name, f"a map of {', '.join(PROPERTIES)}; not {shown(key)}")
        least, most = _BOUNDS.get(key, (0, COUNT_MAX))
        actual = cast(Any, type(value))
        if (
            actual is not kind
            or (kind is int and not least <= value <= most)
            or (kind is str and not is_short_text(value))
        ):
            raise wrong(f"{key} in {name}", _ALLOWED[kind].format(least, most))
        found[_RENAMED.get(key, key)] = value
    return found
