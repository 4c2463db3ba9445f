"""Where a federated message has been: what ends loops of clusters that federate with each other.

The convention is that of RabbitMQ's plugin. Each link puts a table about its upstream in front of
the header `x-received-from`. A message goes no further after as many of them as the link's maximum
of hops, or where one of them names the cluster and virtual host that it would go to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

RECEIVED_FROM = "x-received-from"
CLUSTER, VHOST = "cluster-name", "vhost"


def may_forward(headers: Mapping[str, Any], *, hops_max: int, cluster: Any, vhost: Any) -> bool:
    """To this virtual host of that cluster. None: the downstream did not say which it is."""
    hops = headers.get(RECEIVED_FROM)
    if type(hops) is not list:
        return True
    tables = cast("list[Any]", hops)
    return len(tables) < hops_max and not visited(tables, cluster=cluster, vhost=vhost)


def visited(tables: list[Any], *, cluster: Any, vhost: Any) -> bool:
    if cluster is None:
        return False
    each = [cast("dict[str, Any]", hop) for hop in tables if isinstance(hop, dict)]
    return any(hop.get(CLUSTER) == cluster and hop.get(VHOST) == vhost for hop in each)
