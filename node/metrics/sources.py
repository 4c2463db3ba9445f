"""What the metrics of a node are read from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from node.metrics.queue_rows import QueueRows
from node.metrics.tallies import Tallies

if TYPE_CHECKING:
    from cluster.cluster_node import ClusterNode
    from node.dispatch import Counts


@dataclass(slots=True)
class Sources:
    """Known when the node is composed, or set by it a little later."""

    cluster: ClusterNode
    counts: Counts
    connections: Callable[[], int]
    tallies: Tallies = field(default_factory=Tallies)
    rows: QueueRows = field(init=False)
    #: Families that keep their own values, such as histograms: on every aggregated scrape.
    kept: list[Collector] = field(default_factory=list[Collector])
    dead_letters_moved: int = 0
    dead_letters_dropped: int = 0

    def __post_init__(self) -> None:
        self.rows = QueueRows(self.cluster)
