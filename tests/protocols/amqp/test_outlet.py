"""What waits behind a large body on its channel is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

from node.broker.bodies import PartedBody, pieces_of
from node.protocols.amqp import writer as outlets
from node.protocols.amqp.writer import Outlet, Stream
from node.tasks import Tasks

MIB = 1 << 20


class Host:
    frame_max = 128 * 1024

    def __init__(self) -> None:
        self.congested = True
        self.paused = False
        self.written = 0

    def write(self, data: bytes, _: Any = None) -> None:
        self.written += len(data)

    def pause_reading(self, _: str) -> None:
        self.paused = True

    def resume_reading(self, _: str) -> None:
        self.paused = False


def bench() -> tuple[Host, Any, Outlet]:
    host = Host()
    channel: Any = SimpleNamespace(
        host=host,
        number=1,
        closed=False,
        services=SimpleNamespace(tasks=Tasks()),
        deliveries=SimpleNamespace(writable=lambda: None),
    )
    return host, channel, Outlet(channel)


def returned(size: int) -> Stream:
    body = PartedBody([bytes(size)])
    return Stream(b"head", pieces_of(body), None, lambda: None, len(body))


def stored() -> Stream:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"

    return Stream(b"head", pieces(), None, lambda: None)


async def settled(outlet: Outlet, host: Host) -> None:
    host.congested = False
    outlet.writable()
    async with asyncio.timeout(30):
        while outlet.busy:
            await asyncio.sleep(0)


async def test_a_client_that_does_not_take_what_it_asks_for_is_not_read() -> None:
    host, _, outlet = bench()
    outlet.stream(stored())
    await asyncio.sleep(0)
    small, count = bytes(MIB), outlets.BEHIND_BYTES_MAX // MIB
    for _ in range(count):
        outlet.write(small)
    assert not host.paused
    outlet.write(small)
    assert host.paused
    await settled(outlet, host)
    assert not cast("bool", host.paused)
    assert host.written > (count + 1) * MIB


async def test_returned_bodies_count_and_a_closed_channel_holds_nothing() -> None:
    host, channel, outlet = bench()
    outlet.stream(returned(20 * MIB))
    assert host.paused
    await settled(outlet, host)
    assert not cast("bool", host.paused)

    host.congested = True
    outlet.stream(returned(20 * MIB))
    await asyncio.sleep(0)
    channel.closed = True
    outlet.close()
    outlet.write(bytes(20 * MIB))
    assert not cast("bool", host.paused)
    await channel.services.tasks.stop()
