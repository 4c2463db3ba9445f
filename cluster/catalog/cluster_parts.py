"""What a `ClusterNode` is made of, as far as its own parts ask for it.

Each part says in a protocol of its own what else it asks its node to do.
"""

from __future__ import annotations

from typing import Protocol

from cluster.agreed_time import AgreedTime
from cluster.catalog.transient import TransientGroups
from cluster.cluster_config import ClusterConfig
from cluster.groups.group import Group
from cluster.log import Log
from cluster.machine.catalog import CatalogMachine
from cluster.peers.peers import Peers
from cluster.seams import Links
from cluster.types import GroupId, NodeId


class ClusterParts(Protocol):
    node: NodeId
    config: ClusterConfig
    links: Links
    peers: Peers
    time: AgreedTime
    log: Log
    groups: dict[GroupId, Group]
    transient: TransientGroups
    catalog: Group
    catalog_machine: CatalogMachine
