"""What travels beside a body, as each protocol wrote it, read by the other.

A message that came by AMQP has bytes as its meta: the short strings exchange and routing key, then
the property flags and list of its content header, all as on the wire, so that AMQP deliveries need
no decoding. One that came by NATS with headers has the bytes of their block. One from a native
client has a map. None of them is ever rewritten in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from node.messages import nats_headers
from node.messages import properties as amqp
from node.messages.amqp_errors import AmqpError

#: A short string's.
SHORT_BYTES_MAX = 255

#: What a native map may say that AMQP has a property for.
_TEXTS = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "app_id",
)

#: How NATS's clients see them, and by what they give them: the names that HTTP has, or would have.
HEADER_NAMES = {each: each.title().replace("_", "-") for each in _TEXTS}


def short(text: str) -> bytes:
    """A short string of the wire. ValueError: longer than 255 bytes."""
    raw = text.encode()
    return bytes((len(raw),)) + raw


def where_of(exchange: str, key: str) -> bytes:
    return short(exchange) + short(key)


def split(meta: bytes) -> tuple[bytes, bytes]:
    """`where` (exchange and key) and the properties of a meta that came by AMQP."""
    key_at = 1 + meta[0]
    end = key_at + 1 + meta[key_at]
    return meta[:end], meta[end:]


@lru_cache(4096)
def exchange_and_key(where: bytes) -> tuple[str, str]:
    key_at = 1 + where[0]
    return where[1:key_at].decode(), where[key_at + 1 : key_at + 1 + where[key_at]].decode()


def routing_key_of(meta: Any) -> str | None:
    """None: it has none of its own."""
    if type(meta) is bytes:
        if nats_headers.is_block(meta):
            return None
        return exchange_and_key(split(meta)[0])[1]
    key = cast("dict[str, Any]", meta).get("key") if type(meta) is dict else None
    return key if type(key) is str else None


def key_of_dead(deaths: Any) -> str | None:
    """The key by which it went to where it is, as consumers see it; None: its own."""
    records = cast("list[Mapping[str, Any]]", deaths or [])
    to = records[0].get("to") if records else None
    return None if to is None else to[1]


def headers_of(meta: Any) -> Mapping[str, Any]:
    if type(meta) is bytes:
        if nats_headers.is_block(meta):
            return nats_headers.fields(meta)
        try:
            return amqp.parse(split(meta)[1]).headers
        except AmqpError:  # never looked at until now
            return {}
    headers = cast("dict[str, Any]", meta).get("headers") if type(meta) is dict else None
    given = cast("dict[Any, Any]", headers) if type(headers) is dict else {}
    if {str}.issuperset(map(type, given)):
        return given
    return {name: value for name, value in given.items() if type(name) is str}


def nats_fields_of(meta: Any) -> Mapping[str, Any]:
    """Headers, and the properties that are text among them. A header of that name comes first."""
    headers = headers_of(meta)
    given = as_map(meta)
    if type(given) is not dict:
        return headers
    taken = {name.lower() for name in headers}
    properties = cast("dict[str, Any]", given)
    return {
        **headers,
        **{
            name: value
            for key, name in HEADER_NAMES.items()
            if type(value := properties.get(key)) is str and value and name.lower() not in taken
        },
    }


def carbon_copies(headers: Mapping[str, Any]) -> list[str]:
    """Routing keys besides the message's own, as AMQP publishers give them."""
    found = headers.get("CC")
    if type(found) is not list:
        return []
    return [each for each in cast("list[Any]", found) if type(each) is str]


def as_map(meta: Any) -> Any:
    """For native clients: AMQP properties by name, `exchange` and `key` beside them; of NATS the
    headers.
    """
    if type(meta) is bytes:
        return dict(_map_of(meta) if len(meta) <= amqp.CACHED_BYTES_MAX else _made_map(meta))
    if type(meta) is list:
        return [as_map(each) for each in cast("list[Any]", meta)]
    return meta


@lru_cache(1024)
def _map_of(meta: bytes) -> Mapping[str, Any]:
    return _made_map(meta)


def _made_map(meta: bytes) -> Mapping[str, Any]:
    if nats_headers.is_block(meta):
        return {"headers": nats_headers.fields(meta)}
    where, properties = split(meta)
    exchange, key = exchange_and_key(where)
    try:
        found = amqp.parse(properties).as_map()
    except AmqpError:
        found = {}
    return {"exchange": exchange, "key": key, **found}


def _properties_of(block: bytes) -> Mapping[str, str]:
    """Of NATS's headers, those that AMQP has a property for."""
    fields = nats_headers.fields(block)
    return {
        key: value
        for key, name in HEADER_NAMES.items()
        if type(value := fields.get(name)) is str and len(value.encode()) <= SHORT_BYTES_MAX
    }


def on_wire(meta: Any, queue: str) -> tuple[bytes, bytes]:
    """`where` and properties for an AMQP client, whoever published."""
    if type(meta) is bytes:
        if not nats_headers.is_block(meta):
            return split(meta)
        meta = {**_properties_of(meta), **as_map(meta)}
    given = cast("dict[str, Any]", meta) if type(meta) is dict else {}
    key = given.get("key")
    values: dict[str, Any] = {
        name: value for name in _TEXTS if type(value := given.get(name)) is str
    }
    headers = given.get("headers")
    if type(headers) is dict and headers:
        values["headers"] = headers
    try:
        return where_of("", key if type(key) is str else queue), amqp.build(
            {**values, "delivery_mode": 2}
        )
    except (ValueError, TypeError, RecursionError):  # what CBOR holds and AMQP cannot
        return where_of("", queue), amqp.build({"delivery_mode": 2})
