"""What a node does when its volume is nearly full: it takes the snapshots that free most, and
cleans the log at once. Each node acts for itself, whatever it leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from cluster.groups.group import Group
from cluster.log import Log, Space
from cluster.turns import next_turn
from cluster.types import GroupId

log = structlog.get_logger(__name__)

#: How often it looks, and how often while space is short.
LOOK_S = 1.0
PRESSED_S = 0.1
#: Snapshots that are begun at once, and how long they are waited for.
SNAPSHOTS_MAX = 16
SNAPSHOTS_S_MAX = 10.0


class Relief:
    """One task of a node."""

    def __init__(self, log: Log, groups: Callable[[], Mapping[GroupId, Group]]) -> None:
        self._log = log
        self._groups = groups

    async def run(self) -> None:
        while True:
            space = self._log.space()
            if space.near:
                helped = await self._relieve(space)
                await asyncio.sleep(PRESSED_S if helped else LOOK_S)
            else:
                await next_turn(self._log.wal.clock, LOOK_S)

    async def _relieve(self, space: Space) -> bool:
        """Whether it is worth to go on at once."""
        wanted_bytes = space.wanted_bytes - self._log.cleaner.reclaimable_bytes(space)
        taken = list[Group]()
        if wanted_bytes > 0:
            frees = {group: group.snapshot_frees_bytes() for group in self._groups().values()}
            for group in sorted(frees, key=lambda each: frees[each], reverse=True):
                if frees[group] == 0 or wanted_bytes <= 0 or len(taken) == SNAPSHOTS_MAX:
                    break
                group.take_snapshot()
                wanted_bytes -= frees[group]
                taken.append(group)
        if taken:
            log.info("space_short", snapshots=[group.name for group in taken])
            await self._saved(taken)
        before = self._log.space().free_bytes
        await self._log.maintain()
        freed = self._log.space().free_bytes - before
        if freed > 0:
            log.info("space_freed", bytes=freed)
        return bool(taken) or freed > 0

    async def _saved(self, taken: list[Group]) -> None:
        deadline = asyncio.get_running_loop().time() + SNAPSHOTS_S_MAX
        while any(group.taking_snapshot for group in taken):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(PRESSED_S / 10)
