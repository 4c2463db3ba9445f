"""Message groups on three nodes: whichever way messages come, and while leaders die."""

# pyright: basic, reportArgumentType=false, reportPrivateUsage=false
from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ChannelClosedByBroker

import quorate
from node.node import Node
from tests.node.management.api import api_of
from tests.node.nodes import Nodes, machine_of, until

KEYS, EACH = 12, 25
HEADER = "order"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, 3) as nodes:
        yield nodes


def connected(node: Node) -> BlockingConnection:
    host, _, port = node.amqp.address.rpartition(":")
    return BlockingConnection(
        pika.ConnectionParameters(
            host, int(port), credentials=pika.PlainCredentials("guest", "guest"), heartbeat=0
        )
    )


def properties_of(key: object) -> pika.BasicProperties:
    return pika.BasicProperties(headers={HEADER: key}, delivery_mode=2)


class Watch:
    """What two consumers do at the same time, and in which order a key's messages were done."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.in_flight: dict[str, bytes] = {}
        self.together: list[tuple[str, bytes, bytes]] = []
        self.done: dict[str, list[int]] = defaultdict(list)
        self.by: dict[str, int] = defaultdict(int)
        self.stop = threading.Event()

    @property
    def count(self) -> int:
        return sum(map(len, self.done.values()))

    def begins(self, key: str, body: bytes) -> None:
        with self.lock:
            if key in self.in_flight:
                self.together.append((key, self.in_flight[key], body))
            self.in_flight[key] = body

    def ends(self, key: str, body: bytes | None, who: str) -> None:
        with self.lock:
            del self.in_flight[key]
            if body is not None:
                self.done[key].append(int(body))
                self.by[who] += 1

    def consume(self, node: Node, who: str) -> None:
        """Every fourth message is requeued the first time it comes."""
        connection = connected(node)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=4)
        held: list[tuple[int, str, bytes, bool]] = []

        def got(_: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            key = str((properties.headers or {})[HEADER])
            self.begins(key, body)
            held.append((method.delivery_tag, key, body, method.redelivered))

        channel.basic_consume("orders", got)
        while not self.stop.is_set():
            connection.process_data_events(time_limit=0.01)  # type: ignore[arg-type]
            while held:
                tag, key, body, redelivered = held.pop()
                if int(body) % 4 == 1 and not redelivered:
                    self.ends(key, None, who)
                    channel.basic_nack(tag, requeue=True)
                else:
                    self.ends(key, body, who)
                    channel.basic_ack(tag)
        connection.close()


def publish_all(node: Node) -> None:
    connection = connected(node)
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(EACH):
        for key in range(KEYS):
            body = str(number).encode()
            channel.basic_publish("", "orders", body, properties_of(f"k{key}"))
    connection.close()


async def test_a_key_goes_to_one_consumer_at_a_time_in_order_while_the_leader_is_killed(
    nodes: Nodes,
):
    await nodes.declare("orders", group_key=HEADER, queue_type="quorum", delivery_limit=-1)
    leader = await nodes.leader("orders")
    others = [node for name, node in nodes.nodes.items() if name != leader]
    watch = Watch()
    jobs: list[Callable[[], None]] = [
        lambda: publish_all(others[0]),
        lambda: watch.consume(others[0], "one"),
        lambda: watch.consume(others[1], "two"),
    ]
    running = [asyncio.create_task(asyncio.to_thread(job)) for job in jobs]
    try:
        await until(lambda: watch.count > KEYS * EACH // 10)
        await nodes.stop(leader, transfer=False)
        await until(lambda: watch.count >= KEYS * EACH)
    finally:
        watch.stop.set()
        await asyncio.gather(*running)
    assert watch.together == [], "two messages of a key were with consumers at once"
    assert watch.done == {f"k{key}": list(range(EACH)) for key in range(KEYS)}
    assert min(watch.by.values()) > 0, watch.by


async def test_whichever_way_messages_come_they_have_their_keys(nodes: Nodes):
    api = api_of(nodes.one)
    arguments = {"group_key": HEADER, "delivery_limit": 3}
    await api.queue("grouped", **arguments)
    headers = {HEADER: "a"}

    def keys(queue: str) -> dict[str, int]:
        number, machine = machine_of(nodes, queue)
        keyed = machine._queues[number].messages.keyed  # the only place where all of them are
        names = [
            keyed.names(row.position, row.position) for row in machine.browse(number, 1, 1_000)
        ]
        found = [name[0] for name in names if name is not None]
        return {name: found.count(name) for name in found}

    await api.publish("grouped", "by HTTP", headers=headers)
    async with quorate.connect([nodes.url("n2")]) as client:
        await client.publish("grouped", b"natively", headers=headers)
    channel_jobs: list[Callable[[Any], object]] = [
        lambda channel: channel.basic_publish("", "grouped", b"alone", properties_of("a")),
        lambda channel: [
            channel.tx_select(),
            channel.basic_publish("", "grouped", b"in a transaction", properties_of("a")),
            channel.basic_publish("", "grouped", b"another", properties_of("b")),
            channel.tx_commit(),
        ],
    ]

    def by_amqp() -> None:
        connection = connected(nodes.nodes["n3"])
        for job in channel_jobs:
            channel = connection.channel()
            job(channel)
            channel.close()
        connection.close()

    await asyncio.to_thread(by_amqp)
    await until(lambda: keys("grouped") == {"a": 4, "b": 1})

    # Names fall into groups by chance: with so many some share the source's, and others do not.
    for number in range(6):
        target = f"to{number}"
        await api.queue(target, **arguments)
        reply = await api.post(
            "queues/%2F/grouped/copy", positions=[[1, 5]], to=target, operation="o"
        )
        assert reply.status == 200, reply
        await until(lambda to=target: keys(to) == {"a": 4, "b": 1})

    # Dead letters take them along, to a queue in the group or elsewhere, also from one that has no
    # groups itself.
    for number in range(6):
        for source, more in (("plain", {}), ("keyed", arguments)):
            name, to = f"{source}{number}", f"to{number}"
            letters = {"dead_letter_exchange": "", "dead_letter_routing_key": to}
            before = keys(to).get("c", 0)
            await api.queue(name, **{**more, **letters})
            await api.publish(name, "dies", headers={HEADER: "c"})
            await api.take(name, 1, "reject_requeue_false")
            await until(lambda to=to, count=before + 1: keys(to).get("c") == count)


async def test_a_dead_letter_with_a_key_of_its_own_is_in_that_group(nodes: Nodes):
    api = api_of(nodes.one)

    def keys(queue: str) -> list[str]:
        number, machine = machine_of(nodes, queue)
        keyed = machine._queues[number].messages.keyed
        rows = machine.browse(number, 1, 100)
        return [keyed.names(row.position, row.position)[0] for row in rows]

    await api.put("exchanges/%2F/dead", type="fanout", durable=True)
    for number in range(4):  # some of them in the group of the source
        target = f"dead{number}"
        await api.queue(target, group_key="routing-key")
        await api.post(f"bindings/%2F/e/dead/q/{target}", routing_key="")
    letters = {"dead_letter_exchange": "dead", "dead_letter_routing_key": "its own"}
    await api.queue("dies", **letters)
    await api.publish("dies", "m")
    await api.take("dies", 1, "reject_requeue_false")
    for number in range(4):
        await until(lambda target=f"dead{number}": keys(target) == ["its own"])
    await api.queue("parked", group_key="routing-key")
    moved = await api.post("queues/%2F/dead0/move", positions=[[1, 1]], to="parked")
    assert moved.value["done"] == 1
    await until(lambda: keys("parked") == ["its own"])


async def test_why_a_queue_does_not_move_names_the_key_and_who_holds_it(nodes: Nodes):
    api = api_of(nodes.one)
    await api.queue("held", group_key=HEADER)
    async with (
        quorate.connect([nodes.url("n2")]) as client,
        client.consume("held", credit=10, tag="slow"),
    ):
        for body in "abc":
            await api.publish("held", body, headers={HEADER: "k1"})

        async def named() -> Any:
            found = (await api.get("queues/%2F/held/why"))["findings"]
            return found if [each["code"] for each in found] == ["key_held"] else None

        [finding] = await until(named)
    assert "key k1 (2 wait) is held by consumer slow" in finding["sentence"]


async def test_what_does_not_go_together_is_refused(nodes: Nodes):
    api = api_of(nodes.one)
    arguments = {"x-group-key": HEADER, "x-max-priority": 3}
    reply = await api.ask("PUT", "queues/%2F/both", {"arguments": arguments})
    assert reply.status == 400
    assert "x-max-priority would change it" in str(reply.value)

    def declared(**arguments: object) -> str:
        connection = connected(nodes.one)
        try:
            connection.channel().queue_declare("both", durable=True, arguments=arguments)
        except ChannelClosedByBroker as error:
            return f"{error.reply_code} {error.reply_text}"
        finally:
            connection.close()
        return ""

    found = await asyncio.to_thread(declared, **arguments)
    assert found.startswith("406")
    assert "x-max-priority would change it" in found
