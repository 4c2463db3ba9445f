"""What may be asked of queues, and the rules for it: the same for every protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, cast

from cluster.cluster_node import ClusterNode
from cluster.groups.cold_reads import OnArrival
from cluster.groups.group_like import GroupLike
from cluster.groups.outcome import Outcome
from cluster.machine import QueueMachine
from cluster.machine import replies as codes
from cluster.machine.arguments import (
    CLASSIC,
    QUEUE_TYPE,
    QUORUM,
    STREAM,
    misplaced,
    misplacement,
    unknown_argument,
)
from cluster.machine.catalog import CatalogMachine, QueueInfo
from cluster.machine.catalog_commands import DestinationKind
from cluster.machine.catalog_queues import queue_text
from cluster.machine.catalog_routing import RESERVED_PREFIX
from cluster.machine.commands import (
    Barrier,
    Command,
    Enqueue,
    Get,
    Pause,
    Purge,
    Ranges,
    Retime,
    Return,
    Settle,
    Subscribe,
)
from cluster.machine.interface import RowState
from cluster.machine.replies import Chunk, Declared, Enqueued, Got, Ok
from cluster.machine.runs import joined, ranges_of
from cluster.types import (
    TRANSIENT_GROUPS,
    Body,
    BodyRef,
    ConsumerKey,
    GroupId,
    LargeBody,
    MessageId,
    NodeId,
    QueueId,
    SessionId,
)
from node.access.permissions import Access, Operation
from node.broker.bodies import may_be_whole, whole
from node.broker.ingress import NAME_BYTES_MAX, Ingress, Large, Part, check_name
from node.broker.settle_retry import SettleRetry
from node.dispatch.dispatch import batch_of, fitting
from node.dispatch.outgoing import MessageBatch
from node.errors import BrokerError, Elsewhere, OutcomeUnknown, Refused, error_of, reply_of
from node.messages.message import as_map
from node.metrics.client_counters import Counts
from node.routing.shards import SHARD_OF, shards_of, split_of, undeletable, whole_of
from node.settings.sections import LimitSettings

PEEK_COUNT_MAX = 1_000
GET_BYTES_MAX = 16 * 1024 * 1024
CREDIT_MAX = 1_000_000

#: Why a leader knows no such consumer.
Gone = Literal["session_over", "queue_deleted", "cancelled"]


class Broker:
    """Validates, finds the queue, builds the command, asks the cluster."""

    def __init__(
        self,
        cluster: ClusterNode,
        limits: LimitSettings,
        make_settle_retry: Callable[[ClusterNode, Counts], SettleRetry] = SettleRetry,
    ) -> None:
        self.cluster = cluster
        self.limits = limits
        self.counts = Counts()
        self.settle_retry = make_settle_retry(cluster, self.counts)
        self.ingress = Ingress(cluster, limits, cut_off=lambda: self.cut_off)

    # --- where ------------------------------------------------------------------------------------

    def locate(self, vhost: str, queue: str) -> QueueInfo | None:
        """From this node's copy of the catalog, at once."""
        return self.cluster.queue_info(vhost, queue)

    async def find(self, vhost: str, queue: str, *, now: bool = False) -> QueueInfo:
        """Refused: there is none. Elsewhere: nobody can say now. `now`: see `QueueNames.find`."""
        info = await self.cluster.names.find(vhost, queue, now=now)
        if isinstance(info, Outcome):
            raise error_of(info)
        return info

    async def find_shared(self, vhost: str, queue: str) -> QueueInfo:
        """For callers that cannot be the connection that a queue belongs to."""
        info = await self.find(vhost, queue)
        check_shared(info)
        return info

    async def catch_up(self) -> bool:
        """All that was in the catalog when this was called is known here. False: nobody could say
        so in time.
        """
        return await self.cluster.names.barrier()

    async def check_binding(
        self, access: Access, source: str, kind: DestinationKind, destination: str, key: str
    ) -> None:
        """To bind and to unbind: write on the destination, read from the source, and its key if it
        is a topic, as RabbitMQ has it. Raises AccessRefused.
        """
        access.check("write", kind, destination)
        access.check("read", "exchange", source)
        catalog = self.cluster.catalog_machine
        exchange = catalog.exchange(access.vhost, source)
        if exchange is None:  # a copy that lags must not miss that it is a topic
            await self.catch_up()
            exchange = catalog.exchange(access.vhost, source)
        if exchange is not None and exchange.routes_as == "topic":
            access.check_topic("read", source, key)

    def check_queue(self, access: Access, operation: Operation, name: str) -> None:
        """Who may read a queue that is split, or write to it, may do so with its shards. Raises
        AccessRefused.
        """
        catalog = self.cluster.catalog_machine
        info = None if operation == "configure" else catalog.queue(access.vhost, name)
        whole = None if info is None else whole_of(catalog, info)
        access.check(operation, "queue", name if whole is None else whole.name)

    @property
    def cut_off(self) -> bool:
        return self.cluster.names.cut_off

    def leads(self, group: GroupId) -> bool:
        return self.cluster.leader_of(group) == self.cluster.node

    def led(self, group: GroupId) -> GroupLike:
        """This node's copy of a group that it leads. Elsewhere otherwise."""
        leader = self.cluster.leader_of(group)
        found = self.cluster.group(group)
        if leader != self.cluster.node or found is None:
            raise Elsewhere(leader)
        return found

    def leader(self, info: QueueInfo) -> NodeId | None:
        return self.cluster.leader_of(info.group)

    def machine(self, group: GroupId) -> QueueMachine:
        return cast(QueueMachine, self.led(group).machine)

    def fetch(self, group: GroupId, first: int, last: int, done: OnArrival) -> None:
        found = self.cluster.group(group)
        if found is None:
            asyncio.get_running_loop().call_soon(done, None)
        else:
            found.fetch(first, last, done)

    def holds(self, group: GroupId, queue: QueueId, consumer: ConsumerKey) -> Sequence[Chunk]:
        """All that the consumer holds, as the machine knows it once it is up to date."""
        if not self.led(group).ready:
            raise Elsewhere(None)
        return self.machine(group).consumer_holds(queue, consumer) or ()

    def gone(
        self, group: GroupId, queue: QueueId, consumer: ConsumerKey, session: SessionId
    ) -> Gone | None:
        """Why the leader, which this node is, knows no such consumer: while its client could not be
        told, its session was ended, or the queue deleted. None: it does. For good only when
        `confirm_gone` says so, too.
        """
        if not self.led(group).ready:
            raise Elsewhere(None)
        machine = self.machine(group)
        if machine.consumer_holds(queue, consumer) is not None:
            return None
        if not machine.has_session(session):
            return "session_over"
        return "cancelled" if queue in machine.queues() else "queue_deleted"

    def confirm_gone(
        self,
        group: GroupId,
        queue: QueueId,
        consumer: ConsumerKey,
        session: SessionId,
        then: Callable[[Gone | None], None],
    ) -> None:
        """What `gone` says, behind a barrier: a leader that was replaced and has not heard of it
        knows no consumer that came since. `then` is called once, perhaps at once; None: the
        consumer is there, or this node does not lead.
        """

        def done(outcome: Outcome) -> None:
            try:
                why = self.gone(group, queue, consumer, session)
            except Elsewhere:
                why = None
            then(why if outcome.kind == "ok" else None)

        self.led(group).propose(Barrier(), done)

    async def ask(self, group: GroupId, command: Command) -> codes.Reply:
        """At the leader, wherever it is."""
        return reply_of(await self.cluster.ask(group, command))

    # --- queues -----------------------------------------------------------------------------------

    def with_type(
        self, vhost: str, queue: str, arguments: Mapping[str, Any], *, transient: str | None
    ) -> dict[str, Any]:
        """See `with_type`."""
        catalog = self.cluster.catalog_machine
        return with_type(catalog, vhost, queue, arguments, transient=transient)

    async def declare(self, vhost: str, queue: str, arguments: dict[str, Any]) -> dict[str, Any]:
        check_name(queue, "queue")
        check_name(vhost, "vhost")
        why = reserved(queue)
        if why is not None and self.locate(vhost, queue) is None:
            raise Refused(codes.BAD_ARGUMENT, why)
        check_placed(self.locate(vhost, queue), vhost, queue, arguments)
        unknown = unknown_argument(arguments)
        if unknown is not None:
            raise Refused(unknown.code, unknown.reason)
        reply = reply_of(await self.cluster.declare_queue(vhost, queue, arguments))
        assert isinstance(reply, Declared)
        group = self.cluster.group(reply.group)
        leader = self.cluster.leader_of(reply.group)
        name = None if group is None else group.name
        return {"created": reply.created, "leader": leader, "group": name or str(reply.group)}

    async def delete(self, vhost: str, queue: str, *, if_unused: bool, if_empty: bool) -> None:
        """Refused of one that is split: its shards would stay; and of a shard until it is joined.
        Of a shard nothing is lost if it has to be empty: it goes because its queue is one again,
        not because anybody is done with it.
        """
        info = self.locate(vhost, queue)
        why = None if info is None else undeletable(self.cluster.catalog_machine, info)
        if why is not None:
            raise Refused(codes.IN_USE, why)
        is_shard = info is not None and SHARD_OF in info.arguments
        outcome = await self.cluster.remove_queue(
            vhost,
            queue,
            if_unused=if_unused,
            if_empty=if_empty,
            if_settled=if_empty and is_shard,
        )
        reply_of(outcome)

    async def purge(self, info: QueueInfo) -> int:
        """Of one that is split all of it: whoever purges it means what its consumers would get."""
        return sum([await self.purge_alone(each) for each in self.parts(info)])

    async def purge_alone(self, info: QueueInfo) -> int:
        """Refused of a stream: what it may lose is set with it, and looked at by its own purge."""
        if info.stream is not None:
            reason = f"{info.name} is a stream, which is not purged as a queue is"
            raise Refused(codes.WRONG_KIND, reason)
        reply = await self.ask(info.group, Purge(info.queue))
        return reply.count if isinstance(reply, Ok) else 0

    async def retime(
        self, info: QueueInfo, positions: Ranges, *, due_ms: int | None, delay_ms: int | None
    ) -> int:
        """How many of these waited; they are ready at `due_ms`, or `delay_ms` from now."""
        if (due_ms is None) == (delay_ms is None):
            raise Refused(codes.BAD_ARGUMENT, "one of due_ms and delay_ms is needed")
        if delay_ms == 0:  # now, whatever the leader's clock says
            due_ms = 0
        elif delay_ms is not None:
            due_ms = await self.cluster.time.settled() + delay_ms
        assert due_ms is not None
        reply = await self.ask(info.group, Retime(info.queue, positions, due_ms))
        return reply.count if isinstance(reply, Ok) else 0

    async def pause(self, info: QueueInfo, *, paused: bool) -> None:
        """Of one that is split all of it."""
        for each in self.parts(info):
            await self.ask(each.group, Pause(each.queue, paused))

    async def info(self, info: QueueInfo) -> dict[str, Any]:
        """Linearizable: what was confirmed before the question is counted. On the leader only."""
        group = self.led(info.group)
        reply_of(await group.ask(Barrier()))
        return self.describe(info)

    def parts(self, info: QueueInfo) -> tuple[QueueInfo, ...]:
        """Where its messages are: in the queue itself and, if it is split, in its shards."""
        return info, *shards_of(self.cluster.catalog_machine, info)

    def shard_names(self, info: QueueInfo) -> list[str]:
        """Over which it is split, as far as they are there."""
        return [shard.name for shard in self.parts(info)[1:]]

    def describe(self, info: QueueInfo) -> dict[str, Any]:
        """From this node's copy, when it has one: perhaps a little behind."""
        about: dict[str, Any] = {
            "vhost": info.vhost,
            "name": info.name,
            "id": info.queue,
            "arguments": dict(info.arguments),
            "leader": self.leader(info),
        }
        split = split_of(self.cluster.catalog_machine, info)
        if split is not None:
            about["shards"] = list(split.shards)
        group = self.cluster.group(info.group)
        about["group"] = str(info.group) if group is None else group.name
        view = None
        if info.node is not None:
            about["members"] = [info.node]
        if group is not None:
            view = cast(QueueMachine, group.machine).queue(info.queue)
            about["members"] = list(group.members)
        if view is not None:
            about |= {
                "ready": view.ready_count,
                "unsettled": view.unsettled_count,
                "delayed": view.delayed_count,
                "messages": view.messages,
                "bytes": view.bytes,
                "removed": {
                    reason: {"dropped": each.dropped, "dead_lettered": each.dead_lettered}
                    for reason, each in sorted(view.removed.items())
                },
                "paused": view.paused,
                "consumers": [asdict(consumer) for consumer in view.consumers],
            }
        return about

    async def peek(
        self,
        info: QueueInfo,
        *,
        start: int,
        count: int,
        state: RowState | None = None,
        plain: bool = True,
    ) -> list[dict[str, Any]]:
        """Messages from position `start` on, all or those in this state, looked at without taking
        them; `meta` as a map, unless it is not to be `plain`. On the leader only.
        """
        if not 1 <= count <= PEEK_COUNT_MAX:
            raise Refused(codes.BAD_ARGUMENT, f"count must be from 1 to {PEEK_COUNT_MAX}")
        group = self.led(info.group)
        reply_of(await group.ask(Barrier()))
        rows: list[dict[str, Any]] = []
        budget = GET_BYTES_MAX
        for row in self.machine(info.group).browse(info.queue, start, count, state):
            found = await group.load_bodies(row.chunk.bodies)
            if not found:
                continue  # settled while others were read
            ((body, meta),) = found
            if rows and len(body) > budget:
                break
            if isinstance(body, LargeBody) and may_be_whole(body):
                joined = await whole(group, body)
                if joined is None:
                    continue
                body = joined
            budget -= len(body.head) if isinstance(body, LargeBody) else len(body)
            rows.append(
                {
                    "message": message_id(info.group, row.chunk.bodies),
                    "position": row.position,
                    "state": row.state,
                    "body": body.head if isinstance(body, LargeBody) else body,
                    "bytes": len(body),
                    "meta": as_map(meta) if plain else meta,
                    "delivery_count": row.chunk.delivery_count,
                    "acquired_count": row.chunk.acquired_count,
                    "deaths": row.chunk.deaths,
                    "enqueued_ms": row.enqueued_ms,
                    "expires_at_ms": row.expires_at_ms,
                    "due_ms": row.due_ms,
                    "priority": row.priority,
                    "consumer": row.consumer,
                }
            )
        return rows

    # --- messages ---------------------------------------------------------------------------------

    async def spread(
        self,
        access: Access | None,
        info: QueueInfo,
        publisher: str | None,
        seqno: int,
        bodies: Sequence[bytes],
        meta: Any,
        attrs: Any,
        large: Large | None = None,
    ) -> list[Part]:
        """As `Ingress.spread`. Numbers that a queue had before it was split it has still, so that
        what is sent again is not stored twice.
        """
        given = publisher, seqno, bodies, meta, attrs, large
        numbered = publisher is not None and seqno and bodies
        if numbered and self.ingress.router.is_split(info):
            try:
                await self.ask(info.group, Enqueue(info.queue, publisher, 0, []))
            except Refused as refused:
                expected = refused.detail if refused.code == codes.OUT_OF_SEQUENCE else None
                if type(expected) is int and expected >= seqno + len(bodies):
                    command, size_bytes = self.ingress.batch(access, info, *given)
                    return [Part(info, command, size_bytes, range(len(bodies)))]
        return self.ingress.spread(access, info, *given)

    async def store(self, parts: Sequence[Part]) -> Enqueued:
        """What became of a batch, whose places the parts have. Of several queues there is no first
        position; what one of them surely did not take is as what a full one refused.
        """
        if len(parts) == 1:
            reply = await self.ask(parts[0].info.group, parts[0].command)
            assert isinstance(reply, Enqueued)
            return reply
        asked = [self.ask(part.info.group, part.command) for part in parts]
        replies = await asyncio.gather(*asked, return_exceptions=True)
        stored = duplicates = 0
        refused: list[int] = []
        failed: BrokerError | None = None
        for part, reply in zip(parts, replies, strict=True):
            if isinstance(reply, OutcomeUnknown):
                raise reply
            if isinstance(reply, BrokerError):
                failed = failed or reply
                refused += part.places
                continue
            if isinstance(reply, BaseException):
                raise reply
            assert isinstance(reply, Enqueued)
            stored += reply.stored
            duplicates += reply.duplicates
            refused += [
                part.places[place]
                for first, last in reply.refused
                for place in range(first, last + 1)
            ]
        if failed is not None and not stored and not duplicates:
            raise failed
        return Enqueued(0, stored, duplicates, ranges_of(sorted(refused)))

    def subscribe_command(
        self,
        queue: QueueId,
        session: SessionId,
        tag: str,
        *,
        credit: int | None,
        priority: int = 0,
        exclusive: bool = False,
        timeout_ms: int | None = None,
    ) -> Subscribe:
        if credit is None:
            credit = self.limits.credit_default
        check_credit(credit)
        if len(tag.encode()) > NAME_BYTES_MAX:
            raise Refused(codes.BAD_ARGUMENT, f"a tag has at most {NAME_BYTES_MAX} bytes")
        return Subscribe(queue, session, tag, credit, priority, exclusive, False, timeout_ms)

    async def get(
        self,
        info: QueueInfo,
        session: SessionId,
        *,
        count: int,
        auto_settle: bool,
        positions: Ranges = (),
        in_parts: bool = False,
        lost_after: ConsumerKey | None = None,
    ) -> tuple[ConsumerKey, int, list[MessageBatch]]:
        """Take messages once: (consumer to settle with, still ready, the messages). On the leader.
        The next ones, or those of these positions that wait, ready or delayed.

        What does not fit into one answer is given back at once. With `auto_settle` the messages
        are settled once they are read, so a crash in between redelivers them; those with a large
        body are for the caller to settle, when it is read. Without `in_parts` only those bodies
        are in parts that may not travel whole.

        `lost_after`: the same was asked before, and nobody knows what became of it. It was the only
        one since the session got an answer with that key; if it took something, that is given.
        """
        self.check_count(count)
        group = self.led(info.group)
        reply: codes.Reply | None = None
        if lost_after is not None:
            reply_of(await group.ask(Barrier()))
            reply = self._got_after(info, session, lost_after)
        if reply is None:
            reply = reply_of(await group.ask(Get(info.queue, session, count, positions=positions)))
        assert isinstance(reply, Got)
        batches: list[MessageBatch] = []
        taken: list[tuple[int, int]] = []
        over: list[tuple[int, int]] = []
        budget = GET_BYTES_MAX
        for chunk in reply.chunks:
            if budget <= 0:
                over.append((chunk.first, chunk.first + chunk.bodies.count - 1))
                continue
            bodies = await group.load_bodies(chunk.bodies)
            if bodies and not in_parts and isinstance(large := bodies[0][0], LargeBody):
                bodies = await _joined(group, large, bodies[0][1])
            count = fitting(bodies, budget)
            if count < len(bodies):
                budget = 0  # what is behind them must not come before them
            if count < chunk.bodies.count:
                over.append((chunk.first + count, chunk.first + chunk.bodies.count - 1))
            if count:
                bodies = bodies[:count]
                budget -= sum(len(body) for body, _ in bodies)
                if type(bodies[0][0]) is not LargeBody:
                    taken.append((chunk.first, chunk.first + count - 1))
                batches.append(batch_of(chunk, bodies))
        token = max([chunk.token for chunk in reply.chunks], default=0)
        if over:
            unseen = Return(
                info.queue, reply.consumer, joined(sorted(over)), token=token, unsent=True
            )
            self.settle_retry.settle(info.group, unseen, by_client=False)
        if auto_settle and taken:
            settled = Settle(info.queue, reply.consumer, joined(sorted(taken)), token)
            self.settle_retry.settle(info.group, settled, by_client=False)
        given_back = sum(last - first + 1 for first, last in over)
        return reply.consumer, reply.ready + given_back, batches

    def _got_after(self, info: QueueInfo, session: SessionId, after: ConsumerKey) -> Got | None:
        machine = self.machine(info.group)
        key = machine.got_after(info.queue, session, after)
        view = None if key is None else machine.queue(info.queue)
        if key is None or view is None:
            return None
        return Got(key, self.holds(info.group, info.queue, key), view.ready_count)

    def check_count(self, count: int) -> None:
        if not 1 <= count <= self.limits.get_count_max:
            raise Refused(
                codes.BAD_ARGUMENT, f"count must be from 1 to {self.limits.get_count_max}"
            )


async def _joined(group: GroupLike, body: LargeBody, meta: Any) -> list[tuple[Body, Any]]:
    """It is alone in its chunk."""
    if not may_be_whole(body):
        return [(body, meta)]
    joined = await whole(group, body)
    return [] if joined is None else [(joined, meta)]


def message_id(group: GroupId, body: BodyRef) -> str | None:
    """None: nothing is written of the messages of transient queues."""
    return None if group >= TRANSIENT_GROUPS else str(MessageId(group, body.index, body.offset))


# --- rules ----------------------------------------------------------------------------------------


def reserved(name: str) -> str | None:
    """Why nobody may make a queue of this name, in RabbitMQ's words; None: anybody may."""
    if not name.startswith(RESERVED_PREFIX):
        return None
    return f"queue name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'"


def check_shared(info: QueueInfo) -> None:
    """Not a queue that belongs to a connection."""
    if info.exclusive:
        raise Refused(
            codes.EXCLUSIVE_OWNER,
            f"cannot obtain exclusive access to locked queue '{info.name}' in vhost"
            f" '{info.vhost}': it belongs to the connection that declared it",
        )


def check_credit(credit: int) -> None:
    if not 0 <= credit <= CREDIT_MAX:
        raise Refused(codes.BAD_ARGUMENT, f"credit is from 0 (no limit) to {CREDIT_MAX}")


def with_type(
    catalog: CatalogMachine,
    vhost: str,
    queue: str,
    arguments: Mapping[str, Any],
    *,
    transient: str | None,
) -> dict[str, Any]:
    """What RabbitMQ's clients declare: of their vhost's kind of queue when they name none.

    `transient`: what keeps the queue from being replicated (`transient_by`). Refused with a
    type that promises replication; the vhost's default counts only where it can be kept.
    """
    entry = catalog.entry("vhosts", (vhost,)) or {}
    default = CLASSIC if transient else entry.get("default_queue_type") or CLASSIC
    kind = arguments.get(QUEUE_TYPE, default)
    if transient and kind in (QUORUM, STREAM):
        raise Refused(codes.BAD_ARGUMENT, _not_replicated(vhost, queue, transient, kind))
    return {**arguments, QUEUE_TYPE: kind}


def transient_by(*, durable: bool, exclusive: bool, auto_delete: bool, named: bool) -> str | None:
    """The property that keeps a queue on one node, in RabbitMQ's word for it; None: replicated."""
    if not named:
        return "server-named"
    if auto_delete:
        return "auto-delete"
    if exclusive:
        return "exclusive-owner"
    return None if durable else "non-durable"


def check_placed(
    known: QueueInfo | None, vhost: str, queue: str, arguments: Mapping[str, Any]
) -> None:
    """Refused: an argument that says nothing about its type of queue. What the queue has already,
    of an import or an earlier release, may be said again.
    """
    for name in misplaced(arguments):
        if known is None or name not in known.arguments:
            reason = misplacement(name, queue_text(vhost, queue), arguments)
            raise Refused(codes.BAD_ARGUMENT, reason)


def _not_replicated(vhost: str, queue: str, transient: str, kind: str) -> str:
    if transient == "server-named":
        return f"Cannot declare a server-named queue for type rabbit_{kind}_queue"
    return f"invalid property '{transient}' for queue '{queue}' in vhost '{vhost}'"
