"""Queues by name: declared in the catalog, made in a group, found and removed again.

Two groups take part and there is no transaction between them: the catalog is asked first when a
queue is made and last when it goes, and what is left half done reconciliation completes. So a
queue that the catalog has and its group has not either comes or goes; the group knows which.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from cluster.catalog.catalog_read_index import CatalogReadIndex
from cluster.catalog.continuity import ClusterContinuity
from cluster.catalog.placement import Hosts, place
from cluster.catalog.reconcile import create_command, is_leaving, lost_queues
from cluster.catalog.transient import TransientGroups
from cluster.cluster_config import ClusterConfig
from cluster.codec.entries import MEANT_SINCE
from cluster.groups.group_like import GroupLike
from cluster.groups.outcome import ELSEWHERE, Outcome, refused
from cluster.machine import QueueMachine
from cluster.machine.arguments import (
    DEDICATED,
    QUEUE_GROUP,
    ArgumentError,
    parse_arguments,
    settings_from,
)
from cluster.machine.catalog import CatalogMachine, QueueInfo
from cluster.machine.catalog_commands import CatalogStep
from cluster.machine.catalog_queues import DEDICATED_PREFIX
from cluster.machine.checks import is_finite
from cluster.machine.commands import (
    Barrier,
    ChangeCatalog,
    ChangeQueue,
    Command,
    DeclareQueue,
    DeleteQueue,
    QueueConfig,
    RemoveQueue,
    UpdateQueue,
)
from cluster.machine.replies import BAD_ARGUMENT, NO_QUEUE, STALE_COPY, Declared, Ok
from cluster.peers.forwarding import PATIENCE_S, Retries
from cluster.types import CATALOG_GROUP, GroupId, NodeId, QueueId

#: Fields of the catalog's commands that hold whatever a client has put there. They are shown as
#: JSON, where a NaN in one of them would spoil the list of all.
_FROM_OUTSIDE = ("arguments", "value")
#: Queues that one change declared, made in their groups at a time.
MAKE_AT_ONCE = 500
LOOK_AGAIN_S = 0.05
_NO_NUMBER = refused(BAD_ARGUMENT, "invalid arguments: NaN and infinity are no values")
_NO_LEADER = refused("no_leader", "the queue's group has none")
_NO_CATALOG = refused("no_leader", "the catalog has no leader now: try again")

#: The leader of the catalog, its term, and since when it is heard.
Heard = tuple[NodeId, int, float]


class QueueNames:
    """What the broker asks for by name."""

    def __init__(
        self,
        config: ClusterConfig,
        catalog: CatalogMachine,
        retries: Retries,
        *,
        catalog_read_index: CatalogReadIndex,
        continuity: ClusterContinuity,
        transient: TransientGroups,
        incarnation: Callable[[], int],
        is_up: Callable[[NodeId], bool],
        homes: Callable[[], Sequence[NodeId]],
        unsettled: Callable[[], Collection[NodeId]],
        hosts: Callable[[], Hosts],
        heard: Callable[[], Heard | None],
        copies: Callable[[], Collection[GroupLike]],
    ) -> None:
        self._heard = heard
        self._caught_up_with: Heard | None = None
        self._homes = homes  # nodes that may be given groups
        self._unsettled = unsettled  # those of them that should not be given any yet
        self._hosts = hosts
        self._copies = copies  # of groups, on this node
        self._config = config
        self._catalog = catalog
        self._retries = retries
        self._catalog_read_index = catalog_read_index
        self._continuity = continuity
        self._transient = transient
        self._incarnation = incarnation
        self._is_up = is_up
        # For clients of this node, since it started.
        self.declared_count = 0
        self.created_count = 0
        self.deleted_count = 0

    async def change(self, command: Command) -> Outcome:
        """Ask the catalog; when it answers ok, every node that is up has it in its copy."""
        steps = command.steps if isinstance(command, ChangeCatalog) else [command]
        if not all(is_finite([getattr(s, name, None) for name in _FROM_OUTSIDE]) for s in steps):
            return _NO_NUMBER
        await self._continuity.established()
        return await self._seen(await self._retries.ask(CATALOG_GROUP, command))

    async def change_all(self, steps: Sequence[CatalogStep]) -> Outcome:
        """All of them or none, as `change`; queues, as `prepared` made them, are in their groups
        too. From machine version 3 on.
        """
        queues = [step for step in steps if isinstance(step, DeclareQueue)]
        # All ids that were given before this began are below it.
        known = self._catalog.next_queue_id if queues and await self.barrier() else None
        outcome = await self.change(ChangeCatalog(steps))
        if outcome.kind == "ok":
            self.declared_count += len(queues)
            for start in range(0, len(queues), MAKE_AT_ONCE):
                some = queues[start : start + MAKE_AT_ONCE]
                infos = [self._catalog.queue(step.vhost, step.name) for step in some]
                # What does not succeed is done by reconciliation.
                made = [
                    self._make(info, new=known is not None and info.queue >= known)
                    for info in infos
                    if info is not None
                ]
                await asyncio.gather(*made)
        return outcome

    async def finish_deletions(self, names: Iterable[tuple[str, str]]) -> Outcome:
        """Of queues that were deleted in their groups, and that the catalog still has: until then
        what is declared under their names would go with them. A group without a leader is not
        waited for because it might be so of one. Refused: it is, and nobody can finish it now.
        """
        infos = [self._catalog.queue(*each) for each in dict.fromkeys(names)]
        known = [info for info in infos if info is not None]
        silent: set[GroupId] = set()
        while known:
            some, known = known[:MAKE_AT_ONCE], known[MAKE_AT_ONCE:]
            outcomes = await asyncio.gather(*map(self._finish_deletion, some))
            for info, outcome in zip(some, outcomes, strict=True):
                if outcome is _NO_LEADER:
                    silent.add(info.group)
                elif outcome is not None and outcome.kind != "ok":
                    return outcome
            known = [info for info in known if info.group not in silent or self._is_fenced(info)]
        return Outcome("ok", Ok())

    def _is_fenced(self, info: QueueInfo) -> bool:
        """As the copy of its group says that is here, if one is."""
        machines = [group.machine for group in self._copies() if group.id == info.group]
        return any(
            machine.is_fenced(info.queue, info.vhost, info.name)
            for machine in machines
            if isinstance(machine, QueueMachine)
        )

    async def _finish_deletion(self, info: QueueInfo) -> Outcome | None:
        made = await self._make(info)
        if made is None or getattr(made.reply, "code", None) != NO_QUEUE:
            silent = made is not None and made is not _NO_CATALOG and made.code in ELSEWHERE
            return _NO_LEADER if silent and not self._is_fenced(info) else made
        removal = RemoveQueue(info.vhost, info.name, info.queue)
        return await self._seen(await self._retries.ask(CATALOG_GROUP, removal))

    async def _make(self, info: QueueInfo, *, new: bool = False) -> Outcome | None:
        """In its group, unless it is there. None: it is not made now."""
        while True:
            config = self._catalog.config_of(info.queue)
            if config is None or is_leaving(self._catalog, info):
                return None
            made = await self._ask_home(info, create_command(self._catalog, info, config, new=new))
            if made is None or made.code != STALE_COPY:
                return made
            if not await self.barrier():
                return _NO_CATALOG

    async def _seen(self, outcome: Outcome) -> Outcome:
        if outcome.kind == "ok" and outcome.stamp is not None:
            await self._catalog_read_index.applied_everywhere(outcome.stamp.index)
        return outcome

    async def find(self, vhost: str, name: str, *, now: bool = False) -> QueueInfo | Outcome:
        """A miss in the own copy is looked at again behind a barrier before it is refused; or
        nobody can say now whether there is such a queue. `now`: so is a hit of a node that is cut
        off; the name may be that of another queue by now.
        """
        info = self._catalog.queue(vhost, name)
        if info is not None and not (now and self.cut_off):
            return info
        caught_up = await self.barrier()
        info = self._catalog.queue(vhost, name)
        if not caught_up and (info is None or now):
            return _NO_CATALOG
        missing = f"there is no queue {name!r} in vhost {vhost!r}: declare it first"
        return info or refused(NO_QUEUE, missing)

    async def barrier(self) -> bool:
        """All that was in the catalog when this was called is in this node's copy. False: nobody
        could say so in time.
        """
        heard = self._heard()
        outcome = await self._retries.ask(CATALOG_GROUP, Barrier())
        if outcome.kind != "ok" or outcome.stamp is None:
            return False
        done = await self._catalog_read_index.applied_here(outcome.stamp.index, PATIENCE_S)
        if done:
            self._caught_up_with = heard
        return done

    @property
    def cut_off(self) -> bool:
        """The leader of the catalog is not heard, or not caught up with since it is. A change is
        answered when the nodes that are up have it, so what was answered elsewhere meanwhile may be
        missing in this copy: who routes by it catches up first.
        """
        heard = self._heard()
        return heard is None or heard != self._caught_up_with

    # --- declaring

    async def declare(self, command: DeclareQueue) -> Outcome:
        """`command` as for a replicated queue, unless its node is set: that must be this one."""
        if not is_finite(command.arguments):
            return _NO_NUMBER
        config = parse_arguments(command.arguments)
        if isinstance(config, ArgumentError):
            return refused(config.code, config.reason)
        if command.node is not None:
            await self._until(lambda: self._transient.own is not None)
        elif not await self._until(lambda: self._may_place(command)):
            reason = "too few nodes can vote in a new group now: try again when they are back"
            return refused("no_leader", reason)
        while True:
            outcome, deleted = await self._declare(self.prepared(command, self._catalog), config)
            if outcome.code == STALE_COPY:
                if await self.barrier():
                    continue
                return _NO_CATALOG
            if deleted is None:
                return outcome
            # Its deleter has not come to the catalog yet, or never will. What is declared now is
            # another queue: finish this one first.
            removed = await self._retries.ask(CATALOG_GROUP, deleted)
            if removed.kind != "ok":
                return removed

    async def _declare(
        self, command: DeclareQueue, config: QueueConfig
    ) -> tuple[Outcome, RemoveQueue | None]:
        """With what is to be removed first: the catalog still has a queue of this name that was
        deleted in its group.
        """
        outcome = await self._retries.ask(CATALOG_GROUP, command)
        reply = outcome.reply
        if outcome.kind != "ok" or not isinstance(reply, Declared) or outcome.stamp is None:
            return outcome, None
        await self._catalog_read_index.applied_here(outcome.stamp.index)
        info = self._catalog.queue_by_id(reply.queue)
        declared = self._catalog.config_of(reply.queue)
        if info is None or declared is None:  # it was removed at once, or our copy is far behind
            about = (command.vhost, command.name, command.arguments)
            info = QueueInfo(reply.queue, reply.group, *about, node=command.node)
            declared = replace(config, auto_delete=command.auto_delete)
        new = reply.created and command.queue is None
        made = await self._ask_home(info, create_command(self._catalog, info, declared, new=new))
        code = None if made is None else getattr(made.reply, "code", None)
        if made is not None and code in (NO_QUEUE, STALE_COPY):
            another = RemoveQueue(info.vhost, info.name, info.queue)
            return made, another if code == NO_QUEUE else None
        self.declared_count += 1
        self.created_count += reply.created
        if made is None:
            reason = f"queue {info.name!r} is on node {info.node}, which is down; try again"
            return refused("no_leader", reason), None
        return (made if made.kind != "ok" else await self._seen(outcome)), None

    def prepared(self, command: DeclareQueue, catalog: CatalogMachine) -> DeclareQueue:
        """With what this node decides: the members of a group that must be made, by what they have
        in this catalog; of a transient queue, which process has it. Its arguments are good.
        """
        if command.node is not None:
            return replace(command, incarnation=self._incarnation())
        if catalog.queue(command.vhost, command.name) is None:
            command = self._found_again(command, catalog)
        group = command.arguments.get(QUEUE_GROUP)
        if group is None or command.queue is not None:
            return command
        members = self._place(self._size(command), catalog)
        return replace(command, group=group, members=members)

    def _found_again(self, command: DeclareQueue, catalog: CatalogMachine) -> DeclareQueue:
        """As the queue of this name that the catalog lost, if a copy of its group is here and it is
        what is declared, in all that stays as declared.
        """
        for group in self._copies():
            machine = group.machine
            for lost in lost_queues(catalog, machine) if isinstance(machine, QueueMachine) else ():
                named = (lost.vhost, lost.name) == (command.vhost, command.name)
                wanted = command.arguments.get(QUEUE_GROUP)
                dedicated = wanted == DEDICATED and group.name.startswith(DEDICATED_PREFIX)
                if named and (dedicated or wanted in (None, group.name)):
                    config = settings_from(command.arguments, auto_delete=command.auto_delete)
                    if config.declared_as(lost.config) == config:
                        return replace(command, group=group.name, queue=lost.id)
        return command

    async def change_stream(self, info: QueueInfo, arguments: dict[str, Any]) -> Outcome:
        """Give this stream, and none that has its name by then, these arguments, here and in its
        group. What does not reach that is done by reconciliation.
        """
        # Before machine version 5 a change goes by the name alone.
        meant = info.queue if self._catalog.version >= MEANT_SINCE else None
        outcome = await self.change(ChangeQueue(info.vhost, info.name, arguments, meant))
        config = self._catalog.config_of(info.queue)
        if outcome.kind == "ok" and config is not None:
            await self._ask_home(info, UpdateQueue(info.queue, config, self._catalog.as_of))
        return outcome

    async def may_make_groups(self) -> bool:
        """Most nodes can vote in a new group at once; False: not in time."""
        return await self._until(self._most_are_settled)

    def _most_are_settled(self) -> bool:
        nodes, unsettled = self._homes(), self._unsettled()
        return 2 * sum(node in unsettled for node in nodes) < len(nodes)

    def _may_place(self, command: DeclareQueue) -> bool:
        """It needs no new group, or that has all its copies, and most of them can vote at once."""
        group = command.arguments.get("x-queue-group")
        if group is None or self._most_are_settled():
            return True
        if self._catalog.queue(command.vhost, command.name) is not None:
            return True
        size = self._size(command)
        full = len(self._place(size, self._catalog)) >= min(size, len(self._homes()))
        return full or any(info.name == group for info in self._catalog.groups())

    def _size(self, command: DeclareQueue) -> int:
        """Copies that are asked for."""
        default = self._config.replication
        return int(command.arguments.get("x-quorum-initial-group-size", default))

    def _place(self, size: int, catalog: CatalogMachine) -> Sequence[NodeId]:
        held = Counter(node for info in catalog.groups() for node in info.members)
        return place(self._homes(), size, held, self._unsettled(), self._hosts())

    async def _until(self, condition: Callable[[], bool]) -> bool:
        """False: patience ended before."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while not condition():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(LOOK_AGAIN_S)
        return True

    # --- removing

    async def remove(
        self,
        vhost: str,
        name: str,
        *,
        if_unused: bool,
        if_empty: bool,
        if_settled: bool,
        owner: str | None = None,
        queue: QueueId | None = None,
    ) -> Outcome:
        """Conditions are judged in the queue's group, then the name is dropped from the catalog: by
        reconciliation, if this ends between the two. `owner`, `queue`: by now the name may be that
        of another queue, which stays.
        """
        info = await self.find(vhost, name, now=True)
        if isinstance(info, Outcome):
            return info
        if owner not in (None, info.owner) or queue not in (None, info.queue):
            return Outcome("ok", Ok(0))
        delete = DeleteQueue(info.queue, if_unused, if_empty, if_settled, fence=True)
        outcome = await self._ask_home(info, delete)
        if outcome is None:
            outcome = Outcome("ok", Ok(0))  # it ended with its node
        if getattr(outcome.reply, "code", None) == NO_QUEUE:
            # Half made, half removed, or deleted by a question whose answer was lost.
            outcome = Outcome("ok", Ok(0), outcome.stamp)
        if outcome.kind != "ok":
            return outcome
        removal = RemoveQueue(vhost, name, info.queue)
        removed = await self._retries.ask(CATALOG_GROUP, removal)
        await self._seen(removed)
        self.deleted_count += removed.kind == "ok"
        return outcome if removed.kind == "ok" else removed

    async def remove_unchanged(self, info: QueueInfo) -> Outcome:
        """Remove this queue, and only while its arguments are these. When this answers ok, every
        node that is up knows what became of it. From machine version 5 on.

        The catalog decides first, in one command: so a change of the arguments that is under way
        either comes before, and the queue stays, or finds it gone. Its group follows, here or by
        reconciliation.
        """
        removal = RemoveQueue(info.vhost, info.name, info.queue, dict(info.arguments))
        outcome = await self._seen(await self._retries.ask(CATALOG_GROUP, removal))
        if outcome.kind == "ok" and self._catalog.queue_by_id(info.queue) is None:
            self.deleted_count += outcome.reply == Ok(1)
            await self._ask_home(info, DeleteQueue(info.queue, as_of=self._catalog.as_of))
        return outcome

    async def _ask_home(self, info: QueueInfo, command: Command) -> Outcome | None:
        """Ask the queue's group. None: it is transient, and its node is down."""
        if self._is_down(info):
            return None
        outcome = await self._retries.ask(info.group, command, unwanted=lambda: self._is_down(info))
        return None if outcome.reply is None and self._is_down(info) else outcome

    def _is_down(self, info: QueueInfo) -> bool:
        return info.node is not None and not self._is_up(info.node)
