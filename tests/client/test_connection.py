"""What a node sends at once, its client reads at once: before whoever asked goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import pytest

from quorate import wire
from quorate.connection import Connection

CHUNK = [1, 1, 0, 0, [b"1"], None, None]


class Socket:
    """A read waits only when nothing has come."""

    close_code = None

    def __init__(self) -> None:
        self.asked: asyncio.Queue[list[Any]] = asyncio.Queue()
        self.frames: asyncio.Queue[list[Any]] = asyncio.Queue()

    async def receive(self) -> aiohttp.WSMessage:
        data = wire.encode(await self.frames.get())
        return aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, data, None)

    async def send_bytes(self, data: bytes) -> None:
        self.asked.put_nowait(wire.decode(data))

    async def close(self) -> None: ...


class Consumer:
    def __init__(self) -> None:
        self.saw: list[Any] = []

    def delivered(self, chunks: list[list[Any]]) -> None:
        self.saw.append(chunks)

    def ended(self, reason: str) -> None:
        self.saw.append(reason)

    def active_changed(self, active: bool, token: int) -> None:
        self.saw.append((active, token))

    def disturbed(self) -> None:
        self.saw.append("disturbed")


@pytest.fixture
async def socket() -> Socket:
    return Socket()


@pytest.fixture
async def connection(socket: Socket) -> AsyncIterator[Connection]:
    made = Connection(
        cast(Any, socket), "http://n1", [wire.WELCOME, 1, {"node": "n1"}], lambda *_: None
    )
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


MOVED = [wire.REDIRECT, 0, "orders", "n2", "http://n2"]


@pytest.mark.parametrize(
    ("follow", "seen"),
    [
        ([[wire.DELIVER, "orders", 7, [CHUNK]]], [[CHUNK]]),
        ([MOVED], ["disturbed"]),
        ([[wire.DELIVER, "orders", 7, [CHUNK]], MOVED], [[CHUNK], "disturbed"]),
        ([[wire.ENDED, "orders", 7, "queue_deleted"]], ["queue_deleted"]),
        ([[wire.ACTIVE, "orders", 7, False, 3]], [(False, 3)]),
        ([[wire.REDIRECT, 0, "others", "n2", "http://n2"]], []),
    ],
    ids=["delivered", "moved", "delivered and moved", "ended", "not active", "another moved"],
)
async def test_what_follows_a_subscription_at_once_reaches_its_consumer(
    connection: Connection, socket: Socket, follow: list[list[Any]], seen: list[Any]
) -> None:
    subscribing = asyncio.create_task(connection.subscribe("orders", {}))
    asked = await socket.asked.get()
    for frame in [[wire.SUBSCRIBED, asked[1], 7, True], *follow]:
        socket.frames.put_nowait(frame)
    await subscribing
    consumer = Consumer()
    connection.attach("orders", 7, consumer)
    assert consumer.saw == seen


async def test_what_came_before_a_subscription_was_of_an_earlier_one(
    connection: Connection, socket: Socket
) -> None:
    subscribing = asyncio.create_task(connection.subscribe("orders", {}))
    asked = await socket.asked.get()
    for frame in [MOVED, [wire.SUBSCRIBED, asked[1], 7, True]]:
        socket.frames.put_nowait(frame)
    await subscribing
    consumer = Consumer()
    connection.attach("orders", 7, consumer)
    assert consumer.saw == []
