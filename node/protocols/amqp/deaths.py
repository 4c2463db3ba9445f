"""What consumers are told about a message's past: headers made from the broker's own records.

RabbitMQ's names: x-death, x-first-death-*, x-last-death-* (dead lettering), x-delivery-count and
x-acquired-count (quorum queues).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, cast

from node.message import exchange_and_key, where_of
from node.protocols.amqp import properties as props

DELIVERY_COUNT = "x-delivery-count"


def marked(
    where: bytes, properties: bytes, deaths: Any, delivery_count: int
) -> tuple[bytes, bytes]:
    """`where` and properties as a consumer is to see them."""
    headers: dict[str, Any] = {}
    if delivery_count:
        headers[DELIVERY_COUNT] = delivery_count
    records = cast("list[dict[str, Any]]", deaths or [])
    if records:
        exchange, key = exchange_and_key(where)
        headers |= _death_headers(records, exchange, key)
        to = records[0].get("to")
        if to is not None:
            where = where_of(exchange if to[0] is None else to[0], key if to[1] is None else to[1])
        if any("original-expiration" in record for record in records):
            properties = props.replace(properties, expiration=None)
    return where, props.with_headers(properties, headers)


def _death_headers(records: list[dict[str, Any]], exchange: str, key: str) -> dict[str, Any]:
    table = [_shown(record, exchange, key) for record in records]
    first = next(
        (shown for shown, record in zip(table, records, strict=True) if record.get("first")),
        table[-1],
    )
    headers: dict[str, Any] = {"x-death": table}
    for which, record in (("first", first), ("last", table[0])):
        for name in ("exchange", "queue", "reason"):
            headers[f"x-{which}-death-{name}"] = record[name]
    return headers


def _shown(record: Mapping[str, Any], exchange: str, key: str) -> dict[str, Any]:
    own = record.get("exchange")
    shown: dict[str, Any] = {
        "count": record["count"],
        "exchange": exchange if own is None else own,
        "queue": record["queue"],
        "reason": record["reason"],
        "routing-keys": record.get("routing-keys") or [key],
        "time": dt.datetime.fromtimestamp(record.get("time", 0) // 1000, tz=dt.UTC),
    }
    if "original-expiration" in record:
        shown["original-expiration"] = str(record["original-expiration"])
    return shown
