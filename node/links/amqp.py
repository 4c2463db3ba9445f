"""The AMQP 0-9-1 side of links: connections to other brokers, and to this very cluster.

The client is aiormq. What it lacks for moving messages unchanged is added here: it gives every
message an id of its own where there is none, and would take a returned message for a confirmed one.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import aiormq
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from aiormq.connection import FrameReceiver, TransportFactory
from pamqp import commands, constants
from yarl import URL

from node.links.definition import is_local, place_of, without_password

CONNECT_S_MAX: Final = 15.0
CLOSE_S_MAX: Final = 2.0
#: A socket of this very process needs no heartbeat.
_LOCAL_URL: Final = "amqp://local/{vhost}?auth=external&heartbeat=0"
#: RabbitMQ's names of what a URI may ask for, and aiormq's.
_QUERY: Final = {
    "cacertfile": "cafile",
    "certfile": "certfile",
    "keyfile": "keyfile",
    "heartbeat": "heartbeat",
    "auth_mechanism": "auth",
}
_ANY_NAME: Final = re.compile(r"(?s).*")
_VERIFY_NONE: Final = "verify_none"

#: Opens a connection to this node for a user, whose name needs no proof.
LocalConnect = Callable[[str], Awaitable[socket.socket]]


class Unroutable(Exception):
    """The destination has no queue for a message: it stays where it is."""


class _NoId(str):
    """An id that is not written: aiormq, which asks for truth, makes up none in its place, and
    pamqp, which compares with '', leaves it out.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


class LinkChannel(Channel):
    """`returned`: in words, the first message that found no queue. It is set before the confirm
    that follows the return can be read.
    """

    returned: str | None = None

    async def _on_return_frame(self, frame: commands.Basic.Return) -> None:
        self.returned = self.returned or (
            f"no queue takes what is published to exchange '{frame.exchange}'"
            f" with routing key '{frame.routing_key}'"
        )
        await super()._on_return_frame(frame)

    async def publish(
        self,
        body: bytes,
        properties: commands.Basic.Properties,
        *,
        exchange: str,
        routing_key: str,
        mandatory: bool = True,
    ) -> None:
        """Returns when the broker has confirmed it, if the channel confirms; in the order of the
        calls. Unroutable: it is nowhere; refused by the broker: aiormq's DeliveryError.
        """
        if not properties.message_id:
            properties.message_id = _NoId()
        await self.basic_publish(
            body,
            exchange=exchange,
            routing_key=routing_key,
            properties=properties,
            mandatory=mandatory,
            wait=False,
        )
        if self.returned is not None:
            raise Unroutable(self.returned)


class LinkConnection:
    """An open connection. `uri`: which it is, without its password; `is_ours`: the broker is of
    this kind.
    """

    def __init__(self, connection: aiormq.Connection, uri: str) -> None:
        self.uri = uri
        self.is_ours = str(connection.server_properties.get("platform", "")).startswith("Quorate ")
        #: What the broker says its cluster is called.
        named = connection.server_properties.get("cluster_name")
        self.cluster = named if isinstance(named, str) else None
        self._connection = connection

    @property
    def place(self) -> str:
        """Where it leads to, without who it is."""
        scheme, _, rest = self.uri.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"

    @property
    def lost(self) -> asyncio.Future[Any]:
        """Done when it has ended, for whatever reason."""
        return cast(Any, self._connection).closing

    async def channel(self, *, confirms: bool = False) -> LinkChannel:
        connection = self._connection
        number = max(connection.channels, default=0) + 1
        channel = LinkChannel(
            connection, number, publisher_confirms=confirms, on_return_raises=False
        )
        connection.channels[number] = channel
        await channel.open(timeout=CONNECT_S_MAX)
        return channel

    async def close(self) -> None:
        with suppress(Exception):  # it may be broken already, in any way
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._connection.close()


class AmqpClient:
    """One per node: opens connections for its links."""

    def __init__(self, local: LocalConnect) -> None:
        self._local = local
        # pamqp refuses names that brokers allow: those of federation's queues, and all in Greek.
        constants.DOMAIN_REGEX.update(dict.fromkeys(constants.DOMAIN_REGEX, _ANY_NAME))

    async def connect(
        self, uris: Sequence[str], *, user: str, vhost: str, name: str
    ) -> LinkConnection:
        """To the first of them that answers, in any order; the error of the last one when none
        does. `user` and `vhost` are those in this cluster, `name` is what the broker shows.
        """
        order = random.sample(uris, len(uris))
        for uri in order[:-1]:
            with suppress(OSError, TimeoutError, aiormq.AMQPError):
                return await self._connect(uri, user=user, vhost=vhost, name=name)
        return await self._connect(order[-1], user=user, vhost=vhost, name=name)

    async def _connect(self, uri: str, *, user: str, vhost: str, name: str) -> LinkConnection:
        factory: TransportFactory | None = None
        if is_local(uri):
            factory = _Local(self._local, user)
            place = place_of(uri).vhost
            path = quote(vhost if place is None else place, safe="")
            url = _LOCAL_URL.format(vhost=path)
        else:
            url = translated(uri)
        connection = _Connection(
            URL(url, encoded=True),
            transport_factory=factory,
            client_properties={"connection_name": name},
        )
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await cast(Any, connection).connect()
        except BaseException:
            with suppress(Exception):
                await connection.close()
            raise
        return LinkConnection(connection, without_password(uri))


class _Refusals:
    """Reads frames for `_Connection`, and says why the other side closed. aiormq says then that a
    frame is not the one that it waited for, and not what is in it.
    """

    def __init__(self, frames: FrameReceiver) -> None:
        self._frames = frames

    async def get_frame(self) -> Any:
        found = await self._frames.get_frame()
        if isinstance(found[2], commands.Connection.Close):
            raise aiormq.exceptions.ConnectionClosed(found[2].reply_code, found[2].reply_text)
        return found


class _Connection(aiormq.Connection):
    @staticmethod
    async def _rpc(
        request: Any, writer: Any, frame_receiver: FrameReceiver, wait_response: bool = True
    ) -> Any:
        frames = cast(Any, _Refusals(frame_receiver))
        return await aiormq.Connection._rpc(request, writer, frames, wait_response)


class _Local(TransportFactory):
    """To this node, without a port."""

    def __init__(self, local: LocalConnect, user: str) -> None:
        self._local = local
        self._user = user

    async def create(
        self, url: URL, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(sock=await self._local(self._user))


def translated(uri: str) -> str:
    """What RabbitMQ's URIs say, as aiormq reads it. A certificate is verified, unless the URI says
    otherwise.
    """
    parts = urlsplit(uri)
    given = dict(parse_qsl(parts.query))
    query = {ours: given[name] for name, ours in _QUERY.items() if name in given}
    if given.get("verify") == _VERIFY_NONE:
        query["no_verify_ssl"] = "1"
    return urlunsplit(parts._replace(query=urlencode(query), fragment=""))


def message_of(delivered: DeliveredMessage) -> tuple[bytes, commands.Basic.Properties]:
    properties = delivered.header.properties
    assert isinstance(properties, commands.Basic.Properties)
    return delivered.body, properties
