"""The clients of the workload of streams on real nodes: nats-py, as it is, with its own way to
reconnect.

What it could not send while it was without a node it sends when it has one, also after the caller
has given up: an outcome that is unknown stays so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.errors import Error as JetStreamError

from chaos.load.addresses import Address
from chaos.load.nats_client import ANSWER_S_MAX, CONNECT_S_MAX, PONG_S_MAX, RETRY_S, Header, Message

#: Silence of so many pings ends a connection.
PINGS_MAX: Final = 2
#: Then it begins anew, with the addresses that there are now.
OPEN_S_MAX: Final = 10.0
#: What it raises when it has no answer. Its own timeout is both an error of its own and asyncio's.
NO_ANSWER: Final = (Error, JetStreamError, OSError, TimeoutError)

# Connections break all the time here, and it says so.
logging.getLogger("nats.aio.client").setLevel(logging.CRITICAL)


class NatsPyClient:
    """Implements `StreamClient`. `addresses` may grow and shrink while it is used."""

    def __init__(self, name: str, addresses: Sequence[Address]) -> None:
        self.name = name
        self._addresses = addresses
        self._nats: Client | None = None
        self._connecting = asyncio.Lock()
        self._leaving = set[asyncio.Task[None]]()

    @property
    def node(self) -> str | None:
        url = None if self._nats is None else self._nats.connected_url
        at = {each.nats: each.node for each in self._addresses}
        return None if url is None else at.get(url.netloc)

    async def _connected(self) -> Client:
        """It may be about to reconnect: then what it is told waits in its buffer."""
        async with self._connecting:
            while self._nats is None or self._nats.is_closed:
                _end_if_cancelled()
                self._nats = await self._open()
            return self._nats

    async def _open(self) -> Client | None:
        user, password = self._addresses[0].credentials
        client = Client()
        try:
            async with asyncio.timeout(OPEN_S_MAX):
                await client.connect(
                    [f"nats://{each.nats}" for each in self._addresses],
                    name=self.name,
                    user=user,
                    password=password,
                    error_cb=_ignore,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=RETRY_S,  # pyright: ignore[reportArgumentType]
                    connect_timeout=CONNECT_S_MAX,  # pyright: ignore[reportArgumentType]
                    ping_interval=PONG_S_MAX,  # pyright: ignore[reportArgumentType]
                    max_outstanding_pings=PINGS_MAX,
                )
            return client
        except NO_ANSWER:
            await _close(client)
            return None

    def drop(self) -> None:
        before, self._nats = self._nats, None
        if before is not None:
            closing = asyncio.ensure_future(_close(before))
            self._leaving.add(closing)
            closing.add_done_callback(self._leaving.discard)

    async def tell(self, subject: str, body: bytes) -> None:
        client = await self._connected()
        with suppress(*NO_ANSWER):
            await client.publish(subject, body)
        _end_if_cancelled()

    async def request(
        self, subject: str, body: bytes, header: Header | None = None
    ) -> Message | None:
        client = await self._connected()
        headers = dict(header) if header else None
        answer: Message | None = None
        with suppress(*NO_ANSWER):
            answer = _message(await client.request(subject, body, ANSWER_S_MAX, headers=headers))
        _end_if_cancelled()
        return answer

    async def pull(
        self, stream: str, consumer: str, batch: int, expires_s: float
    ) -> AsyncGenerator[Message]:
        """A subscription each: what comes late for one is not taken for the next one's."""
        client = await self._connected()
        found: list[Msg] = []
        with suppress(*NO_ANSWER):
            subscription = await JetStreamContext(client).pull_subscribe_bind(consumer, stream)
            try:
                found = await subscription.fetch(batch, expires_s)
            except asyncio.CancelledError:
                if not client.is_closed:  # so it says that, too
                    raise
            finally:
                await subscription.unsubscribe()
        _end_if_cancelled()
        for each in found:
            yield _message(each)


def _end_if_cancelled() -> None:
    """What cancels a task while nats-py writes is lost in there."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _message(found: Msg) -> Message:
    status = (found.headers or {}).get("Status", "0")
    return Message(found.subject, found.reply, int(status), found.data)


async def _close(client: Client) -> None:
    with suppress(*NO_ANSWER):
        await client.close()


async def _ignore(_error: Any) -> None:
    """It tries again."""
