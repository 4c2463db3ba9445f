"""At every moment an exchange upstream is whole, wherever a start of the link ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import aiormq
import pytest
from aiormq.exceptions import ChannelNotFoundEntity
from pamqp import commands

from cluster.machine.catalog_tables import BindingInfo
from node.links.federation import internal_exchanges
from node.links.federation.internal_exchanges import InternalExchanges
from node.links.federation.plan import End
from tests.node.links.federation.sites import OurSite
from tests.testkit.waiting import until

#: A start takes fewer steps, even the longest.
STEPS_MAX = 18


class Ended(Exception):
    """The connection was lost, or the node."""


class Upstream:
    """What AMQP can see of it: internal exchanges, and where they are bound."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.to_queue: set[str] = set()
        self.bound: set[str] = set()
        self.was_whole = False
        self.blind: list[str] = []  # steps after which nothing was whole

    @property
    def whole(self) -> set[str]:
        return self.there & self.to_queue & self.bound

    def did(self, what: str) -> None:
        self.was_whole |= bool(self.whole)
        if self.was_whole and not self.whole:
            self.blind.append(what)


class Steps:
    """A link's connection and channels, which end after so many steps."""

    def __init__(
        self, upstream: Upstream, steps: int | None, turn: Callable[[], Any] | None = None
    ) -> None:
        self.upstream = upstream
        self.left = steps
        self.turn = turn
        self.connection = self

    async def step(self, name: str | None = None) -> None:
        if self.turn is not None:
            await self.turn()
        if self.left is not None:
            if not self.left:
                raise Ended
            self.left -= 1
        if name is not None and name not in self.upstream.there:
            raise ChannelNotFoundEntity(name)

    async def channel(self) -> Steps:
        return self

    async def close(self) -> None:
        pass

    async def exchange_declare(self, name: str, *, passive: bool = False, **_: Any) -> None:
        await self.step(name if passive else None)
        self.upstream.there.add(name)
        self.upstream.did(f"declare {name}")

    async def queue_bind(self, _queue: str, name: str) -> None:
        await self.step(name)
        self.upstream.to_queue.add(name)
        self.upstream.did(f"queue_bind {name}")

    async def exchange_bind(self, name: str, *_: Any, **__: Any) -> None:
        await self.step(name)
        self.upstream.bound.add(name)
        self.upstream.did(f"bind {name}")

    async def exchange_delete(self, name: str) -> None:
        await self.step()
        for each in (self.upstream.there, self.upstream.to_queue, self.upstream.bound):
            each.discard(name)
        self.upstream.did(f"delete {name}")

    # What a link asks of its node.

    @asynccontextmanager
    async def open(self, _federated: Any) -> AsyncGenerator[Steps]:
        await self.step()
        yield self
        await self.step()

    def bindings(self, _federated: Any) -> list[BindingInfo]:
        return [BindingInfo("/", "fed.x", "queue", "q", "#", {})]

    def upstream_end(self, _connection: Any) -> End:
        return End("a", "/", "fed.x")


async def start(
    upstream: Upstream, steps: int | None, turn: Any = None
) -> InternalExchanges | None:
    """None: it ended before it ran."""
    world = Steps(upstream, steps, turn)
    federated = SimpleNamespace(
        upstream=SimpleNamespace(hops_max=1, bind_nowait=False),
        end=End("b", "/", "fed.x"),
        upstream_end=world.upstream_end,
    )
    link = InternalExchanges(*cast("list[Any]", [federated, world, world, world, "q"]))
    try:
        await link.bind_anew()
    except (Ended, ChannelNotFoundEntity):
        return None
    return link


@pytest.mark.parametrize("before", [1, 2])
async def test_one_is_whole_wherever_three_starts_end(before: int):
    for ends in product(range(STEPS_MAX), repeat=3):
        upstream = Upstream()
        for _ in range(before):
            assert await start(upstream, None)
        for steps in ends:
            await start(upstream, steps)
        last = await start(upstream, None)

        assert last is not None
        await last._check()  # pyright: ignore[reportPrivateUsage]
        assert upstream.blind == [], ends
        assert upstream.whole == upstream.there
        assert len(upstream.there) == 1


async def test_one_is_whole_while_two_nodes_start_the_link():
    dice = random.Random(11)

    async def turn() -> None:
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(0)

    for round_ in range(1000):
        upstream = Upstream()
        for _ in range(dice.choice((1, 2))):
            await start(upstream, None)

        await asyncio.gather(start(upstream, None, turn), start(upstream, None, turn))

        assert upstream.blind == [], round_


async def test_what_is_gone_upstream_ends_the_link():
    upstream = Upstream()
    link = await start(upstream, None)
    assert link is not None
    upstream.there.clear()

    with pytest.raises(ConnectionError, match="q B' is gone upstream"):
        await link._check()  # pyright: ignore[reportPrivateUsage]


async def test_nothing_is_missed_when_the_uri_of_an_upstream_changes(sites: list[OurSite]):
    """Its queue there is the same, and not left behind by the link of before."""
    up, down, _ = sites
    await down.collects("all")
    await down.follows(up)
    await down.linked(1)
    await until(lambda: up.bound_for(down, "#"))
    confirmed = 0
    for options in ("?heartbeat=30", "?heartbeat=31", "?heartbeat=32"):
        value = {"uri": up.uri + options, "reconnect-delay": 0.2}
        asked = await down.api.ask("PUT", "parameters/federation-upstream/%2F/a", {"value": value})
        assert asked.status == 204
        for _ in range(100):
            await up.publish("k", b"%d" % confirmed)
            confirmed += 1
            await asyncio.sleep(0.01)
    await down.linked(1)

    await down.has("all", confirmed)
    assert {int(body) for body, _ in await down.taken("all")} == set(range(confirmed))


async def test_nothing_is_missed_when_a_start_ends_in_between(
    sites: list[OurSite], monkeypatch: pytest.MonkeyPatch
):
    """The new exchange was there, and led nowhere yet."""
    up, down, _ = sites
    await down.collects("all")
    await down.follows(up)
    await down.linked(1)
    await until(lambda: up.bound_for(down, "#"))
    monkeypatch.setattr(internal_exchanges, "CHECK_S", 1.0)
    declare = InternalExchanges._declare  # pyright: ignore[reportPrivateUsage]
    ended: list[str] = []

    async def ends_then(self: InternalExchanges, name: str) -> None:
        await declare(self, name)
        if not ended:
            ended.append(name)
            raise ConnectionError("lost just then")

    monkeypatch.setattr(InternalExchanges, "_declare", ends_then)
    connection = await aiormq.connect(up.uri)
    channel = await connection.channel(publisher_confirms=True)
    stop = asyncio.Event()

    async def publish() -> int:
        count = 0
        while not stop.is_set():
            answer = await channel.basic_publish(b"%d" % count, exchange="fed.x", routing_key="k")
            assert isinstance(answer, commands.Basic.Ack)
            count += 1
        return count

    publishing = asyncio.create_task(publish())
    (link,) = await down.links()
    path = f"federation-links/vhost/%2F/{link['id']}/{link['node']}/restart"
    assert await down.api.delete(path) == 204
    await until(lambda: bool(ended))

    def internal() -> list[str]:
        every = up.nodes.one.cluster.catalog_machine.exchanges("/")
        return [each.name for each in every if each.name.startswith("federation:")]

    assert len(internal()) == 2
    await down.linked(1)
    await until(lambda: len(internal()) == 1)
    stop.set()
    confirmed = await publishing
    await connection.close()

    await down.has("all", confirmed)
    assert {int(body) for body, _ in await down.taken("all")} == set(range(confirmed))
