"""A channel whose methods do what nobody foresaw."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pamqp import commands

from node.metrics.client_counters import ClientCounters, Counts
from node.protocols.amqp import channel
from node.protocols.amqp.channel import Channel
from node.protocols.amqp.errors import INTERNAL_ERROR, AmqpError
from node.protocols.amqp.events import Method
from node.tasks import Tasks


class FakeHost:
    in_flight = None

    def __init__(self) -> None:
        self.failed: asyncio.Future[AmqpError] = asyncio.get_running_loop().create_future()

    def connection_error(self, error: AmqpError) -> None:
        self.failed.set_result(error)


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
    broker = SimpleNamespace(ingress=None, settle_retry=None, counts=Counts())
    services: Any = SimpleNamespace(tasks=Tasks(), counters=ClientCounters(), broker=broker)
    Channel(cast(Any, host), 1, services).receive(Method(1, commands.Basic.Qos()))
    async with asyncio.timeout(60):
        error = await host.failed
    assert (error.code, error.class_id, error.method_id) == (INTERNAL_ERROR, 60, 10)
