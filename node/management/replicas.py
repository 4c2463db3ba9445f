"""Replicas of queues by node, in RabbitMQ's words: what moves is the group that a queue is in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cluster.machine.catalog import QueueInfo
from cluster.machine.catalog_tables import GroupInfo
from cluster.machine.commands import MoveGroup
from cluster.types import TRANSIENT_GROUPS, NodeId
from node.access.patterns import check_pattern
from node.management.context import DONE, Call, Endpoint, Response
from node.management.errors import bad_request, no_such
from node.management.queues import found

STRATEGIES = ("all", "even")


async def grow(call: Call) -> Response:
    """The groups of all queues that match get a copy on the node; `even`: those with an even number
    of copies.
    """
    node = _member(call, call.names["node"])
    body = call.body
    strategy = body.text("strategy", "all")
    if strategy not in STRATEGIES:
        raise bad_request(f"strategy must be one of {', '.join(STRATEGIES)}")
    vhost_pattern, pattern = body.text("vhost_pattern", ".*"), body.text("queue_pattern", ".*")
    for each in (vhost_pattern, pattern):
        check_pattern(each)
    matches = [
        info
        for vhost in call.vhosts()
        if re.search(vhost_pattern, vhost)
        for info in call.catalog.queues(vhost)
        if re.search(pattern, info.name)
    ]
    for group in _groups_of(call, matches):
        if node not in group.members and (strategy == "all" or len(group.members) % 2 == 0):
            await _move(call, group, [*group.members, node])
    return DONE


async def shrink(call: Call) -> Response:
    """Every group that has another copy gives up the one on the node."""
    node = call.node
    for group in call.catalog.groups():
        if node in group.members and len(group.members) > 1:
            await _move(call, group, [each for each in group.members if each != node])
    return DONE


async def add(call: Call) -> Response:
    node = _member(call, call.body.text("node"))
    (group,) = _groups_of(call, [_replicated(call)])
    if node not in group.members:
        await _move(call, group, [*group.members, node])
    return DONE


async def remove(call: Call) -> Response:
    node = NodeId(call.body.text("node"))
    (group,) = _groups_of(call, [_replicated(call)])
    if node not in group.members:
        raise no_such(f"node {node!r} has no replica of this queue")
    if len(group.members) == 1:
        raise bad_request("this is the last replica")
    await _move(call, group, [each for each in group.members if each != node])
    return DONE


def _replicated(call: Call) -> QueueInfo:
    info = found(call)
    if info.group >= TRANSIENT_GROUPS:
        raise bad_request("not a quorum queue")
    return info


def _member(call: Call, name: str) -> NodeId:
    node = NodeId(name)
    info = next((each for each in call.catalog.nodes() if each.node == node), None)
    if info is None:
        raise no_such(f"there is no node {name!r} in the cluster")
    if info.state != "member":
        raise bad_request(f"node {name!r} is leaving the cluster")
    return node


def _groups_of(call: Call, infos: Sequence[QueueInfo]) -> list[GroupInfo]:
    ids = sorted({info.group for info in infos if info.group < TRANSIENT_GROUPS})
    return [group for each in ids if (group := call.catalog.group(each)) is not None]


async def _move(call: Call, group: GroupInfo, members: Sequence[NodeId]) -> None:
    await call.change(MoveGroup(group.id, members))


_ON = "queues/quorum/replicas/on/{node}"
_OF = "queues/quorum/{vhost}/{queue}/replicas"

ROUTES = (
    Endpoint("POST", f"{_ON}/grow", grow, "administrator"),
    Endpoint("DELETE", f"{_ON}/shrink", shrink, "administrator"),
    Endpoint("POST", f"{_OF}/add", add, "administrator"),
    Endpoint("DELETE", f"{_OF}/delete", remove, "administrator"),
)
