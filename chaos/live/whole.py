"""Is a node a full member again? Asked of the nodes themselves, from outside."""

from __future__ import annotations

import asyncio
from typing import Any

from chaos.live.live_cluster import LOOK_S, LiveCluster
from cluster.types import NodeId

WHOLE_S_MAX = 120.0


async def until_whole(
    cluster: LiveCluster, node: NodeId, *, timeout_s: float = WHOLE_S_MAX
) -> str | None:
    """Wait until it is; None, or why it is not yet."""
    why: str | None = "it was not asked"
    try:
        async with asyncio.timeout(timeout_s):
            while (why := await why_not_whole(cluster, node)) is not None:
                if cluster.exit_code(node) is not None:
                    return cluster.obituary(node)
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        pass
    return why


async def why_not_whole(cluster: LiveCluster, node: NodeId) -> str | None:
    """None: it is registered, votes in all groups that it is a member of, and has applied what
    their leaders had committed when they were asked.
    """
    if not cluster.running(node):
        return f"{node} is down"
    running = [other for other in cluster.nodes if cluster.running(other)]
    answers = await asyncio.gather(*(cluster.status(other) for other in running))
    own = await cluster.status(node)  # after the leaders: what they had then it must have now
    if own is None:
        return f"{node} does not answer"
    missing = missing_parts(node, own, [answer for answer in answers if answer is not None])
    if missing is None and '"node_registered"' not in cluster.log_since_start(node):
        return f"{node} is not registered yet"
    return missing


def missing_parts(node: NodeId, own: dict[str, Any], answers: list[dict[str, Any]]) -> str | None:
    """What the node's own status lacks of what all say together."""
    leaders: dict[int, dict[str, Any]] = {}
    groups: dict[int, str] = {}
    for answer in answers:
        for group in answer["groups"]:
            groups[group["id"]] = group["name"]
            known = leaders.get(group["id"])
            if group["role"] == "leader" and (known is None or known["term"] < group["term"]):
                leaders[group["id"]] = group
    copies = {group["id"]: group for group in own["groups"]}
    for group, name in groups.items():
        leader, copy = leaders.get(group), copies.get(group)
        if leader is None:
            return f"{name} has no leader"
        if node in leader["learners"]:
            return f"{node} is a learner in {name}"
        if node not in leader["members"]:
            continue
        if copy is None:
            return f"{node} has no copy of {name}"
        if copy["withholds_votes"]:
            return f"{node} does not vote in {name} yet"
        if copy["applied"] < leader["commit"]:
            return f"{node} has applied {copy['applied']} of {leader['commit']} in {name}"
    return None
