"""Where clients are sent: who came by TLS is never sent anywhere else."""

from __future__ import annotations

from cluster.cluster_node import ClusterNode
from cluster.types import NodeId


def url_of(cluster: ClusterNode, node: str, *, secure: bool) -> str | None:
    """None: this node does not know, or the other has no listener that will do."""
    plain = None if secure else cluster.address_of(NodeId(node), "http")
    if plain is not None:
        return f"http://{plain}"
    tls = cluster.address_of(NodeId(node), "https")
    return None if tls is None else f"https://{tls}"
