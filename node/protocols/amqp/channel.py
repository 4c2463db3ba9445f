"""One channel: methods in their order, what waits and what does not, and its end.

Most methods are done at once. One that must ask the cluster holds back those behind it on the same
channel, and no other channel.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import structlog
from pamqp import base, commands

from cluster.machine import replies as codes
from cluster.machine.catalog import QueueInfo
from node.errors import BrokerError, Elsewhere, OutcomeUnknown, Refused
from node.messages.amqp_errors import (
    INTERNAL_ERROR,
    PRECONDITION_FAILED,
    AmqpError,
    ChannelError_,
    ConnectionError_,
)
from node.protocols.amqp import methods, writer
from node.protocols.amqp.channel_context import ChannelHost
from node.protocols.amqp.declares_ahead import DeclaresAhead
from node.protocols.amqp.deliveries import Deliveries
from node.protocols.amqp.events import Acks, ChannelEvent, ContentTooLarge, Method, Publish
from node.protocols.amqp.handlers import begin
from node.protocols.amqp.publishes import Publishes, weigh
from node.protocols.amqp.refusals import refusal
from node.protocols.amqp.services import AmqpServices
from node.protocols.amqp.writer import Outlet

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Why a connection is not read: too much of what it published has no outcome yet.
PUBLISHES = "publishes"
#: Events that wait behind a method that waits; over it the connection is not read.
WAITING_MAX = 256
#: How long a change of leader may take before a client is told that there is none.
PATIENCE_S = 30.0
RETRY_S = 0.02
#: What came before a client's goodbye is given this long.
FINISH_S_MAX = 10.0
#: Settles on their way to a leader are given this long before the session ends.
SETTLES_S_MAX = 2.0


class Channel:
    """Of one connection."""

    def __init__(self, host: ChannelHost, number: int, services: AmqpServices) -> None:
        self.host = host
        self.number = number
        self.services = services
        self.closed = False
        self.last_queue = ""  # the queue declared last, which an empty name means
        self.publishes = Publishes(self)
        self.deliveries = Deliveries(self)
        self.outlet = Outlet(self)
        self.declares_ahead = DeclaresAhead(services.tasks)
        self.waiting: deque[tuple[ChannelEvent, int]] = deque()
        self._waiting_bytes = 0  # of messages in it
        self._busy = False
        self._task: asyncio.Task[Any] | None = None
        services.counters.channels_opened += 1

    @property
    def mode(self) -> str:
        """plain | confirm | tx: the last two exclude each other (B23)."""
        if self.publishes.confirms is not None:
            return "confirm"
        return "plain" if self.publishes.transaction is None else "tx"

    # --- in ---------------------------------------------------------------------------------------

    def receive(self, event: ChannelEvent) -> None:
        if self.closed:
            return
        if self._busy or self.waiting:
            size_bytes = weigh(event.metas, event.bodies) if type(event) is Publish else 0
            self.waiting.append((event, size_bytes))
            self._waiting_bytes += size_bytes
            self.host.in_flight.add(size_bytes)
            if len(self.waiting) == WAITING_MAX:
                self.host.pause_reading(self._why_paused)
        else:
            self._handle(event)

    def end_of_read(self) -> None:
        """All that one read held was given: what it publishes leaves."""
        if not self.closed:
            self.publishes.flush()

    def _handle(self, event: ChannelEvent) -> None:
        work: Coroutine[Any, Any, None] | None = None
        try:
            match event:
                case Publish():
                    work = self.publishes.receive(event)
                case Acks(_, ranges):
                    self.deliveries.ack(ranges)
                case Method(_, method):
                    self.publishes.flush()
                    self.deliveries.settles.flush()
                    work = begin(self, method)
                    if work is not None and self.publishes.uploading:
                        work = self._behind_publishes(work)
                case ContentTooLarge(_, size_bytes, limit_bytes):
                    what = f"{size_bytes} is larger than configured max size {limit_bytes}"
                    raise ChannelError_(PRECONDITION_FAILED, f"message size {what}", 60, 40)
        except Exception as error:  # noqa: BLE001 -- told to the client, whatever it is
            self._failed(event, error)
            return
        if work is not None:
            self._carry_out(event, work)

    def begin_with(self, work: Coroutine[Any, Any, None]) -> None:
        """What the client says meanwhile waits."""
        self._carry_out(Method(self.number, commands.Channel.Open()), work)

    def _carry_out(self, event: ChannelEvent, work: Coroutine[Any, Any, None]) -> None:
        self._busy = True
        self._task = self.services.tasks.start(self._run(event, work), name="amqp_method")
        # A channel that closes at once cancels it before its first step.
        self._task.add_done_callback(lambda _: work.close())

    @property
    def idle(self) -> bool:
        """Nothing that the client said waits."""
        return self._task is None and not self.publishes.uploading

    async def _behind_publishes(self, work: Coroutine[Any, Any, None]) -> None:
        """What asks the cluster comes after what this channel published, however large that is."""
        try:
            await self.publishes.placed()
            await work
        finally:
            work.close()

    async def _run(self, event: ChannelEvent, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 -- told to the client, whatever it is
            self._failed(event, error)
        finally:
            self._busy = False
            self._task = None
        self._go_on()

    def _go_on(self) -> None:
        waiting = self.waiting
        was_full = len(waiting) >= WAITING_MAX
        self.end_of_read()
        while waiting and not self._busy and not self.closed:
            event, size_bytes = waiting.popleft()
            self._waiting_bytes -= size_bytes
            self._handle(event)
            self.end_of_read()  # several events might be more than one command may hold
            self.host.in_flight.done(size_bytes)
        if was_full and len(waiting) < WAITING_MAX:
            self.host.resume_reading(self._why_paused)

    @property
    def _why_paused(self) -> str:
        return f"channel {self.number} waits"

    def _failed(self, event: ChannelEvent, error: Exception) -> None:
        if isinstance(error, BrokerError):
            error = refusal(error)
        elif not isinstance(error, AmqpError):  # a bug: as RabbitMQ, rather than no answer
            log.error("method_failed", channel=self.number, exc_info=error)
            error = ConnectionError_(INTERNAL_ERROR, "the node's log says more")
        if not error.class_id:
            if type(event) is Method:
                error.class_id, error.method_id = methods.method_ids(event.method)
            elif type(event) is Publish:
                error.class_id, error.method_id = 60, 40
            else:
                error.class_id, error.method_id = 60, 80
        self.fail(error)

    # --- out --------------------------------------------------------------------------------------

    def send_method(self, method: base.Frame) -> None:
        if not self.closed:
            self.outlet.write(writer.method(self.number, method))

    def fail(self, error: AmqpError) -> None:
        """Close the channel, or the connection: whichever the error is about."""
        if self.closed:
            return
        self.publishes.flush()
        if isinstance(error, ConnectionError_):
            self.host.connection_error(error)
        else:
            self.host.channel_error(self.number, error)

    def writable(self) -> None:
        self.outlet.writable()
        self.deliveries.writable()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Work beside the methods, whose failure ends the channel."""
        self.services.tasks.start(self._guarded(work), name=name)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except BrokerError as error:
            self.fail(refusal(error))

    async def patiently(
        self, work: Callable[[], Awaitable[T]], queue: QueueInfo | None = None
    ) -> T:
        """A leader that changes is a matter of time only, and so is a queue that is in the catalog
        already and not yet in its group; `work` may be done again.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            try:
                return await work()
            except (Elsewhere, OutcomeUnknown):
                if self.closed or loop.time() >= deadline:
                    raise
            except Refused as error:
                made = error.code != codes.NO_QUEUE or queue is None or not self._knows(queue)
                if made or self.closed or loop.time() >= deadline:
                    raise
            await asyncio.sleep(RETRY_S)

    def _knows(self, queue: QueueInfo) -> bool:
        catalog = self.services.broker.cluster.catalog_machine
        return catalog.queue_by_id(queue.queue) is not None

    # --- the end ----------------------------------------------------------------------------------

    async def finish(self) -> None:
        """The client closes it: what it said before is done first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S_MAX):
                while self._task is not None and not self.closed:
                    await asyncio.wait({self._task})
                self.publishes.flush()
                await self.publishes.placed()
        self.close()

    def close(self, *, lost: bool = False) -> None:
        """At once: for an error, or with its connection (`lost`: without a goodbye).

        What was published still goes to its queues; consumers end and what they hold goes back.
        """
        if self.closed:
            return
        self.publishes.flush()
        self.deliveries.settles.flush()
        self.closed = True
        self.deliveries.stop_feeds()
        self.outlet.close(lost=lost)
        self.declares_ahead.close()
        self.services.counters.channels_closed += 1
        self.waiting.clear()
        self.host.in_flight.done(self._waiting_bytes)
        self.host.resume_reading(self._why_paused)
        if self._task is not None:
            self._task.cancel()
        if self.deliveries.settles.open and not lost:
            self.services.tasks.start(self._end_settled(), name="channel_end")
        else:
            self.deliveries.end(goodbye=not lost)

    async def _end_settled(self) -> None:
        """What was acked just before the end must not come back."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLES_S_MAX):
                await self.deliveries.settles.all_decided()
        self.deliveries.end(goodbye=True)

    # --- for people -------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """As RabbitMQ's management API names it."""
        deliveries, publishes = self.deliveries, self.publishes
        confirms = publishes.confirms
        return {
            "name": f"{self.host.name} ({self.number})",
            "number": self.number,
            "session": deliveries.session,
            "vhost": self.host.vhost,
            "user": self.host.user.name,
            "confirm": confirms is not None,
            "transactional": publishes.transaction is not None,
            "state": "running",
            "consumer_count": len(deliveries.consumers),
            "prefetch_count": deliveries.prefetch,
            "global_prefetch_count": deliveries.global_prefetch,
            "messages_unacknowledged": deliveries.settles.unacked.count,
            "messages_unconfirmed": 0 if confirms is None else confirms.open,
            "messages_uncommitted": publishes.uncommitted,
            "acks_uncommitted": deliveries.settles.uncommitted,
            "consumers": [
                {
                    "consumer_tag": consumer.tag,
                    "queue": consumer.info.name,
                    "key": consumer.key,
                    "ack_required": not consumer.no_ack,
                    "exclusive": consumer.exclusive,
                    "prefetch_count": consumer.prefetch,
                    "arguments": dict(consumer.arguments),
                }
                for consumer in deliveries.every_consumer()
            ],
        }
