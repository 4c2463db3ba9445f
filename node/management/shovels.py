"""Shovels: what each does. They are made and changed as parameters."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from cluster.machine.commands import DropEntry
from node.links.definition import without_password
from node.links.link import LinkKey, LinkSpec
from node.links.shovel import COMPONENT, Shovel, parse
from node.management.context import DONE, Call, Endpoint, Response, deleted
from node.management.errors import ApiError, not_found
from node.management.paging import listed_as_is

Json = dict[str, Any]

#: Of the definition, as far as it says them.
_SHOWN = (
    "src-queue",
    "src-exchange",
    "src-exchange-key",
    "dest-queue",
    "dest-exchange",
    "dest-exchange-key",
    "src-stream",
    "src-consumer",
    "src-subject",
    "dest-subject",
    "src-delete-after",
)


def _shown(spec: LinkSpec, status: Mapping[str, Any]) -> Json:
    key, shovel = spec.key, _shovel(spec)
    facts = status["facts"]
    since = dt.datetime.fromtimestamp(status["since_ms"] / 1000, dt.UTC)
    shown: Json = {
        "node": status["node"] or "",  # tools want text
        "name": key.name,
        "vhost": key.vhost,
        "type": "dynamic",
        "state": status["state"],
        "timestamp": since.strftime("%Y-%m-%d %H:%M:%S"),
        "src_protocol": shovel.given.get("src-protocol", "amqp091"),
        "src_uri": facts.get("src_uri") or without_password(shovel.source.uris[0]),
        "dest_protocol": shovel.given.get("dest-protocol", "amqp091"),
        "dest_uri": facts.get("dest_uri") or without_password(shovel.destination.uris[0]),
        "ack_mode": shovel.ack_mode,
        "messages": status["messages"],
        "bytes": status["bytes"],
        "failures": status["failures"],
    }
    shown |= {
        name.replace("-", "_"): shovel.given[name]
        for name in _SHOWN
        if shovel.given.get(name) is not None
    }
    if status["error"]:
        shown["reason"] = status["error"]
    return shown


def _shovel(spec: LinkSpec) -> Shovel:
    return parse(spec.key.name, spec.definition["value"])


async def shovels(call: Call) -> list[Json]:
    visible = set(call.vhosts())
    rows = await call.services.links.statuses(COMPONENT)
    return [_shown(spec, status) for spec, status in rows if spec.key.vhost in visible]


async def list_all(call: Call) -> Any:
    return await listed_as_is(call.list_query, await shovels(call))


async def one(call: Call) -> Json:
    for shown in await shovels(call):
        if shown["name"] == call.name:
            return shown
    raise not_found()


def _key(call: Call) -> LinkKey:
    return LinkKey(COMPONENT, call.vhost, call.name)


async def delete(call: Call) -> Response:
    return deleted(await call.change(DropEntry("parameters", _key(call))))


async def restart(call: Call) -> Response:
    if call.catalog.entry("parameters", _key(call)) is None:
        raise not_found()
    if not await call.services.links.restart(_key(call)):
        reason = "no node that answers runs it now: it starts by itself when its queue has a leader"
        raise ApiError(503, "service_unavailable", reason)
    return DONE


_ONE = "shovels/vhost/{vhost}/{name}"

ROUTES = (
    Endpoint("GET", "shovels", list_all, "monitoring"),
    Endpoint("GET", "shovels/{vhost}", list_all, "monitoring"),
    Endpoint("GET", _ONE, one, "monitoring"),
    Endpoint("DELETE", _ONE, delete, "policymaker"),
    Endpoint("DELETE", f"{_ONE}/restart", restart, "policymaker"),
)
