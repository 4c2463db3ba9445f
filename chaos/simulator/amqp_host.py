"""A node's end of an AMQP client's connection: the real channels, without socket and handshake.

What clients say travels as the events that a reader would make of it; what channels write is bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pamqp import base, commands

from chaos.simulator.channel import Channel as Link
from chaos.simulator.channel import Closed
from chaos.simulator.ledger import Ledger
from node.access.auth import User
from node.access.permissions import Access
from node.dispatch.in_flight import InFlight
from node.dispatch.outgoing import Delivery, Outgoing
from node.dispatch.progress import WrittenPiece, WrittenPieces
from node.messages.amqp_errors import AmqpError, ConnectionError_
from node.protocols.amqp import closing, writer
from node.protocols.amqp.channel import PUBLISHES, Channel
from node.protocols.amqp.events import Event, Method
from node.protocols.amqp.methods import made
from node.protocols.amqp.services import AmqpServices

VHOST = "/"
USER = "guest"


@dataclass(frozen=True, slots=True)
class AmqpHello:
    """First of what an AMQP client says; everything else is lists of events, one a read."""

    client: str
    frame_max: int
    #: What it is handed and settles is written down for it; others keep their own account.
    watched: bool = True


class AmqpHost:
    """Implements `node.protocols.amqp.channel.ChannelHost`."""

    client_capabilities: Mapping[str, Any]

    def __init__(
        self, link: Link, hello: AmqpHello, services: AmqpServices, ledger: Ledger
    ) -> None:
        self.name = self.id = hello.client
        self.vhost = VHOST
        self.user = User(USER)
        self.access = Access(services.broker.cluster, USER, VHOST)
        self.frame_max = hello.frame_max
        self.client_capabilities = {"consumer_cancel_notify": True}
        self.exclusive_queues: dict[str, None] = {}
        self.channels: dict[int, Channel] = {}
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._link = link
        self._services = services
        self._ledger = ledger
        self._watched = hello.watched
        self._closing = False
        self._closing_channels: set[int] = set()
        self._lingering: dict[int, Channel] = {}  # closed, in the middle of a large body
        self._pauses: set[str] = set()
        self.in_flight = InFlight(
            services.settings.limits.in_flight_bytes_max,
            pause=partial(self.pause_reading, PUBLISHES),
            resume=partial(self.resume_reading, PUBLISHES),
        )
        self._written: list[bytes] = []
        self._handed = WrittenPieces()
        self._written_bytes = 0
        self._untaken_bytes = 0
        self._congested = False
        self._buffer_bytes_max = services.settings.limits.deliver_buffer_bytes_max

    # --- what channels use ------------------------------------------------------------------------

    def write(self, data: bytes, piece: WrittenPiece | None = None) -> None:
        if self._closing:
            return
        if piece is not None and self._link.open:
            self._handed.wrote(self._written_bytes, self._written_bytes + len(data), piece)
            self._handed.given(self._written_bytes + len(data))
        self._written_bytes += len(data)
        if not self._written:
            asyncio.get_running_loop().call_soon(self._flush)
        self._written.append(data)
        self._untaken_bytes += len(data)
        self._congested = self._congested or self._untaken_bytes > self._buffer_bytes_max

    def _flush(self) -> None:
        written, self._written = self._written, []
        if written:
            data = b"".join(written)
            self._link.to_client(data)
            self._link.soon_at_node(lambda: self._taken(len(data)))

    def _taken(self, size: int) -> None:
        self._untaken_bytes -= size
        if self._congested and self._untaken_bytes * 2 <= self._buffer_bytes_max:
            self._congested = False
            for channel in [*self.channels.values(), *self._lingering.values()]:
                channel.writable()

    @property
    def congested(self) -> bool:
        return self._congested

    def report_handed(self) -> None: ...

    def pause_reading(self, why: str) -> None:
        self._pauses.add(why)
        self.may_read.clear()

    def resume_reading(self, why: str) -> None:
        self._pauses.discard(why)
        if not self._pauses:
            self.may_read.set()

    def channel_error(self, number: int, error: AmqpError) -> None:
        channel = self.channels.pop(number, None)
        if channel is not None and not self._closing:
            channel.close()
            self._closing_channels.add(number)
            self._send_last(channel, closing.channel_close(error))

    def _send_last(self, channel: Channel, method: base.Frame) -> None:
        """When what the channel is in the middle of is said."""
        number = channel.number
        self._lingering[number] = channel

        def ended() -> None:
            self._lingering.pop(number, None)

        channel.outlet.last(writer.method(number, method), ended)

    def _close_ok(self, number: int, channel: Channel | None) -> None:
        """`channel` may be in the middle of a large body."""
        if channel is not None:
            self._send_last(channel, made(commands.Channel.CloseOk))
        else:
            self.write(writer.method(number, made(commands.Channel.CloseOk)))

    def connection_error(self, error: AmqpError) -> None:
        if not self._closing:
            self.end(lost=False)
            self._close(error.reply_text)

    def _close(self, text: str) -> None:
        self._flush()
        self._closing = True
        self._link.to_client(Closed(text))
        self.may_read.set()

    # --- what the client says ---------------------------------------------------------------------

    async def receive(self, events: list[Event]) -> None:
        """One read."""
        touched: dict[int, None] = {}
        for event in events:
            assert not isinstance(event, (ConnectionError_, type(None)))
            number = getattr(event, "channel", 0)
            channel = self.channels.get(number)
            method = event.method if type(event) is Method else None
            if isinstance(method, commands.Channel.Open):
                self.channels[number] = self._channel(number)
                self.write(writer.method(number, made(commands.Channel.OpenOk)))
            elif isinstance(method, commands.Channel.CloseOk):
                self._closing_channels.discard(number)
            elif channel is None:
                if isinstance(method, commands.Channel.Close):  # both at once
                    self._close_ok(number, self._lingering.get(number))
                else:
                    assert number in self._closing_channels, event
            elif isinstance(method, commands.Channel.Close):
                channel.end_of_read()
                await channel.finish()
                self._close_ok(number, self.channels.pop(number, self._lingering.get(number)))
            else:
                touched[number] = None
                channel.receive(event)  # type: ignore[arg-type]
            if self._closing:
                return
        for number in touched:
            channel = self.channels.get(number)
            if channel is not None:
                channel.end_of_read()

    def _channel(self, number: int) -> Channel:
        channel = Channel(self, number, self._services)
        if not self._watched:
            return channel
        deliveries = channel.deliveries
        send = deliveries.send

        def watched(frame: Outgoing) -> None:
            if type(frame) is Delivery:
                for consumer in deliveries.consumers.values():
                    if consumer.key == frame.consumer and consumer.info.name == frame.queue:
                        info = consumer.info
                        self._ledger.hand(
                            self.name,
                            consumer.tag,
                            info.name,
                            info.queue,
                            consumer.key,
                            frame.batches,
                        )
            send(frame)

        deliveries.send = watched
        return channel

    async def goodbye(self) -> None:
        for channel in list(self.channels.values()):
            await channel.finish()
        self.end(lost=False)
        await self._remove_queues()
        if not self._closing:
            self._close("goodbye")

    def end(self, *, lost: bool) -> None:
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.close(lost=lost)
        for channel in [*channels.values(), *self._lingering.values()]:
            channel.outlet.abort()
        self._lingering.clear()
        if lost:
            self._closing = True
            self._services.tasks.start(self._remove_queues(), name="exclusive_queues")

    async def _remove_queues(self) -> None:
        names, self.exclusive_queues = self.exclusive_queues, {}
        for name in names:
            await closing.remove_queue(self._services.broker, VHOST, name, self.id)
