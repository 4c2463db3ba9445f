"""Things of the catalog as the API shows them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import cbor2

from cluster.machine.catalog_entries import NKEYS, PROTECTED
from cluster.machine.catalog_tables import BindingInfo, ExchangeInfo, QueueInfo
from node.management.facts import COUNTED, QueueFacts

Json = dict[str, Any]

_HASH_LETTERS = 8
_NO_COUNTS = (0,) * len(COUNTED)


def rate(value: float) -> Json:
    return {"rate": value}


def stats(counts: Sequence[int], rates: Sequence[float]) -> Json:
    """`message_stats` of what is counted as COUNTED says."""
    by_name: dict[str, tuple[int, float]] = dict(
        zip(COUNTED, zip(counts, rates, strict=True), strict=True)
    )
    given = [by_name[name] for name in ("deliver", "get", "get_no_ack")]
    by_name["deliver_no_ack"] = (0, 0.0)
    by_name["deliver_get"] = (sum(c for c, _ in given), round(sum(r for _, r in given), 2))
    shown: Json = {}
    for name, (count, per_second) in sorted(by_name.items()):
        shown[name] = count
        shown[f"{name}_details"] = rate(per_second)
    return shown


def totals(messages: int, ready: int, unsettled: int, rates: Sequence[float]) -> Json:
    return {
        "messages": messages,
        "messages_details": rate(rates[0]),
        "messages_ready": ready,
        "messages_ready_details": rate(rates[1]),
        "messages_unacknowledged": unsettled,
        "messages_unacknowledged_details": rate(rates[2]),
    }


def summed(every: Sequence[QueueFacts]) -> Json:
    """Totals and stats of many queues."""
    # Column by column: there may be very many queues.
    counts = [sum(column) for column in zip(_NO_COUNTS, *[f.counts for f in every], strict=True)]
    rates = [
        round(sum(column), 2) for column in zip(_NO_COUNTS, *[f.rates for f in every], strict=True)
    ]
    changes = [
        round(sum(column), 2)
        for column in zip((0.0, 0.0, 0.0), *[f.messages_rates for f in every], strict=True)
    ]
    return {
        **totals(
            sum(facts.messages for facts in every),
            sum(facts.ready for facts in every),
            sum(facts.unsettled for facts in every),
            changes,
        ),
        "message_stats": stats(counts, rates),
    }


def exchange(info: ExchangeInfo) -> Json:
    return {
        "name": info.name,
        "vhost": info.vhost,
        "type": info.type,
        "durable": info.durable,
        "auto_delete": info.auto_delete,
        "internal": info.internal,
        "arguments": dict(info.arguments),
        "user_who_performed_action": "",
    }


def binding(info: BindingInfo) -> Json:
    return {
        "source": info.source,
        "vhost": info.vhost,
        "destination": info.destination,
        "destination_type": info.kind,
        "routing_key": info.key,
        "arguments": dict(info.arguments),
        "properties_key": properties_key(info),
    }


def properties_key(info: BindingInfo) -> str:
    """One word for the key and the arguments of a binding: what tells it from its like."""
    key = quote(info.key, safe="").replace("~", "%7E")  # which stands for the empty key alone
    if not info.arguments:
        return key or "~"
    digest = hashlib.blake2b(cbor2.dumps(dict(info.arguments), canonical=True), digest_size=16)
    return f"{key}~{digest.hexdigest()[:_HASH_LETTERS]}"


def default_binding(info: QueueInfo) -> BindingInfo:
    """Every queue is bound to the exchange that has no name by its own."""
    return BindingInfo(info.vhost, "", "queue", info.name, info.name, {})


def vhost_metadata(entry: Mapping[str, Any]) -> Json:
    return {
        "description": entry["description"],
        "tags": list(entry["tags"]),
        PROTECTED: entry.get(PROTECTED) is True,
    }


def user(name: str, entry: Mapping[str, Any], limits: Mapping[str, Any] | None) -> Json:
    return {
        "name": name,
        "password_hash": entry["password_hash"],
        "hashing_algorithm": entry["hashing_algorithm"],
        "tags": list(entry["tags"]),
        "limits": dict(limits or {}),
        **({NKEYS: list(entry[NKEYS])} if entry.get(NKEYS) else {}),
    }


def permission(key: tuple[str, ...], entry: Mapping[str, Any]) -> Json:
    return {
        "user": key[0],
        "vhost": key[1],
        "configure": entry["configure"],
        "write": entry["write"],
        "read": entry["read"],
    }


def topic_permission(key: tuple[str, ...], entry: Mapping[str, Any]) -> Json:
    return {
        "user": key[0],
        "vhost": key[1],
        "exchange": key[2],
        "write": entry["write"],
        "read": entry["read"],
    }


def policy(key: tuple[str, ...], entry: Mapping[str, Any]) -> Json:
    return {
        "vhost": key[0],
        "name": key[1],
        "pattern": entry["pattern"],
        "apply-to": entry["apply_to"],
        "definition": dict(entry["definition"]),
        "priority": entry["priority"],
    }


def parameter(key: tuple[str, ...], entry: Mapping[str, Any]) -> Json:
    if key[0] == "" and key[1] == "":
        return {"name": key[2], "value": entry["value"]}
    return {"component": key[0], "vhost": key[1], "name": key[2], "value": entry["value"]}
