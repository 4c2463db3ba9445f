"""One AMQP connection to one node, which can be ended at once, and what its errors mean."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol, cast

import aiormq
from aiormq.connection import TransportFactory

from chaos.load.addresses import Address
from chaos.load.driver import Answer

CONNECT_S_MAX = 2.0
CLOSE_S_MAX = 2.0
#: A connection that says nothing for thrice as long is given up, by either side.
HEARTBEAT_S = 3

# Connections end all the time here, and the history tells what came of it.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)

#: The node has closed the channel instead of doing what was asked.
REFUSALS = (
    aiormq.ChannelAccessRefused,
    aiormq.ChannelNotFoundEntity,
    aiormq.ChannelLockedResource,
    aiormq.ChannelPreconditionFailed,
)


class LinkFailed(Exception):
    """This node did not let us in now."""


class Grip(Protocol):
    def let_go(self) -> None:
        """The connection ends at once, without a word."""
        ...


class _Socket(TransportFactory):
    """Keeps hold of the socket: the library lets go of a connection only in good order."""

    def __init__(self) -> None:
        self.writer: asyncio.StreamWriter | None = None

    async def create(
        self, url: Any, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        del kwargs
        reader, self.writer = await asyncio.open_connection(url.host, url.port)
        return reader, self.writer

    def let_go(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()


class Link:
    """Made by `connected`, and used until it is lost."""

    def __init__(self, node: str, connection: aiormq.Connection, grip: Grip) -> None:
        self.node = node
        self._connection = connection
        self._grip = grip
        self._ended = False
        self._opening = asyncio.Lock()
        self._channels: dict[str, aiormq.Channel] = {}
        self._publishing = 0  # messages under way
        self._crowds = 0  # how often there were several

    @contextlib.contextmanager
    def publishing(self, count: int) -> Generator[Callable[[], bool]]:
        """While these messages are under way. It tells whether there never was another one."""
        self._publishing += count
        crowds = self._crowds
        self._crowds += self._publishing > 1
        began_alone = self._publishing == 1
        try:
            yield lambda: began_alone and self._crowds == crowds
        finally:
            self._publishing -= count

    @property
    def lost(self) -> bool:
        return self._ended or not self._connection.is_opened

    async def shared(self, purpose: str, *, confirms: bool = False) -> aiormq.Channel:
        """One channel for each purpose; a new one when the node has closed the last."""
        async with self._opening:
            channel = self._channels.get(purpose)
            if channel is None or channel.is_closed:
                channel = self._channels[purpose] = await self.channel(confirms=confirms)
            return channel

    async def channel(self, *, confirms: bool = False) -> aiormq.Channel:
        channel = await self._connection.channel(publisher_confirms=confirms)
        return cast("aiormq.Channel", channel)

    def abort(self) -> None:
        """Gone at once, without a word to the node."""
        self._ended = True
        self._grip.let_go()

    async def close(self) -> None:
        """In good order, if the node still answers."""
        if not self._ended:
            self._ended = True
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_S_MAX):
                    await self._connection.close()
        self._grip.let_go()


async def connected(address: Address, name: str) -> Link:
    """Raises LinkFailed."""
    grip = _Socket()
    connection = aiormq.Connection(
        f"{address.amqp_url}?heartbeat={HEARTBEAT_S}",
        transport_factory=grip,
        client_properties={"connection_name": name},
    )
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            await connection.connect()  # pyright: ignore[reportUnknownMemberType]
    except (aiormq.AMQPError, OSError, TimeoutError, asyncio.CancelledError) as error:
        grip.let_go()
        if ours(error):
            raise
        raise LinkFailed(f"{address.node}: {error!r}") from error
    return Link(address.node, connection, grip)


def ours(error: BaseException) -> bool:
    """Whether we are cancelled ourselves: the library cancels those who wait for a lost
    connection.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


_LOST = (
    aiormq.AMQPError,
    aiormq.ChannelInvalidStateError,
    OSError,
    RuntimeError,
    TimeoutError,
    asyncio.CancelledError,
)


async def answer_of(link: Link, call: Awaitable[Answer]) -> Answer:
    """What was asked is refused when the node closes its channel for that. All else that goes wrong
    says nothing, and ends the connection.
    """
    try:
        answer = await call
        return Answer(answer.type, answer.value, answer.reason, link.node, answer.refused)
    except REFUSALS as error:
        return Answer("refused", reason=str(error), node=link.node)
    except (*_LOST, Exception) as error:
        # The library raises a bare Exception where a connection ends without a reason.
        if not (isinstance(error, _LOST) or type(error) is Exception):
            raise
        link.abort()
        if ours(error):
            raise
        return Answer("unknown", reason=repr(error), node=link.node)
