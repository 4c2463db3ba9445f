"""How old the oldest messages of queues are: looked at again only where something happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cluster.types import GroupId, QueueId
from node.metrics.queue_rows import QueueRows

if TYPE_CHECKING:
    from cluster.cluster_node import ClusterNode
    from cluster.machine import QueueMachine
    from cluster.machine.interface import QueueGauges, QueueView


class Ages:
    """Beside the rows, from scrape to scrape: of queues that hold something, or lack somebody."""

    def __init__(self, cluster: ClusterNode, rows: QueueRows) -> None:
        self._cluster = cluster
        self._rows = rows
        self._of: dict[tuple[GroupId, int], QueueGauges] = {}
        rows.on_look.append(self._looked)

    def _looked(self, group_id: GroupId, queue: int, view: QueueView | None) -> None:
        group = self._cluster.group(group_id)
        gauges = None
        if view is not None and group is not None:
            gauges = cast("QueueMachine", group.machine).gauges(QueueId(queue))
        if gauges is None or not (_oldest(gauges) or gauges.lacks_active):
            self._of.pop((group_id, queue), None)
        else:
            self._of[group_id, queue] = gauges

    def fresh(self) -> list[tuple[tuple[GroupId, int], QueueGauges]]:
        for _ in self._rows.sums():
            pass
        return list(self._of.items())


def _oldest(gauges: QueueGauges) -> bool:
    return gauges.oldest_ready_ms is not None or gauges.oldest_unsettled_ms is not None
