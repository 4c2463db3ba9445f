"""Transactions and exchanges of the native protocol, on real nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import quorate
from tests.node.nodes import Client, Nodes


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, 3) as nodes:
        for name in ("orders", "invoices", "mails"):
            await nodes.declare(name)
        yield nodes


async def counts(client: quorate.Client, *queues: str) -> list[int]:
    return [(await client.info(queue))["messages"] for queue in queues]


async def test_what_is_settled_and_what_is_published_happen_together(three: Nodes):
    async with quorate.connect(three.url("n2")) as client:
        await client.publish("orders", b"1")
        async with client.consume("orders") as consumer:
            order = await anext(consumer)
            async with client.transaction() as together:
                together.publish("invoices", b"for 1", headers={"order": 1}, priority=3)
                together.publish("mails", b"about 1", key="mail")
                together.settle(order)
                assert await counts(client, "orders", "invoices", "mails") == [1, 0, 0]

            assert await counts(client, "orders", "invoices", "mails") == [0, 1, 1]
        (invoice,) = await client.get("invoices")
        assert (invoice.body, invoice.headers) == (b"for 1", {"order": 1})


async def test_nothing_happens_when_the_block_raises(three: Nodes):
    async with quorate.connect(three.url("n1")) as client:
        await client.publish("orders", b"1")
        (order,) = await client.get("orders")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with client.transaction() as together:
                together.publish("invoices", b"for 1")
                together.settle(order)
                raise ZeroDivisionError

        assert await counts(client, "orders", "invoices") == [1, 0]
        with pytest.raises(quorate.QuorateError, match="over"):
            together.publish("invoices", b"too late")


async def test_nothing_happens_when_one_delivery_is_somebody_elses_by_now(three: Nodes):
    async with quorate.connect(three.url("n1")) as client:
        await client.publish_many("orders", [b"1", b"2"])
        first, second = await client.get("orders", 2)
        await second.return_(wait=True)
        with pytest.raises(quorate.Refused) as refused:  # noqa: PT012
            async with client.transaction() as together:
                together.publish("invoices", b"for both")
                together.settle(first)
                together.discard(second)

        assert refused.value.code in {"unknown_delivery", "no_consumer"}
        assert await counts(client, "orders", "invoices") == [2, 0]


async def test_nothing_happens_when_a_queue_is_full(three: Nodes):
    await three.declare("small", max_length=1, overflow="reject-publish")
    async with quorate.connect(three.url("n3")) as client:
        with pytest.raises(quorate.Refused) as refused:  # noqa: PT012
            async with client.transaction() as together:
                together.publish("invoices", b"a")
                together.publish("small", b"b")
                together.publish("small", b"c")

        assert refused.value.code == "queue_full"
        assert await counts(client, "invoices", "small") == [0, 0]


async def test_messages_go_through_exchanges_to_what_is_bound(three: Nodes):
    async with quorate.connect(three.url("n1")) as client:
        await client.declare_exchange("events", "topic")
        await client.declare_exchange("events", "topic")
        with pytest.raises(quorate.Refused) as other:
            await client.declare_exchange("events", "fanout")
        assert other.value.code == "inequivalent_arguments"
        await client.bind("events", "orders", "order.*")
        await client.bind("events", "mails", "#")

        assert await client.publish_to("events", b"1", key="order.paid", headers={"a": 1})
        assert await client.publish_to("events", b"2", key="user.left")
        await client.unbind("events", "mails", "#")
        assert not await client.publish_to("events", b"3", key="user.left")

        (order,) = await client.get("orders")
        assert order.meta["exchange"] == "events"
        assert (order.body, order.key, order.headers) == (b"1", "order.paid", {"a": 1})
        assert [each.body for each in await client.get("mails", 5)] == [b"1", b"2"]
        async with client.transaction() as together:
            together.settle(order)
            together.publish_to("events", b"4", key="order.sent")
        assert [each.body for each in await client.get("orders")] == [b"4"]

        await client.delete_exchange("events")
        with pytest.raises(quorate.Refused) as gone:
            await client.publish_to("events", b"5")
        assert gone.value.code == "no_exchange"


async def test_headers_exchanges_route_by_what_native_clients_say(three: Nodes):
    async with quorate.connect(three.url("n1")) as client:
        await client.declare_exchange("by-country", "headers")
        await client.bind("by-country", "orders", arguments={"x-match": "all", "country": "at"})
        assert await client.publish_to("by-country", b"1", headers={"country": "at"})
        assert not await client.publish_to("by-country", b"2", headers={"country": "fr"})


async def test_what_is_wrong_with_a_step_is_said(three: Nodes):
    async with Client(three.url("n1")) as client:
        refused = await client.ask(14, 1, [[10, "nowhere", [b"a"], None, None]])
        assert refused[:3] == [4, 1, "no_queue"]
        refused = await client.ask(14, 2, [[50, "orders"]])
        assert refused[:3] == [4, 2, "bad_frame"]
        refused = await client.ask(57, 3, "amq.mine", "direct", {})
        assert refused[:3] == [4, 3, "not_allowed"]


async def test_a_commit_goes_on_when_a_leader_dies(three: Nodes):
    """The node that was asked looks for the next leader."""
    leader = await three.leader("invoices")
    other = next(name for name in ("n1", "n2", "n3") if name != leader)
    async with quorate.connect(three.url(other), forward=True) as client:
        await client.publish("orders", b"1")
        (order,) = await client.get("orders")
        await three.stop(leader, transfer=False)
        async with client.transaction() as together:
            together.settle(order)
            together.publish("invoices", b"for 1")
        assert await counts(client, "orders", "invoices") == [0, 1]


async def test_plain_calls_have_transactions_too(three: Nodes):
    url = three.url("n1")

    def work() -> tuple[int, int]:
        with quorate.connect_sync(url) as client:
            client.publish("orders", b"1")
            (order,) = client.get("orders")
            with client.transaction() as together:
                together.settle(order)
                together.publish("invoices", b"for 1")
            return client.info("orders")["messages"], client.info("invoices")["messages"]

    assert await asyncio.to_thread(work) == (0, 1)
