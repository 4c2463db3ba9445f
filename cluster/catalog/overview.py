"""What a node knows of the cluster, for people and tests."""

from __future__ import annotations

from typing import Any, Protocol

from cluster.catalog.cluster_parts import ClusterParts
from cluster.types import GroupId, NodeId


class Overview(ClusterParts, Protocol):
    def leader_of(self, group_id: GroupId) -> NodeId | None: ...
    def copies_wanted(self, group_id: GroupId) -> int: ...


def membership_state(cluster: ClusterParts, node: NodeId) -> str:
    """member | joining: it was let in, and has not come or not caught up yet | leaving | removed |
    unknown: a founder that has not come yet.
    """
    info = cluster.catalog_machine.node(node)
    if info is None:
        return "unknown"
    is_in = info.incarnation > 0 and node in cluster.catalog.configuration.voters
    return "joining" if info.state == "member" and not is_in else info.state


def status_of(cluster: Overview, *, digests: bool = False) -> dict[str, Any]:
    """See `Group.status` for the parts. `digests`: of each copy's state, which takes its time."""
    catalog = cluster.catalog_machine
    groups: list[dict[str, Any]] = []
    for _, group in sorted(cluster.groups.items()):
        row = {
            **group.status(),
            "machine": group.machine.overview(),
            "leader": cluster.leader_of(group.id),
            "wanted": cluster.copies_wanted(group.id),
        }
        groups.append({**row, "digest": group.machine.digest().hex()} if digests else row)
    nodes = {each.node: each for each in catalog.nodes()}
    states = cluster.peers.states
    own = cluster.transient.own
    return {
        "node": cluster.node,
        "cluster": cluster.config.cluster,
        "incarnation": cluster.links.incarnation,
        "nodes": [
            {
                "node": node,
                "up": cluster.peers.is_up(node),
                "incarnation": states[node].incarnation if node in states else 0,
                "addresses": nodes[node].endpoints if node in nodes else {},
                "state": membership_state(cluster, node),
            }
            for node in sorted({*states, *nodes})
        ],
        "moving": [each.name for each in catalog.groups() if set(each.held) != set(each.members)],
        "clock": {**cluster.time.status(), "alarms": cluster.time.alarms()},
        "groups": groups,
        "transient": None if own is None else {**own.status(), "machine": own.machine.overview()},
    }
