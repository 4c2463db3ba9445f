"""RabbitMQ's federation plugin and ours, each as the upstream of the other."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quorate.ports import free_port
from tests.node.links.federation.sites import OurSite, Site
from tests.node.nodes import Nodes
from tests.testkit.rabbitmq import Names, RabbitProcess, installed
from tests.testkit.waiting import until

pytestmark = [
    pytest.mark.ops,
    pytest.mark.skipif(not installed(), reason="RabbitMQ is not installed"),
]

PLUGINS = "[rabbitmq_management,rabbitmq_federation,rabbitmq_federation_management].\n"
SETTINGS = """\
management.tcp.ip = 127.0.0.1
management.tcp.port = {management}
cluster_name = rabbit
"""
MESSAGES = 5_000


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[tuple[OurSite, Site, RabbitProcess]]:
    names = Names(tmp_path / "rabbit")
    management = free_port()
    process = RabbitProcess(names, settings=SETTINGS.format(management=management), plugins=PLUGINS)
    async with Nodes(tmp_path / "ours", cluster="ours") as nodes:
        await asyncio.to_thread(process.start)
        ours = OurSite("ours", nodes)
        rabbit = Site("rabbit", process.url, f"http://127.0.0.1:{management}")
        await ours.open()
        await rabbit.open()
        yield ours, rabbit, process
        await ours.connection.close()
        await asyncio.to_thread(process.kill, signal.SIGTERM)
        names.end()


async def test_each_gets_what_is_published_to_the_exchange_of_the_other_and_nothing_comes_back(
    both: tuple[OurSite, Site, RabbitProcess],
):
    ours, rabbit, _ = both
    for down, up in ((ours, rabbit), (rabbit, ours)):
        await down.collects("all", "some.*")
        await down.follows(up, **{"max-hops": 2})
    for down, up in ((ours, rabbit), (rabbit, ours)):
        await down.linked(1)
        await until(lambda up=up, down=down: up.bound_for(down, "some.*"))

    for number in range(10):
        for site in (ours, rabbit):
            await site.publish("some.key", b"%s %d" % (site.name.encode(), number))
    for site, other in ((ours, rabbit), (rabbit, ours)):
        await site.has("all", 20)
        found = await site.taken("all")
        assert len({body for body, _ in found}) == len(found) == 20
        assert {body.split()[0].decode(): hops for body, hops in found} == {
            site.name: [],
            other.name: [other.name],
        }

    for up in (ours, rabbit):
        internal = [e for e in await up.api.get("exchanges/%2F") if "->" in e["name"]]
        assert [each["type"] for each in internal] == ["x-federation-upstream"]

    for down, up in ((ours, rabbit), (rabbit, ours)):
        await down.collects("more", "more.#")
        await until(lambda up=up, down=down: up.bound_for(down, "more.#"))


async def test_queues_of_both_fetch_for_their_consumers(
    both: tuple[OurSite, Site, RabbitProcess],
):
    ours, rabbit, _ = both
    for site in both[:2]:
        await site.channel.queue_declare("fed.q", durable=True)
    await ours.follows(rabbit)
    await rabbit.follows(ours)
    await ours.linked(1)
    await rabbit.linked(1)
    for down, up in ((ours, rabbit), (rabbit, ours)):
        got: set[bytes] = set()

        async def take(message: Any, got: set[bytes] = got) -> None:
            got.add(message.body)
            await message.channel.basic_ack(message.delivery.delivery_tag)

        for number in range(100):
            await up.publish("fed.q", b"%d" % number, exchange="")
        tag = await down.consume("fed.q", take)
        await until(lambda got=got: len(got) == 100)
        await down.channel.basic_cancel(tag)


async def test_what_is_published_upstream_while_the_link_breaks_comes_all_the_same(
    both: tuple[OurSite, Site, RabbitProcess],
):
    ours, rabbit, process = both
    await ours.collects("all")
    await ours.follows(rabbit, **{"prefetch-count": 100})
    await ours.linked(1)
    await until(lambda: rabbit.bound_for(ours, "#"))

    published = 0
    for part in range(3):
        for _ in range(MESSAGES // 3):
            await rabbit.publish("k", b"%d" % published, delivery_mode=2)
            published += 1
        if part == 1:
            await asyncio.to_thread(process.kill, signal.SIGTERM)
            await asyncio.to_thread(process.start)
            await rabbit.open()
    found: set[bytes] = set()

    async def all_there() -> bool:
        found.update(body for body, _ in await ours.taken("all"))
        return len(found) == published

    await until(all_there)
