"""One client's connection: its socket, the handshake, its channels, and its end.

Writes are collected for one iteration of the loop; reading may be paused for several reasons at
once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, Protocol, cast

import structlog
from pamqp import base, commands

from cluster.read_slices import FULL_READ_BYTES, ReadSlices
from node.access.auth import User
from node.access.permissions import Access
from node.broker.bodies import message_bytes_max
from node.clients.clients import Clients
from node.dispatch.in_flight import InFlight
from node.dispatch.progress import WrittenPiece, WrittenPieces, keep_unsent_small
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
from node.protocols.amqp.writer import HEARTBEAT
from node.protocols.ends import LOCAL, LOCAL_ENDS, Ends
from node.protocols.tls import certificate_user

#: Over this, what was written leaves at once; and no more than about as much waits in the
#: transport, which does not say how much of it was sent.
FLUSH_BYTES: Final = 64 * 1024
CONGESTED: Final = "congested"
NEXT_TURN: Final = "next turn"  # others on the loop come first
#: A client that was silent for this many of its heartbeats is gone.
MISSED_MAX: Final = 2
#: Looks a heartbeat: at each of them a heartbeat is sent if nothing else was since the last.
LOOKS_A_HEARTBEAT: Final = 2


class Wire:
    """The socket of a connection: writes, reads, heartbeats."""

    def __init__(self, transport: asyncio.Transport, *, buffer_bytes_max: int) -> None:
        self.congested = False  # the transport takes no more: set by its protocol
        self.handed = WrittenPieces()
        self.written_bytes = 0
        self.sent_bytes = 0  # of these, given to the transport
        self.received_bytes = 0
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._buffers: deque[bytes] = deque()
        self._flush_soon = False
        self._paused: set[str] = set()
        self._slices = ReadSlices(partial(self.pause, NEXT_TURN), partial(self.resume, NEXT_TURN))
        self._looks: asyncio.TimerHandle | None = None
        self._look_s = 0.0
        self._seen = (0, 0)
        self._silent_looks = 0
        self._on_silence: Callable[[], None] | None = None
        self._buffer_bytes_max = buffer_bytes_max
        transport.set_write_buffer_limits(high=FLUSH_BYTES)
        keep_unsent_small(transport)

    # --- out --------------------------------------------------------------------------------------

    def write(self, data: bytes, piece: WrittenPiece | None = None) -> None:
        """`piece`: the messages that are delivered by it."""
        start = self.written_bytes
        self._buffers.append(data)
        self.written_bytes = start + len(data)
        if piece is not None:
            self.handed.wrote(start, self.written_bytes, piece)
        waiting = self.written_bytes - self.sent_bytes
        if self.congested:
            if waiting > 2 * self._buffer_bytes_max:
                self.pause(CONGESTED)  # a client that asks and asks must take the answers
        elif waiting >= FLUSH_BYTES:
            self.flush()
        elif not self._flush_soon:
            self._flush_soon = True
            self._loop.call_soon(self.flush)

    def flush(self, *, all_of_it: bool = False) -> None:
        """As much as the transport takes; what it cannot send now waits here."""
        self._flush_soon = False
        buffers = self._buffers
        if self._transport.is_closing():
            buffers.clear()
            return
        while buffers and (all_of_it or not self.congested):
            slice_: list[bytes] = []
            room = FLUSH_BYTES
            while buffers and room > 0:
                data = buffers.popleft()
                if len(data) > room:
                    buffers.appendleft(data[room:])
                    data = data[:room]
                room -= len(data)
                slice_.append(data)
            self.sent_bytes += FLUSH_BYTES - room
            if len(slice_) == 1:
                self._transport.write(slice_[0])
            else:
                self._transport.writelines(slice_)
        if self.handed.pieces:
            self.handed.took(self.sent_bytes)

    def relieved(self) -> None:
        """The transport has room again."""
        self.congested = False
        self.flush()
        if not self.congested:
            self.resume(CONGESTED)

    # --- in ---------------------------------------------------------------------------------------

    def received(self, size_bytes: int) -> None:
        """By one read."""
        self.received_bytes += size_bytes
        if size_bytes >= FULL_READ_BYTES:
            self._slices.full_read(size_bytes)

    @property
    def paused(self) -> bool:
        return bool(self._paused)

    def pause(self, why: str) -> None:
        if not self._paused and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused.add(why)

    def resume(self, why: str) -> None:
        """Once no reason is left."""
        if why not in self._paused:
            return
        self._paused.discard(why)
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def resume_all(self) -> None:
        for why in list(self._paused):
            self.resume(why)

    # --- heartbeats -------------------------------------------------------------------------------

    def start_heartbeats(self, heartbeat_s: int, on_silence: Callable[[], None]) -> None:
        if heartbeat_s:
            self._look_s = heartbeat_s / LOOKS_A_HEARTBEAT
            self._on_silence = on_silence
            self._looks = self._loop.call_later(self._look_s, self._look)

    def _look(self) -> None:
        assert self._on_silence is not None
        sent, received = self._seen
        if self.sent_bytes == sent:
            self.write(HEARTBEAT)
            self.flush()  # before the next look, for which a heartbeat is no traffic
        # Who is not listened to is not silent.
        if self.received_bytes != received or self._paused:
            self._silent_looks = 0
        else:
            self._silent_looks += 1
        self._seen = (self.sent_bytes, self.received_bytes)
        if self._silent_looks >= MISSED_MAX * LOOKS_A_HEARTBEAT:
            self._on_silence()
            return
        self._looks = self._loop.call_later(self._look_s, self._look)

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """After what was written."""
        self.flush(all_of_it=True)
        self._stop()
        self._transport.close()

    def finish(self) -> None:
        """Nothing more is written. What still comes is read and dropped until the client closes:
        to close before that would answer it with a reset, and the client might never see what was
        written last.
        """
        self.flush()
        self._stop()
        self.resume_all()

    def abort(self) -> None:
        self._stop()
        self._transport.abort()

    def _stop(self) -> None:
        if self._looks is not None:
            self._looks.cancel()
            self._looks = None


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
    """Bytes come in, channels answer; everything that a channel may use is a method here."""

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
        self.connected_at_ms = int(time.time() * 1000)
        self.publishes = False
        self.blocked = False
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
            wire.handed.took(wire.written_bytes)  # what waits is sent before what comes next

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
        if self.phase is not Phase.RUNNING or not self.publishes:
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
        for event in events:
            if isinstance(event, Heartbeat):
                continue
            if type(event) is Publish and not self.publishes:
                self.publishes = True
                self.look_at_alarms()
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
