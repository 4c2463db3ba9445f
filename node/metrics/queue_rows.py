"""What queues hold, kept from scrape to scrape: only queues that changed since are looked at again.

The groups that this node leads, and its own transient one. With 10,000 queues and no traffic a
scrape looks at none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, cast

from cluster.machine.counters import GroupCounters
from cluster.types import CATALOG_GROUP, GroupId, QueueId

if TYPE_CHECKING:
    from cluster.cluster_node import ClusterNode
    from cluster.groups.group_like import GroupLike
    from cluster.machine import QueueMachine
    from cluster.machine.interface import QueueView


#: Between two breaths of the loop.
QUEUES_AT_ONCE = 200


class Sums(NamedTuple):
    """Of one queue, or of many."""

    queues: int = 0
    ready: int = 0
    delayed: int = 0
    unsettled: int = 0
    bytes: int = 0
    ready_bytes: int = 0
    consumers: int = 0


class _Rows:
    """Of one group's machine, as it was restored or made."""

    def __init__(self, counters: GroupCounters) -> None:
        self.counters = counters
        self.changed = counters.watch()
        self.views: dict[int, QueueView] = {}
        self.sums = Sums()


class QueueRows:
    def __init__(self, cluster: ClusterNode) -> None:
        self._cluster = cluster
        self._rows: dict[GroupId, _Rows] = {}
        self.looked_at = 0  # queues, since this process started
        #: Called with each queue that was looked at; None: it is gone.
        self.on_look: list[Callable[[GroupId, int, QueueView | None], None]] = []

    async def freshen(self) -> None:
        """With a breath after each few: all may have changed, and there may be very many."""
        for group in list(self.led()):
            while group.ready:
                before = self.looked_at
                self._look(group, QUEUES_AT_ONCE)
                if self.looked_at == before:
                    break
                await asyncio.sleep(0)

    def sums(self) -> Iterator[tuple[GroupLike, Sums]]:
        """Of every group that this node leads."""
        for group, rows in self._fresh():
            yield group, rows.sums

    def views(self) -> Iterator[tuple[GroupLike, QueueView]]:
        """Every queue that this node leads."""
        for group, rows in self._fresh():
            for view in rows.views.values():
                yield group, view

    def _fresh(self) -> Iterator[tuple[GroupLike, _Rows]]:
        led = list(self.led())
        for gone in self._rows.keys() - {group.id for group in led}:
            self._drop(gone)
        for group in led:
            yield group, self._look(group)

    def _drop(self, group: GroupId) -> None:
        rows = self._rows.pop(group, None)
        if rows is None:
            return
        rows.counters.unwatch(rows.changed)
        for queue in rows.views:
            for listener in self.on_look:
                listener(group, queue, None)

    def led(self) -> Iterator[GroupLike]:
        for group_id, group in sorted(self._cluster.groups.items()):
            if group_id != CATALOG_GROUP and group.ready:
                yield group
        own = self._cluster.transient.own
        if own is not None:
            yield own

    def _look(self, group: GroupLike, count_max: int | None = None) -> _Rows:
        machine = cast("QueueMachine", group.machine)
        counters = machine.counters
        rows = self._rows.get(group.id)
        if rows is None or rows.counters is not counters:
            self._drop(group.id)
            rows = self._rows[group.id] = _Rows(counters)
            rows.changed.update(dict.fromkeys(machine.queues()))
        changed = list(islice(rows.changed, count_max))
        for queue in changed:
            del rows.changed[queue]
            before = rows.views.pop(queue, None)
            view = machine.queue(QueueId(queue))
            if view is not None:
                rows.views[queue] = view
            rows.sums = _replaced(rows.sums, _of(before), _of(view))
            for listener in self.on_look:
                listener(group.id, queue, view)
        self.looked_at += len(changed)
        return rows


def _of(view: QueueView | None) -> Sums:
    if view is None:
        return Sums()
    return Sums(
        1,
        view.ready_count,
        view.delayed_count,
        view.unsettled_count,
        view.bytes,
        view.ready_bytes,
        subscribed(view),
    )


def _replaced(sums: Sums, old: Sums, new: Sums) -> Sums:
    return Sums(*[total - gone + come for total, gone, come in zip(sums, old, new, strict=True)])


def subscribed(view: QueueView) -> int:
    return sum(consumer.status != "get" for consumer in view.consumers)
