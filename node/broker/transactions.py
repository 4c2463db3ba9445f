"""Transactions over queues of any groups, as tx.commit asks for them (C28, C38).

One group decides: its log holds the whole transaction, and does its own share in the same step.
From there on it happens, whatever crashes. The node that proposed it carries the parts to the other
groups at once; should it not get there, the leader of the group that decided does, a moment later.
Parts are numbered by that group, so a part that comes twice is done once.

A group with deliveries to settle decides before one that only gets messages: a delivery may go back
to its queue at any time, and is sure only in the step that decides. Groups that are replicated come
before transient ones, whose decisions would end with their node. The group that decides asks its
queues whether they take it; other groups are asked first, and keep room, where a queue may refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import cast

import structlog

from cluster.cluster_node import ClusterNode
from cluster.groups.group import Group, Role
from cluster.groups.group_like import GroupLike
from cluster.groups.outcome import UPGRADE_NEEDED
from cluster.machine import QueueMachine
from cluster.machine import replies as codes
from cluster.machine.arguments import SHARD_OF
from cluster.machine.commands import (
    Batches,
    Enqueue,
    GroupSteps,
    Reserve,
    ResolveTransaction,
    Step,
    Transaction,
    TransactionDone,
    TransactionPart,
    Wants,
    Withdraw,
)
from cluster.machine.effects import Effect, TransactionsDue
from cluster.machine.interface import OpenTransaction
from cluster.machine.replies import Committed, Ok
from cluster.machine.stream.appending import weights
from cluster.types import CATALOG_GROUP, TRANSIENT_GROUPS, GroupId, QueueId, Stamp
from node.errors import Elsewhere, OutcomeUnknown, Refused, reply_of
from node.tasks import Tasks

log = structlog.get_logger(__name__)

#: How long it is tried to have a transaction decided, and then to have all parts done.
DECIDE_S_MAX = 15.0
PARTS_S_MAX = 30.0
AGAIN_S_MIN = 0.05
AGAIN_S_MAX = 0.5
#: How long it is tried to have all groups keep room: they do for `RESERVED_MS`.
ROOM_S_MAX = 30.0
#: How long a leader leaves what it decided to the node that proposed it.
GRACE_S = 1.0
BACKOFF_S_MAX = 5.0
CARRIED_AT_ONCE_MAX = 64


class TransactionCoordinator:
    """One per node."""

    def __init__(self, cluster: ClusterNode, tasks: Tasks) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._number = 0  # of this process: see `Transaction`
        self._unanswered: dict[int, None] = {}  # ascending
        self._working: set[GroupId] = set()
        cluster.on_effects.append((frozenset({TransactionsDue}), self._effects))
        cluster.on_role.append(self._role)

    # --- proposing --------------------------------------------------------------------------------

    async def commit(self, steps: Mapping[GroupId, Sequence[Step]]) -> None:
        """All of it is done when this returns. Refused, Elsewhere: nothing was, and nothing will
        be. OutcomeUnknown: all of it, or nothing, was or will be.
        """
        steps = {group: each for group, each in sorted(steps.items()) if each}
        if not steps:
            return
        source = self._decider(steps)
        others = [(group, each) for group, each in steps.items() if group != source]
        self._number += 1
        number = self._number
        self._unanswered[number] = None
        kept: list[GroupId] = []
        decides = False
        loop = asyncio.get_running_loop()
        until_s = loop.time() + ROOM_S_MAX
        try:
            await self._keep_room(source, number, others, kept, moves=_moves(steps))
            if loop.time() > until_s:
                raise Elsewhere(None)  # the first ones might give it back before it is decided
            decides = True
            command = Transaction(
                self._cluster.node,
                self._cluster.links.incarnation,
                number,
                next(iter(self._unanswered)),
                steps.get(source, ()),
                others,
            )
            committed = await self._decide(source, command)
        except BaseException as error:  # cancelled, when its channel closes
            if not decides or isinstance(error, (Refused, Elsewhere)):
                self._give_back(number, kept)
            raise
        finally:
            del self._unanswered[number]
        if others:
            await self._carry_out(source, committed, others)
        self._give_back(number, kept)  # unless it may be needed yet: then the groups do, in time

    def _give_back(self, number: int, kept: Sequence[GroupId]) -> None:
        for group in kept:
            back = self._cluster.ask(group, self._reserve(number))
            self._tasks.start(back, name="transaction_room")

    def _decider(self, steps: Mapping[GroupId, Sequence[Step]]) -> GroupId:
        replicated = [group for group in steps if group < TRANSIENT_GROUPS]
        settling = [
            g for g in replicated if any(not isinstance(step, Enqueue) for step in steps[g])
        ]
        if replicated or len(steps) == 1:
            refusing = [group for group in replicated if self._wants(steps[group])]
            return min(settling or refusing or replicated or steps)
        every = (info.id for info in self._cluster.catalog_machine.groups())
        return min(every, default=min(steps))  # one that survives the node of any of them

    async def _keep_room(
        self,
        source: GroupId,
        number: int,
        others: Sequence[GroupSteps],
        kept: list[GroupId],
        *,
        moves: bool,
    ) -> None:
        """In the groups that do not decide; `kept` is where there may be some to give back. What
        goes to a queue that is gone is gone with it, but not what goes to a shard, nor what
        `moves`, and was taken out of another queue for it: whatever this node knows of its target.
        """
        wanted = [
            (group, self._wants(steps, every=moves), self._batches(steps))
            for group, steps in others
        ]
        every = {queue for _, wants, _ in wanted for queue, _, _ in wants}
        needed = every if moves else set(filter(self._is_shard, every))
        for group, wants, batches in wanted:
            if not wants:
                continue
            kept.append(group)
            asked = source if group < TRANSIENT_GROUPS else CATALOG_GROUP  # that has no leader
            reserve = self._reserve(number, wants, batches, asked)
            outcome = await self._cluster.retries.ask(group, reserve, within_s=DECIDE_S_MAX)
            if outcome.kind == "unknown":
                raise Elsewhere(None)  # whatever became of it: nothing was decided
            # A group that was not upgraded yet checks no limits of what others decide.
            if outcome.code not in UPGRADE_NEEDED:
                reply = reply_of(outcome)
                is_less = isinstance(reply, Ok) and reply.count < len(wants)
                if is_less and not needed.isdisjoint(queue for queue, _, _ in wants):
                    raise Refused(
                        codes.NO_QUEUE,
                        "a queue that messages are moved to is gone: move them elsewhere"
                        if moves
                        else "a shard that it publishes to was joined and is gone: publish again",
                    )

    def _reserve(
        self,
        number: int,
        wants: Wants = (),
        batches: Batches = (),
        source: GroupId = CATALOG_GROUP,
    ) -> Reserve:
        node, incarnation = self._cluster.node, self._cluster.links.incarnation
        return Reserve(node, incarnation, number, wants, batches, source)

    def _wants(
        self, steps: Sequence[Step], *, every: bool = False
    ) -> list[tuple[QueueId, int, int]]:
        """What is published to queues that may refuse it, or to `every` one: how many messages, and
        bytes.
        """
        wants: dict[QueueId, tuple[int, int]] = {}
        for step in steps:
            if isinstance(step, Enqueue) and (every or self._may_refuse(step.queue)):
                count, size = wants.get(step.queue, (0, 0))
                of_step = sum(
                    weights(step) if self._is_stream(step.queue) else map(len, step.bodies)
                )
                wants[step.queue] = (count + len(step.bodies), size + of_step)
        return [(queue, *want) for queue, want in wants.items()]

    def _batches(self, steps: Sequence[Step]) -> Batches:
        """All that is published to streams."""
        enqueues = [
            each for each in steps if isinstance(each, Enqueue) and self._is_stream(each.queue)
        ]
        return tuple((each.queue, weights(each), each.attrs) for each in enqueues)

    def _is_stream(self, queue: QueueId) -> bool:
        info = self._cluster.catalog_machine.queue_by_id(queue)
        return info is not None and info.stream is not None

    def _may_refuse(self, queue: QueueId) -> bool:
        if self._is_stream(queue) or self._is_shard(queue):
            return True
        config = self._cluster.catalog_machine.config_of(queue)
        if config is None or config.overflow == "drop-head":
            return False
        return config.max_length is not None or config.max_length_bytes is not None

    def _is_shard(self, queue: QueueId) -> bool:
        """It may go though nobody deletes it."""
        info = self._cluster.catalog_machine.queue_by_id(queue)
        return info is not None and SHARD_OF in info.arguments

    async def _decide(self, source: GroupId, command: Transaction) -> Committed:
        """The group answers the same command but once, however often it is asked."""
        outcome = await self._cluster.retries.ask(source, command, within_s=DECIDE_S_MAX)
        return cast(Committed, reply_of(outcome))

    async def _carry_out(
        self, source: GroupId, committed: Committed, others: Sequence[GroupSteps]
    ) -> None:
        number, below = committed.number, committed.done_below
        parts = [(group, TransactionPart(source, number, below, each)) for group, each in others]
        try:
            async with asyncio.timeout(PARTS_S_MAX):
                await asyncio.gather(*[self._until_done(group, part) for group, part in parts])
        except TimeoutError as error:
            raise OutcomeUnknown("some queues of the transaction cannot be reached") from error
        done = TransactionDone(number, [group for group, _ in others])
        self._tasks.start(self._cluster.ask(source, done), name="transaction_done")

    async def _until_done(self, group: GroupId, part: TransactionPart) -> None:
        again_s = AGAIN_S_MIN
        while not await self._part(group, part):
            await asyncio.sleep(again_s)
            again_s = min(AGAIN_S_MAX, again_s * 2)

    async def _part(self, group: GroupId, part: TransactionPart) -> bool:
        """Is it done, now or before? One try."""
        outcome = await self._cluster.ask(group, part)
        if outcome.kind == "ok":
            return True
        log.info("transaction_waits", group=group, source=part.source, reason=outcome.reason)
        if group < TRANSIENT_GROUPS or self._cluster.leader_of(group) is not None:
            return False
        # Its node is gone; once the catalog says that its queues are too, nothing is left to do.
        caught_up = await self._cluster.names.barrier()
        return caught_up and all(info.group != group for info in self._cluster.queues())

    # --- what was left behind ---------------------------------------------------------------------

    def _effects(self, group: GroupLike, stamp: Stamp, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if type(effect) is TransactionsDue:
                self._due(group.id)

    def _role(self, group: Group, role: Role, term: int) -> None:
        if role is Role.LEADER and group.id != CATALOG_GROUP:
            self._due(group.id)

    def _due(self, group: GroupId) -> None:
        if group not in self._working:
            self._working.add(group)
            self._tasks.start(self._work(group), name="transactions")

    def _led(self, group_id: GroupId) -> QueueMachine | None:
        """Others are their leaders' business."""
        group = self._cluster.groups.get(group_id)
        return cast(QueueMachine, group.machine) if group is not None and group.ready else None

    def _open(self, group: GroupId) -> Sequence[OpenTransaction]:
        machine = self._led(group)
        return () if machine is None else machine.transactions()

    def _in_doubt(self, group: GroupId) -> Sequence[tuple[GroupId, Reserve]]:
        machine = self._led(group)
        return () if machine is None else machine.in_doubt()

    async def _work(self, group: GroupId) -> None:
        wait_s = GRACE_S
        try:
            while (known := {each.number for each in self._open(group)}) or self._in_doubt(group):
                await asyncio.sleep(wait_s)
                late = [each for each in self._open(group) if each.number in known]
                work = chain(
                    (self._finish(group, one) for one in late),
                    (self._resolve(group, *each) for each in self._in_doubt(group)),
                )
                done = True
                while some := list(islice(work, CARRIED_AT_ONCE_MAX)):
                    done &= all(await asyncio.gather(*some))
                wait_s = GRACE_S if done else min(BACKOFF_S_MAX, wait_s * 2)
        finally:
            self._working.discard(group)

    async def _finish(self, source: GroupId, one: OpenTransaction) -> bool:
        """Have every group that has not done its part do it. One try."""
        opened = self._open(source)
        command = None
        if opened:
            command = self._cluster.groups[source].read_command(one.index, one.ordinal)
        if not isinstance(command, Transaction):
            return False  # the next leader is told, or somebody else was faster
        below = min(opened[0].number, one.number)
        parts = [
            (group, TransactionPart(source, one.number, below, steps))
            for group, steps in command.others
            if group in one.groups
        ]
        answers = await asyncio.gather(*[self._part(group, part) for group, part in parts])
        done = [group for (group, _), is_done in zip(parts, answers, strict=True) if is_done]
        if not done:
            return False
        outcome = await self._cluster.ask(source, TransactionDone(one.number, done))
        return outcome.kind == "ok" and all(answers)

    async def _resolve(self, group: GroupId, source: GroupId, back: Reserve) -> bool:
        """Give back room, if the group that decides says that nothing comes any more. One try."""
        resolve = ResolveTransaction(back.node, back.incarnation, back.number, group)
        if (await self._cluster.ask(source, resolve)).reply != Ok(0):
            return False
        return (await self._cluster.ask(group, back)).kind == "ok"


def _moves(steps: Mapping[GroupId, Sequence[Step]]) -> bool:
    """Something waits in a queue, and leaves it."""
    return any(isinstance(step, Withdraw) for each in steps.values() for step in each)
