"""Limits of virtual hosts and of users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import DropEntry, PutEntry
from node.management.context import DONE, Call, Endpoint, Response
from node.management.errors import not_found

Json = dict[str, Any]
Owner = Literal["vhost", "user"]


def limits(call: Call, owner: Owner) -> list[Json]:
    """Of those that have any; of one, when the path names it."""
    entries = sorted(call.catalog.entries(f"{owner}_limits").items())
    visible = set(call.vhosts()) if owner == "vhost" else {key[0] for key, _ in entries}
    wanted = call.names.get(owner)
    return [
        {owner: key[0], "value": dict(entry)}
        for key, entry in entries
        if entry and key[0] in visible and wanted in (None, key[0])
    ]


def limits_step(
    catalog: CatalogMachine, owner: Owner, of: str, given: Mapping[str, int]
) -> PutEntry:
    """Those that are not given stay as they are."""
    known = catalog.entry(f"{owner}_limits", (of,)) or {}
    return PutEntry(f"{owner}_limits", (of,), {**known, **given})


def _routes(owner: Owner, readers: Literal["management", "administrator"]) -> list[Endpoint]:
    async def listed(call: Call) -> list[Json]:
        return limits(call, owner)

    async def put(call: Call) -> Response:
        given = {call.name: call.body.integer("value")}
        await call.catch_up()
        await call.change(limits_step(call.catalog, owner, call.names[owner], given))
        return DONE

    async def delete(call: Call) -> Response:
        of = (call.names[owner],)
        await call.catch_up()
        known = dict(call.catalog.entry(f"{owner}_limits", of) or {})
        if call.name not in known:
            raise not_found()
        del known[call.name]
        if known:
            await call.change(PutEntry(f"{owner}_limits", of, known))
        else:
            await call.change(DropEntry(f"{owner}_limits", of))
        return DONE

    path = f"{owner}-limits"
    one = f"{path}/{{{owner}}}/{{name}}"
    return [
        Endpoint("GET", path, listed, readers),
        Endpoint("GET", f"{path}/{{{owner}}}", listed, readers),
        Endpoint("PUT", one, put, "administrator"),
        Endpoint("DELETE", one, delete, "administrator"),
    ]


ROUTES = (*_routes("vhost", "management"), *_routes("user", "administrator"))
