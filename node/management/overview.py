"""The first page: totals, versions, listeners; and lists that are empty here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from cluster.types import NodeId
from node.management import shapes
from node.management.context import Call, Endpoint
from node.management.exchanges import TYPES
from node.management.host import CHURN
from node.management.paging import cut_columns
from node.management.parameters import cluster_name
from node.management.samples import ROW_SIZE, now_row
from node.version import PRODUCT, PRODUCT_VERSION, RABBITMQ, RABBITMQ_VERSION

Json = dict[str, Any]

_PROTOCOLS = {
    "amqp": "amqp",
    "amqps": "amqp/ssl",
    "http": "http",
    "https": "https",
    "nats_tls": "nats/ssl",
    "peer": "clustering",
}


async def overview(call: Call) -> Json:
    catalog, vhosts = call.catalog, call.vhosts()
    infos = [info for vhost in vhosts for info in catalog.queues(vhost)]
    facts = await call.observer.queues(infos)
    totals = shapes.summed(list(facts.values()))
    wanted = call.observer.asked(call.query)
    if wanted is not None:
        now = [sum(column) for column in zip(*map(now_row, facts.values()), strict=True)]
        now = now or [0] * ROW_SIZE
        await call.observer.add_totals(wanted, infos, now, totals)
    message_stats = totals.pop("message_stats")
    clients = {what: await call.observer.clients(what) for what in ("connections", "channels")}
    shown: Json = {
        "management_version": RABBITMQ_VERSION,
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [], "basic": [], "detailed": []},
        "exchange_types": exchange_types(),
        "product_name": PRODUCT,
        "product_version": PRODUCT_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "cluster_name": cluster_name(call),
        "erlang_version": "",
        "erlang_full_version": "",
        "release_series_support_status": "supported",
        "disable_stats": False,
        "enable_queue_totals": False,
        "message_stats": message_stats,
        "churn_rates": _churn(await call.observer.hosts()),
        "cluster_tags": cluster_tags(call),
        "node_tags": {},
        "queue_totals": totals,
        "object_totals": {
            "channels": _seen(clients["channels"], vhosts),
            "connections": _seen(clients["connections"], vhosts),
            "consumers": sum(len(each.consumers) for each in facts.values()),
            "exchanges": sum(len(catalog.exchanges(vhost)) for vhost in vhosts),
            "queues": len(infos),
        },
        "statistics_db_event_queue": 0,
        "node": call.services.cluster.node,
        "listeners": listeners(call) if call.has("monitoring") else [],
        "contexts": contexts(call) if call.has("monitoring") else [],
    }
    return cut_columns(call.list_query, shown)


def _seen(clients: list[Json], vhosts: list[str]) -> int:
    visible = set(vhosts)
    return sum(1 for client in clients if client.get("vhost") in visible)


def exchange_types() -> list[Json]:
    return [{"name": name, "description": "", "enabled": True} for name in TYPES]


def listeners(call: Call) -> list[Json]:
    """Of all nodes, as they registered themselves."""
    found: list[Json] = []
    for node in call.catalog.nodes():
        for kind, address in sorted(node.endpoints.items()):
            host, _, port = address.rpartition(":")
            found.append(
                {
                    "node": node.node,
                    "protocol": _PROTOCOLS.get(kind, kind),
                    "ip_address": host.strip("[]"),
                    "port": int(port) if port.isdecimal() else 0,
                    "socket_opts": {},
                }
            )
    return found


def contexts(call: Call) -> list[Json]:
    """Where this API is."""
    return [
        {
            "node": each["node"],
            "description": f"{RABBITMQ} Management",
            "path": "/",
            "ip": each["ip_address"],
            "port": str(each["port"]),
            "ssl_opts": [],
        }
        for each in listeners(call)
        if each["protocol"] in ("http", "https")
    ]


def _churn(hosts: Mapping[NodeId, Json]) -> Json:
    """Of all nodes that are up."""
    shown: Json = {}
    for name in CHURN:
        shown[name] = sum(host.get(name, 0) for host in hosts.values())
        rates = [host.get(f"{name}_details", {}).get("rate", 0.0) for host in hosts.values()]
        shown[f"{name}_details"] = shapes.rate(round(sum(rates), 2))
    return shown


def cluster_tags(call: Call) -> Json:
    """Kept as a global parameter, as in RabbitMQ."""
    entry = call.catalog.entry("parameters", ("", "", "cluster_tags"))
    value = None if entry is None else entry["value"]
    return cast("Json", value) if isinstance(value, dict) else {}


async def tags(call: Call) -> Json:
    return cluster_tags(call)


async def nothing(call: Call) -> list[Json]:
    return []


async def version(call: Call) -> str:
    return RABBITMQ_VERSION


ROUTES = (
    Endpoint("GET", "overview", overview),
    Endpoint("GET", "version", version),
    Endpoint("GET", "cluster/tags", tags),
    Endpoint("GET", "extensions", nothing),
    Endpoint("GET", "feature-flags", nothing),
    Endpoint("GET", "deprecated-features", nothing),
    Endpoint("GET", "deprecated-features/used", nothing),
)
