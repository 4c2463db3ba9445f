"""How many messages died in queues while this node led them.

Every copy of a group counters the same deaths; the leader's are those that count, so that the sum
over all nodes is the number of messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from cluster.groups.group import Group, Role
from cluster.types import CATALOG_GROUP, GroupId
from node.metrics.client_counters import CLASSIC, QUORUM

if TYPE_CHECKING:
    from cluster.cluster_node import ClusterNode
    from cluster.machine import QueueMachine
    from cluster.machine.interface import Machine

#: Of a group: why, and whether it went on as a dead letter.
Dead = Mapping[tuple[str, bool], int]


class Deaths:
    """One per node."""

    def __init__(self, cluster: ClusterNode) -> None:
        self._cluster = cluster
        self._ended: Counter[tuple[str, bool]] = Counter()  # of leaderships that are over
        self._before: dict[GroupId, Dead] = {}  # of groups that this node leads
        cluster.on_role.append(self._role)

    def _role(self, group: Group, role: Role, _: int) -> None:
        if group.id == CATALOG_GROUP:
            return
        before = self._before.pop(group.id, None)
        if before is not None:
            self._ended.update(_since(_dead(group.machine), before))
        if role is Role.LEADER:
            self._before[group.id] = dict(_dead(group.machine))

    def counts(self) -> Mapping[tuple[str, str, bool], int]:
        """By queue type, why, and whether it went on as a dead letter; since this node started."""
        replicated = Counter(self._ended)
        for group_id, before in self._before.items():
            group = self._cluster.groups.get(group_id)
            if group is not None:
                replicated.update(_since(_dead(group.machine), before))
        own = self._cluster.transient.own
        transient: Dead = {} if own is None else own.machine.counters.dead
        return {
            (kind, reason, goes): count
            for kind, dead in ((QUORUM, replicated), (CLASSIC, transient))
            for (reason, goes), count in dead.items()
        }


def _dead(machine: Machine) -> Dead:
    return cast("QueueMachine", machine).counters.dead


def _since(dead: Dead, before: Dead) -> dict[tuple[str, bool], int]:
    return {key: count - before.get(key, 0) for key, count in dead.items()}
