"""Measured as it happens: drive loop iterations, commits, and how late the event loop is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from node.metrics.ages import Ages
from node.metrics.client_counters import Spread
from node.metrics.queue_rows import QueueRows

if TYPE_CHECKING:
    from cluster.cluster_node import ClusterNode
    from cluster.log.wal import Wal
    from cluster.seams import Clock

#: How often the loop is asked to be on time.
TICK_S = 0.1
RECORDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096)
BYTES = tuple(1 << power for power in range(8, 25, 2))


class Watch:
    """Of one node."""

    def __init__(self, cluster: ClusterNode, rows: QueueRows) -> None:
        self.ages = Ages(cluster, rows)
        self.logins_failed: Mapping[str, int] = {}
        self._cluster = cluster
        self.commit_seconds = Spread()
        self.round_seconds = Spread()
        self.round_records = Spread(RECORDS)
        self.round_bytes = Spread(BYTES)
        self.loop_lag_seconds = Spread()
        self._seen = (0, 0)  # records and bytes of the log, up to the sync before

    @property
    def clock(self) -> Clock:
        """By which the leaders here stamp messages."""
        return self._cluster.log.wal.clock

    def follow(self, *, logins_failed: Mapping[str, int]) -> None:
        """From now on: the cluster node runs."""
        self.logins_failed = logins_failed
        cluster, wal = self._cluster, self._cluster.log.wal
        self._seen = (wal.record_count, wal.written_bytes)
        cluster.drive_loop.on_iteration = partial(self._round, wal)
        cluster.drive_loop.on_commit = self.commit_seconds.add

    def _round(self, wal: Wal, seconds: float) -> None:
        records, size = self._seen
        self._seen = (wal.record_count, wal.written_bytes)
        self.round_seconds.add(seconds)
        self.round_records.add(wal.record_count - records)
        self.round_bytes.add(wal.written_bytes - size)

    async def run(self) -> None:
        """As long as the node does."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self.loop_lag_seconds.add(max(0.0, loop.time() - due_s))
