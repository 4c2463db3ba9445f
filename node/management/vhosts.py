"""Virtual hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.machine.catalog import CatalogMachine
from cluster.machine.catalog_entries import PROTECTED
from cluster.machine.commands import DropEntry, PutEntry
from node.management import shapes
from node.management.context import DONE, Call, Endpoint, Response, created, deleted
from node.management.errors import bad_request, not_found
from node.management.paging import cut_columns, listed
from node.management.unsupported import check_default_type
from node.management.values import Body

Json = dict[str, Any]

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


async def list_vhosts(call: Call) -> Any:
    async def shown(some: Sequence[str]) -> list[Json]:
        return [await vhost(call, name) for name in some]

    return await listed(call.list_query, call.vhosts(), lambda name: name, shown)


async def vhost(call: Call, name: str) -> Json:
    entry = call.catalog.entry("vhosts", (name,))
    if entry is None:
        raise not_found()
    facts = await call.observer.queues(call.catalog.queues(name))
    states = call.services.cluster.peers.states
    metadata = shapes.vhost_metadata(entry)
    return {
        "name": name,
        **metadata,
        "default_queue_type": entry["default_queue_type"] or "undefined",
        "metadata": metadata,
        "tracing": False,
        "cluster_state": {
            node: "running" if state.up else "stopped" for node, state in sorted(states.items())
        },
        **shapes.summed(list(facts.values())),
    }


async def one_vhost(call: Call) -> Json:
    return cut_columns(call.list_query, await vhost(call, call.vhost))


async def put(call: Call) -> Response:
    await call.catch_up()
    made = await call.change(vhost_step(call.catalog, call.vhost, call.body))
    if made:  # who makes one may use it
        await call.change(PutEntry("permissions", (call.user.name, call.vhost), EVERYTHING))
    return created(made)


def vhost_step(catalog: CatalogMachine, name: str, body: Body) -> PutEntry:
    """What is not said stays as it is."""
    known = catalog.entry("vhosts", (name,)) or {}
    metadata = Body(body.mapping("metadata", {}))
    kind = body.values.get("default_queue_type", known.get("default_queue_type"))
    check_default_type(kind)
    protected = body.boolean(PROTECTED, metadata.boolean(PROTECTED, known.get(PROTECTED) is True))
    value = {
        "description": body.text(
            "description", metadata.text("description", known.get("description", ""))
        ),
        "tags": body.words("tags", metadata.words("tags", known.get("tags", []))),
        "default_queue_type": None if kind in (None, "", "undefined") else kind,
        **({PROTECTED: True} if protected else {}),
    }
    return PutEntry("vhosts", (name,), value)


async def protect(call: Call) -> Response:
    return await _protected(call, protected=True)


async def unprotect(call: Call) -> Response:
    return await _protected(call, protected=False)


async def _protected(call: Call, *, protected: bool) -> Response:
    await call.catch_up()
    known = dict(call.catalog.entry("vhosts", (call.vhost,)) or {})
    if (known.pop(PROTECTED, False) is True) != protected:
        value = {**known, **({PROTECTED: True} if protected else {})}
        await call.change(PutEntry("vhosts", (call.vhost,), value))
    return DONE


async def start(call: Call) -> Response:
    """It runs on every node that is up."""
    node, cluster = call.node, call.services.cluster
    if node != cluster.node and not cluster.peers.is_up(node):
        raise bad_request(f"node {node} is down")
    return DONE


async def delete(call: Call) -> Response:
    return deleted(await call.change(DropEntry("vhosts", (call.vhost,))))


async def permissions(call: Call) -> list[Json]:
    return [
        shapes.permission(key, entry)
        for key, entry in sorted(call.catalog.entries("permissions").items())
        if key[1] == call.vhost
    ]


async def topic_permissions(call: Call) -> list[Json]:
    return [
        shapes.topic_permission(key, entry)
        for key, entry in sorted(call.catalog.entries("topic_permissions").items())
        if key[1] == call.vhost
    ]


_PROTECTION = "vhosts/{vhost}/deletion/protection"

ROUTES = (
    Endpoint("GET", "vhosts", list_vhosts),
    Endpoint("GET", "vhosts/{vhost}", one_vhost),
    Endpoint("PUT", "vhosts/{vhost}", put, "administrator"),
    Endpoint("DELETE", "vhosts/{vhost}", delete, "administrator"),
    Endpoint("POST", _PROTECTION, protect, "administrator"),
    Endpoint("DELETE", _PROTECTION, unprotect, "administrator"),
    Endpoint("POST", "vhosts/{vhost}/start/{node}", start, "administrator"),
    Endpoint("GET", "vhosts/{vhost}/permissions", permissions, "administrator"),
    Endpoint("GET", "vhosts/{vhost}/topic-permissions", topic_permissions, "administrator"),
)
