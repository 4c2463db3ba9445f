"""Who waits for what is to come to a queue: see `node.broker.waiters`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.types import GroupId, QueueId
from node.broker.waiters import Waiters, Waiting

pytestmark = pytest.mark.virtual_time

QUEUE = QueueId(7)


class Copy:
    """Of a group: what `Waiters` knows of one."""

    id = GroupId(1)

    def __init__(self) -> None:
        self.on_next: list[Callable[[], object]] = []
        self.end = 0

    def tell(self) -> None:
        waiting, self.on_next = self.on_next, []
        for each in waiting:
            each()


def due(copy: Any, _: QueueId, waiting: Waiting) -> list[asyncio.Future[None]]:
    return [future for future, wanted in waiting.items() if wanted <= copy.end]


async def begun(copy: Copy) -> tuple[asyncio.Task[None], dict[GroupId, Any]]:
    groups: dict[GroupId, Any] = {copy.id: copy}
    waiters = Waiters(cast(Any, SimpleNamespace(groups=groups, on_role=[])), due)
    task = asyncio.create_task(waiters.wait(cast(Any, copy), QUEUE, 3))
    await asyncio.sleep(0.01)
    return task, groups


async def test_who_waits_is_woken_by_what_it_waits_for():
    copy = Copy()
    task, _ = await begun(copy)
    for copy.end in (1, 2):
        copy.tell()
        await asyncio.sleep(0.01)
        assert not task.done()
    copy.end = 3
    copy.tell()
    await asyncio.wait_for(task, 1)


async def test_who_waits_at_a_copy_that_is_dropped_is_woken():
    copy = Copy()
    task, groups = await begun(copy)
    del groups[copy.id]
    copy.tell()
    await asyncio.wait_for(task, 1)


async def test_who_waits_at_a_copy_that_was_made_again_is_woken():
    copy = Copy()
    task, groups = await begun(copy)
    groups[copy.id] = Copy()
    copy.tell()
    await asyncio.wait_for(task, 1)
