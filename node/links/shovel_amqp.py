"""The AMQP ends of a shovel: what it declares, takes and publishes."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
from dataclasses import dataclass
from typing import Any, Final, cast

import aiormq
from aiormq.abc import DeliveredMessage
from pamqp import commands

from node.links.amqp import AmqpClient, LinkChannel, LinkConnection, message_of
from node.links.moving import Item
from node.links.shovel import QUEUE_LENGTH, AmqpDestination, AmqpSource, Message, Shovel
from node.messages.attributes import ONCE_ID, POSITION

#: Headers that tell through where a message came, and when.
SHOVELLED: Final = "x-shovelled"
SHOVELLED_AT: Final = "x-shovelled-timestamp"
#: Headers that a queue adds to what it delivers once more.
_OF_THE_SOURCE: Final = ("x-delivery-count", "x-acquired-count")
#: Of a stream's messages, which have no such place.
_OFFSET: Final = "x-stream-offset"
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Running:
    """A shovel as it is run. `id`: its own as long as its definition stays the same; `user`: who it
    is in this cluster.
    """

    shovel: Shovel
    client: AmqpClient
    name: str
    vhost: str
    user: str
    id: str
    cluster_name: str

    async def connect(self, uris: tuple[str, ...]) -> LinkConnection:
        return await self.client.connect(
            uris, user=self.user, vhost=self.vhost, name=self.shown_name
        )

    @property
    def shown_name(self) -> str:
        """Of its connections."""
        return f"Shovel {self.name}"


# --- the source -----------------------------------------------------------------------------------


class AmqpConsumer:
    """Implements `Source`."""

    def __init__(self, running: Running, connection: LinkConnection) -> None:
        self.uri = connection.uri
        self.queue = ""
        self._origin = f"{running.id}.{_digest((connection.cluster or '').encode(), b'')}"
        self._connection = connection
        self._channel: LinkChannel
        self._left: int | None = None  # to take; None: all that ever come
        self._came: asyncio.Queue[DeliveredMessage | str] = asyncio.Queue()

    async def begin(self, source: AmqpSource, shovel: Shovel) -> None:
        connection = self._connection
        channel = self._channel = await connection.channel()
        self.queue, ready = await _declare_source(source, connection, channel)
        if shovel.delete_after == QUEUE_LENGTH:
            self._left = ready
        elif isinstance(shovel.delete_after, int):
            self._left = shovel.delete_after
        self.ends_with(connection.lost, "the connection to the source was closed")
        self.ends_with(cast(Any, channel).closing, "the source closed the channel")
        channel.on_consumer_cancel_callbacks.add(
            lambda _: self._came.put_nowait(f"the source ended the consumer of '{self.queue}'")
        )
        if self._left == 0:
            return
        await channel.basic_qos(prefetch_count=shovel.prefetch)
        arguments = dict(source.consumer_arguments)
        if connection.is_ours:
            arguments[POSITION] = True
        await channel.basic_consume(self.queue, self._take_in, arguments=arguments)

    async def _take_in(self, message: DeliveredMessage) -> None:
        self._came.put_nowait(message)

    def ends_with(self, lost: asyncio.Future[Any], what: str) -> None:
        """Whoever waits for a message hears of it."""
        lost.add_done_callback(lambda done: self._came.put_nowait(_why(done, what)))

    async def take(self) -> Item | None:
        if self._left == 0:
            return None
        message = await self._came.get()
        if isinstance(message, str):
            raise ConnectionError(message)
        if self._left is not None:
            self._left -= 1
        body, properties = message_of(message)
        assert message.delivery_tag is not None
        where = message.exchange or "", message.routing_key or ""
        identity = self._identity(body, properties)
        return Item(message.delivery_tag, body, Message(properties, *where, identity))

    def _identity(self, body: bytes, properties: commands.Basic.Properties) -> str | None:
        """In a cluster of this kind a message is known by its place in its queue; elsewhere by its
        id, if it has one, and its body: two that share both are one message.
        """
        headers: dict[str, Any] = dict(properties.headers or {})
        position = headers.pop(POSITION, None)
        for name in _OF_THE_SOURCE:
            headers.pop(name, None)
        properties.headers = headers or None
        # What a publisher says in its place is not to be believed.
        ours = self._connection.is_ours and _OFFSET not in headers
        if ours and isinstance(position, str):
            return f"{self._origin}.{position}"
        if not properties.message_id:
            return None
        return f"{self._origin}.{_digest(properties.message_id.encode(), body)}"

    async def settle(self, tag: Any) -> None:
        await self._channel.basic_ack(tag, multiple=True, wait=False)


def _why(done: asyncio.Future[Any], what: str) -> str:
    error = None if done.cancelled() else done.exception()
    return what if error is None or not str(error) else f"{what}: {error}"


async def _declare_source(
    source: AmqpSource, connection: LinkConnection, channel: LinkChannel
) -> tuple[str, int]:
    """The queue to take from, and how many messages it has."""
    if source.queue is not None:
        return source.queue, await ensure_queue(
            connection, source.queue, source.queue_arguments, predeclared=source.predeclared
        )
    assert source.exchange is not None
    declared = await channel.queue_declare(exclusive=True)
    assert declared.queue is not None
    await channel.queue_bind(declared.queue, source.exchange, source.exchange_key)
    return declared.queue, 0


async def ensure_queue(
    connection: LinkConnection, name: str, arguments: dict[str, Any], *, predeclared: bool
) -> int:
    """It is there, or made: how many messages it has. On a channel of its own, which a queue that
    is not there would cost.
    """
    channel = await connection.channel()
    try:
        declared = await channel.queue_declare(name, passive=True)
    except aiormq.exceptions.ChannelNotFoundEntity:
        if predeclared:
            raise
        channel = await connection.channel()
        declared = await channel.queue_declare(name, durable=True, arguments=arguments)
    await channel.close()
    return declared.message_count or 0


# --- the destination ------------------------------------------------------------------------------


class AmqpPublisher:
    """Implements `Destination`."""

    def __init__(self, running: Running, connection: LinkConnection, to: AmqpDestination) -> None:
        self.uri = connection.uri
        self._running = running
        self._connection = connection
        self._channel: LinkChannel
        self._to = to
        self._passport: dict[str, Any] = {}

    async def begin(self, passport: dict[str, Any]) -> None:
        """`passport`: what a header of each message tells of the shovel, if it is to."""
        self._passport = passport
        destination = self._to
        if destination.queue is not None:
            await ensure_queue(
                self._connection,
                destination.queue,
                destination.queue_arguments,
                predeclared=destination.predeclared,
            )
        confirms = self._running.shovel.ack_mode == "on-confirm"
        self._channel = await self._connection.channel(confirms=confirms)

    async def publish(self, item: Item) -> None:
        to, message = self._to, cast("Message", item.message)
        properties = message.properties
        headers: dict[str, Any] = dict(properties.headers or {})
        shovel = self._running.shovel
        if shovel.forward_headers:
            before: Any = headers.get(SHOVELLED)
            passed = list(cast("list[Any]", before)) if isinstance(before, list) else []
            headers[SHOVELLED] = [self._passport, *passed]
        if shovel.timestamp_header:
            headers[SHOVELLED_AT] = int(dt.datetime.now(dt.UTC).timestamp())
        for name, value in to.properties.items():
            if name == "headers":
                headers |= value
            elif name == "timestamp":
                properties.timestamp = dt.datetime.fromtimestamp(value, dt.UTC)
            else:
                setattr(properties, name, value)
        if message.identity is not None and self._connection.is_ours:
            headers[ONCE_ID] = message.identity
        properties.headers = headers or None
        exchange, key = message.exchange, message.routing_key
        if to.queue is not None:
            exchange, key = "", to.queue
        elif to.exchange is not None:
            exchange = to.exchange
        if to.exchange_key is not None and to.queue is None:
            key = to.exchange_key
        await self._channel.publish(item.body, properties, exchange=exchange, routing_key=key)


def _digest(name: bytes, body: bytes) -> str:
    return hashlib.blake2b(name + b"\0" + body, digest_size=_DIGEST_BYTES).hexdigest()
