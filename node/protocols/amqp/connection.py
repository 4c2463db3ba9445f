"""One client's connection: the handshake, its channels, and its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, Protocol, cast

import structlog
from pamqp import base, commands

from node.access.auth import User
from node.access.permissions import Access
from node.broker.bodies import message_bytes_max
from node.clients.clients import Clients
from node.dispatch.in_flight import InFlight
from node.messages.amqp_errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    CONNECTION_FORCED,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    AmqpError,
    ConnectionError_,
)
from node.protocols.amqp import closing, writer
from node.protocols.amqp.admission import Admission
from node.protocols.amqp.channel import PUBLISHES, Channel
from node.protocols.amqp.channel_context import ChannelHost
from node.protocols.amqp.events import ChannelEvent, Event, Heartbeat, Method, Publish
from node.protocols.amqp.handshake import FRAME_BYTES_MIN, Terms
from node.protocols.amqp.methods import made, method_ids
from node.protocols.amqp.opening import Opening
from node.protocols.amqp.phase import Phase
from node.protocols.amqp.reader import Reader
from node.protocols.amqp.services import AmqpServices
from node.protocols.amqp.wire import Wire
from node.protocols.ends import LOCAL, LOCAL_ENDS, Ends
from node.protocols.tls import certificate_user

log = structlog.get_logger(__name__)

ALARM: Final = "alarm"
#: How long a client may take to answer the close of a connection.
CLOSE_S_MAX: Final = 5.0


class Home(Protocol):
    """Where connections are registered: see `node.protocols.amqp.server`."""

    services: AmqpServices
    offer: Terms
    admission: Admission
    clients: Clients
    make_channel: Callable[[ChannelHost, int, AmqpServices], Channel]

    @property
    def server_properties(self) -> Mapping[str, Any]: ...
    def next_id(self) -> str: ...
    def add(self, connection: AmqpConnection) -> bool:
        """False: there are too many."""
        ...

    def remove(self, connection: AmqpConnection) -> None: ...


class AmqpConnection(asyncio.Protocol):
    """Bytes come in, channels answer; all that a channel may use is a method here, or bound."""

    def __init__(self, home: Home, local_user: str | None = None) -> None:
        """`local_user`: who the node itself says it is."""
        self.id = home.next_id()
        self.name = ""
        self.user = User("")
        self.access: Access
        self.vhost = ""
        self.frame_max = FRAME_BYTES_MIN
        self.client_capabilities: Mapping[str, Any] = {}
        self.exclusive_queues: dict[str, None] = {}
        self.channels: dict[int, Channel] = {}
        self.phase = Phase.STARTING
        self.ends: Ends
        self.opening: Opening
        self.wire: Wire
        self.write: Callable[..., None]  # of the wire: see there
        self.connected_at_ms = int(time.time() * 1000)
        self.is_publisher = False
        self.blocked = False
        self._held: list[Event] = []  # read before it was known that they have to wait
        self._home = home
        self._services = home.services
        self.in_flight = InFlight(
            home.services.settings.limits.in_flight_bytes_max,
            pause=partial(self.pause_reading, PUBLISHES),
            resume=partial(self.resume_reading, PUBLISHES),
        )
        self.reader = Reader(
            frame_bytes_max=FRAME_BYTES_MIN,
            channel_max=home.offer.channel_max,
            message_bytes_max=0,  # until somebody has logged in
        )
        self._local_user = local_user
        self._closing_channels: set[int] = set()
        self._closed_by_client: set[int] = set()  # frames may still be in flight
        self._lingering: dict[int, Channel] = {}  # closed, in the middle of a large body
        self._channels_in_question = 0
        self._timer: asyncio.TimerHandle | None = None
        self._close_ok = closing.Search()
        self._lost = False

    # --- for limits and listings ------------------------------------------------------------------

    @property
    def user_name(self) -> str:
        return self.user.name

    @property
    def channel_count(self) -> int:
        return len(self.channels) - self._channels_in_question

    # --- asyncio ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        settings = self._services.settings
        self.ends = Ends.of(transport) if self._local_user is None else LOCAL_ENDS
        self.name = str(self.ends) if self._local_user is None else f"{LOCAL} {self.id}"
        self.wire = Wire(transport, buffer_bytes_max=settings.limits.deliver_buffer_bytes_max)
        self.write = self.wire.write
        user = self._local_user or certificate_user(transport)
        self.opening = Opening(self, self._home, user)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(
            settings.amqp_options.handshake_ms_max / 1000, self._too_late, "handshake"
        )
        if not self._home.add(self):
            log.warning("connections_max", connection=self.name)
            self.wire.abort()

    def data_received(self, data: bytes) -> None:
        self.wire.received(len(data))
        if self.phase is Phase.RUNNING:
            events = self.reader.feed(data)
            self.receive(events)
            if self.reader.error is not None:
                self.connection_error(self.reader.error)
        elif self.phase is Phase.STARTING:
            self.opening.receive(data)
        elif self.phase is Phase.CLOSING and self._close_ok.found_in(data):
            self.wire.close()

    def connection_lost(self, exc: Exception | None) -> None:
        gracefully = self.phase in {Phase.CLOSING, Phase.CLOSED}
        self.phase = Phase.CLOSED
        self._lost = True
        self._cancel_timer()
        self.opening.stop()
        self._end_channels(lost=True)
        self.wire.abort()  # its timers end too
        if self.exclusive_queues:
            self._start(self._remove_exclusive_queues(), "exclusive_queues")
        self._home.clients.remove(self)
        self._home.remove(self)
        log.info("connection_closed", connection=self.name, user=self.user.name, orderly=gracefully)

    def pause_writing(self) -> None:
        self.wire.congested = True  # deliveries wait; the wire sees to what does not

    def resume_writing(self) -> None:
        self.wire.relieved()
        if not self.wire.congested:
            for channel in [*self.channels.values(), *self._lingering.values()]:
                channel.writable()

    # --- what channels use ------------------------------------------------------------------------

    def report_handed(self) -> None:
        wire = self.wire
        if self._lost:
            wire.handed.ends_at(wire.sent_bytes)
        else:
            wire.handed.given(wire.written_bytes)  # what waits is sent before what comes next

    @property
    def congested(self) -> bool:
        return self.wire.congested

    def pause_reading(self, why: str) -> None:
        self.wire.pause(why)

    def resume_reading(self, why: str) -> None:
        self.wire.resume(why)

    def channel_error(self, number: int, error: AmqpError) -> None:
        channel = self.channels.pop(number, None)
        if channel is None:
            return
        log.warning("channel_error", connection=self.name, channel=number, error=str(error))
        channel.close()
        if self.phase is not Phase.RUNNING:
            channel.outlet.abort()
            return  # the client has said goodbye, and what it had said before failed
        self._closing_channels.add(number)
        self._send_last(channel, closing.channel_close(error))

    def _send_last(self, channel: Channel, method: base.Frame) -> None:
        """When what the channel is in the middle of is said."""
        number = channel.number
        self._lingering[number] = channel

        def ended() -> None:
            self._lingering.pop(number, None)

        channel.outlet.last(writer.method(number, method), ended)

    def connection_error(self, error: AmqpError) -> None:
        if self.phase not in {Phase.STARTING, Phase.RUNNING}:
            return
        log.warning("connection_error", connection=self.name, error=str(error))
        self.phase = Phase.CLOSING
        self._home.clients.remove(self)
        self.opening.stop()
        self._end_channels(lost=False)
        self.send_method(closing.connection_close(error))
        self.wire.flush()
        self.wire.resume_all()  # for the answer
        self._cancel_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(CLOSE_S_MAX, self._too_late, "answer to connection.close")

    # --- the server's part ------------------------------------------------------------------------

    def force_close(self, text: str) -> None:
        """By an operator, or since the node stops."""
        self.connection_error(ConnectionError_(CONNECTION_FORCED, text))

    def cancel_consumers(self) -> int:
        """How many were told, whose connection ends next: some clients move consumers that are
        cancelled, and not those whose connection is lost.
        """
        if self.phase is not Phase.RUNNING:
            return 0
        if not self.client_capabilities.get("consumer_cancel_notify"):
            return 0
        count = 0
        for channel in self.channels.values():
            for tag in channel.deliveries.consumers:
                channel.send_method(made(commands.Basic.Cancel, consumer_tag=tag, nowait=True))
                count += 1
        return count

    def abort(self) -> None:
        self.wire.abort()

    def stop_reading(self) -> None:
        """Nothing more is read."""
        self.wire.pause("stopping")

    def look_at_alarms(self) -> None:
        """Who publishes is told of an alarm and not read until it ends; consumers are."""
        if self.phase is not Phase.RUNNING or not self.is_publisher:
            return
        reason = self._services.alarms.blocked
        if (reason is not None) is self.blocked:
            return
        self.blocked = reason is not None
        understands = bool(self.client_capabilities.get("connection.blocked"))
        if reason is not None:
            if understands:
                self.send_method(made(commands.Connection.Blocked, reason=reason))
            self.wire.pause(ALARM)
        else:
            if understands:
                self.send_method(made(commands.Connection.Unblocked))
            held, self._held = self._held, []
            self.receive(held)
            self.wire.resume(ALARM)

    def tuned(self, terms: Terms) -> None:
        self.frame_max = self.reader.frame_bytes_max = terms.frame_bytes_max
        self.reader.channel_max = terms.channel_max
        self.reader.message_bytes_max = message_bytes_max(
            self._services.settings.limits.message_bytes_max,
            self._services.broker.cluster.catalog_machine.version,
        )
        self.wire.start_heartbeats(terms.heartbeat_s, self.silent)

    def opened(self) -> None:
        """The handshake is done."""
        self._cancel_timer()
        self.phase = Phase.RUNNING
        self._home.clients.add(self)
        log.info("connection_opened", connection=self.name, user=self.user.name, vhost=self.vhost)

    # --- running ----------------------------------------------------------------------------------

    def receive(self, events: list[Event]) -> None:
        channels = self.channels
        touched: set[int] = set()
        for place, event in enumerate(events):
            if isinstance(event, Heartbeat):
                continue
            if type(event) is Publish and not self.is_publisher:
                self.is_publisher = True
                self.look_at_alarms()
                if self.blocked:
                    self._held = events[place:]
                    break
            channel = channels.get(event.channel)
            if type(event) is Method and event.method.index >> 16 in closing.OURS:
                if channel is not None:
                    channel.end_of_read()
                self._receive_own(event)
            elif channel is not None:
                touched.add(event.channel)
                channel.receive(event)
            elif not (
                event.channel in self._closing_channels or event.channel in self._closed_by_client
            ):
                self.connection_error(
                    ConnectionError_(CHANNEL_ERROR, "expected 'channel.open'", *_ids(event))
                )
            if self.phase is not Phase.RUNNING:
                return
        for number in touched:
            channel = channels.get(number)
            if channel is not None:  # it may have ended meanwhile
                channel.end_of_read()

    def _receive_own(self, event: Method) -> None:
        """A method of class connection or channel."""
        number, method = event
        try:
            if (number == 0) is not (method.index >> 16 == closing.CONNECTION):
                raise _unexpected(method)
            if number == 0:
                self._connection_method(method)
            else:
                self._channel_method(number, method)
        except AmqpError as error:
            self.connection_error(error)

    def _connection_method(self, method: base.Frame) -> None:
        match method:
            case commands.Connection.Close():
                self.closed_by_client()
            case commands.Connection.UpdateSecret():
                self.send_method(made(commands.Connection.UpdateSecretOk))
            case _:
                raise _unexpected(method)

    def _channel_method(self, number: int, method: base.Frame) -> None:
        channel = self.channels.get(number)
        if number in self._closing_channels:
            match method:
                case commands.Channel.CloseOk():
                    self._closing_channels.discard(number)
                case commands.Channel.Close():  # both sides at once
                    lingering = self._lingering.get(number)
                    if lingering is not None:
                        self._send_last(lingering, made(commands.Channel.CloseOk))
                    else:
                        self.send_method(made(commands.Channel.CloseOk), number)
                case _:
                    pass  # said before the client knew
            return
        match method:
            case commands.Channel.Open() if channel is not None:
                raise _unexpected(method, "second 'channel.open' seen")
            case commands.Channel.Open():
                self._open_channel(number)
            case _ if channel is None and number in self._closed_by_client:
                pass
            case _ if channel is None:
                raise _unexpected(method, "expected 'channel.open'")
            case commands.Channel.Close() if channel.idle:
                del self.channels[number]
                self._closed_by_client.add(number)
                channel.close()
                self._send_last(channel, made(commands.Channel.CloseOk))
            case commands.Channel.Close():
                self._start(self._finish(number, channel), "amqp_channel_end")
            case commands.Channel.Flow():
                if not method.active:
                    raise ConnectionError_(NOT_IMPLEMENTED, "active=false", *method_ids(method))
                channel.send_method(made(commands.Channel.FlowOk, active=True))
            case _:
                raise _unexpected(method)

    def _open_channel(self, number: int) -> None:
        most = self.reader.channel_max
        if len(self.channels) >= most:
            raise ConnectionError_(
                NOT_ALLOWED,
                f"number of channels opened ({most}) has reached the negotiated"
                f" channel_max ({most})",
            )
        self._closed_by_client.discard(number)
        channel = self._home.make_channel(self, number, self._services)
        self.channels[number] = channel
        if self._home.clients.limits_channels(self.user.name, self.vhost):
            self._channels_in_question += 1
            channel.begin_with(self._when_there_is_room(number))
        else:
            self.send_method(made(commands.Channel.OpenOk), number)

    async def _when_there_is_room(self, number: int) -> None:
        try:
            await self._home.admission.check_channels(self.user.name, self.vhost)
        finally:
            self._channels_in_question -= 1
        self.send_method(made(commands.Channel.OpenOk), number)

    async def _finish(self, number: int, channel: Channel) -> None:
        await channel.finish()
        if self.channels.get(number) is channel:
            del self.channels[number]
            self._closed_by_client.add(number)
        self._send_last(channel, made(commands.Channel.CloseOk))

    # --- the end ----------------------------------------------------------------------------------

    def closed_by_client(self) -> None:
        self.phase = Phase.CLOSED
        self._cancel_timer()
        self._start(self._close_gracefully(), "amqp_goodbye")

    async def _close_gracefully(self) -> None:
        """The client may come back at once and use the names of its exclusive queues."""
        await asyncio.gather(*(channel.finish() for channel in self.channels.values()))
        self._end_channels(lost=False)
        await self._remove_exclusive_queues()
        if self._lost:
            return
        self.send_method(made(commands.Connection.CloseOk))
        self.wire.finish()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(CLOSE_S_MAX, self._too_late, "end of the closed connection")

    async def _remove_exclusive_queues(self) -> None:
        names, self.exclusive_queues = self.exclusive_queues, {}
        broker, vhost = self._services.broker, self.vhost
        await asyncio.gather(
            *(closing.remove_queue(broker, vhost, name, self.id) for name in names)
        )

    def _end_channels(self, *, lost: bool) -> None:
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.close(lost=lost)
        for channel in [*channels.values(), *self._lingering.values()]:
            channel.outlet.abort()
        self._lingering.clear()

    def silent(self) -> None:
        log.warning("heartbeats_missed", connection=self.name)
        self.wire.abort()

    def _too_late(self, what: str) -> None:
        log.info("client_too_slow", connection=self.name, what=what)
        self.wire.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[Any]:
        return self._services.tasks.start(work, name=name)

    def send_method(self, method: base.Frame, channel: int = 0) -> None:
        self.wire.write(writer.method(channel, method))


def _ids(event: ChannelEvent) -> tuple[int, int]:
    return method_ids(event.method) if type(event) is Method else (0, 0)


def _unexpected(method: base.Frame, text: str | None = None) -> ConnectionError_:
    code = COMMAND_INVALID if text is None else CHANNEL_ERROR
    return ConnectionError_(code, text or f"{method.name} is not expected", *method_ids(method))
