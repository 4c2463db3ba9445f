"""Carries out what the dispatcher decides: proposals into groups, frames into connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, assert_never, cast

import structlog

from cluster.groups.cold_reads import Arrived
from cluster.groups.group import Group, Outcome, Role
from cluster.groups.group_like import GroupLike
from cluster.machine import QueueMachine
from cluster.machine.commands import Command, Enqueue, Settle
from cluster.machine.effects import Effect
from cluster.machine.replies import OVERLOADED
from cluster.types import Body, BodyRef, ConsumerKey, GroupId, QueueId, SessionId, Stamp
from node.broker.broker import Broker
from node.dispatch.dispatch import Dispatcher
from node.dispatch.outgoing import Outgoing
from node.dispatch.plan import (
    ConnectionId,
    Detached,
    Drained,
    DropQueue,
    Fetch,
    MoveDeadLetters,
    PauseReading,
    Propose,
    ResumeReading,
    Send,
    SessionOver,
    TellDeaths,
    Ticket,
    Unreadable,
)
from node.dispatch.progress import DeliveryProgress
from node.tasks import Tasks

log = structlog.get_logger(__name__)

#: Deaths by the delivery limit are logged so often for one queue.
DEATHS_LOG_S = 10.0


class Sink(Protocol):
    """Where the frames of one connection go: to a `ClientSession`, or by the relay to another node.
    None of these may block or raise.
    """

    def send(self, frame: Outgoing) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def detached(self, event: Detached) -> None:
        """A consumer of this connection has to find its queue's new leader."""
        ...

    def drained(self, event: Drained) -> None:
        """A cancelled consumer has got all that it holds."""
        ...


class Traffic:
    """One per node: the dispatcher's arms and legs."""

    def __init__(self, broker: Broker, tasks: Tasks) -> None:
        limits = broker.limits
        self.dispatcher = Dispatcher(
            self._read_bodies,
            in_flight_bytes_max=limits.in_flight_bytes_max,
            deliver_buffer_bytes_max=limits.deliver_buffer_bytes_max,
            counts=broker.counts,
            now_s=lambda: asyncio.get_running_loop().time(),
            on_first_delivery=self._first_delivery,
        )
        self.on_session_over: list[Callable[[GroupId, SessionId, str], None]] = []
        self.on_dead_letters: list[Callable[[GroupId, QueueId], None]] = []
        self._broker = broker
        self._cluster = broker.cluster
        self._tasks = tasks
        self._sinks: dict[ConnectionId, Sink] = {}
        self._next_connection = 0
        self._flush_due = False
        self._deaths: dict[tuple[GroupId, QueueId], int] = {}  # not logged yet
        self._cluster.on_effects.append((None, self._effects))
        self._cluster.on_role.append(self._role)

    # --- connections ------------------------------------------------------------------------------

    def open(self, sink: Sink) -> ConnectionId:
        self._next_connection += 1
        connection = ConnectionId(self._next_connection)
        self._sinks[connection] = sink
        self.dispatcher.opened(connection)
        return connection

    def close(self, connection: ConnectionId) -> None:
        self._sinks.pop(connection, None)
        self.dispatcher.closed(connection)

    def taken(self, connection: ConnectionId, size_bytes: int) -> None:
        self.dispatcher.taken(connection, size_bytes)
        if self.dispatcher.confirming or self.dispatcher.delivering:
            self._schedule_flush()

    # --- requests ---------------------------------------------------------------------------------

    def publish(
        self,
        connection: ConnectionId,
        request: int,
        group: GroupId,
        queue: str,
        command: Enqueue,
        size_bytes: int,
    ) -> None:
        self.dispatcher.publish(connection, request, group, queue, command, size_bytes)
        self._perform()

    def announce(
        self,
        connection: ConnectionId,
        group: GroupId,
        queue: QueueId,
        name: str,
        consumer: ConsumerKey,
        *,
        progress: DeliveryProgress | None = None,
        auto_settle: bool = False,
        active: bool = True,
    ) -> None:
        """Deliver to this connection what the consumer gets. Raises Elsewhere when this node does
        not lead the group, or is not up to date yet.
        """
        holds = self._broker.holds(group, queue, consumer)
        machine = self._broker.machine(group)
        self.dispatcher.announced(
            connection,
            group,
            queue,
            name,
            consumer,
            holds=holds,
            progress=progress,
            auto_settle=auto_settle,
            active=active,
            windowed=machine.is_windowed(queue, consumer),
            is_large=partial(machine.is_large, queue),
        )
        self._perform()

    def cancelled(self, queue: QueueId, consumer: ConsumerKey) -> None:
        self.dispatcher.cancelled(queue, consumer)
        self._perform()

    # --- what the cluster tells -------------------------------------------------------------------

    def _effects(self, group: GroupLike, stamp: Stamp, effects: Sequence[Effect]) -> None:
        self.dispatcher.effects(group.id, effects)
        self._perform()

    def _role(self, group: Group, role: Role, term: int) -> None:
        if group.id not in self._cluster.groups or group is self._cluster.catalog:
            return
        if role is Role.LEADER:
            self.dispatcher.effects(group.id, group.machine.on_leader())
        else:
            self.dispatcher.follows(group.id)
        self._perform()

    def _read_bodies(self, group: GroupId, ref: BodyRef) -> Sequence[tuple[Body, Any]] | None:
        found = self._cluster.group(group)
        return [] if found is None else found.read_bodies(ref)

    def _first_delivery(self, group_id: GroupId, index: int, count: int) -> None:
        group = self._cluster.group(group_id)
        age_s = None if group is None else group.age_s(index)
        if age_s is not None:
            self.dispatcher.counts.latencies.delivered.add(max(0.0, age_s), count)

    # --- carrying out -----------------------------------------------------------------------------

    def _perform(self) -> None:
        dispatcher = self.dispatcher
        for output in dispatcher.take():
            match output:
                case Send(connection, frame):
                    sink = self._sinks.get(connection)
                    if sink is not None:
                        sink.send(frame)
                case Propose(group, command, ticket):
                    self._propose(group, command, ticket)
                case PauseReading(connection):
                    if connection in self._sinks:
                        self._sinks[connection].pause_reading()
                case ResumeReading(connection):
                    if connection in self._sinks:
                        self._sinks[connection].resume_reading()
                case Detached(connection):
                    if connection in self._sinks:
                        self._sinks[connection].detached(output)
                case Drained(connection):
                    if connection in self._sinks:
                        self._sinks[connection].drained(output)
                case SessionOver(group, session, reason):
                    for session_listener in self.on_session_over:
                        session_listener(group, session, reason)
                case MoveDeadLetters(group, queue):
                    for letter_listener in self.on_dead_letters:
                        letter_listener(group, queue)
                case TellDeaths(group, queue, count):
                    self._report_deaths(group, queue, count)
                case DropQueue(group, queue):
                    self._tasks.start(self._drop_queue(group, queue), name="drop_queue")
                case Fetch(group, first, last):
                    self._broker.fetch(group, first, last, partial(self._fetched, group, first))
                case Unreadable(group, name, chunk):
                    log.info("delivery_outdated", group=group, queue=name, first=chunk.first)
                case _:
                    assert_never(output)
        if dispatcher.confirming or dispatcher.delivering:
            self._schedule_flush()

    def _fetched(self, group: GroupId, first: int, arrived: Arrived) -> None:
        if not isinstance(arrived, BaseException):  # else the node ends
            self.dispatcher.fetched(group, first)
            self._perform()

    def _schedule_flush(self) -> None:
        """Once an iteration of the loop: all that it confirms leaves together."""
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self.dispatcher.flush()
        self._perform()

    def _propose(self, group_id: GroupId, command: Command, ticket: Ticket | None) -> None:
        if ticket is not None:
            self._cluster.propose(group_id, command, partial(self._outcome, ticket))
        elif type(command) is Settle:
            self._broker.settle_retry.settle(group_id, command, by_client=False)
        else:
            self._cluster.retries.propose(group_id, command, _ignore, ends=_has_come)

    def _outcome(self, ticket: Ticket, outcome: Outcome) -> None:
        self.dispatcher.outcome(ticket, outcome)
        self._perform()

    def _report_deaths(self, group: GroupId, queue: QueueId, count: int) -> None:
        """At once, and then no more than now and then: a poisoned queue must not fill the log."""
        ref = (group, queue)
        waiting = self._deaths.get(ref)
        self._deaths[ref] = (waiting or 0) + count
        if waiting is None:
            self._log_deaths(ref)

    def _log_deaths(self, ref: tuple[GroupId, QueueId]) -> None:
        count = self._deaths.pop(ref)
        if not count:
            return
        self._deaths[ref] = 0
        asyncio.get_running_loop().call_later(DEATHS_LOG_S, self._log_deaths, ref)
        group = self._cluster.group(ref[0])
        view = None if group is None else cast(QueueMachine, group.machine).queue(ref[1])
        if view is not None:
            log.warning(
                "delivery_limit_reached",
                vhost=view.vhost,
                queue=view.name,
                messages=count,
                limit=view.config.delivery_limit,
                dead_lettered=view.config.dead_letter_exchange is not None,
                next="look at the consumers: these deliveries failed again and again",
            )

    async def _drop_queue(self, group: GroupId, queue: QueueId) -> None:
        machine = self._broker.machine(group)
        view = machine.queue(queue)
        if view is not None:
            log.info("queue_expired", vhost=view.vhost, queue=view.name)
            # Somebody may have come back to it since: then it stays, and expires another time. One
            # that the catalog lost has a name that may be another queue's.
            await self._cluster.remove_queue(view.vhost, view.name, if_unused=True, queue=queue)


def _has_come(outcome: Outcome) -> bool:
    """How far a window is, is said again by itself whenever its consumer finds a new leader."""
    return outcome.code != OVERLOADED


def _ignore(_: Outcome) -> None: ...
