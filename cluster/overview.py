"""What a node knows of the cluster, for people and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster.cluster_node import ClusterNode


def status_of(cluster: ClusterNode) -> dict[str, Any]:
    """See `Group.status` for the parts."""
    catalog = cluster.catalog_machine
    groups = [
        {**group.status(), "leader": cluster.leader_of(group.id)}
        for _, group in sorted(cluster.groups.items())
    ]
    own = cluster.transient.own
    return {
        "node": cluster.node,
        "cluster": cluster.config.cluster,
        "incarnation": cluster.links.incarnation,
        "nodes": [
            {
                "node": node,
                "up": state.up,
                "incarnation": state.incarnation,
                "addresses": {} if (info := catalog.node(node)) is None else info.addresses,
            }
            for node, state in sorted(cluster.peers.states.items())
        ],
        "groups": groups,
        "transient": None if own is None else own.status(),
    }
