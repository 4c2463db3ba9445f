"""NATS through a WebSocket: the same bytes in binary messages, at the ports of HTTP."""

# pyright: basic
from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import nats
import pytest
import trustme
from aiohttp import WSMsgType

from node.protocols.nats import connection as module
from node.protocols.nats.websocket import MESSAGE_BYTES_MAX
from tests.node.nats.conftest import Connect
from tests.node.nats.wire import GUEST, OPTIONS
from tests.node.nodes import Running, in_a_thread, until
from tests.node.security.processes import Secret, trusting

CONNECT = b"CONNECT %b\r\nPING\r\n" % json.dumps({**OPTIONS, **GUEST}).encode()

Socket = aiohttp.ClientWebSocketResponse
Open = Callable[..., Awaitable[Socket]]


def url_of(running: Running) -> str:
    return f"ws://{running.node.http_address}/nats"


@pytest.fixture
async def open_(running: Running) -> AsyncIterator[Open]:
    """A WebSocket at `/nats`, as often as it is called."""
    async with aiohttp.ClientSession() as session:

        async def opened(**options: Any) -> Socket:
            return await session.ws_connect(url_of(running), max_msg_size=0, **options)

        yield opened


async def said_until(socket: Socket, end: bytes) -> bytes:
    said = b""
    while not said.endswith(end):
        said += await socket.receive_bytes()
    return said


async def logged_in(socket: Socket) -> dict[str, Any]:
    """What INFO says."""
    info = await socket.receive_bytes()
    await socket.send_bytes(CONNECT)
    assert await socket.receive_bytes() == b"PONG\r\n"
    return json.loads(info.removeprefix(b"INFO "))


async def test_nats_py_comes_by_a_websocket(running: Running):
    errors: list[Exception] = []

    async def failed(error: Exception) -> None:
        errors.append(error)

    client = await nats.connect(
        url_of(running), user="guest", password="guest", max_reconnect_attempts=0, error_cb=failed
    )
    body = b"x" * (1 << 20)

    async def answer(message: Any) -> None:
        await message.respond(message.data)

    await client.subscribe("svc", cb=answer)
    assert (await client.request("svc", body, timeout=30)).data == body
    js = client.jetstream()
    await js.add_stream(name="BY-WS", subjects=["ws.>"])
    assert (await js.publish("ws.1", b"paid", timeout=30)).seq == 1
    pull = await js.pull_subscribe("ws.>", durable="d")
    (message,) = await pull.fetch(1, timeout=30)
    await message.ack_sync(timeout=30)
    await js.delete_stream("BY-WS")
    await client.close()

    assert not errors


async def test_operations_and_messages_need_not_end_together(open_: Open, connect: Connect):
    socket = await open_()
    info = await logged_in(socket)
    other = connect()
    other.send(b"SUB a 1\r\n")
    other.sync()

    for part in (b"SUB b 1\r\nPUB ", b"a 2\r\nh", b"i\r\nPUB a 2\r\nho\r\nPI", b"NG\r\n"):
        await socket.send_bytes(part)

    assert await said_until(socket, b"PONG\r\n") == b"PONG\r\n"
    assert other.sync() == b"MSG a 1 2\r\nhi\r\nMSG a 1 2\r\nho\r\n"
    assert "connect_urls" not in info
    assert "tls_required" not in info

    body = b"x" * (MESSAGE_BYTES_MAX - 100)
    other.send(b"PUB b %d\r\n%b\r\n" % (len(body), body) * 2)
    other.sync()
    expected = b"MSG b 1 %d\r\n%b\r\n" % (len(body), body) * 2
    said = b""
    while len(said) < len(expected):
        part = await socket.receive_bytes()
        assert len(part) <= MESSAGE_BYTES_MAX
        said += part
    assert said == expected


async def test_errors_are_told_and_then_it_is_closed(open_: Open):
    socket = await open_()
    await logged_in(socket)

    await socket.send_bytes(b"FOO\r\n")

    assert await socket.receive_bytes() == b"-ERR 'Unknown Protocol Operation'\r\n"
    assert (await socket.receive()).type is WSMsgType.CLOSE
    assert socket.close_code == 1000


async def test_text_is_refused(open_: Open):
    socket = await open_()
    await logged_in(socket)

    await socket.send_str("PING\r\n")

    assert (await socket.receive()).type is WSMsgType.CLOSE
    assert socket.close_code == 1003


async def test_the_end_of_a_socket_is_the_end_of_its_connection(running: Running, open_: Open):
    server = running.node.nats
    assert server is not None
    await until(lambda: not server.connected)  # those of other tests
    sockets = [await open_(), await open_()]
    for socket in sockets:
        await logged_in(socket)
    assert len(server.connected) == 2

    await sockets[0].close()
    transport = sockets[1].get_extra_info("socket")
    transport.shutdown(2)

    await until(lambda: not server.connected)


async def test_one_that_does_not_read_is_cut_off(running: Running, open_: Open, connect: Connect):
    server = running.node.nats
    assert server is not None
    before = server.slow_count
    with mock.patch.object(module, "PENDING_BYTES_MAX", 1 << 20):
        slow, publisher = await open_(), connect()
        await logged_in(slow)
        await slow.send_bytes(b"SUB flood 1\r\nPING\r\n")
        await said_until(slow, b"PONG\r\n")

        def flood() -> None:
            deadline = time.monotonic() + 60
            while server.slow_count == before and time.monotonic() < deadline:
                publisher.send(b"PUB flood 500000\r\n%b\r\n" % (b"x" * 500_000))
                publisher.sync()

        await asyncio.to_thread(flood)

    assert server.slow_count == before + 1


async def test_a_page_of_a_browser_is_nobody_without_a_password(tmp_path: Path):
    with in_a_thread(
        tmp_path, nats="127.0.0.1:0", **{"auth.passwordless_guest": "true"}
    ) as running:
        async with aiohttp.ClientSession() as session:
            for headers, said in (
                ({}, b"PONG\r\n"),
                ({"Origin": "http://evil.example"}, b"-ERR 'Authorization Violation'\r\n"),
                ({"Host": "evil.example"}, b"-ERR 'Authorization Violation'\r\n"),
                ({"X-Forwarded-For": "10.0.0.1"}, b"-ERR 'Authorization Violation'\r\n"),
            ):
                async with session.ws_connect(url_of(running), headers=headers) as socket:
                    await socket.receive_bytes()
                    await socket.send_bytes(b'CONNECT {"verbose":false}\r\nPING\r\n')
                    assert await socket.receive_bytes() == said


async def test_it_is_one_connection_of_its_address(tmp_path: Path):
    with in_a_thread(
        tmp_path, nats="127.0.0.1:0", **{"limits.connections_per_address_max": "2"}
    ) as running:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url_of(running)) as first,
            session.ws_connect(url_of(running)) as second,
        ):
            await logged_in(first)
            await logged_in(second)
            with pytest.raises(aiohttp.ClientError):
                await session.ws_connect(url_of(running))


async def test_by_https_it_is_secure(tmp_path: Path):
    authority = trustme.CA()
    secret = Secret(tmp_path / "secret")
    secret.put(authority, "127.0.0.1", "localhost")
    settings = {
        key: str(value) for key, value in secret.settings("client", authority=False).items()
    }
    with in_a_thread(tmp_path, nats="127.0.0.1:0", https="127.0.0.1:0", **settings) as running:
        url = f"wss://{running.node.https_address}/nats"
        client = await nats.connect(
            url, user="guest", password="guest", tls=trusting(authority), max_reconnect_attempts=0
        )
        subscription = await client.subscribe("a")
        await client.publish("a", b"hi")
        assert (await subscription.next_msg(timeout=30)).data == b"hi"
        await client.close()
