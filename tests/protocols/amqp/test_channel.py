"""A channel: what waits behind its methods, and methods that do what nobody foresaw."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pamqp import commands

from node.dispatch.in_flight import MESSAGE_OVERHEAD_BYTES, InFlight
from node.messages.amqp_errors import INTERNAL_ERROR, AmqpError
from node.metrics.client_counters import ClientCounters, Counts
from node.protocols.amqp import channel
from node.protocols.amqp.channel import Channel
from node.protocols.amqp.events import Method, Publish, publish_of
from node.tasks import Tasks


class FakeHost:
    def __init__(self) -> None:
        self.in_flight = InFlight(1 << 30, pause=print, resume=print)
        self.failed: asyncio.Future[AmqpError] = asyncio.get_running_loop().create_future()

    def connection_error(self, error: AmqpError) -> None:
        self.failed.set_result(error)

    def resume_reading(self, _: str) -> None: ...


def make_channel(host: FakeHost) -> Channel:
    ingress = SimpleNamespace(catalog=None)
    broker = SimpleNamespace(ingress=ingress, settle_retry=None, counts=Counts())
    services: Any = SimpleNamespace(tasks=Tasks(), counters=ClientCounters(), broker=broker)
    return Channel(cast(Any, host), 1, services)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_bug_of_ours_ends_the_connection_and_hangs_nobody(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """As RabbitMQ's do: 541."""

    def begin(*_: Any) -> Any:
        async def later() -> None:
            raise KeyError("bug")

        if waits:
            return later()
        raise KeyError("bug")

    monkeypatch.setattr(channel, "begin", begin)
    host = FakeHost()
    make_channel(host).receive(Method(1, commands.Basic.Qos()))
    async with asyncio.timeout(60):
        error = await host.failed
    assert (error.code, error.class_id, error.method_id) == (INTERNAL_ERROR, 60, 10)


class FakePublishes:
    """Keeps what leaves together."""

    uploading = False

    def __init__(self) -> None:
        self.left: list[list[Publish]] = []
        self._taken: list[Publish] = []

    def receive(self, event: Publish) -> None:
        self._taken.append(event)

    def flush(self) -> None:
        if self._taken:
            self.left.append(self._taken)
            self._taken = []


READS = [publish_of(1, b"\0\1a", b"\0\0", [b"x" * size]) for size in (100, 200)]


async def test_what_waited_behind_a_method_leaves_read_by_read():
    """All of it may be more than one command may hold: it was refused, or lost without confirms."""
    host, method = FakeHost(), asyncio.Event()
    channel = make_channel(host)
    channel.publishes = publishes = cast(Any, FakePublishes())
    channel.begin_with(cast(Any, method.wait()))
    for read in READS:
        channel.receive(read)
        channel.end_of_read()
    assert publishes.left == []

    method.set()
    while not channel.idle:
        await asyncio.sleep(0)

    assert publishes.left == [[read] for read in READS]


@pytest.mark.parametrize("closes", [False, True])
async def test_what_waits_behind_a_method_is_under_way(closes: bool):
    host, method = FakeHost(), asyncio.Event()
    channel = make_channel(host)
    channel.publishes = cast(Any, FakePublishes())
    channel.begin_with(cast(Any, method.wait()))
    for read in READS:
        channel.receive(read)
    assert host.in_flight.bytes == 300 + 2 * (5 + MESSAGE_OVERHEAD_BYTES)

    if closes:
        channel.close(lost=True)
    else:
        method.set()
        while not channel.idle:
            await asyncio.sleep(0)

    assert host.in_flight.bytes == 0
