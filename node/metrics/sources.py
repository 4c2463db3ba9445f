"""What the metrics of a node are read from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client.registry import Collector

from cluster.cluster_node import ClusterNode
from cluster.machine.counters import QueueCounters
from cluster.types import QueueId
from node.metrics.client_counters import ClientCounters, Counts
from node.metrics.clients_now import ClientsNow
from node.metrics.deaths import Deaths
from node.metrics.queue_rows import QueueRows
from node.metrics.watch import Watch
from node.settings.settings import Settings


class Alarms(Protocol):
    """Of this node."""

    memory_bytes_max: int

    @property
    def memory(self) -> bool: ...
    @property
    def disk(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Process:
    """The rest of the node, which is there once it serves."""

    settings: Settings
    alarms: Alarms
    clients: Callable[[], ClientsNow]
    #: Of a queue that has consumers: the share of the time in which none of its messages waited.
    capacity: Callable[[QueueId, QueueCounters], float]
    cluster_name: Callable[[], str]


@dataclass(slots=True)
class Sources:
    """Known when the node is composed, but for `process`."""

    cluster: ClusterNode
    counts: Counts
    connections: Callable[[], int]
    counters: ClientCounters = field(default_factory=ClientCounters)
    process: Process | None = None
    rows: QueueRows = field(init=False)
    deaths: Deaths = field(init=False)
    watch: Watch = field(init=False)
    #: Families that keep their own values, such as histograms: on every aggregated scrape.
    kept: list[Collector] = field(default_factory=list[Collector])
    dead_letters_moved: int = 0
    dead_letters_dropped: int = 0
    _started_s: float = field(default_factory=time.monotonic)
    _clients: ClientsNow | None = None

    def __post_init__(self) -> None:
        self.rows = QueueRows(self.cluster)
        self.deaths = Deaths(self.cluster)
        self.watch = Watch(self.cluster, self.rows)

    def begin(self) -> None:
        """A scrape begins."""
        self._clients = None

    def clients(self) -> ClientsNow:
        if self._clients is None:
            self._clients = ClientsNow() if self.process is None else self.process.clients()
        return self._clients

    def uptime_s(self) -> float:
        return time.monotonic() - self._started_s

    @property
    def cluster_name(self) -> str:
        process = self.process
        return self.cluster.config.cluster if process is None else process.cluster_name()
