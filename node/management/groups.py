"""Raft groups: which nodes hold them, which shall hold them, and how far those that learn are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cluster.catalog.placement import NO_HOSTS, Hosts, spread
from cluster.cluster_node import ClusterNode
from cluster.machine.catalog_tables import GroupInfo
from cluster.machine.commands import MoveGroup
from cluster.types import CATALOG_GROUP, GroupId, NodeId
from node.management.context import DONE, Call, Endpoint
from node.management.errors import ApiError, bad_request, no_such
from node.management.paging import listed_as_is

Json = dict[str, Any]

CATALOG = "catalog"


async def list_groups(call: Call) -> Any:
    return await listed_as_is(call.list_query, await rows(call))


async def one_group(call: Call) -> Json:
    name = call.name
    found = next((row for row in await rows(call) if row["name"] == name), None)
    if found is None:
        raise no_group(name)
    return found


async def copies(call: Call) -> Json:
    """What each node that is up says of its own copy, if it has one."""
    info = call.catalog.group_named(call.name)
    if info is None and call.name != CATALOG:
        raise no_group(call.name)
    group = CATALOG_GROUP if info is None else info.id
    statuses = await call.observer.group_statuses(group)
    return {str(node): status for node, status in statuses.items()}


def no_group(name: str) -> ApiError:
    return no_such(f"there is no group {name!r}")


async def rows(call: Call) -> list[Json]:
    """The catalog first, then by id."""
    cluster, catalog = call.services.cluster, call.catalog
    led = await call.observer.led()
    own = cluster.catalog.configuration
    founder_or_let_in = {*own.members, *(n.node for n in catalog.nodes() if n.state == "member")}
    going = {n.node for n in catalog.nodes_ever() if n.state != "member"}
    everywhere = sorted(founder_or_let_in - going)
    every = [_row(cluster, CATALOG_GROUP, CATALOG, everywhere, own.members, led)]
    for info in catalog.groups():
        row = _row(cluster, info.id, info.name, info.members, info.held, led)
        every.append({**row, "default": info.default})
    return every


def _row(
    cluster: ClusterNode,
    group: GroupId,
    name: str,
    members: Sequence[NodeId],
    held: Sequence[NodeId],
    led: Mapping[GroupId, tuple[NodeId, Json]],
) -> Json:
    leader, facts = led[group] if group in led else (cluster.leader_of(group), Json())
    here = cluster.groups.get(group)
    known = None if here is None else here.configuration
    voters = facts.get("voters") or list(held if known is None else known.voters)
    learners = facts.get("learners") or list(() if known is None else known.learners)
    wanted = set(members)
    return {
        "id": int(group),
        "name": name,
        "default": False,
        "members": sorted(wanted),
        "held": sorted(held),
        "leader": leader,
        "voters": voters,
        "wanted": cluster.copies_wanted(group),
        "learners": learners,
        "last": facts.get("last"),
        "lag": facts.get("lag", {}),
        "moving": bool(learners) or set(voters) != wanted or set(held) != wanted,
    }


# --- changes


async def put_members(call: Call) -> Any:
    if call.name == CATALOG:
        raise bad_request("the catalog is on every node: nodes are added and removed")
    info = call.catalog.group_named(call.name)
    if info is None:
        raise no_group(call.name)
    if "members" not in call.body:
        raise bad_request('members are missing: {"members": ["NODE", ...]}')
    members = call.body.words("members")
    known = {each.node for each in call.catalog.nodes() if each.state == "member"}
    for member in members:
        if member not in known:
            raise bad_request(f"node {member!r} is no member of the cluster, or is leaving it")
    if 0 < len(members) < len(info.members) and not call.body.boolean("fewer", False):
        raise bad_request(
            f"group {info.name} would have {len(members)} copies instead of {len(info.members)}:"
            ' say {"fewer": true} as well if that is meant'
        )
    await call.change(MoveGroup(info.id, [NodeId(member) for member in members]))
    return DONE


async def post_spread(call: Call) -> Json:
    """Which groups move, and that they do unless it is only asked."""
    infos = call.catalog.groups()
    changed = plan(infos, _takers(call), _copies(call, infos), call.services.cluster.hosts())
    if not call.flag("dry-run"):
        for info, members in changed:
            await call.change(MoveGroup(info.id, members))
    return {
        "moves": [
            {"group": info.name, "from": sorted(info.members), "to": list(members)}
            for info, members in changed
        ]
    }


def _takers(call: Call) -> list[NodeId]:
    """A node that is down would be given copies that it cannot take, or lose those that it has."""
    cluster = call.services.cluster
    staying = [each for each in call.catalog.nodes() if each.state == "member"]
    for each in staying:
        if each.incarnation and each.node != cluster.node and not cluster.peers.is_up(each.node):
            raise bad_request(
                f"node {each.node} is down: start it, or remove it for good, and spread then"
            )
    return [each.node for each in staying if each.incarnation]


def _copies(call: Call, infos: Iterable[GroupInfo]) -> dict[GroupId, int]:
    """A default group that lost a member gets one again; others stay as they were made."""
    replication = call.services.settings.replication
    return {
        info.id: max(len(info.members), replication if info.default else len(info.founders))
        for info in infos
    }


def plan(
    infos: Sequence[GroupInfo],
    nodes: Sequence[NodeId],
    copies: Mapping[GroupId, int],
    hosts: Hosts = NO_HOSTS,
) -> list[tuple[GroupInfo, tuple[NodeId, ...]]]:
    """The groups that move, and whereto."""
    after = spread(nodes, {info.id: info.members for info in infos}, copies, hosts)
    return [(info, after[info.id]) for info in infos if set(after[info.id]) != set(info.members)]


ROUTES = (
    Endpoint("GET", "groups", list_groups, "monitoring"),
    Endpoint("GET", "groups/{name}", one_group, "monitoring"),
    Endpoint("GET", "groups/{name}/copies", copies, "monitoring"),
    Endpoint("PUT", "groups/{name}/members", put_members, "administrator"),
    Endpoint("POST", "groups/spread", post_spread, "administrator"),
)
