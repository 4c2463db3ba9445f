"""How long messages take, through each protocol: counted by message, measured by batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pika
import pytest
from yarl import URL

from cluster.groups.outcome import Outcome
from cluster.machine.commands import Enqueue, Return, Settle
from cluster.machine.effects import Deliver
from cluster.machine.replies import Chunk, Enqueued
from cluster.types import BodyRef, ConsumerKey, GroupId, QueueId, SessionId
from node.dispatch.dispatch import Dispatcher
from node.dispatch.plan import ConnectionId, Propose
from tests.node.metrics.exposed import Exposed, told
from tests.node.nodes import Client, Nodes, until

WAIT_S = 0.3


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path) as started:
        yield started


def counted(said: Exposed, name: str, **labels: str) -> tuple[float, float]:
    return said(f"{name}_count", **labels), said(f"{name}_sum", **labels)


def above(said: Exposed, name: str, bound: str) -> float:
    """How many took longer than the bound."""
    total = said(f"{name}_bucket", le="+Inf")
    return total - said(f"{name}_bucket", le=bound)


async def test_a_native_message_is_counted_at_its_confirm_its_delivery_and_its_ack(nodes: Nodes):
    await nodes.declare("q")
    async with Client(nodes.url("n1")) as client:
        began_s = time.monotonic()
        await client.publish("q", *[b"m"] * 40)
        took_s = time.monotonic() - began_s
        count, total_s = counted(
            await told(nodes), "quorate_publish_confirm_seconds", protocol="native"
        )
        assert count == 40
        assert 0 < total_s <= 40 * took_s  # all of one batch took as long as it

        await asyncio.sleep(WAIT_S)
        _, _, consumer, _ = await client.ask(20, 2, "q", {"tag": "t"})
        first = await client.deliveries(40)
        said = await told(nodes)
        count, total_s = counted(said, "quorate_publish_deliver_seconds")
        assert count == 40
        assert total_s >= 40 * (WAIT_S - 0.002)  # stamps are in whole milliseconds
        assert above(said, "quorate_publish_deliver_seconds", "0.25") == 40
        assert counted(said, "quorate_deliver_ack_seconds")[0] == 0

        await asyncio.sleep(WAIT_S)
        await client.ask(30, 3, "q", consumer, [[first[0][0], first[-1][0]]])
        said = await told(nodes)
        count, total_s = counted(said, "quorate_deliver_ack_seconds")
        assert count == 40
        assert total_s >= 40 * WAIT_S


async def test_what_is_delivered_again_is_no_first_delivery(nodes: Nodes):
    await nodes.declare("q")
    async with Client(nodes.url("n1")) as client:
        await client.publish("q", b"m")
        _, _, consumer, _ = await client.ask(20, 2, "q", {"tag": "t"})
        ((position, _),) = await client.deliveries(1)
        await client.send(31, 3, "q", consumer, [[position, position]], False, None)
        await client.deliveries(1)
        said = await told(nodes)
        assert counted(said, "quorate_publish_deliver_seconds")[0] == 1
        assert said("quorate_messages_delivered_total") == 2
        assert counted(said, "quorate_deliver_ack_seconds")[0] == 0  # it was not acknowledged


async def test_an_http_publish_is_counted_under_http(nodes: Nodes):
    await nodes.declare("q")
    async with aiohttp.ClientSession() as http:
        url = f"{nodes.url('n1')}/v1/queues/%2F/q/messages"
        async with http.post(URL(url, encoded=True), data=b"body") as answer:
            assert answer.status == 200, await answer.text()
    said = await told(nodes)
    assert counted(said, "quorate_publish_confirm_seconds", protocol="http")[0] == 1
    assert counted(said, "quorate_publish_confirm_seconds", protocol="native")[0] == 0


async def test_an_amqp_message_is_counted_at_its_confirm_and_its_ack(nodes: Nodes):
    await nodes.declare("q")

    def talk() -> None:
        host, port = nodes.one.amqp.address.rsplit(":", 1)
        with pika.BlockingConnection(pika.ConnectionParameters(host, int(port))) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for _ in range(5):
                channel.basic_publish("", "q", b"m")
            tag = 0
            for _ in range(5):
                tag = channel.basic_get("q")[0].delivery_tag
            time.sleep(WAIT_S)
            channel.basic_ack(tag, multiple=True)

    await asyncio.to_thread(talk)

    async def acked() -> bool:
        return counted(await told(nodes), "quorate_deliver_ack_seconds")[0] == 5

    await until(acked)
    said = await told(nodes)
    count, total_s = counted(said, "quorate_publish_confirm_seconds", protocol="amqp")
    assert count == 5
    assert total_s > 0
    assert above(said, "quorate_deliver_ack_seconds", "0.25") == 5


async def test_a_loop_that_stood_still_is_seen(nodes: Nodes):
    name = "quorate_event_loop_lag_seconds"

    async def ticked() -> bool:
        return (await told(nodes))(f"{name}_count") > 0

    await until(ticked)
    before = above(await told(nodes), name, "0.25")
    time.sleep(0.6)  # the node's loop is this one

    async def seen() -> bool:
        return above(await told(nodes), name, "0.25") > before

    await until(seen)


# --- the dispatcher's own clock


GROUP, QUEUE, KEY = GroupId(1), QueueId(2), ConsumerKey(3)


class Timed:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.first: list[tuple[int, int, int]] = []
        self.dispatcher = Dispatcher(
            lambda _, ref: [(b"m", None)] * ref.count,
            in_flight_bytes_max=1_000,
            deliver_buffer_bytes_max=1_000_000,
            now_s=lambda: self.now_s,
            on_first_delivery=lambda *said: self.first.append(said),
        )
        self.dispatcher.opened(ConnectionId(1))
        self.dispatcher.announced(ConnectionId(1), GROUP, QUEUE, "q", KEY, holds=())

    @property
    def acked(self) -> tuple[int, float]:
        spread = self.dispatcher.counts.latencies.acked
        return spread.count, round(spread.sum, 6)

    def deliver(self, first: int, count: int, token: int, acquired: int = 0) -> None:
        chunk = Chunk(first, BodyRef(token, 0, count), token, 0, acquired)
        self.dispatcher.effects(GROUP, [Deliver(QUEUE, KEY, SessionId("s"), [chunk])])
        self.dispatcher.flush()

    def ask(self, command: Settle | Return) -> None:
        self.dispatcher.settled(command)


def test_one_batch_of_a_consumer_is_timed_until_it_is_settled_and_then_the_next():
    timed = Timed()
    timed.deliver(1, 10, token=1)
    timed.now_s += 1
    timed.deliver(11, 10, token=2)  # not timed: the first is still out
    timed.now_s += 1
    timed.ask(Settle(QUEUE, KEY, [(1, 4)]))
    assert timed.acked == (4, 8.0)
    timed.ask(Settle(QUEUE, KEY, [(11, 20)]))
    assert timed.acked == (4, 8.0)
    timed.now_s += 1
    timed.ask(Settle(QUEUE, KEY, [(5, 10)]))
    assert timed.acked == (10, 8.0 + 18.0)
    timed.deliver(21, 2, token=3)
    timed.now_s += 0.5
    timed.ask(Settle(QUEUE, KEY, [(21, 22)]))
    assert timed.acked == (12, 27.0)


def test_a_batch_that_is_returned_is_timed_no_more_and_is_no_ack():
    timed = Timed()
    timed.deliver(1, 2, token=1)
    timed.ask(Return(QUEUE, KEY, [(1, 2)]))
    timed.now_s += 1
    timed.ask(Settle(QUEUE, KEY, [(1, 2)]))  # late, and refused by the machine
    assert timed.acked == (0, 0.0)


def test_first_deliveries_are_told_with_their_entry_and_others_not():
    timed = Timed()
    timed.deliver(1, 3, token=7)
    timed.deliver(1, 3, token=8, acquired=1)
    assert timed.first == [(GROUP, 7, 3)]


def test_a_confirm_is_timed_for_stored_and_for_duplicate_messages():
    timed = Timed()
    command = Enqueue(QUEUE, "p", 1, [b"m"] * 3)
    timed.dispatcher.publish(ConnectionId(1), 1, GROUP, "q", command, 3)
    (propose,) = [each for each in timed.dispatcher.take() if isinstance(each, Propose)]
    assert propose.ticket is not None
    timed.now_s += 0.25
    timed.dispatcher.outcome(propose.ticket, Outcome("ok", Enqueued(1, 2, 1, ())))
    spread = timed.dispatcher.counts.latencies.confirmed["native"]
    assert (spread.count, spread.sum) == (3, 0.75)
