"""Waiting until a queue that this node leads has a message to give."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, cast

from cluster.cluster_node import ClusterNode
from cluster.groups.group import Group
from cluster.groups.group_like import GroupLike
from cluster.machine import QueueMachine
from cluster.types import QueueId
from node.broker.waiters import Waiters, Waiting
from node.errors import Refused

#: Who may wait at one node at a time.
WAITING_MAX: Final = 1_000
#: A transient queue, which has no log to follow, is looked at so often.
LOOK_S: Final = 0.05


class Arrivals:
    """One per node. Who waits for longest is told first, and only as many as there are messages."""

    def __init__(self, cluster: ClusterNode) -> None:
        self._waiters = Waiters(cluster, _first)
        self._count = 0

    async def wait(self, group: GroupLike, queue: QueueId, within_s: float) -> None:
        """Returns when the queue has a ready message, when it may be gone or led elsewhere, or
        after `within_s`. Refused: too many wait.
        """
        if self._count >= WAITING_MAX:
            raise Refused(
                "overloaded", f"at this node {WAITING_MAX} requests wait: try again later"
            )
        self._count += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    while _ready(group, queue) == 0:
                        if isinstance(group, Group):
                            return await self._waiters.wait(group, queue)
                        await asyncio.sleep(LOOK_S)
        finally:
            self._count -= 1


def _first(group: Group, queue: QueueId, waiting: Waiting) -> list[asyncio.Future[None]]:
    """As many as there are messages."""
    return list(waiting)[: _ready(group, queue)]


def _ready(group: GroupLike, queue: QueueId) -> int | None:
    """None: there is no such queue."""
    view = cast(QueueMachine, group.machine).queue(queue)
    return None if view is None else view.ready_count
