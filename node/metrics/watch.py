"""Drive loop iterations, commits, and how late the event loop is: counted five times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cluster.turns import until_turn
from node.metrics.ages import Ages
from node.metrics.client_counters import Spread
from node.metrics.queue_rows import QueueRows

if TYPE_CHECKING:
    from cluster.cluster_node import ClusterNode
    from cluster.seams import Clock

#: How often the loop is asked to be on time.
TICK_S = 0.2
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
        wal, drive_loop = self._cluster.log.wal, self._cluster.drive_loop
        self._seen = (wal.record_count, wal.written_bytes)
        drive_loop.iterations.clear()
        drive_loop.commit_seconds.clear()

    def look(self) -> None:
        """Count what was measured since the last look."""
        drive_loop = self._cluster.drive_loop
        while drive_loop.iterations:
            seconds, records, size = drive_loop.iterations.popleft()
            records_before, size_before = self._seen
            self._seen = (records, size)
            self.round_seconds.add(seconds)
            self.round_records.add(records - records_before)
            self.round_bytes.add(size - size_before)
        while drive_loop.commit_seconds:
            self.commit_seconds.add(drive_loop.commit_seconds.popleft())

    def start(self) -> None:
        """Until `stop`. A timer, since a task would wake an idle loop for twice the work."""
        self._loop = asyncio.get_running_loop()
        self._set_timer()

    def stop(self) -> None:
        self._timer.cancel()

    def _set_timer(self) -> None:
        delay_s = until_turn(self.clock, TICK_S)
        self._due_s = self._loop.time() + delay_s
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self.loop_lag_seconds.add(max(0.0, self._loop.time() - self._due_s))
        self.look()
        self._set_timer()
