"""Messages by hand, at a node whose copy of the catalog is not up to date."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from cluster.agreed_time import AgreedTime
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Bind
from cluster.types import NodeId
from node.node import Node
from quorate import Client
from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Nodes(tmp_path) as nodes:
        yield nodes.one


@pytest.fixture
def api(node: Node) -> Api:
    return api_of(node)


def lags(
    monkeypatch: pytest.MonkeyPatch, node: Node, arrives: Callable[[], Awaitable[object]]
) -> None:
    """`arrives` is in the catalog, and comes to this node only when it asks."""

    async def catch_up() -> bool:
        await arrives()
        return True

    monkeypatch.setattr(node.broker, "catch_up", catch_up)


async def test_a_message_is_routed_by_a_binding_that_another_node_has_confirmed(
    api: Api, node: Node, monkeypatch: pytest.MonkeyPatch
):
    await api.queue("q")
    await api.put("exchanges/%2F/e", type="direct")
    bind = Bind("/", "e", "queue", "q", "k", {})
    lags(monkeypatch, node, lambda: node.cluster.change(bind))

    assert await api.publish("nowhere", "1", "e") is False
    assert await api.publish("k", "2", "e") is True
    assert [message["payload"] for message in await api.take("q")] == ["2"]


async def test_an_exchange_and_a_queue_that_another_node_has_declared_are_known(
    api: Api, node: Node, monkeypatch: pytest.MonkeyPatch
):
    lags(monkeypatch, node, lambda: api.queue("q"))
    assert await api.take("q") == []
    assert await api.publish("q", "1") is True
    lags(monkeypatch, node, lambda: api.put("exchanges/%2F/e", type="direct"))
    assert await api.publish("k", "1", "e") is False


async def test_a_get_waits_while_the_queue_has_no_leader(
    api: Api, node: Node, monkeypatch: pytest.MonkeyPatch
):
    await api.queue("q")
    await api.publish("q", "1")
    leader = node.broker.leader
    looks: list[None] = []

    def elected(info: QueueInfo) -> NodeId | None:
        looks.append(None)
        return None if len(looks) < 3 else leader(info)

    monkeypatch.setattr(node.broker, "leader", elected)

    assert [message["payload"] for message in await api.take("q")] == ["1"]
    assert len(looks) >= 3


async def test_nobody_says_routed_nowhere_who_cannot_know(
    api: Api, node: Node, monkeypatch: pytest.MonkeyPatch
):
    async def cut_off() -> bool:
        return False

    monkeypatch.setattr(node.broker, "catch_up", cut_off)
    body = {"routing_key": "k", "payload": "1", "payload_encoding": "string", "properties": {}}

    assert (await api.ask("POST", "exchanges/%2F/amq.direct/publish", body)).status == 503


class Doubt:
    """A clock that is an hour ahead until it is known to be."""

    def __init__(self, time: AgreedTime) -> None:
        self.in_doubt, self.known = True, asyncio.Event()
        self.asked = asyncio.Event()
        self._time = time

    def at(self, now_ns: int) -> int:
        return self._time.at(now_ns) + 3_600_000 * self.in_doubt

    async def settled(self) -> int:
        self.asked.set()
        await self.known.wait()
        self.in_doubt = False
        return await self._time.settled()


@pytest.mark.parametrize("listener", ["amqp", "management", "native"])
async def test_a_delay_counts_from_when_the_clock_is_no_more_in_doubt(
    api: Api, node: Node, monkeypatch: pytest.MonkeyPatch, listener: str
):
    await api.queue("q")
    doubt = Doubt(node.cluster.time)

    async def publish() -> None:
        if listener == "management":
            assert await api.publish("q", "later", headers={"x-delay": 60_000}) is True
            return
        if listener == "native":
            async with Client(api.url) as client:
                assert await client.publish_to("", b"later", key="q", headers={"x-delay": 60_000})
            return
        async with await aio_pika.connect(f"amqp://guest:guest@{node.amqp.address}/") as connection:
            channel = await connection.channel(publisher_confirms=True)
            message = aio_pika.Message(b"later", headers={"x-delay": 60_000})
            await channel.default_exchange.publish(message, "q")

    monkeypatch.setattr(node.cluster, "time", doubt)
    publishing = asyncio.create_task(publish())
    await doubt.asked.wait()
    assert not publishing.done()
    doubt.known.set()
    await publishing

    [row] = await api.get("queues/%2F/q/delayed")
    assert row["due_ms"] - row["enqueued_ms"] <= 60_000


async def test_delays_and_ids_hold_at_this_door_too(api: Api):
    await api.queue("q", dedup_window=60_000)

    assert await api.publish("q", "later", headers={"x-delay": 300}, message_id="1") is True
    for _ in range(2):
        assert await api.publish("q", "now", message_id="2") is True

    assert [message["payload"] for message in await api.take("q", count=5)] == ["now"]
    found: list[Any] = []
    while not found:
        found = await api.take("q", count=5)
    assert [message["payload"] for message in found] == ["later"]
    assert found[0]["properties"]["headers"] == {"x-delay": -300}
    wrong = {"properties": {"headers": {"x-delay": "soon"}}, "payload_encoding": "string"}
    body = {**wrong, "routing_key": "q", "payload": ""}
    reply = await api.ask("POST", "exchanges/%2F/amq.default/publish", body)
    assert reply.status == 400
    assert "x-delay" in reply.value["reason"]


async def test_a_node_of_release_0_2_can_read_what_was_taken_for_it(api: Api, node: Node):
    """It asks with three fields, and what it cannot read it has acknowledged all the same."""
    await api.queue("q")
    await api.publish("q", "1")
    info = node.cluster.catalog_machine.queue("/", "q")
    assert info is not None

    ask = node.peer_rpc.request
    ready, rows = await ask(node.cluster.node, "take", info.queue, 1, "ack_requeue_false")

    assert ready == 0
    assert [(body, len(row)) for row in rows for body in row[:1]] == [(b"1", 5)]
