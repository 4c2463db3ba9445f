"""Global parameters, kept for those who read them; and those of components, checked by what they
are for.
"""

from __future__ import annotations

import secrets
from typing import Any

from cluster.machine.catalog import CatalogMachine
from cluster.machine.catalog_entries import ID, USER
from cluster.machine.commands import DropEntry, PutEntry
from node.broker.cluster_name import CLUSTER_NAME, named
from node.links.components import COMPONENTS, LINKS_SINCE
from node.management import shapes
from node.management.context import Call, Endpoint, Response, created, deleted
from node.management.errors import bad_request, not_found
from node.management.paging import listed_as_is
from node.management.unsupported import no_component
from node.management.values import Body

Json = dict[str, Any]

#: What RabbitMQ keeps as parameters, and definitions name so, has paths and rights of its own.
_ELSEWHERE = frozenset({"policy", "operator_policy", "vhost-limits"})


def parameters(call: Call, *, is_global: bool) -> list[Json]:
    vhosts = set(call.vhosts())
    component = call.names.get("component")
    return [
        shapes.parameter(key, entry)
        for key, entry in sorted(call.catalog.entries("parameters").items())
        if (key[:2] == ("", "")) == is_global
        and (is_global or key[1] in vhosts)
        and component in (None, key[0])
    ]


def parameter_step(
    catalog: CatalogMachine, key: tuple[str, str, str], body: Body, user: str
) -> PutEntry:
    """`user`: as whom the parameter acts."""
    if "value" not in body.values:
        raise bad_request("[{key_missing,value}]")
    component, _, name = key
    entry = {"value": body.values["value"]}
    if component:
        check = COMPONENTS.get(component)
        if check is None:
            raise no_component(component)
        if catalog.version < LINKS_SINCE:
            raise bad_request(f"a {component} needs all nodes to run this release first")
        check(name, entry["value"])
        known = catalog.entry("parameters", key)
        same = known is not None and known["value"] == entry["value"] and ID in known
        entry[ID] = known[ID] if known is not None and same else secrets.token_hex(8)
        entry[USER] = user
    return PutEntry("parameters", key, entry)


def _key(call: Call) -> tuple[str, str, str]:
    if "component" not in call.names:
        return ("", "", call.name)
    if not call.names["component"]:
        raise bad_request("a component has a name")
    if call.names["component"] in _ELSEWHERE:
        raise bad_request(f"{call.names['component']} may not be set using this method")
    return (call.names["component"], call.vhost, call.name)


async def list_parameters(call: Call) -> Any:
    return await listed_as_is(call.list_query, parameters(call, is_global=False))


async def list_global(call: Call) -> Any:
    return await listed_as_is(call.list_query, parameters(call, is_global=True))


async def one(call: Call) -> Json:
    entry = call.catalog.entry("parameters", _key(call))
    if entry is None:
        raise not_found()
    return shapes.parameter(_key(call), entry)


async def put(call: Call) -> Response:
    step = parameter_step(call.catalog, _key(call), call.body, call.user.name)
    return created(await call.change(step))


async def delete(call: Call) -> Response:
    return deleted(await call.change(DropEntry("parameters", _key(call))))


def cluster_name(call: Call) -> str:
    return named(call.catalog, call.services.settings.cluster)


async def get_cluster_name(call: Call) -> Json:
    return {"name": cluster_name(call)}


async def put_cluster_name(call: Call) -> Response:
    body = Body({"value": call.body.text("name")})
    key = ("", "", CLUSTER_NAME)
    await call.change(parameter_step(call.catalog, key, body, call.user.name))
    return Response(204)


_ONE = "parameters/{component}/{vhost}/{name}"
_GLOBAL = "global-parameters/{name}"

ROUTES = (
    Endpoint("GET", "parameters", list_parameters, "policymaker"),
    Endpoint("GET", "parameters/{component}", list_parameters, "policymaker"),
    Endpoint("GET", "parameters/{component}/{vhost}", list_parameters, "policymaker"),
    Endpoint("GET", _ONE, one, "policymaker"),
    Endpoint("PUT", _ONE, put, "policymaker"),
    Endpoint("DELETE", _ONE, delete, "policymaker"),
    Endpoint("GET", "global-parameters", list_global, "policymaker"),
    Endpoint("GET", _GLOBAL, one, "policymaker"),
    Endpoint("PUT", _GLOBAL, put, "administrator"),
    Endpoint("DELETE", _GLOBAL, delete, "administrator"),
    Endpoint("GET", "cluster-name", get_cluster_name),
    Endpoint("PUT", "cluster-name", put_cluster_name, "administrator"),
)
