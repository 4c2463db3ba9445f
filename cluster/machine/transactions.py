"""Transactions: some steps in several queues, all of them or none (C28).

In one group that is one command, checked as a whole before anything of it is done. Over several
groups, one decides: it does its own steps, and keeps the others' until they are done; nothing can
change that decision any more, so each other group does its part whatever its limits say. What has
become impossible there is skipped: a queue that was deleted, or deliveries that went back to their
queue since the session that held them ended. Who proposes therefore lets a group decide that has
deliveries to settle: what it decides, it does at once. Before anything is decided it has the other
groups keep room (`Reserve`) in queues that refuse what they have no room for, and a group that has
none ends the transaction: so limits hold. The node gives room back when all is done. Should it die,
the leader of the group that keeps the room does, once the deciding group has said (`resolve`) that
this part is done, or that nothing was decided and nothing will be. No queue goes for being empty
until then. Before version 5 room was given back after a while, whatever came later. A queue is
asked before the decision for all by which it may refuse a message, and takes it afterwards.

The steps for others stay in the log, where they were decided; the state knows the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cluster.machine.admission import BODIES_MAX, ONLY_BYTES, runs_of
from cluster.machine.checkout import SPAN_MS_MAX
from cluster.machine.commands import (
    Arriving,
    Discard,
    Enqueue,
    GroupSteps,
    Reserve,
    ResolveTransaction,
    Return,
    Settle,
    Step,
    Transaction,
    TransactionDone,
    TransactionPart,
    Wants,
    Withdraw,
)
from cluster.machine.context import ApplyContext, span
from cluster.machine.effects import TransactionsDue
from cluster.machine.interface import OpenTransaction
from cluster.machine.kinds import QueueKind
from cluster.machine.replies import (
    BAD_ARGUMENT,
    LIMIT_REACHED,
    NO_QUEUE,
    NO_SESSION,
    OUT_OF_SEQUENCE,
    Committed,
    Ok,
    Refused,
    Reply,
)
from cluster.machine.runs import RangeMap
from cluster.machine.versions import RESOLVES_SINCE
from cluster.types import (
    CATALOG_GROUP,
    ORDINAL_BITS,
    ConsumerKey,
    GroupId,
    NodeId,
    QueueId,
)

NUMBER_MAX = 1 << 62
#: From the oldest that is not done everywhere to the newest; what targets remember is no more.
OPEN_MAX = 10_000
#: Reserved room is in doubt after this, by the time of the log: its node died, or its part takes
#: longer than any commit does.
RESERVED_MS = 60_000
RESERVATIONS_MAX = 10_000  # a group
ORDINAL_MASK = (1 << ORDINAL_BITS) - 1


@dataclass(eq=False, slots=True)
class _Node:
    """A node that proposes, and the answers that it may not have heard."""

    incarnation: int
    answered_below: int = 0
    answers: dict[int, Reply] = field(default_factory=dict[int, Reply])

    def forget_below(self, number: int) -> None:
        if number > self.answered_below:
            self.answered_below = number
            for old in [known for known in self.answers if known < number]:
                del self.answers[old]


@dataclass(eq=False, slots=True)
class _Source:
    """A group that decides, and which of its decisions this group has carried out."""

    done_below: int = 0
    done: RangeMap[None] = field(default_factory=RangeMap[None])

    def forget_below(self, number: int) -> None:
        if number > self.done_below:
            self.done_below = number
            self.done.cut(0, number - 1)


class _Reserved(NamedTuple):
    until_ms: int
    wants: Wants
    source: GroupId  # CATALOG_GROUP: given back in time
    in_doubt: bool = False


@dataclass(eq=False, slots=True)
class Transactions:
    """Those of one group."""

    _queues: dict[int, QueueKind]  # the group's own
    _decided: int = 0  # number of the last one that other groups take part in
    #: Ascending.
    _open: dict[int, OpenTransaction] = field(default_factory=dict[int, OpenTransaction])
    _nodes: dict[NodeId, _Node] = field(default_factory=dict[NodeId, _Node])
    _sources: dict[GroupId, _Source] = field(default_factory=dict[GroupId, _Source])
    #: By node, incarnation and number; oldest first.
    reserved: dict[tuple[NodeId, int, int], _Reserved] = field(default_factory=dict[Any, Any])

    # --- deciding ---------------------------------------------------------------------------------

    def commit(self, context: ApplyContext, command: Transaction) -> Reply:
        below = command.answered_below
        return self._answer(command, below, lambda: self._decide(context, command))

    def resolve(self, command: ResolveTransaction) -> Reply:
        reason = "the transaction was not decided in time, and is not done: try again"
        self._answer(command, 0, lambda: Refused(LIMIT_REACHED, reason))
        known = (command.node, command.incarnation, command.number), None
        waits = (each.proposed in known and command.group in each.groups for each in self.open())
        return Ok(int(any(waits)))

    def _answer(
        self, command: Transaction | ResolveTransaction, below: int, decide: Callable[[], Reply]
    ) -> Reply:
        number = command.number
        if not 0 <= below <= number <= NUMBER_MAX:
            return Refused(BAD_ARGUMENT, f"a transaction has a number from 0 to {NUMBER_MAX}")
        node = self._nodes.get(command.node)
        if node is None or node.incarnation < command.incarnation:
            node = self._nodes[command.node] = _Node(command.incarnation)
        if command.incarnation < node.incarnation:
            return Refused(
                NO_SESSION,
                f"node {command.node} has incarnation {node.incarnation} by now: connect again",
            )
        if number < node.answered_below:
            return Refused(OUT_OF_SEQUENCE, f"transaction {number} was answered already")
        answer = node.answers.get(number)
        if answer is None:
            # A refusal is remembered too: a late copy of the command must not be done after all.
            answer = node.answers[number] = decide()
        node.forget_below(below)
        return answer

    def _decide(self, context: ApplyContext, command: Transaction) -> Reply:
        refusal = _malformed(command.steps, command.others, context.version) or self._objection(
            context, command.steps
        )
        if refusal is not None:
            return refusal
        number = 0
        if command.others:
            if span(self.done_below, self._decided + 1) >= OPEN_MAX:
                return Refused(
                    LIMIT_REACHED, f"{OPEN_MAX} transactions wait for other groups: try again later"
                )
            number = self._decided = context.number_after(self._decided)
            groups = tuple(group for group, _ in command.others)
            resolves = context.version >= RESOLVES_SINCE
            proposed = (command.node, command.incarnation, command.number) if resolves else None
            self._open[number] = OpenTransaction(
                number, context.index, context.key & ORDINAL_MASK, groups, proposed
            )
            context.effects.append(TransactionsDue())
        self._carry_out(context, command.steps)
        return Committed(number, self.done_below)

    def _objection(self, context: ApplyContext, steps: Sequence[Step]) -> Refused | None:
        """Why not all of these can be done now."""
        arriving: dict[int, list[Enqueue]] = {}
        settled: dict[tuple[QueueId, ConsumerKey], list[tuple[int, int]]] = {}
        settling: list[Settle | Return | Discard] = []
        withdrawn: dict[QueueId, list[tuple[int, int]]] = {}
        for step in steps:
            queue = self._queues.get(step.queue)
            if queue is None:
                return Refused(
                    NO_QUEUE, f"the group has no queue {step.queue}: declare it first", step.queue
                )
            if isinstance(step, Enqueue):
                arriving.setdefault(step.queue, []).append(step)
            elif isinstance(step, Withdraw):
                withdrawn.setdefault(step.queue, []).extend(step.ranges)
            else:
                settled.setdefault((step.queue, step.consumer), []).extend(step.ranges)
                settling.append(step)
        for (queue_id, consumer), ranges in settled.items():
            refusal = self._queues[queue_id].lacks(consumer, sorted(ranges))
            if refusal is not None:
                return refusal
        for step in settling:
            refusal = self._queues[step.queue].lacks(step.consumer, step.ranges, step.token)
            if refusal is not None:
                return refusal
        for queue_id, ranges in withdrawn.items():
            refusal = self._queues[queue_id].keeps(sorted(ranges))
            if refusal is not None:
                return refusal
        for queue_id, enqueues in arriving.items():
            refusal = self._queues[queue_id].objection(context, enqueues)
            if refusal is not None:
                return refusal
        return None

    def done(self, command: TransactionDone) -> Reply:
        known = self._open.get(command.number)
        if known is None:
            return Ok()
        groups = tuple(group for group in known.groups if group not in command.groups)
        if groups:
            self._open[command.number] = replace(known, groups=groups)
        else:
            del self._open[command.number]
        return Ok(len(known.groups) - len(groups))

    @property
    def done_below(self) -> int:
        """All lower numbers are done everywhere."""
        return next(iter(self._open), self._decided + 1)

    # --- room for what other groups decide --------------------------------------------------------

    def reserve(self, context: ApplyContext, command: Reserve) -> Reply:
        key = (command.node, command.incarnation, command.number)
        if not command.wants:
            return Ok(self._give_back(context, key))
        if key in self.reserved:
            return Ok(len(self.reserved[key].wants))
        if len(self.reserved) >= RESERVATIONS_MAX:
            return Refused(
                LIMIT_REACHED, f"{RESERVATIONS_MAX} transactions are under way: try again later"
            )
        if any(count < 1 or size < 0 for _, count, size in command.wants):
            return Refused(BAD_ARGUMENT, "room is wanted for at least one message")
        batches: dict[QueueId, list[Arriving]] = {}
        for queue_id, sizes, attrs in command.batches:
            batches.setdefault(queue_id, []).append((sizes, attrs))
        kept: list[tuple[QueueId, int, int]] = []
        for queue_id, count, size in command.wants:
            queue = self._queues.get(queue_id)
            if queue is None:  # deleted: nothing will be stored in it
                continue
            refusal = queue.no_room(context, count, size, batches.get(queue_id, ()))
            if refusal is not None:
                self._keep_room(kept, -1)
                return refusal
            kept.append((queue_id, count, size))
            queue.reserve(count, size)
        source = command.source if context.version >= RESOLVES_SINCE else CATALOG_GROUP
        self.reserved[key] = _Reserved(context.now_ms + RESERVED_MS, kept, source)
        return Ok(len(kept))

    def forget_reserved(self, context: ApplyContext) -> None:
        """Whose time is over, unless it is in doubt: then the leader is told, again and again."""
        while self.reserved:
            key = next(iter(self.reserved))
            if self.reserved[key].until_ms > context.now_ms:
                break
            if self.reserved[key].source == CATALOG_GROUP:
                self._give_back(context, key)
                continue
            until_ms = context.now_ms + RESERVED_MS
            self.reserved[key] = self.reserved.pop(key)._replace(until_ms=until_ms, in_doubt=True)
            context.effects.append(TransactionsDue())

    def in_doubt(self) -> list[tuple[GroupId, Reserve]]:
        every = self.reserved.items()
        return [(each.source, Reserve(*key)) for key, each in every if each.in_doubt]

    def _give_back(self, context: ApplyContext, key: tuple[NodeId, int, int]) -> int:
        reserved = self.reserved.pop(key, None)
        if reserved is None:
            return 0
        self._keep_room(reserved.wants, -1)
        for queue_id, _, _ in reserved.wants:
            context.touch(queue_id)
        return len(reserved.wants)

    def _keep_room(self, wants: Wants, sign: int = 1) -> None:
        for queue_id, count, size in wants:
            queue = self._queues.get(queue_id)
            if queue is not None:
                queue.reserve(sign * count, sign * size)

    def queue_created(self, queue_id: QueueId) -> None:
        """Perhaps again, under an id for which room is kept."""
        for reserved in self.reserved.values():
            self._keep_room([want for want in reserved.wants if want[0] == queue_id])

    # --- carrying out -----------------------------------------------------------------------------

    def part(self, context: ApplyContext, command: TransactionPart) -> Reply:
        number, below = command.number, command.done_below
        if not 1 <= below <= number <= NUMBER_MAX:
            return Refused(BAD_ARGUMENT, f"a decision has a number from 1 to {NUMBER_MAX}")
        source = self._sources.get(command.source)
        if source is None:
            source = self._sources[command.source] = _Source()
        count = 0
        if number >= source.done_below and number not in source.done:
            source.done.put(number, number, None)
            count = self._carry_out(context, command.steps)
        source.forget_below(below)
        return Ok(count)

    def _carry_out(self, context: ApplyContext, steps: Sequence[Step]) -> int:
        """Each step, or nothing of it when it is impossible. Answers how many were done."""
        count = 0
        context.decided = True
        for step in steps:
            queue = self._queues.get(step.queue)
            if queue is not None:
                context.touch(step.queue)
                reply = queue.apply(context, step)
                count += type(reply) is not Refused
                if queue.identity.recorder is not None:
                    queue.identity.recorder.answered(step, reply, context.body_offset)
            if isinstance(step, Enqueue):
                context.body_offset += len(step.bodies)
        context.decided = False
        return count

    # --- looking, and snapshots -------------------------------------------------------------------

    def open(self) -> list[OpenTransaction]:
        """Decided here and not done everywhere, oldest first."""
        return list(self._open.values())

    def live_indexes(self) -> list[tuple[int, int]]:
        return [(each.index, each.index) for each in self._open.values()]

    def dump(self) -> list[Any]:
        """Empty when the group never saw a transaction."""
        if not self._nodes and not self._sources and not self.reserved:
            return []
        nodes = [
            [
                name,
                node.incarnation,
                node.answered_below,
                [[number, *_dump_answer(reply)] for number, reply in sorted(node.answers.items())],
            ]
            for name, node in sorted(self._nodes.items())
        ]
        sources = [
            [group, source.done_below, [[first, last] for first, last, _ in source.done]]
            for group, source in sorted(self._sources.items())
        ]
        opened = [
            [each.number, each.index, each.ordinal, list(each.groups), *(each.proposed or ())]
            for each in self._open.values()
        ]
        state: list[Any] = [self._decided, opened, nodes, sources]
        if self.reserved:
            state.append(
                [
                    [
                        *(*key, reserved.until_ms, [list(want) for want in reserved.wants]),
                        *((reserved.source, reserved.in_doubt) if reserved.source else ()),
                    ]
                    for key, reserved in self.reserved.items()
                ]
            )
        return [state]

    def load(self, data: Sequence[Any]) -> None:
        """Fill one that was just made; the queues are there already."""
        self._decided, opened, nodes, sources, *later = data
        for number, index, ordinal, groups, *by in opened:
            proposed = (by[0], by[1], by[2]) if by else None
            self._open[number] = OpenTransaction(number, index, ordinal, tuple(groups), proposed)
        for name, incarnation, answered_below, answers in nodes:
            node = self._nodes[name] = _Node(incarnation)
            node.answered_below = answered_below
            node.answers = {number: _load_answer(reply) for number, *reply in answers}
        for group, done_below, done in sources:
            source = self._sources[group] = _Source()
            source.done_below = done_below
            for first, last in done:
                source.done.put(first, last, None)
        for node, incarnation, number, until_ms, rows, *asked in later[0] if later else ():
            wants = [(queue, count, size) for queue, count, size in rows]
            source, in_doubt = asked or (CATALOG_GROUP, False)
            self.reserved[node, incarnation, number] = _Reserved(until_ms, wants, source, in_doubt)
            self._keep_room(wants)

    def invariants(self) -> None:
        assert list(self._open) == sorted(self._open), "open transactions are not in order"
        assert all(number <= self._decided for number in self._open), "open, but not decided"
        kept: dict[int, tuple[int, int]] = {}
        for reserved in self.reserved.values():
            for queue_id, count, size in reserved.wants:
                before = kept.get(queue_id, (0, 0))
                kept[queue_id] = before[0] + count, before[1] + size
        for queue_id, queue in self._queues.items():
            assert queue.reserved == kept.get(queue_id, (0, 0)), "room miscounted"
        for each in self._open.values():
            assert each.groups, "a transaction that is done everywhere is remembered"
        for node in self._nodes.values():
            assert all(number >= node.answered_below for number in node.answers), "an old answer"
        for source in self._sources.values():
            source.done.invariants()
            assert not source.done or source.done.head[0] >= source.done_below, "an old number"


def _malformed(steps: Sequence[Step], others: Sequence[GroupSteps], version: int) -> Refused | None:
    """What is wrong with some step whatever the state of its queue."""
    groups = [group for group, _ in others]
    if len(set(groups)) != len(groups):
        return Refused(BAD_ARGUMENT, "a transaction names each group once")
    every = (step for each in (steps, *(each for _, each in others)) for step in each)
    wrongs = (_wrong(step, version) for step in every)
    wrong = next((wrong for wrong in wrongs if wrong is not None), None)
    return None if wrong is None else Refused(BAD_ARGUMENT, wrong)


def _wrong(step: Step, version: int) -> str | None:
    if isinstance(step, Enqueue):
        if step.publisher is not None or step.seqno:
            return "messages of a transaction have no publisher and no number"
        count = len(step.bodies)
        if not 1 <= count <= BODIES_MAX:
            return f"a batch holds from 1 to {BODIES_MAX} bodies"
        if not ONLY_BYTES.issuperset(map(type, step.bodies)):
            return "a body is bytes"
        if step.large is not None:
            return "a body that is kept in parts is no step of a transaction"
        runs = runs_of(step.attrs, 0, count, version)
        return runs if isinstance(runs, str) else None
    before = 0
    for first, last in step.ranges:
        if not before < first <= last:
            return "ranges are [first, last], from 1 on, ascending, and do not overlap"
        before = last
    if not before:
        return "what settles nothing is no step of a transaction"
    delay_ms = step.delay_ms if isinstance(step, Return) else None
    if delay_ms is not None and not 0 <= delay_ms <= SPAN_MS_MAX:
        return "delay_ms is a number of milliseconds, 0 or more"
    return None


def _dump_answer(reply: Reply) -> list[Any]:
    if isinstance(reply, Committed):
        return [reply.number, reply.done_below]
    assert isinstance(reply, Refused)
    return [reply.code, reply.reason, reply.detail]


def _load_answer(data: Sequence[Any]) -> Reply:
    return Committed(*data) if len(data) == 2 else Refused(*data)
