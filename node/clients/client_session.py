"""One client, in no protocol's words: what it asks, and its consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from cluster.groups.outcome import Outcome
from cluster.machine import replies as codes
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import (
    Cancel,
    Discard,
    HandedTo,
    OpenSession,
    Ranges,
    Return,
    SetCredit,
    Settle,
    Withdraw,
)
from cluster.machine.replies import Ok, PartKept, Subscribed
from cluster.types import ConsumerKey, GroupId, QueueId, SessionId
from node.access.permissions import Access
from node.broker.broker import Broker, Gone, check_credit
from node.broker.ingress import SPLIT_QUEUE, Large, Part
from node.broker.settle_retry import ANSWER_S_MAX, SettleCommand
from node.clients.traffic import Traffic
from node.dispatch import outgoing
from node.dispatch.dispatch import answer_of
from node.dispatch.outgoing import Outgoing
from node.dispatch.plan import Detached, Drained
from node.dispatch.progress import DeliveryProgress, Held
from node.errors import BrokerError, Elsewhere, Refused, reply_of
from node.metrics.client_counters import ProtocolCounters
from node.tasks import Tasks

T = TypeVar("T")

log = structlog.get_logger(__name__)

#: Requests of one connection that wait for an answer, publishes and settles aside.
REQUESTS_OPEN_MAX = 256


class ClientTransport(Protocol):
    """The client's end of a connection. Nothing here blocks or raises."""

    def send(self, frame: Outgoing) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, reason: str, detail: str) -> None:
        """`reason`: taken_over | session_ended | stopping."""
        ...


@dataclass(slots=True, eq=False)
class Subscription:
    """A consumer of this client: between `ChannelConsumer`, which is AMQP's, and `ConsumerState` of
    the leader's dispatcher.
    """

    info: QueueInfo
    key: ConsumerKey
    auto_settle: bool
    active: bool
    progress: DeliveryProgress = field(
        default_factory=DeliveryProgress
    )  # what this connection was sent
    cancelled: bool = False
    handed: DeliveryProgress = field(
        default_factory=DeliveryProgress
    )  # of that, what the transport was given


class ConsumerRelay(Protocol):
    """Who attaches consumers to leaders elsewhere: see `node.clients.relay`."""

    def attach(self, connection: ClientSession, consumer: Subscription) -> None: ...
    def attach_soon(self, connection: ClientSession, consumer: Subscription) -> None: ...
    def cancel(self, consumer: Subscription) -> None: ...
    def gone(self, connection: ClientSession, consumer: Subscription, why: Gone) -> None: ...
    def taken(self, attachment: int, size_bytes: int) -> None: ...
    async def get(
        self,
        info: QueueInfo,
        session: SessionId,
        *,
        count: int,
        auto_settle: bool,
        positions: Ranges = (),
        lost_after: ConsumerKey | None = None,
    ) -> tuple[ConsumerKey, int, list[outgoing.MessageBatch]]: ...
    async def info(self, info: QueueInfo) -> dict[str, Any]: ...


class ClientSession:
    """A client as the broker knows it, in no protocol's words: a native connection, or one AMQP
    channel that consumes. A *connection* of `Traffic`, the dispatcher and the relay is one of
    these. It is no socket; answers leave through `peer`. What raises BrokerError is for the client
    to be told.
    """

    def __init__(
        self,
        peer: ClientTransport,
        session: SessionId,
        *,
        broker: Broker,
        traffic: Traffic,
        relay: ConsumerRelay,
        tasks: Tasks,
        resume_ms: int,
        vhost: str,
        forward: bool,
    ) -> None:
        self.peer = peer
        self.session = session
        self.resume_ms = resume_ms
        self.vhost = vhost
        self.forward = forward
        self.closed = False
        self.quiet = False  # the node is stopping: nothing more is read
        #: Told before a consumer looks for its next leader.
        self.on_leader_lost: Callable[[Subscription], None] = _ignore
        self.consumers: dict[tuple[QueueId, ConsumerKey], Subscription] = {}
        self.groups: set[GroupId] = set()  # in which this connection opened the session
        self.moved_groups: set[GroupId] = set()  # where it was, and may be elsewhere now
        self._handed_before: dict[
            tuple[QueueId, ConsumerKey], tuple[GroupId, DeliveryProgress]
        ] = {}
        self._broker = broker
        self._traffic = traffic
        self._relay = relay
        self._tasks = tasks
        self._room = asyncio.Semaphore(REQUESTS_OPEN_MAX)
        #: What its user may do; without it all is allowed.
        self.access: Access | None = None
        #: It wants to know over which shards its queues are split; what it was told, by queue.
        self.follows_shards = False
        self.shards: dict[str, tuple[str, ...]] = {}
        #: Of a client that speaks to this connection; a channel of another protocol counts itself.
        self.counted: ProtocolCounters | None = None
        self.published = False
        self.id = traffic.open(self)

    # --- the traffic's end: frames out ------------------------------------------------------------

    def send(self, frame: Outgoing) -> None:
        if type(frame) is outgoing.Ended:
            self.forget(frame)
        if self.counted is not None:
            self._count(self.counted, frame)
        try:
            self.peer.send(frame)
        except Exception as error:  # a bug, which costs this connection, and not what is behind it
            kind = type(frame).__name__
            log.error("frame_not_written", session=self.session, frame=kind, exc_info=error)
            detail = f"this node cannot write a {kind} ({type(error).__name__}): a bug, report it"
            self.peer.close("session_ended", detail)

    def _count(self, counted: ProtocolCounters, frame: Outgoing) -> None:
        if type(frame) is outgoing.PublishConfirms:
            counted.confirmed += sum([each.stored + each.duplicates for each in frame.confirms])
        elif type(frame) is outgoing.Delivery:
            info = self._broker.locate(self.vhost, frame.queue)
            consumer = None if info is None else self.consumers.get((info.queue, frame.consumer))
            if consumer is None:
                return
            served = counted.of(consumer.info)
            for batch in frame.batches:
                redelivered = batch.acquired_count > 0
                served.consumed(
                    len(batch.bodies), auto=consumer.auto_settle, redelivered=redelivered
                )

    def pause_reading(self) -> None:
        self.peer.pause_reading()

    def resume_reading(self) -> None:
        if not self.quiet:
            self.peer.resume_reading()

    def stop_reading(self) -> None:
        """Read nothing more; answers still leave."""
        self.quiet = True
        self.peer.pause_reading()

    def taken(self, frame: outgoing.Delivery) -> None:
        """This delivery does not congest the connection, or no longer: there is room for more."""
        if frame.origin:
            self._relay.taken(frame.origin, frame.size_bytes)
        else:
            self._traffic.taken(self.id, frame.size_bytes)

    def handed(self, frame: outgoing.Delivery) -> None:
        """The transport is given this delivery: from now on it may be at the client."""
        info = self._broker.locate(self.vhost, frame.queue)
        consumer = None if info is None else self.consumers.get((info.queue, frame.consumer))
        if consumer is not None:
            for batch in frame.batches:
                consumer.handed.add(batch)

    def handed_in(self, group: GroupId) -> list[HandedTo]:
        """What the transport was given for each consumer of this group."""
        known = self._handed_before | self._handed_now()
        return [
            HandedTo(*ref, progress.mark, tuple(progress.held))
            for ref, (of_group, progress) in known.items()
            if of_group == group
        ]

    def _handed_now(self) -> dict[tuple[QueueId, ConsumerKey], tuple[GroupId, DeliveryProgress]]:
        return {ref: (each.info.group, each.handed) for ref, each in self.consumers.items()}

    def take_over(self, older: ClientSession) -> None:
        """Groups hear OpenSession again when they are used again, and goodbye in any case."""
        self.moved_groups |= older.groups | older.moved_groups
        self._handed_before = older._handed_before | older._handed_now()

    def detached(self, event: Detached) -> None:
        consumer = self.consumers.get((event.queue, event.consumer))
        if consumer is None:
            return
        consumer.progress = event.progress
        self.lost(consumer)

    def lost(self, consumer: Subscription) -> None:
        """Its leader is gone: attached to the next one, or the client is told to move."""
        if not self.closed:
            self.on_leader_lost(consumer)
            self._serve_elsewhere(consumer)

    def _serve_elsewhere(self, consumer: Subscription) -> None:
        if self.forward:
            self._relay.attach(self, consumer)
            return
        info = consumer.info
        self.consumers.pop((info.queue, consumer.key), None)
        self.groups.discard(info.group)
        self.moved_groups.add(info.group)
        if not any(queue == info.queue for queue, _ in self.consumers):
            self.peer.send(outgoing.Moved(0, info.name, self._broker.leader(info)))

    def drained(self, event: Drained) -> None:
        self.consumers.pop((event.queue, event.consumer), None)

    def forget(self, frame: outgoing.Ended) -> None:
        """The node ended this consumer."""
        for ref, consumer in list(self.consumers.items()):
            if consumer.key == frame.consumer and consumer.info.name == frame.queue:
                del self.consumers[ref]

    def ended(self, queue: QueueId, consumer: ConsumerKey) -> None:
        self.consumers.pop((queue, consumer), None)

    # --- requests ---------------------------------------------------------------------------------

    def answer(self, request: int, value: Any = None) -> None:
        self.peer.send(outgoing.RequestAnswer(request, value))

    def fail(self, request: int, queue: str, error: BrokerError) -> None:
        if isinstance(error, Elsewhere):
            self.peer.send(outgoing.Moved(request, queue, error.leader))
        else:
            self.peer.send(outgoing.Failure(request, error.code, error.reason, error.detail))

    async def run(
        self, request: int, queue: str, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Work that waits, beside the other requests. Waits itself while too much is open."""
        await self._room.acquire()
        self._tasks.start(self._guarded(request, queue, work), name="request")

    async def _guarded(
        self, request: int, queue: str, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await work()
        except BrokerError as error:
            self.fail(request, queue, error)
        finally:
            self._room.release()

    def _check_here(self, info: QueueInfo) -> None:
        if self.forward:
            return  # whoever proposes looks for the leader
        leader = self._broker.leader(info)
        if leader != self._broker.cluster.node:
            raise Elsewhere(leader)

    def publish(
        self,
        request: int,
        info: QueueInfo,
        publisher: str | None,
        seqno: int,
        bodies: Sequence[bytes],
        meta: Any,
        attrs: Any,
        large: Large | None = None,
    ) -> None:
        """One batch becomes one command; its confirm comes when it is safe."""
        if self.closed:
            return  # taken over while this waited to be read: the client asks again elsewhere
        self._check_here(info)
        command, size_bytes = self._broker.ingress.batch(
            self.access, info, publisher, seqno, bodies, meta, attrs, large
        )
        if self.counted is not None:
            self.published = True
            self.counted.published(bodies, routed=len(bodies), confirm=request != 0)
        self._traffic.publish(self.id, request, info.group, info.name, command, size_bytes)

    async def publish_spread(
        self, request: int, bodies: Sequence[bytes], parts: Sequence[Part]
    ) -> None:
        """A batch without numbers, to the shards of a queue that is split."""
        broker = self._broker
        if self.counted is not None:
            self.published = True
            self.counted.published(bodies, routed=len(bodies), confirm=request != 0)
        broker.counts.published += len(bodies)
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        async with broker.ingress.room.of(sum([part.size_bytes for part in parts])):
            reply = await broker.store(parts)
        broker.counts.stored("native", reply, loop.time() - since_s)
        said = reply.first, reply.stored, reply.duplicates, reply.refused
        self.send(outgoing.PublishConfirms([outgoing.Confirm(request, *said)]))

    async def publish_part(
        self, request: int, info: QueueInfo, upload: str, number: int, data: bytes
    ) -> None:
        """Of a large body; a publish names all its parts later."""
        self._check_here(info)
        command = self._broker.ingress.part(info, upload, number, data)
        reply = await self._broker.ask(info.group, command)
        assert isinstance(reply, PartKept)
        self.answer(request, [reply.index, reply.offset])

    def settle(self, request: int, info: QueueInfo, command: SettleCommand) -> None:
        if self.closed:
            return
        self._check_here(info)
        if isinstance(command, Settle | Return | Discard):
            self._traffic.dispatcher.settled(command)
        elif isinstance(command, SetCredit):
            check_credit(command.credit)
        self._broker.settle_retry.settle(
            info.group,
            command,
            partial(self._settled, request, info.name),
            within_s=ANSWER_S_MAX,
            redirected=not self.forward,
            served=None if self.counted is None else self.counted.of(info),
        )

    def _settled(self, request: int, queue: str, outcome: Outcome) -> None:
        """Who wants no answer is told of a refusal all the same."""
        frame = answer_of(request, queue, outcome)
        if not self.closed and (request or not isinstance(frame, outgoing.RequestAnswer)):
            self.peer.send(frame)

    # --- requests that wait -----------------------------------------------------------------------

    async def _in_session(self, group: GroupId, work: Callable[[], Awaitable[T]]) -> T:
        """Work that needs the session in the group: opened first, again if it died there."""
        cluster = self._broker.cluster
        while True:
            if self.closed:  # opened now, it would stay open with nobody to close it
                raise Refused("closed", "the connection is closed")
            fresh = group not in self.groups
            if fresh:
                self.groups.add(group)
                opening = OpenSession(
                    self.session, cluster.node, cluster.links.incarnation, self.resume_ms
                )
                reply_of(await cluster.ask(group, opening))
            try:
                return await work()
            except Refused as error:
                if error.code != codes.NO_SESSION or fresh:
                    raise
                self.groups.discard(group)

    async def subscribe(
        self,
        request: int,
        info: QueueInfo,
        tag: str,
        *,
        credit: int | None,
        priority: int = 0,
        exclusive: bool = False,
        auto_settle: bool = False,
        timeout_ms: int | None = None,
        held: Held = (),
    ) -> None:
        """Register, or find again under the same tag what was registered before a break.

        With `auto_settle` the node settles what the network took: the credit then bounds what is on
        its way, and a slow client slows its queue instead of filling memory.
        """
        self._check_here(info)
        if len(self.consumers) >= self._broker.limits.consumers_max:
            most = self._broker.limits.consumers_max
            raise Refused("too_many_consumers", f"a connection has at most {most} consumers")
        command = self._broker.subscribe_command(
            info.queue,
            self.session,
            tag,
            credit=(credit or None) if auto_settle else credit,
            priority=priority,
            exclusive=exclusive,
            timeout_ms=timeout_ms,
        )
        reply = await self._in_session(info.group, lambda: self._broker.ask(info.group, command))
        assert isinstance(reply, Subscribed)
        if self.closed:
            return
        self.peer.send(outgoing.SubscribeAnswer(request, reply.consumer, reply.active))
        ref = (info.queue, reply.consumer)
        consumer = Subscription(
            info,
            reply.consumer,
            auto_settle,
            reply.active,
            DeliveryProgress(held=held),
            handed=self._handed_before.pop(ref, (info.group, DeliveryProgress(held=held)))[1],
        )
        self.consumers[ref] = consumer
        self.start_delivering(consumer)

    def tell_shards(self, info: QueueInfo) -> None:
        """If it does not know already over which shards this queue is split."""
        names = tuple(self._broker.shard_names(info))
        if self.follows_shards and names != self.shards.get(info.name, ()):
            self.shards[info.name] = names
            self.peer.send(outgoing.Shards(info.name, names))

    def start_delivering(self, consumer: Subscription) -> None:
        """From this node's own copy when it leads, else through the relay."""
        info, key = consumer.info, consumer.key
        try:
            why = self._broker.gone(info.group, info.queue, key, self.session)
            if why is not None:
                self._broker.confirm_gone(
                    info.group,
                    info.queue,
                    key,
                    self.session,
                    lambda why: self._confirmed_gone(consumer, why),
                )
                return
            self._traffic.announce(
                self.id,
                info.group,
                info.queue,
                info.name,
                key,
                progress=consumer.progress,
                auto_settle=consumer.auto_settle,
                active=consumer.active,
            )
            if consumer.cancelled:
                self._traffic.cancelled(info.queue, key)
        except Elsewhere:  # it has no leader to lose yet
            if not self.closed:
                self._serve_elsewhere(consumer)

    def _confirmed_gone(self, consumer: Subscription, why: Gone | None) -> None:
        if self.closed or self.consumers.get((consumer.info.queue, consumer.key)) is not consumer:
            return
        if why is not None:
            self._relay.gone(self, consumer, why)
        elif self.forward:
            self._relay.attach_soon(self, consumer)
        else:
            self._serve_elsewhere(consumer)

    async def cancel(
        self, request: int, info: QueueInfo, consumer: int, *, give_back: bool = False
    ) -> None:
        """Needs no session here, so that a client that is done can say it to whoever leads."""
        self._check_here(info)
        key = ConsumerKey(consumer)
        await self._broker.ask(info.group, Cancel(info.queue, key, give_back))
        known = self.consumers.get((info.queue, key))
        if known is not None:
            known.cancelled = True
            self._relay.cancel(known)
            self._traffic.cancelled(info.queue, key)
        self.answer(request)

    async def withdraw(self, request: int, info: QueueInfo, positions: Ranges) -> None:
        """All of these, which wait, leave the queue; or none."""
        self._check_here(info)
        reply = await self._broker.ask(info.group, Withdraw(info.queue, positions))
        self.answer(request, reply.count if isinstance(reply, Ok) else 0)

    async def retime(
        self,
        request: int,
        info: QueueInfo,
        positions: Ranges,
        *,
        due_ms: int | None,
        delay_ms: int | None,
    ) -> None:
        """Answers how many of these waited; they are ready then."""
        self._check_here(info)
        self.answer(
            request,
            await self._broker.retime(info, positions, due_ms=due_ms, delay_ms=delay_ms),
        )

    async def get(
        self,
        request: int,
        info: QueueInfo,
        count: int,
        *,
        auto_settle: bool,
        positions: Ranges = (),
        shards: Sequence[str] = (),
        lost_after: ConsumerKey | None = None,
    ) -> None:
        """The next ones, or those of these positions that wait. `shards`: where there may be some,
        if there are none in the queue itself. `lost_after`: see `Broker.get`.
        """
        self._check_here(info)
        self._broker.check_count(count)
        get = self._relay.get
        if self._broker.leads(info.group):
            get = partial(self._broker.get, in_parts=True)
        key, ready, batches = await self._in_session(
            info.group,
            lambda: get(
                info,
                self.session,
                count=count,
                auto_settle=auto_settle,
                positions=positions,
                lost_after=lost_after,
            ),
        )
        if shards and not batches:
            raise only_in_shards(info, shards)
        if self.counted is not None:
            self.counted.of(info).got(batches, auto=auto_settle)
        self.peer.send(outgoing.GetAnswer(request, info.name, key, ready, batches, auto_settle))

    async def declare(self, request: int, queue: str, arguments: dict[str, Any]) -> None:
        self.answer(request, await self._broker.declare(self.vhost, queue, arguments))

    async def delete(self, request: int, queue: str, *, if_unused: bool, if_empty: bool) -> None:
        await self._broker.delete(self.vhost, queue, if_unused=if_unused, if_empty=if_empty)
        self.answer(request)

    async def purge(self, request: int, info: QueueInfo) -> None:
        self._check_here(info)
        self.answer(request, await self._broker.purge(info))

    async def pause(self, request: int, info: QueueInfo, *, paused: bool) -> None:
        self._check_here(info)
        await self._broker.pause(info, paused=paused)
        self.answer(request)

    async def info(self, request: int, info: QueueInfo) -> None:
        self._check_here(info)
        here = self._broker.leads(info.group)
        about = self._broker.info(info) if here else self._relay.info(info)
        self.answer(request, await about)


def only_in_shards(info: QueueInfo, names: Sequence[str]) -> Refused:
    """Nothing waits in a queue itself that is split."""
    return Refused(
        SPLIT_QUEUE,
        f"nothing waits in {info.name} itself, which is split: get from each of {', '.join(names)}",
        list(names),
    )


def _ignore(_: Subscription) -> None: ...
