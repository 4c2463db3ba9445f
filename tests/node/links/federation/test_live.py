"""Clusters of ours that federate with each other: real nodes, real connections."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from node.links.federation.internal_exchanges import InternalExchanges
from tests.node.links.federation.sites import OurSite
from tests.node.nodes import Nodes
from tests.testkit.commands import command
from tests.testkit.waiting import stays, until


async def test_in_a_ring_of_three_each_message_comes_once_and_as_far_as_it_may(
    sites: list[OurSite],
):
    a, b, c = sites
    for down, up in ((b, a), (c, b), (a, c)):
        await down.collects("all")
        await down.follows(up, **{"max-hops": 2})
    for site in sites:
        await site.linked(1)
    for up, down in ((a, b), (b, c), (c, a)):
        await until(lambda up=up, down=down: up.bound_for(down, "#"))

    for number in range(20):
        for site in sites:
            await site.publish("k", b"%s %d" % (site.name.encode(), number))

    for site in sites:
        await site.keeps("all", 60)
    for site, (before, first) in zip(sites, ((c, b), (a, c), (b, a)), strict=True):
        found = await site.taken("all")
        assert len({body for body, _ in found}) == 60
        came = {body.split()[0].decode(): hops for body, hops in found}
        assert came == {
            site.name: [],
            before.name: [before.name],
            first.name: [before.name, first.name],
        }


async def test_bindings_are_followed_and_what_is_not_federated_any_more_is_cleaned_up(
    sites: list[OurSite],
):
    up, down, _ = sites
    await down.collects("orders", "order.*")
    await down.follows(up)
    await down.linked(1)
    assert await up.bound_for(down, "order.*")

    await down.channel.exchange_declare("further", exchange_type="fanout")
    await down.channel.exchange_bind("further", "fed.x", "invoice.#")
    await until(lambda: up.bound_for(down, "invoice.#"))
    await up.publish("order.1", b"one", message_type="kind", headers={"n": 1, "deep": [{"x": "y"}]})
    await up.publish("other", b"nobody wants it here")
    await down.keeps("orders", 1)
    message: Any = await down.channel.basic_get("orders", no_ack=True)
    properties: Any = message.header.properties
    assert (message.delivery.exchange, message.delivery.routing_key) == ("fed.x", "order.1")
    assert properties.message_type == "kind"
    hop = {
        "uri": up.uri.replace("guest:guest@", ""),
        "exchange": "fed.x",
        "redelivered": False,
        "cluster-name": "a",
        "vhost": "/",
    }
    assert properties.headers == {"n": 1, "deep": [{"x": "y"}], "x-received-from": [hop]}

    await down.channel.exchange_unbind("further", "fed.x", "invoice.#")
    await until(lambda: not_bound(up, down, "invoice.#"))
    catalog = up.nodes.one.cluster.catalog_machine
    assert catalog.queue("/", "federation: fed.x -> b") is not None
    await down.api.delete("policies/%2F/federated")
    await until(lambda: catalog.queue("/", "federation: fed.x -> b") is None)
    assert [e.name for e in catalog.exchanges("/") if e.name.startswith("fed")] == ["fed.x"]
    assert await down.links() == []


async def not_bound(up: OurSite, down: OurSite, key: str) -> bool:
    return not await up.bound_for(down, key)


async def test_a_federated_queue_fetches_for_consumers_that_wait_and_for_nobody_else(
    sites: list[OurSite],
):
    up, down, last = sites
    for site in sites:
        await site.channel.queue_declare("fed.q", durable=True)
    await down.follows(up)
    await last.follows(down)
    await down.linked(1)
    await last.linked(1)
    for number in range(10):
        await up.publish("fed.q", b"%d" % number, exchange="")
    got: dict[str, list[bytes]] = {}

    async def consume(site: OurSite) -> str:
        async def take(message: Any) -> None:
            got.setdefault(site.name, []).append(message.body)
            await message.channel.basic_ack(message.delivery.delivery_tag)

        return await site.consume("fed.q", take)

    # From the last one nothing is fetched over two links: nobody consumes in the middle.
    tag = await consume(last)
    await stays(lambda: not got)
    await until(lambda: down.consumers("fed.q"))
    await last.channel.basic_cancel(tag)
    await until(lambda: not down.consumers("fed.q"))

    await down.publish("fed.q", b"local", exchange="")
    tag = await consume(down)
    await until(lambda: len(got.get("b", [])) == 11)
    assert got["b"] == [b"local", *[b"%d" % number for number in range(10)]]
    await down.channel.basic_cancel(tag)
    await until(lambda: not up.consumers("fed.q"))

    # Who consumes upstream comes first, and what is there when nobody waits here stays there.
    await up.publish("fed.q", b"stays", exchange="")
    await stays(lambda: len(got["b"]) == 11)
    assert [body for body, _ in await up.taken("fed.q")] == [b"stays"]


async def test_what_a_cluster_cannot_take_stays_upstream_and_others_pass_it(
    sites: list[OurSite], monkeypatch: pytest.MonkeyPatch
):
    up, down, _ = sites
    await down.collects("q")
    await down.follows(up)
    await down.linked(1)
    await until(lambda: up.bound_for(down, "#"))
    ingress: Any = down.nodes.one.broker.ingress
    limits = ingress._limits.model_copy(update={"message_bytes_max": 10})
    monkeypatch.setattr(ingress, "_limits", limits)

    for body in (b"1", b"too large for it", b"2", b"also too large", b"3"):
        await up.publish("k", body)

    await down.keeps("q", 3)

    async def says_so() -> list[Any]:
        return [each for each in await down.api.get(DOWN) if "2 messages" in each["error"]]

    (link,) = await until(says_so)
    assert "message_bytes_max" in link["error"]
    info = up.nodes.one.broker.locate("/", "federation: fed.x -> b")
    assert info is not None
    await until(lambda: up.nodes.one.broker.describe(info)["messages"] == 2)

    monkeypatch.undo()
    path = f"federation-links/vhost/%2F/{link['id']}/{link['node']}/restart"
    assert await down.api.delete(path) == 204
    await down.keeps("q", 5)
    await until(lambda: up.nodes.one.broker.describe(info)["messages"] == 0)
    assert [body for body, _ in await down.taken("q")][3:] == [
        b"too large for it",
        b"also too large",
    ]
    assert await down.api.get(DOWN) == []


async def test_links_say_how_they_are_and_start_again(sites: list[OurSite]):
    up, down, _ = sites
    await down.collects("q")
    await down.follows(up)
    await down.linked(1)
    (link,) = await down.links()
    assert link["upstream"] == "a"
    assert link["exchange"] == link["upstream_exchange"] == "fed.x"
    assert link["uri"] == up.uri.replace("guest:guest@", "")
    assert await down.api.get("federation-links/%2F/state/down") == []

    listed = ("federation", "list", "--url", down.api.url)
    status, shown, errors = await command(*listed, COLUMNS="200")
    assert (status, link["id"] in shown, "exchange fed.x" in shown) == (0, True, True), errors
    restart = ("federation", "restart", link["id"], "--url", down.api.url)
    assert (await command(*restart))[0] == 0
    await down.linked(1)

    path = f"federation-links/vhost/%2F/{link['id']}/{link['node']}/restart"
    assert await down.api.delete(path) == 204
    assert await down.api.delete(path.replace(link["id"], "other")) == 404
    await down.linked(1)

    # A namesake of this cluster cannot be told from it.
    await up.api.put("cluster-name", name="b")
    assert await down.api.delete(path) == 204

    async def refused() -> bool:
        return any("name of its own" in each["error"] for each in await down.api.get(DOWN))

    await until(refused)
    await up.api.put("cluster-name", name="a")
    await down.linked(1)

    # Upstream it was deleted: made again, as it is here.
    await up.api.delete("queues/%2F/federation%3A%20fed.x%20-%3E%20b")
    await until(lambda: up.nodes.one.broker.locate("/", "federation: fed.x -> b") is None)
    await until(lambda: up.nodes.one.broker.locate("/", "federation: fed.x -> b"))
    await until(lambda: up.bound_for(down, "#"))
    await up.publish("k", b"after")
    await down.has("q", 1)


DOWN = "federation-links/state/down"


async def test_what_federates_travels_with_definitions(sites: list[OurSite]):
    up, down, third = sites
    await down.follows(up, expires=60_000)
    definitions = await down.api.get("definitions/%2F")
    await third.collects("q")

    reply = await third.api.post("definitions/%2F", **definitions)

    assert reply.status == 204, reply
    await third.linked(1)
    queue = up.nodes.one.broker.locate("/", "federation: fed.x -> c")
    assert queue is not None
    assert queue.arguments["x-expires"] == 60_000


async def test_a_virtual_host_follows_another_of_its_own_cluster(sites: list[OurSite]):
    site = sites[0]
    await site.api.put("vhosts/other")
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    await site.api.put("permissions/other/guest", **everything)
    await site.collects("q", "some.*")
    path = "parameters/federation-upstream/%2F/other"
    assert (await site.api.ask("PUT", path, {"value": {"uri": "amqp:///other"}})).status == 201
    definition = {"federation-upstream": "other"}
    await site.api.put("policies/%2F/federated", pattern="^fed", definition=definition)
    await site.linked(1)

    published = await site.api.post(
        "exchanges/other/fed.x/publish",
        properties={},
        routing_key="some.key",
        payload="hello",
        payload_encoding="string",
    )

    assert published.value == {"routed": True}
    await site.keeps("q", 1)
    assert await site.taken("q") == [(b"hello", ["a"])]


async def test_a_link_that_finds_nobody_says_where_it_looks_and_no_password(sites: list[OurSite]):
    site = sites[0]
    await site.collects("q")
    path = "parameters/federation-upstream/%2F/gone"
    await site.api.ask("PUT", path, {"value": {"uri": "amqp://ann:secret@127.0.0.1:1"}})
    definition = {"federation-upstream": "gone"}
    await site.api.put("policies/%2F/federated", pattern="^fed", definition=definition)

    async def failed() -> bool:
        return any(row["status"] == "error" for row in await site.api.get("federation-links"))

    await until(failed)
    (row,) = await site.api.get("federation-links")
    assert row["uri"] == "amqp://ann@127.0.0.1:1"
    assert row["node"] == site.nodes.one.settings.node
    assert "secret" not in str(row)


async def test_copies_that_a_message_asked_for_upstream_are_not_made_again(sites: list[OurSite]):
    up, down, _ = sites
    for queue in ("fed.q", "copy"):
        await down.channel.queue_declare(queue, durable=True)
    await down.follows(up)
    await down.linked(1)
    got: list[bytes] = []

    async def take(message: Any) -> None:
        got.append(message.body)
        await message.channel.basic_ack(message.delivery.delivery_tag)

    await down.consume("fed.q", take)
    await up.publish("fed.q", b"m", exchange="", headers={"CC": ["copy"]})
    await until(lambda: got == [b"m"])
    await down.keeps("copy", 0)


async def test_another_node_goes_on_with_a_link_when_its_own_is_gone(tmp_path: Path):
    async with (
        Nodes(tmp_path / "up", cluster="up") as upstream,
        Nodes(tmp_path / "down", 3, cluster="down") as downstream,
    ):
        up, down = OurSite("up", upstream), OurSite("down", downstream)
        await up.open()
        await down.open()
        await down.collects("q")
        await down.follows(up, **{"prefetch-count": 10})
        await down.linked(1)
        (link,) = await down.links()
        await down.connection.close()
        for number in range(200):
            await up.publish("k", b"%d" % number)
            if number == 100:
                await downstream.stop(link["node"], transfer=False)
        down = OurSite("down", downstream)
        await down.open()
        found: set[bytes] = set()

        async def all_there() -> bool:
            found.update(body for body, _ in await down.taken("q"))
            return len(found) == 200

        await until(all_there)
        (taken_over,) = await down.links()
        assert taken_over["node"] not in (None, link["node"])
        for site in (up, down):
            await site.connection.close()


async def test_a_link_starts_again_though_what_runs_beside_it_swallows_that(
    sites: list[OurSite], monkeypatch: pytest.MonkeyPatch
):
    """As `asyncio.wait_for` does now and then. The link brought nothing any more, for ever."""
    swallowed: list[str] = []
    follow = InternalExchanges.follow

    async def follow_on(self: InternalExchanges) -> None:
        try:
            await follow(self)
        except asyncio.CancelledError:
            if swallowed:
                raise
            swallowed.append("once")
            await follow(self)

    monkeypatch.setattr(InternalExchanges, "follow", follow_on)
    up, down, _ = sites
    await down.collects("q")
    await down.follows(up)
    await down.linked(1)
    (link,) = await down.links()
    path = f"federation-links/vhost/%2F/{link['id']}/{link['node']}/restart"
    assert await down.api.delete(path) == 204
    await until(lambda: bool(swallowed))
    await up.publish("k", b"after it")
    await down.keeps("q", 1)
