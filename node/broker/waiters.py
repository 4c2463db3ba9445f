"""Waiting for what is to come to a queue or stream, as this node's copies of groups have it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from cluster.cluster_node import ClusterNode
from cluster.groups.group import Group, Role
from cluster.types import GroupId, QueueId

#: In the order in which they came: what each waits for, such as a sequence.
Waiting = Mapping[asyncio.Future[None], int]
#: Those who wait no more; also when there is no such queue any more.
Due = Callable[[Group, QueueId, Waiting], Iterable[asyncio.Future[None]]]


class Waiters:
    """All wake when another node leads their group, or its copy here is dropped: what they wait for
    may be elsewhere.
    """

    def __init__(self, cluster: ClusterNode, due: Due) -> None:
        self._groups = cluster.groups
        self._due = due
        self._by_group: dict[Group, _AtGroup] = {}
        cluster.on_role.append(self._role)

    async def wait(self, group: Group, queue: QueueId, wanted: int = 0) -> None:
        """From the next entry on: whoever calls has looked at what is there."""
        there = self._by_group.get(group)
        if there is None:
            there = self._by_group[group] = _AtGroup(group, self._groups, self._due)
        future = there.add(queue, wanted)
        try:
            await future
        finally:
            there.discard(queue, future)
            if there.is_idle:
                self._by_group.pop(group, None)

    def _role(self, group: Group, _: Role, __: int) -> None:
        there = self._by_group.get(group)
        if there is not None:
            there.wake_all()


class _AtGroup:
    """Those at one copy, looked at once an entry."""

    def __init__(self, group: Group, groups: Mapping[GroupId, Group], due: Due) -> None:
        self._group = group
        self._groups = groups
        self._due = due
        self._by_queue: dict[QueueId, dict[asyncio.Future[None], int]] = {}
        self._listens = False

    @property
    def is_idle(self) -> bool:
        return not self._by_queue

    def add(self, queue: QueueId, wanted: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._by_queue.setdefault(queue, {})[future] = wanted
        self._listen()
        return future

    def discard(self, queue: QueueId, future: asyncio.Future[None]) -> None:
        waiting = self._by_queue.get(queue, {})
        if waiting.pop(future, None) is not None and not waiting:
            del self._by_queue[queue]

    def wake_all(self) -> None:
        for queue, waiting in list(self._by_queue.items()):
            self._wake(queue, waiting)

    def _listen(self) -> None:
        if not self._listens:
            self._listens = True
            self._group.on_next.append(self._look)

    def _look(self) -> None:
        self._listens = False
        if self._groups.get(self._group.id) is not self._group:  # nothing comes to it any more
            self.wake_all()
            return
        for queue, waiting in list(self._by_queue.items()):
            self._wake(queue, self._due(self._group, queue, waiting))
        if self._by_queue:
            self._listen()

    def _wake(self, queue: QueueId, due: Iterable[asyncio.Future[None]]) -> None:
        waiting = self._by_queue[queue]
        for future in list(due):
            del waiting[future]
            if not future.done():
                future.set_result(None)
        if not waiting:
            del self._by_queue[queue]
