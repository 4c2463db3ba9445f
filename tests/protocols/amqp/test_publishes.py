"""Publishes on their way to queues, on a node whose copy of the catalog may be behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

from cluster.machine.catalog import ExchangeInfo, QueueInfo
from cluster.types import GroupId, QueueId
from node.broker.ingress import Ingress
from node.dispatch.in_flight import InFlight
from node.errors import Elsewhere
from node.messages.properties import NONE
from node.metrics.client_counters import ClientCounters
from node.protocols.amqp.events import publish_of
from node.protocols.amqp.publishes import Confirms, Publishes
from node.routing import Route
from node.settings.sections import LimitSettings

WHERE = b"\x00\x01q"
QUEUE = QueueInfo(QueueId(1), GroupId(1), "/", "q", {})


class FakeChannel:
    """A node that is told of the queue by the third look at the catalog; two get no answer."""

    def __init__(self) -> None:
        self.number = 1
        self.closed = False
        self.looks = 0
        self.published: list[Any] = []
        self.written: list[bytes] = []
        access = SimpleNamespace(check=print, vhost="/", entry=None)
        in_flight = InFlight(1 << 20, pause=print, resume=print)
        self.host = SimpleNamespace(vhost="/", access=access, in_flight=in_flight)
        self.outlet = SimpleNamespace(write=self.written.append)
        catalog = SimpleNamespace(routing_version=len, applied=1)
        time = SimpleNamespace(in_doubt=False, settled=AsyncMock(return_value=1_000))
        cluster: Any = SimpleNamespace(catalog_machine=catalog, time=time)
        ingress = Ingress(cluster, LimitSettings(), cut_off=lambda: False)
        ingress.router = cast(Any, SimpleNamespace(route=self._route))
        self.services = SimpleNamespace(
            counters=ClientCounters(),
            broker=SimpleNamespace(catch_up=self._catch_up, ingress=ingress),
            publisher=SimpleNamespace(publish=self._publish),
        )

    def _publish(self, info: QueueInfo, *_: Any) -> None:
        self.published.append(info)

    def _route(self, *_: Any, **_more: Any) -> Route:
        exchange = ExchangeInfo("/", "", "direct", True, False, False, {})
        return Route(exchange, (QUEUE,) if self.looks == 3 else ())

    async def _catch_up(self) -> bool:
        self.looks += 1
        return self.looks == 3

    async def patiently(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await work()
            except Elsewhere:
                await asyncio.sleep(0)


async def test_nothing_is_confirmed_as_unroutable_while_nobody_answers_for_the_catalog() -> None:
    channel = FakeChannel()
    publishes = Publishes(cast(Any, channel))
    publishes.confirms = Confirms()
    work = publishes.receive(publish_of(1, WHERE, NONE, [b"body"]))
    assert work is not None
    await work
    publishes.flush()
    assert channel.published == [QUEUE]
    assert channel.written == []
