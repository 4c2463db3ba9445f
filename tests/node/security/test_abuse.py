"""Who dawdles, or comes too often, is turned away; others are not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from node.dispatch import in_flight
from node.protocols.native import http
from tests.node.nodes import WAIT_S, Nodes, until
from tests.node.security.processes import Processes, Secret, get, trusting

HEAD = b"POST /v1/queues/%2F/q/messages HTTP/1.1\r\nHost: localhost\r\n"


async def closed(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1024):
            pass


@pytest.mark.parametrize("port", ["https", "amqps"])
async def test_a_tls_handshake_that_does_not_end_is_ended(
    tmp_path: Path, authority: trustme.CA, secret: Secret, port: str
):
    settings = secret.settings("client", authority=False)
    async with Processes(tmp_path, **settings, **{"limits.handshake_ms_max": 300}) as nodes:
        reader, writer = await asyncio.open_connection("127.0.0.1", nodes.one.ports[port])
        writer.write(b"\x16\x03\x01\x02\x00")  # the beginning of a TLS record
        await closed(reader)
        told = await nodes.one.logged("connection_turned_away")
        assert "TLS handshake" in told["reason"]
        writer.close()


async def test_silent_tls_handshakes_count_for_their_address(
    tmp_path: Path, authority: trustme.CA, secret: Secret
):
    settings = secret.settings("client", authority=False)
    async with Processes(
        tmp_path, **settings, **{"limits.connections_per_address_max": 5}
    ) as nodes:
        port = nodes.one.ports["https"]
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        sixth, _ = await asyncio.open_connection("127.0.0.1", port)
        await closed(sixth)
        for _, writer in silent:
            writer.close()

        async def in_again() -> bool:
            with contextlib.suppress(Exception):
                url = f"https://127.0.0.1:{port}/health/live"
                return (await get(url, trusting(authority)))[0] == 200
            return False

        await until(in_again)


@pytest.mark.parametrize(
    "begun", [b"", b"GET /health/live HTTP/1.1\r\nHost: ", b"GET / HTTP/1.1\r\nX: 1\r\n"]
)
async def test_a_request_whose_head_does_not_end_is_ended(tmp_path: Path, begun: bytes):
    async with Nodes(tmp_path, **{"limits.handshake_ms_max": 1_000}) as nodes:
        host, _, port = nodes.one.http_address.rpartition(":")
        for before in (b"", b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"):
            if before and not begun:
                continue  # silence between requests is the business of keep-alive
            reader, writer = await asyncio.open_connection(host, int(port))
            if before:
                writer.write(before)
                await reader.readuntil(b"}")
            for byte in begun:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            await closed(reader)
            writer.close()


async def test_a_connection_that_asks_for_nothing_more_is_ended(tmp_path: Path):
    async with Nodes(tmp_path, **{"limits.idle_ms_max": 1_000}) as nodes:
        host, _, port = nodes.one.http_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"}")
        await closed(reader)
        writer.close()


async def test_a_request_whose_body_does_not_end_is_ended(tmp_path: Path):
    async with Nodes(tmp_path, **{"limits.request_ms_max": 1_500}) as nodes:
        await nodes.declare("q")
        host, _, port = nodes.one.http_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(HEAD + b"Content-Length: 1000\r\n\r\nabc")
        await closed(reader)
        writer.close()

        # In time, and the connection lives on.
        reader, writer = await asyncio.open_connection(host, int(port))
        for pause_s in (2, 0):
            writer.write(HEAD + b"Content-Length: 3\r\n\r\nabc")
            assert b"200" in await reader.readline()
            await reader.readuntil(b"}\n")
            await asyncio.sleep(pause_s)
        writer.close()


@pytest.mark.parametrize("how", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
async def test_a_body_that_does_not_come_keeps_nobody_else_from_publishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: bytes
):
    monkeypatch.setattr(in_flight, "ROOM_S_MAX", 0.0)
    read, reads = http._read, list[web.Request]()

    def begins(request: web.Request) -> Awaitable[bytes]:
        reads.append(request)
        return read(request)

    monkeypatch.setattr(http, "_read", begins)
    async with Nodes(tmp_path, **{"limits.in_flight_bytes_max": 65_536}) as nodes:
        await nodes.declare("q")
        host, _, port = nodes.one.http_address.rpartition(":")
        _, stalled = await asyncio.open_connection(host, int(port))
        stalled.write(HEAD + how + b"\r\n\r\n")
        await until(lambda: reads)

        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(HEAD + b"Content-Length: 3\r\n\r\nabc")
        assert b"200" in await reader.readline()
        writer.close()
        stalled.close()


async def test_a_body_that_is_too_long_or_finds_no_room_is_refused_before_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(in_flight, "ROOM_S_MAX", 0.0)
    async with Nodes(tmp_path) as nodes:
        await nodes.declare("q")

        async def answer_to(length: int) -> bytes:
            host, _, port = nodes.one.http_address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % length)
            async with asyncio.timeout(WAIT_S):
                found = await reader.readuntil(b"}")
            writer.close()
            return found

        limits = nodes.one.broker.limits
        answer = await answer_to(limits.frame_bytes_max + 1)
        assert b"413" in answer
        assert str(limits.frame_bytes_max).encode() in answer
        nodes.one.broker.ingress.room._in_flight.add(limits.in_flight_bytes_max + 1)
        assert b"503" in await answer_to(3)


async def test_a_head_that_is_too_long_is_refused(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        host, _, port = nodes.one.http_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health/live HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n")
        assert b"400" in await reader.readline()
        writer.close()


async def test_one_address_may_have_so_many_connections_over_all_protocols(tmp_path: Path):
    async with Nodes(tmp_path, **{"limits.connections_per_address_max": 4}) as nodes:
        node = nodes.one
        assert node.amqp.address is not None
        places: list[Any] = [node.http_address, node.amqp.address] * 2
        open_ones = [await connection_to(address) for address in places]

        for address in places[:2]:
            reader, writer = await connection_to(address)
            await closed(reader)
            writer.close()
        # Another address is not kept out.
        host, _, port = node.http_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readline()
        writer.close()

        for _, each in open_ones:
            each.close()

        async def in_again() -> bool:
            with contextlib.suppress(Exception):
                return (await get(f"http://{node.http_address}/health/live"))[0] == 200
            return False

        await until(in_again)


async def connection_to(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))
