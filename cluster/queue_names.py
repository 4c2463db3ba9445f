"""Queues by name: declared in the catalog, made in a group, found and removed again.

Two groups take part and there is no transaction between them: the catalog is asked first when a
queue is made and last when it goes, and what is left half done reconciliation completes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from cluster.forwarding import ASK_AGAIN_S, ASK_PATIENCE_S, Forwarder, refused
from cluster.group import Outcome
from cluster.machine.arguments import ArgumentError, parse_arguments
from cluster.machine.catalog import CatalogMachine, QueueInfo
from cluster.machine.commands import Barrier, DeclareQueue, DeleteQueue, RemoveQueue
from cluster.machine.replies import NO_QUEUE, Declared, Ok
from cluster.placement import place
from cluster.reconcile import create_command
from cluster.types import CATALOG_GROUP, NodeId


class QueueNames:
    """What the broker asks for by name."""

    def __init__(
        self,
        catalog: CatalogMachine,
        forwarder: Forwarder,
        *,
        members: Sequence[NodeId],
        replication: int,
        applied_index: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._forwarder = forwarder
        self._members = members
        self._replication = replication
        self._applied_index = applied_index

    async def find(self, vhost: str, name: str) -> QueueInfo | None:
        """A miss in the own copy is looked at again behind a barrier before it counts as a miss."""
        info = self._catalog.queue(vhost, name)
        if info is None:
            await self.barrier()
            info = self._catalog.queue(vhost, name)
        return info

    async def barrier(self) -> bool:
        """All that was in the catalog when this was called is in this node's copy. False: nobody
        could say so in time.
        """
        outcome = await self._forwarder.ask_until(CATALOG_GROUP, Barrier())
        if outcome.kind != "ok" or outcome.stamp is None:
            return False
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ASK_PATIENCE_S
        while self._applied_index() < outcome.stamp.index:
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(ASK_AGAIN_S / 10)
        return True

    async def declare(self, vhost: str, name: str, arguments: dict[str, Any]) -> Outcome:
        config = parse_arguments(arguments)
        if isinstance(config, ArgumentError):
            return refused(config.code, config.reason)
        group_name = arguments.get("x-queue-group")
        members: Sequence[NodeId] | None = None
        if group_name is not None:
            size = int(arguments.get("x-quorum-initial-group-size", self._replication))
            members = self._place(size)
        command = DeclareQueue(vhost, name, arguments, group_name, members)
        outcome = await self._forwarder.ask_until(CATALOG_GROUP, command)
        reply = outcome.reply
        if outcome.kind != "ok" or not isinstance(reply, Declared):
            return outcome
        info = QueueInfo(reply.queue, reply.group, vhost, name, arguments)
        create = create_command(self._catalog, info, config)
        made = await self._forwarder.ask_until(reply.group, create)
        return outcome if made.kind == "ok" else made

    def _place(self, size: int) -> Sequence[NodeId]:
        held: dict[NodeId, int] = {}
        for info in self._catalog.groups():
            for member in info.members:
                held[member] = held.get(member, 0) + 1
        return place(self._members, size, held)

    async def remove(self, vhost: str, name: str, *, if_unused: bool, if_empty: bool) -> Outcome:
        """Conditions are judged in the queue's group, then the name is dropped from the catalog."""
        info = await self.find(vhost, name)
        if info is None:
            return refused(NO_QUEUE, f"no queue {name!r} in vhost {vhost!r}")
        delete = DeleteQueue(info.queue, if_unused, if_empty)
        outcome = await self._forwarder.ask_until(info.group, delete)
        if getattr(outcome.reply, "code", None) == NO_QUEUE:
            # Half made, half removed, or deleted by a question whose answer was lost.
            outcome = Outcome("ok", Ok(0), outcome.stamp)
        if outcome.kind != "ok":
            return outcome
        removed = await self._forwarder.ask_until(CATALOG_GROUP, RemoveQueue(vhost, name))
        return outcome if removed.kind == "ok" else removed
