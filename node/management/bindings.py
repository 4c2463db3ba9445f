"""Bindings, from any of their ends. Those of the default exchange are of the queues themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from cluster.machine.catalog_commands import Bind, DestinationKind, Unbind
from cluster.machine.catalog_tables import BindingInfo, QueueInfo
from node.management import shapes
from node.management.context import Call, Endpoint, Response, deleted
from node.management.errors import bad_request, not_found
from node.management.paging import listed
from node.management.queues import check_unlocked
from node.management.values import Body

Json = dict[str, Any]


async def _listed(call: Call, ends: Iterable[BindingInfo | QueueInfo]) -> Any:
    """Queues stand for their bindings to the default exchange. Of a page only what is on it is
    shaped: there are as many as queues.
    """

    async def shown(some: Sequence[BindingInfo | QueueInfo]) -> list[Json]:
        return [_shape(each) for each in some]

    return await listed(call.list_query, list(ends), lambda _: "", shown)


def _shape(end: BindingInfo | QueueInfo) -> Json:
    return shapes.binding(shapes.default_binding(end) if isinstance(end, QueueInfo) else end)


async def list_bindings(call: Call) -> Any:
    every: list[BindingInfo | QueueInfo] = []
    for vhost in call.vhosts():
        every += call.catalog.queues(vhost)
        every += call.catalog.bindings(vhost)
    return await _listed(call, every)


async def from_exchange(call: Call) -> Any:
    name = call.names["exchange"]
    _exchange_must_be(call, name)
    if name == "":
        return await _listed(call, call.catalog.queues(call.vhost))
    return await _listed(call, call.catalog.bindings_from(call.vhost, name))


async def to_exchange(call: Call) -> Any:
    _exchange_must_be(call, call.names["exchange"])
    return await _listed(
        call, call.catalog.bindings_to(call.vhost, "exchange", call.names["exchange"])
    )


async def to_queue(call: Call) -> Any:
    info = call.catalog.queue(call.vhost, call.names["queue"])
    if info is None:
        raise not_found()
    bound = call.catalog.bindings_to(call.vhost, "queue", info.name)
    return await _listed(call, [info, *bound])


def _exchange_must_be(call: Call, name: str) -> None:
    if call.catalog.exchange(call.vhost, name) is None:
        raise not_found()


# --- between two ends -----------------------------------------------------------------------------


def _kind(call: Call) -> DestinationKind:
    match call.names["kind"]:
        case "q":
            return "queue"
        case "e":
            return "exchange"
        case _:
            raise not_found()


def _between(call: Call) -> list[BindingInfo]:
    source, destination, kind = call.names["source"], call.names["destination"], _kind(call)
    if source == "" and kind == "queue":
        info = call.catalog.queue(call.vhost, destination)
        return [] if info is None else [shapes.default_binding(info)]
    bound = call.catalog.bindings_to(call.vhost, kind, destination)
    return [each for each in bound if each.source == source]


async def between(call: Call) -> Any:
    return await _listed(call, _between(call))


async def _check_access(
    call: Call, source: str, kind: DestinationKind, destination: str, key: str
) -> None:
    """To bind, and to unbind."""
    await call.services.broker.check_binding(call.access, source, kind, destination, key)
    queue = call.catalog.queue(call.vhost, destination) if kind == "queue" else None
    if queue is not None:
        check_unlocked(queue)


async def bind(call: Call) -> Response:
    source, destination, kind = call.names["source"], call.names["destination"], _kind(call)
    await _check_access(call, source, kind, destination, call.body.text("routing_key", ""))
    step = bind_step(call.vhost, source, kind, destination, call.body)
    await call.change(step)
    made = BindingInfo(call.vhost, source, kind, destination, step.key, step.arguments)
    # Its last word is a word of a path, and so it is quoted once more.
    key = quote(shapes.properties_key(made), safe="~")
    return Response(201, headers={"Location": f"{quote(destination, safe='')}/{key}"})


def bind_step(vhost: str, source: str, kind: DestinationKind, destination: str, body: Body) -> Bind:
    key, arguments = body.text("routing_key", ""), body.mapping("arguments", {})
    return Bind(vhost, source, kind, destination, key, arguments)


def _one(call: Call) -> BindingInfo:
    """The key of a path was decoded once: what is left may be quoted, or not."""
    wanted = call.names["key"]
    for each in _between(call):
        key = shapes.properties_key(each)
        if wanted == key or quote(wanted, safe="~") == key:
            return each
    raise not_found()


async def one_binding(call: Call) -> Json:
    return shapes.binding(_one(call))


async def unbind(call: Call) -> Response:
    info = _one(call)
    if info.source == "":
        raise bad_request("what the default exchange binds cannot be unbound")
    await _check_access(call, info.source, info.kind, info.destination, info.key)
    command = Unbind(
        info.vhost, info.source, info.kind, info.destination, info.key, dict(info.arguments)
    )
    return deleted(await call.change(command))


_ENDS = "bindings/{vhost}/e/{source}/{kind}/{destination}"

ROUTES = (
    Endpoint("GET", "bindings", list_bindings),
    Endpoint("GET", "bindings/{vhost}", list_bindings),
    Endpoint("GET", "exchanges/{vhost}/{exchange}/bindings/source", from_exchange),
    Endpoint("GET", "exchanges/{vhost}/{exchange}/bindings/destination", to_exchange),
    Endpoint("GET", "queues/{vhost}/{queue}/bindings", to_queue),
    Endpoint("GET", _ENDS, between),
    Endpoint("POST", _ENDS, bind),
    Endpoint("GET", f"{_ENDS}/{{key}}", one_binding),
    Endpoint("DELETE", f"{_ENDS}/{{key}}", unbind),
)
