"""What a node looks after once a second, and after every change of the catalog.

Groups are started, default groups made, queues brought in line with the catalog, leaderships spread
and the log cleaned. All of it can be repeated or skipped without harm.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import structlog

from cluster.machine import QueueMachine
from cluster.machine.commands import CreateGroup
from cluster.placement import place_all, preferred_leader
from cluster.reconcile import queue_commands
from cluster.types import CATALOG_GROUP, GroupId

if TYPE_CHECKING:
    from cluster.cluster_node import ClusterNode

log = structlog.get_logger(__name__)

CARE_PERIOD_S = 1.0
#: A leader hands over to the preferred member only when that one has been heard for this long.
BALANCE_AFTER_S = 5.0


class Caretaker:
    """One task; `wake` makes it look at once."""

    def __init__(self, cluster: ClusterNode) -> None:
        self._cluster = cluster
        self._now = asyncio.Event()
        self._proposed: set[GroupId] = set()  # asked already since the last period: wait and see

    def wake(self) -> None:
        self._now.set()

    def role_changed(self, group: GroupId) -> None:
        """What was proposed under another leader may be lost: propose again."""
        self._proposed.discard(group)

    async def run(self) -> None:
        cluster = self._cluster
        loop = asyncio.get_running_loop()
        next_period = loop.time() + CARE_PERIOD_S
        while True:
            try:
                async with asyncio.timeout(max(0.0, next_period - loop.time())):
                    await self._now.wait()
            except TimeoutError:
                next_period = loop.time() + CARE_PERIOD_S
                self._proposed.clear()
                self._balance()
                cluster.tell_leads([p for p in cluster.links.peers() if cluster.links.connected(p)])
                await cluster.log.maintain()
            self._now.clear()
            cluster.start_groups()
            self._make_default_groups()
            self._reconcile()

    def _make_default_groups(self) -> None:
        """The leader of a catalog without groups makes the default ones: the birth of a cluster."""
        cluster = self._cluster
        catalog = cluster.catalog
        if not catalog.ready or cluster.catalog_machine.groups() or CATALOG_GROUP in self._proposed:
            return
        self._proposed.add(CATALOG_GROUP)
        config = cluster.config
        placed = place_all(config.members, config.replication, config.default_groups)
        for number, members in enumerate(placed, start=1):
            catalog.propose(CreateGroup(f"default-{number}", members, default=True))

    def _reconcile(self) -> None:
        cluster = self._cluster
        for group in cluster.groups.values():
            if group.id == CATALOG_GROUP or not group.ready or group.id in self._proposed:
                continue
            machine = cast(QueueMachine, group.machine)
            commands = queue_commands(cluster.catalog_machine, machine, group.id)
            if commands:
                self._proposed.add(group.id)
            for command in commands:
                group.propose(command)

    def _balance(self) -> None:
        cluster = self._cluster
        now = asyncio.get_running_loop().time()
        if cluster.stopping:
            return
        for group in cluster.groups.values():
            preferred = preferred_leader(group.id, group.members)
            if not group.ready or preferred == cluster.node:
                continue
            heard_s = cluster.peers.up_for(preferred, now)
            if heard_s >= BALANCE_AFTER_S and group.caught_up(preferred):
                log.info("leadership_balanced", group=group.name, to=preferred)
                group.transfer(preferred)
