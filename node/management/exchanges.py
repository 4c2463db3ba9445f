"""Exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.machine.catalog_tables import ExchangeInfo
from cluster.machine.commands import DeclareExchange, DeleteExchange
from node.management import shapes
from node.management.context import Call, Endpoint, Response, created, deleted
from node.management.errors import not_found
from node.management.paging import cut_columns, listed
from node.management.values import Body

Json = dict[str, Any]

TYPES = (
    "direct",
    "fanout",
    "headers",
    "topic",
    "x-consistent-hash",
    "x-delayed-message",
    "x-modulus-hash",
    "x-random",
)


async def list_exchanges(call: Call) -> Any:
    infos = [info for vhost in call.vhosts() for info in call.catalog.exchanges(vhost)]

    async def shown(some: Sequence[ExchangeInfo]) -> list[Json]:
        return [exchange(call, info) for info in some]

    return await listed(call.list_query, infos, lambda info: info.name, shown)


def exchange(call: Call, info: ExchangeInfo) -> Json:
    policy = call.catalog.policy_for(info.vhost, info.name, "exchanges")
    return shapes.exchange(info) | {"policy": None if policy is None else policy[0]}


def _found(call: Call) -> ExchangeInfo:
    info = call.catalog.exchange(call.vhost, call.names["exchange"])
    if info is None:
        raise not_found()
    return info


async def one_exchange(call: Call) -> Json:
    shown: Json = {**exchange(call, _found(call)), "incoming": [], "outgoing": []}
    return cut_columns(call.list_query, shown)


async def declare(call: Call) -> Response:
    name = call.names["exchange"]
    call.access.check("configure", "exchange", name)
    if call.catalog.exchange(call.vhost, name) is None:
        call.access.check_alternate(name, call.body.mapping("arguments", {}))
    return created(await call.change(exchange_step(call.vhost, name, call.body)))


def exchange_step(vhost: str, name: str, body: Body) -> DeclareExchange:
    return DeclareExchange(
        vhost,
        name,
        body.text("type", "direct"),
        durable=body.boolean("durable", False),
        auto_delete=body.boolean("auto_delete", False),
        internal=body.boolean("internal", False),
        arguments=body.mapping("arguments", {}),
    )


async def delete(call: Call) -> Response:
    info = _found(call)
    call.access.check("configure", "exchange", info.name)
    command = DeleteExchange(info.vhost, info.name, if_unused=call.flag("if-unused"))
    return deleted(await call.change(command))


_ONE = "exchanges/{vhost}/{exchange}"

ROUTES = (
    Endpoint("GET", "exchanges", list_exchanges),
    Endpoint("GET", "exchanges/{vhost}", list_exchanges),
    Endpoint("GET", _ONE, one_exchange),
    Endpoint("PUT", _ONE, declare),
    Endpoint("DELETE", _ONE, delete),
)
