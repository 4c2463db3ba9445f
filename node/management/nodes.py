"""The nodes: what each says of itself, and who is down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.machine.catalog_tables import NodeInfo
from node.management import shapes
from node.management.context import Call, Route
from node.management.errors import not_found
from node.management.overview import exchange_types
from node.management.paging import cut_columns, listed_as_is

Json = dict[str, Any]

_WITH_RATES = ("mem_used", "fd_used", "sockets_used", "disk_free")
_MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL")


async def list_nodes(call: Call) -> Any:
    hosts = await call.observer.hosts()
    every = [node(info, hosts.get(info.node)) for info in call.catalog.nodes()]
    return await listed_as_is(call.list_query, every)


async def one_node(call: Call) -> Json:
    info = next((n for n in call.catalog.nodes() if n.node == call.names["node"]), None)
    if info is None:
        raise not_found()
    hosts = await call.observer.hosts()
    return cut_columns(call.list_query, node(info, hosts.get(info.node)))


def node(info: NodeInfo, host: Mapping[str, Any] | None) -> Json:
    """`host` None: it is down."""
    shown: Json = {
        "name": info.node,
        "type": "disc",
        "running": host is not None,
        "partitions": [],
    }
    if host is None:
        return shown
    return {
        **shown,
        **host,
        **{f"{name}_details": shapes.rate(0.0) for name in _WITH_RATES},
        "rates_mode": "basic",
        "exchange_types": exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": "", "enabled": True} for name in _MECHANISMS
        ],
        "applications": [],
        "contexts": [],
        "enabled_plugins": [],
        "log_files": [],
        "config_files": [],
        "cluster_links": [],
        "mem_calculation_strategy": "rss",
    }


ROUTES = (
    Route("GET", "nodes", list_nodes, "monitoring"),
    Route("GET", "nodes/{node}", one_node, "monitoring"),
)
