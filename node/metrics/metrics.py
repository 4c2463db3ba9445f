"""The metrics of one node: what they are read from, and the endpoints that show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import Histogram

from node.metrics.client_counters import ClientCounters
from node.metrics.endpoints import Endpoints
from node.metrics.sources import Sources
from node.metrics.watch import Watch

if TYPE_CHECKING:
    from cluster.cluster_node import ClusterNode
    from node.metrics.client_counters import Counts

SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """Of one node: nothing is global, so tests can run many nodes in one process."""

    def __init__(
        self,
        cluster: ClusterNode,
        counts: Counts,
        *,
        connections: Callable[[], int],
        counters: ClientCounters | None = None,
    ) -> None:
        self.counters = counters or ClientCounters()
        self.sources = Sources(cluster, counts, connections, self.counters)
        self.fsync_seconds = Histogram(
            "quorate_log_fsync_seconds",
            "Time that one sync of the log took.",
            buckets=SECONDS,
            registry=None,
        )
        self.sources.kept.append(self.fsync_seconds)
        self._endpoints = Endpoints(self.sources)

    def latencies_ms(self) -> dict[str, float]:
        """Means since the node started."""
        (family,) = self.fsync_seconds.collect()
        fsync = {each.name.rpartition("_")[2]: each.value for each in family.samples}
        lag = self.watch.loop_lag_seconds
        return {
            "fsync_ms": round(1000 * fsync["sum"] / max(1, fsync["count"]), 3),
            "loop_lag_ms": round(1000 * lag.sum / max(1, lag.count), 3),
        }

    @property
    def watch(self) -> Watch:
        return self.sources.watch

    @property
    def dead_letters_moved(self) -> int:
        return self.sources.dead_letters_moved

    @dead_letters_moved.setter
    def dead_letters_moved(self, count: int) -> None:
        self.sources.dead_letters_moved = count

    @property
    def dead_letters_dropped(self) -> int:
        return self.sources.dead_letters_dropped

    @dead_letters_dropped.setter
    def dead_letters_dropped(self, count: int) -> None:
        self.sources.dead_letters_dropped = count

    def add_to(self, app: web.Application) -> None:
        self._endpoints.add_to(app)
