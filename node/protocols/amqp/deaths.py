"""What consumers are told about a message's past: headers made from the broker's own records.

RabbitMQ's names: x-death, x-first-death-*, x-last-death-* (dead lettering), x-delivery-count and
x-acquired-count (quorum queues). Of our own: x-fencing-token, x-message-position.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from node.messages import properties as props
from node.messages.amqp_errors import AmqpError
from node.messages.attributes import POSITION
from node.messages.message import carbon_copies, exchange_and_key, where_of
from node.messages.tables import encode_value, time_of

DELIVERY_COUNT = "x-delivery-count"
FENCING_TOKEN = "x-fencing-token"  # noqa: S105 -- a header's name
COUNT_MAX = 2**63 - 1


def marked(
    where: bytes, properties: bytes, deaths: Any, delivery_count: int, token: int | None = None
) -> tuple[bytes, bytes]:
    """`where` and properties as a consumer is to see them. `token`: of the delivery, if it is told.

    What the publisher's headers hold is not looked at before: those that cannot be read stay as
    they are, or such a message would stop all that come with it.
    """
    headers: dict[str, Any] = {}
    if delivery_count:
        headers[DELIVERY_COUNT] = delivery_count
    if token is not None:
        headers[FENCING_TOKEN] = token
    records = cast("list[dict[str, Any]]", deaths or [])
    drop: tuple[str, ...] = ()
    if records:
        exchange, key = exchange_and_key(where)
        headers |= _death_headers(records, exchange, key, _headers(properties))
        to = records[0].get("to")
        if to is not None and to[1] is not None:
            drop = ("CC",)  # another key than the publisher's: its copies do not count either
        if to is not None:
            where = where_of(exchange if to[0] is None else to[0], key if to[1] is None else to[1])
        if any("original-expiration" in record for record in records):
            properties = props.replace(properties, expiration=None)
    with suppress(AmqpError, ValueError):
        properties = props.with_headers(properties, headers, drop=drop)
    return where, properties


def placed(properties: bytes, position: str) -> bytes:
    """With the place of the message, for a consumer that has asked for it."""
    with suppress(AmqpError):
        return props.with_headers(properties, {POSITION: position})
    return properties


def _headers(properties: bytes) -> Mapping[str, Any]:
    try:
        return props.parse(properties).headers
    except AmqpError:
        return {}


def _death_headers(
    records: list[dict[str, Any]], exchange: str, key: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """`given`: the publisher's headers. Who publishes a dead letter again, with its headers, wants
    its deaths counted on.
    """
    keys = [key, *carbon_copies(given)]
    table = [_shown(record, exchange, keys) for record in records]
    first = next(
        (shown for shown, record in zip(table, records, strict=True) if record.get("first")),
        table[-1],
    )
    _count_on(table, given.get("x-death"))
    headers: dict[str, Any] = {"x-death": table}
    for which, record in (("first", first), ("last", table[0])):
        for name in ("exchange", "queue", "reason"):
            header = f"x-{which}-death-{name}"
            headers[header] = record[name]
            if which == "first" and type(given.get(header)) is str:
                headers[header] = given[header]
    return headers


def _count_on(table: list[dict[str, Any]], before: Any) -> None:
    """`before`: as the publisher gave it, whatever that is."""
    if type(before) is not list:
        return
    own = {(record["queue"], record["reason"]): record for record in table}
    for old in cast("list[Any]", before):
        if type(old) is not dict:
            continue
        old = cast("dict[str, Any]", old)
        where = (old.get("queue"), old.get("reason"))
        known = own.get(where) if all(type(each) is str for each in where) else None
        if known is None:
            with suppress(ValueError):  # some times can be read, and not written as what they are
                encode_value(old)
                table.append(old)
        elif type(old.get("count")) is int:
            known["count"] = min(known["count"] + max(0, old["count"]), COUNT_MAX)


def _shown(record: Mapping[str, Any], exchange: str, keys: list[str]) -> dict[str, Any]:
    own = record.get("exchange")
    shown: dict[str, Any] = {
        "count": record["count"],
        "exchange": exchange if own is None else own,
        "queue": record["queue"],
        "reason": record["reason"],
        "routing-keys": record.get("routing-keys") or keys,
        "time": time_of(record.get("time", 0) // 1000),
    }
    if "original-expiration" in record:
        shown["original-expiration"] = str(record["original-expiration"])
    return shown
