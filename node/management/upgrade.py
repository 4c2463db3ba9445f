"""Which versions the nodes can run, which the groups have, and where an operator holds them."""

from __future__ import annotations

from typing import Any

from cluster.catalog.upgrading import HOLD, held_at
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import DropEntry, PutEntry
from cluster.machine.versions import newest_machine
from cluster.types import CATALOG_GROUP
from node.management.context import DONE, Call, Endpoint
from node.management.errors import bad_request

Json = dict[str, Any]


async def show(call: Call) -> Json:
    catalog = call.catalog
    copies: dict[str, int] = {}
    for group, name in [(CATALOG_GROUP, "catalog"), *((g.id, g.name) for g in catalog.groups())]:
        statuses = await call.observer.group_statuses(group)
        copies[name] = min(
            (each.get("machine_version", 1) for each in statuses.values()), default=1
        )
    return {**versions(catalog), "groups": copies}


def versions(catalog: CatalogMachine) -> Json:
    """What the cluster is at, and what its nodes could be at."""
    infos = [info for info in catalog.nodes() if info.incarnation]
    newest = {info.node: newest_machine(info.versions) for info in infos}
    return {
        "machine_version": catalog.version,
        "possible": min(newest.values(), default=catalog.version),
        "held_at": held_at(catalog),
        "nodes": [
            {"name": info.node, "newest": newest[info.node], "versions": info.versions}
            for info in infos
        ],
    }


async def hold(call: Call) -> Any:
    """At what the cluster has now, or at a later version."""
    current = call.catalog.version
    version = call.body.values.get("version", current)
    if type(version) is not int or version < current:
        raise bad_request(f"the version to hold is a number from {current}, which the cluster has")
    await call.change(PutEntry("parameters", HOLD, {"value": version}))
    return DONE


async def finish(call: Call) -> Any:
    await call.change(DropEntry("parameters", HOLD))
    return DONE


ROUTES = (
    Endpoint("GET", "upgrade", show, "monitoring"),
    Endpoint("PUT", "upgrade/hold", hold, "administrator"),
    Endpoint("DELETE", "upgrade/hold", finish, "administrator"),
)
