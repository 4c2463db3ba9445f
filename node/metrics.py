"""GET /metrics: what this node did, and what its groups hold, read when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.cluster_node import ClusterNode
from cluster.group import Role
from cluster.types import CATALOG_GROUP
from node.dispatch import Counts

SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)

_COUNTERS = {
    "published": "Messages that clients published on this node.",
    "confirmed": "Messages confirmed as stored on a majority.",
    "duplicates": "Messages published again and not stored again.",
    "delivered": "Messages sent to consumers.",
    "redelivered": "Messages sent that had been sent before.",
    "settled": "Messages settled by consumers.",
}
_GROUP_GAUGES = {
    "term": "Raft term of this node's copy.",
    "commit_index": "Highest index known to be committed.",
    "applied_index": "Highest index applied to the machine.",
    "last_index": "Highest index in the log.",
}


class Metrics:
    """The registry of one node: nothing is global, so tests can run many nodes in one process."""

    def __init__(
        self, cluster: ClusterNode, counts: Counts, *, connections: Callable[[], int]
    ) -> None:
        self.registry = CollectorRegistry()
        self.dead_letters_moved = 0
        self.dead_letters_dropped = 0
        self.fsync_seconds = Histogram(
            "quorate_log_fsync_seconds",
            "Time that one sync of the log took.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.registry.register(_Values(self, cluster, counts, connections))

    async def serve(self, request: web.Request) -> web.Response:
        body = generate_latest(self.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


class _Values(Collector):
    """What is counted elsewhere already."""

    def __init__(
        self,
        metrics: Metrics,
        cluster: ClusterNode,
        counts: Counts,
        connections: Callable[[], int],
    ) -> None:
        self._metrics = metrics
        self._cluster = cluster
        self._counts = counts
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(
                f"quorate_messages_{name}", text, value=getattr(self._counts, name)
            )
        yield CounterMetricFamily(
            "quorate_dead_letters_moved",
            "Dead letters stored in another group.",
            value=self._metrics.dead_letters_moved,
        )
        yield CounterMetricFamily(
            "quorate_dead_letters_dropped",
            "Dead letters whose target does not exist.",
            value=self._metrics.dead_letters_dropped,
        )
        yield CounterMetricFamily(
            "quorate_rounds",
            "Rounds: messages, entries, one write and at most one sync.",
            value=self._cluster.rounds.count,
        )
        yield GaugeMetricFamily(
            "quorate_connections", "Open connections of clients.", value=self._connections()
        )
        yield from self._groups()

    def _groups(self) -> Iterator[Metric]:
        gauges = {
            name: GaugeMetricFamily(f"quorate_raft_{name}", text, labels=["group"])
            for name, text in _GROUP_GAUGES.items()
        }
        leads = GaugeMetricFamily(
            "quorate_raft_leader", "1 when this node leads the group.", labels=["group"]
        )
        poisoned = GaugeMetricFamily(
            "quorate_raft_poisoned", "1 when this copy stopped because of a bug.", labels=["group"]
        )
        held = dict.fromkeys(("ready", "unsettled", "delayed"), 0)
        for group_id, group in sorted(self._cluster.groups.items()):
            for name, gauge in gauges.items():
                gauge.add_metric([group.name], getattr(group, name))
            is_leader = group.role is Role.LEADER
            leads.add_metric([group.name], int(is_leader))
            poisoned.add_metric([group.name], int(group.poisoned is not None))
            if is_leader and group_id != CATALOG_GROUP:
                overview: dict[str, Any] = group.machine.overview()
                for state in held:
                    held[state] += overview[state]
        yield from (*gauges.values(), leads, poisoned)
        own = self._cluster.transient.own
        if own is not None:
            overview = own.machine.overview()
            for state in held:
                held[state] += overview[state]
        for state, count in held.items():
            yield GaugeMetricFamily(
                f"quorate_messages_{state}",
                f"Messages {state} in the groups that this node leads.",
                value=count,
            )
