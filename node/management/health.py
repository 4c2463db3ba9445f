"""Health checks: 200 when all is well, 503 and why when it is not."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.machine.catalog import QueueInfo
from cluster.types import TRANSIENT_GROUPS, NodeId
from node.broker.alarms import Lack
from node.management.certificates import ending_certificates
from node.management.context import Call, Endpoint, Response
from node.management.errors import bad_request, not_found
from node.management.overview import listeners

Json = dict[str, Any]

NAMED_MAX = 3
_DAYS = {"days": 1, "weeks": 7, "months": 30, "years": 365}
_ALIASES = {
    "amqp091": "amqp",
    "amqps": "amqp/ssl",
    "amqp0-9-1": "amqp",
    "distribution": "clustering",
}


def _verdict(reason: str | None, **details: Any) -> Response:
    if reason is None:
        return Response(200, {"status": "ok", **details})
    return Response(503, {"status": "failed", "reason": reason, **details})


async def alarms(call: Call) -> Response:
    """Of any node."""
    lacks = {**call.services.alarms.lacks, **_own_lack(call)}
    return _alarms("There are alarms in effect in the cluster", lacks)


async def local_alarms(call: Call) -> Response:
    return _alarms("There are alarms in effect on the node", _own_lack(call))


def _own_lack(call: Call) -> dict[NodeId, Lack]:
    own = call.services.alarms
    return {call.services.cluster.node: Lack(own.memory, own.disk)}


def _alarms(reason: str, lacks: Mapping[NodeId, Lack]) -> Response:
    raised = [
        {"node": node, "resource": resource}
        for node, lack in sorted(lacks.items())
        for resource, is_low in zip(Lack._fields, lack, strict=True)
        if is_low
    ]
    return _verdict(reason, alarms=raised) if raised else _verdict(None)


async def node_health(call: Call) -> Json:
    """RabbitMQ's older check: 200 whatever it finds."""
    node = NodeId(call.names.get("node", call.services.cluster.node))
    if all(info.node != node for info in call.catalog.nodes()):
        raise not_found()
    reasons: Sequence[str] = ()
    if node == call.services.cluster.node:
        reasons = call.services.health.why_not_ready()
    elif not call.services.cluster.peers.is_up(node):
        reasons = [f"node {node} is down"]
    lack = {**call.services.alarms.lacks, **_own_lack(call)}.get(node, Lack())
    low = [name for name, is_low in zip(Lack._fields, lack, strict=True) if is_low]
    words = [*reasons, *(f"resource alarm: {name}" for name in low)]
    return {"status": "failed", "reason": "; ".join(words)} if words else {"status": "ok"}


async def in_service(call: Call) -> Response:
    reasons = call.services.health.why_not_ready()
    return _verdict("; ".join(reasons) or None)


async def metadata_store(call: Call) -> Response:
    """This node's copy of the catalog has been read."""
    return _verdict("; ".join(call.services.health.why_not_started()) or None)


async def virtual_hosts(call: Call) -> Response:
    """Each is on every node: they are well when the node is."""
    return _verdict("; ".join(call.services.health.why_not_live()) or None)


async def connection_limit(call: Call) -> Response:
    count, limit = len(call.services.clients), call.services.settings.limits.connections_max
    reason = None if count < limit else "node connection limit is reached"
    return _verdict(reason, connections=count, limit=limit)


async def cluster_size(call: Call) -> Response:
    wanted = call.services.cluster.homes()
    starts = [info.incarnation for node in wanted if (info := call.catalog.node(node)) is not None]
    known, target = sum(map(bool, starts)), len(wanted)
    reason = None if known >= target else f"only {known} of {target} nodes have joined"
    return _verdict(reason, cluster_size=known, target_cluster_size=target)


async def quorum_critical(call: Call) -> Response:
    """Would a group stop if this node went away?"""
    cluster, catalog = call.services.cluster, call.catalog
    if len(cluster.catalog.configuration.voters) == 1:
        return _verdict(None, note="single node cluster")
    critical = await call.services.quorum.critical()
    if not critical:
        return _verdict(None)
    reason = (
        "There are groups that would lose their quorum if the target node is shut down: "
        + "; ".join(map(str, critical[:NAMED_MAX]))
    )
    queues: list[Json] = [
        {"name": info.name, "vhost": info.vhost, "type": "quorum"}
        for each in critical
        for info in catalog.queues_of(each.group)
    ]
    return _verdict(reason, queues=queues, groups=[each.name for each in critical])


async def leaderless_queues(call: Call) -> Response:
    try:
        pattern = re.compile(call.names.get("pattern", ""))
    except re.error:
        raise bad_request("the pattern is no regular expression") from None
    lost = [
        {"name": info.name, "vhost": info.vhost, "type": "quorum"}
        for vhost in call.vhosts()
        for info in call.catalog.queues(vhost)
        if pattern.search(info.name) and _is_leaderless(call, info)
    ]
    return (
        _verdict("There are quorum queues without elected leaders", queues=lost)
        if lost
        else (_verdict(None))
    )


def _is_leaderless(call: Call, info: QueueInfo) -> bool:
    return info.group < TRANSIENT_GROUPS and call.services.cluster.leader_of(info.group) is None


# --- listeners ------------------------------------------------------------------------------------


def _own_listeners(call: Call) -> list[Json]:
    return [each for each in listeners(call) if each["node"] == call.services.cluster.node]


async def port_listener(call: Call) -> Response:
    text = call.names["port"]
    if not text.isascii() or not text.isdecimal() or len(text) > 5:
        raise bad_request("the port is a number")
    port, ports = int(text), sorted(each["port"] for each in _own_listeners(call))
    if port in ports:
        return _verdict(None, port=port)
    return _verdict("No active listener", missing=port, ports=ports)


async def protocol_listener(call: Call) -> Response:
    wanted = call.names["protocol"]
    wanted = _ALIASES.get(wanted, wanted)
    protocols = sorted({each["protocol"] for each in _own_listeners(call)})
    if wanted in protocols:
        return _verdict(None, protocol=wanted)
    return _verdict("No active listener", missing=wanted, protocols=protocols)


async def certificates(call: Call) -> Response:
    """Of this node, that end within so long."""
    within, unit = call.names["within"], call.names["unit"]
    days = _DAYS.get(unit)
    if days is None:
        raise bad_request(f"the unit {unit!r} is none of {', '.join(_DAYS)}")
    if not within.isascii() or not within.isdecimal() or len(within) > 4:
        raise bad_request(f"{within!r} is no number of {unit} from 0 to 9999")
    try:
        until = dt.datetime.now(dt.UTC) + dt.timedelta(days=days * int(within))
    except OverflowError:  # no certificate is good for longer
        until = dt.datetime.max.replace(tzinfo=dt.UTC)
    expired = ending_certificates(call.services.settings.tls, until)
    if not expired:
        return _verdict(None)
    ends = any("not_valid_after" in each for each in expired)
    reason = "Certificates expiring" if ends else "Certificates that cannot be read"
    return _verdict(reason, expired=expired)


_CHECKS = "health/checks"
_LEADERLESS = f"{_CHECKS}/quorum-queues-without-elected-leaders"

ROUTES = (
    Endpoint("GET", "healthchecks/node", node_health),
    Endpoint("GET", "healthchecks/node/{node}", node_health),
    Endpoint("GET", f"{_CHECKS}/alarms", alarms),
    Endpoint("GET", f"{_CHECKS}/local-alarms", local_alarms),
    Endpoint("GET", f"{_CHECKS}/certificate-expiration/{{within}}/{{unit}}", certificates),
    Endpoint("GET", f"{_CHECKS}/port-listener/{{port}}", port_listener),
    Endpoint("GET", f"{_CHECKS}/protocol-listener/{{protocol}}", protocol_listener),
    Endpoint("GET", f"{_CHECKS}/virtual-hosts", virtual_hosts),
    Endpoint("GET", f"{_CHECKS}/node-is-mirror-sync-critical", virtual_hosts),
    Endpoint("GET", f"{_CHECKS}/node-is-quorum-critical", quorum_critical),
    Endpoint("GET", f"{_CHECKS}/is-in-service", in_service),
    Endpoint("GET", f"{_CHECKS}/ready-to-serve-clients", in_service),
    Endpoint("GET", f"{_CHECKS}/below-node-connection-limit", connection_limit),
    Endpoint("GET", f"{_CHECKS}/reached-target-cluster-size", cluster_size),
    Endpoint("GET", f"{_CHECKS}/metadata-store/initialized", metadata_store),
    Endpoint("GET", f"{_CHECKS}/metadata-store/initialized/with-data", metadata_store),
    Endpoint("GET", f"{_LEADERLESS}/all-vhosts", leaderless_queues),
    Endpoint("GET", f"{_LEADERLESS}/vhost/{{vhost}}", leaderless_queues),
    Endpoint("GET", f"{_LEADERLESS}/all-vhosts/pattern/{{pattern}}", leaderless_queues),
    Endpoint("GET", f"{_LEADERLESS}/vhost/{{vhost}}/pattern/{{pattern}}", leaderless_queues),
)
