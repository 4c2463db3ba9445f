"""The JetStream ends of a shovel: a durable consumer as its source, subjects as its destination."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, cast

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, Header
from nats.js.errors import NotFoundError
from pamqp import commands

from node.links.definition import without_password
from node.links.moving import Item
from node.links.shovel import Message, NatsDestination, NatsSource, Shovel

CONNECT_S_MAX: Final = 15
#: What connecting raises.
CONNECT_ERRORS: Final = (OSError, NatsError)
CLOSE_S_MAX: Final = 2.0
FETCHED_MAX: Final = 256
#: Until the next look whether the connection is still there.
FETCH_S: Final = 5.0
PERSISTENT: Final = 2
#: Of a header; the client takes no other.
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OF_A_STREAM: Final = ("Nats-Expected-", "Nats-Stream-Source")


@asynccontextmanager
async def open_nats(
    uris: tuple[str, ...], *, name: str, lost: asyncio.Future[Any]
) -> AsyncGenerator[tuple[Client, str]]:
    """The client and which URI it is. `lost` is done when the connection has ended: whoever runs
    the shovel connects again, so the client does not.
    """
    client = Client()

    async def closed() -> None:
        if not lost.done():
            lost.set_result(None)

    await client.connect(
        list(uris),
        name=name,
        connect_timeout=CONNECT_S_MAX,
        allow_reconnect=False,
        closed_cb=closed,
        disconnected_cb=closed,
    )
    try:
        url = client.connected_url
        yield client, without_password(url.geturl() if url is not None else uris[0])
    finally:
        with suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await client.close()


class NatsConsumer:
    """Implements `Source`."""

    queue = ""

    def __init__(self, client: Client, uri: str, origin: str) -> None:
        self.uri = uri
        self._js: JetStreamContext = cast(Any, client).jetstream()
        self._origin = origin
        self._left: int | None = None
        self._subscription: JetStreamContext.PullSubscription
        self._fetched: deque[Msg] = deque()
        self._unsettled: deque[Msg] = deque()
        self._ended: list[tuple[asyncio.Future[Any], str]] = []

    async def begin(self, source: NatsSource, shovel: Shovel) -> None:
        try:
            info = await self._js.consumer_info(source.stream, source.consumer)
            if info.config.ack_policy == AckPolicy.NONE and shovel.ack_mode != "no-ack":
                # What it has delivered is gone there, whatever becomes of it here.
                raise ConnectionError(
                    f"consumer '{source.consumer}' does not acknowledge: name one with ack_policy"
                    " explicit, or take ack-mode no-ack, which may lose messages"
                )
        except NotFoundError:
            await cast(Any, self._js).add_consumer(
                source.stream,
                ConsumerConfig(
                    durable_name=source.consumer,
                    ack_policy=AckPolicy.EXPLICIT,
                    filter_subject=source.filter,
                    max_ack_pending=shovel.prefetch,
                ),
            )
        if isinstance(shovel.delete_after, int):
            self._left = shovel.delete_after
        self._subscription = await self._js.pull_subscribe_bind(
            durable=source.consumer, stream=source.stream
        )

    def ends_with(self, lost: asyncio.Future[Any], what: str) -> None:
        """Whoever waits for a message hears of it."""
        self._ended.append((lost, what))

    async def take(self) -> Item | None:
        if self._left == 0:
            return None
        while not self._fetched:
            for lost, what in self._ended:
                if lost.done():
                    raise ConnectionError(what)
            with suppress(NatsTimeout):
                wanted = FETCHED_MAX if self._left is None else min(FETCHED_MAX, self._left)
                self._fetched += await self._subscription.fetch(wanted, timeout=FETCH_S)
        message = self._fetched.popleft()
        if self._left is not None:
            self._left -= 1
        self._unsettled.append(message)
        headers: dict[str, Any] = dict(message.headers or {})
        properties = commands.Basic.Properties(
            headers=headers or None,
            message_id=headers.get(Header.MSG_ID.value),
            delivery_mode=PERSISTENT,
        )
        at = message.metadata
        # Made again, or restored, a stream has the same sequences at other times.
        identity = f"{self._origin}.{at.sequence.stream}.{at.timestamp.isoformat()}"
        return Item(message, message.data, Message(properties, "", message.subject, identity))

    async def settle(self, tag: Any) -> None:
        while self._unsettled:
            message = self._unsettled.popleft()
            await message.ack()
            if message is tag:
                return


class NatsPublisher:
    """Implements `Destination`. A message with an identity has it as its `Nats-Msg-Id`, by which
    the stream stores it once.
    """

    def __init__(self, client: Client, uri: str, to: NatsDestination, shovel: Shovel) -> None:
        self.uri = uri
        self._client = client
        self._js: JetStreamContext = cast(Any, client).jetstream()
        self._to = to
        self._confirms = shovel.ack_mode == "on-confirm"

    async def publish(self, item: Item) -> None:
        properties, _, key, identity = cast("Message", item.message)
        headers = _as_text(properties.headers or {})
        if properties.content_type:
            headers.setdefault("Content-Type", properties.content_type)
        if identity is not None:
            headers[Header.MSG_ID.value] = identity
        subject = self._to.subject or key
        if self._confirms:
            await self._js.publish(subject, item.body, headers=headers or None)
        else:
            await self._client.publish(subject, item.body, headers=headers or None)


def _as_text(headers: Mapping[str, Any]) -> dict[str, str]:
    """What NATS's headers can say of AMQP's: texts and numbers."""
    return {
        name: str(value)
        for name, value in headers.items()
        if isinstance(value, (str, int, float)) and _NAME.fullmatch(name)
        # What was asked of the stream before says nothing about this one.
        if name != Header.MSG_ID.value and not name.startswith(_OF_A_STREAM)
    }
