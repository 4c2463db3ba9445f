"""The nodes: what each says of itself, and who is down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from cluster.catalog.overview import membership_state
from cluster.machine.catalog_tables import NodeInfo
from cluster.machine.commands import AddNode, RemoveNode
from cluster.raft.link_peer import host_and_port
from cluster.types import NodeId
from node.management import groups, shapes
from node.management.context import DONE, Call, Endpoint, Response, created
from node.management.errors import bad_request, no_such, not_found
from node.management.host import MEASURED
from node.management.overview import exchange_types
from node.management.paging import cut_columns, listed_as_is
from node.operating.removal import risks_of

Json = dict[str, Any]

#: What RabbitMQ tells of a node's memory, but for the sum. All but bodies and the rest is 0 here:
#: nothing measures it by itself.
_MEMORY = (
    "connection_readers",
    "connection_writers",
    "connection_channels",
    "connection_other",
    "queue_procs",
    "quorum_queue_procs",
    "quorum_queue_dlx_procs",
    "stream_queue_procs",
    "stream_queue_replica_reader_procs",
    "stream_queue_coordinator_procs",
    "plugins",
    "metadata_store",
    "other_proc",
    "metrics",
    "mgmt_db",
    "mnesia",
    "quorum_ets",
    "metadata_store_ets",
    "other_ets",
    "binary",
    "msg_index",
    "code",
    "atom",
    "other_system",
    "allocated_unused",
    "reserved_unallocated",
)
_MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL")


async def list_nodes(call: Call) -> Any:
    return await listed_as_is(call.list_query, await rows(call))


async def rows(call: Call) -> list[Json]:
    hosts = await call.observer.hosts(call.query)
    copies = copies_of(call)
    return [
        node(info, hosts.get(info.node)) | place_of(call, info, copies)
        for info in call.catalog.nodes()
    ]


async def one_node(call: Call) -> Json:
    info = next((n for n in call.catalog.nodes() if n.node == call.names["node"]), None)
    if info is None:
        raise not_found()
    hosts = await call.observer.hosts(call.query)
    shown = node(info, hosts.get(info.node)) | place_of(call, info, copies_of(call))
    return cut_columns(call.list_query, shown)


def copies_of(call: Call) -> Counter[NodeId]:
    """How many groups each node holds, the catalog not counted."""
    return Counter(node for group in call.catalog.groups() for node in group.held)


def place_of(call: Call, info: NodeInfo, copies: Mapping[NodeId, int]) -> Json:
    """What the cluster says of a node, up or down."""
    cluster = call.services.cluster
    peers = cluster.peers
    if info.node == cluster.node:
        drained = call.services.health.draining
    else:
        drained = peers.is_up(info.node) and not peers.stays(info.node)
    return {
        "state": membership_state(cluster, info.node),
        "being_drained": drained,
        "copies": copies.get(info.node, 0),
        "addresses": info.endpoints,
    }


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
        # A node of a release before 0.3 tells none.
        **{f"{name}_details": shapes.rate(0.0) for name in MEASURED},
        **host,
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


async def memory(call: Call) -> Json:
    """Resident: message bodies that are kept for reading, and all else."""
    rss, parts = await _memory(call)
    return {
        "memory": {
            **parts,
            "strategy": "rss",
            "total": {"rss": rss, "allocated": rss, "erlang": rss},
        }
    }


async def memory_relative(call: Call) -> Json:
    """In percent."""
    rss, parts = await _memory(call)
    shares = {name: round(100 * size / max(1, rss)) for name, size in parts.items()}
    return {"memory": {**shares, "total": 100}}


async def _memory(call: Call) -> tuple[int, dict[str, int]]:
    host = (await call.observer.hosts()).get(NodeId(call.names["node"]))
    if host is None:
        raise not_found()
    rss: int = host["mem_used"]
    bodies = min(rss, host.get("mem_bodies", 0))
    return rss, {**dict.fromkeys(_MEMORY, 0), "binary": bodies, "other_system": rss - bodies}


# --- members come and go


async def put_node(call: Call) -> Response:
    """Let a node in."""
    address = call.body.text("address")
    try:
        host, port = host_and_port(address)
    except ValueError as error:
        raise bad_request(str(error)) from None
    if not host or not port:
        raise bad_request(f"{address!r} is not an address: write host:port, such as 10.0.0.1:7400")
    known = call.catalog.node(NodeId(call.names["node"]))
    made = await call.change(AddNode(NodeId(call.names["node"]), {"peer": address}))
    return created(made and (known is None or known.state == "removed"))


async def delete_node(call: Call) -> Response:
    """It leaves: its successor takes over what it has, else those that have the least. What makes
    the cluster less safe has to be said in words, `fewer=true`.
    """
    node, successor = call.names["node"], call.query.get("heir")
    if all(info.node != node for info in call.catalog.nodes()):
        raise no_such(f"there is no node {node!r} in the cluster")
    staying = [n.node for n in call.catalog.nodes() if n.state == "member" and n.node != node]
    if successor is not None and successor not in staying:
        raise bad_request(f"node {successor!r} is to take over, but is no member that stays")
    if staying and node not in _leaving(call) and not call.flag("fewer"):
        risks = risks_of(_states(call), await groups.rows(call), node, successor)
        if risks:
            raise bad_request(f"{'; '.join(risks)}: say ?fewer=true as well if that is meant")
    await call.change(RemoveNode(NodeId(node), None if successor is None else NodeId(successor)))
    return DONE


def _leaving(call: Call) -> list[str]:
    return [info.node for info in call.catalog.nodes() if info.state == "leaving"]


def _states(call: Call) -> list[Json]:
    cluster = call.services.cluster
    return [
        {
            "name": info.node,
            "state": membership_state(cluster, info.node),
            "running": info.node == cluster.node or cluster.peers.is_up(info.node),
        }
        for info in call.catalog.nodes()
    ]


ROUTES = (
    Endpoint("GET", "nodes", list_nodes, "monitoring"),
    Endpoint("GET", "nodes/{node}", one_node, "monitoring"),
    Endpoint("GET", "nodes/{node}/memory", memory, "monitoring"),
    Endpoint("GET", "nodes/{node}/memory/relative", memory_relative, "monitoring"),
    Endpoint("PUT", "nodes/{node}", put_node, "administrator"),
    Endpoint("DELETE", "nodes/{node}", delete_node, "administrator"),
)
