"""After real traffic, through each protocol, the numbers are those of what was done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aio_pika
import aiohttp
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.node.metrics.exposed import Exposed, told
from tests.node.nodes import Client, Nodes, until

CLASSIC, QUORUM = "rabbit_classic_queue", "rabbit_quorum_queue"
LOGIN = {"Authorization": aiohttp.encode_basic_auth("guest", "guest")}


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path) as started:
        yield started


def counted(said: Exposed, what: str, protocol: str, queue_type: str | None = None) -> float:
    labels = {} if queue_type is None else {"queue_type": queue_type}
    return said(f"rabbitmq_global_messages_{what}_total", protocol=protocol, **labels)


async def publish(channel: AbstractChannel, key: str, *bodies: bytes) -> None:
    for body in bodies:
        await channel.default_exchange.publish(aio_pika.Message(body), key, mandatory=False)


async def url_of(nodes: Nodes) -> str:
    return f"amqp://guest:guest@{nodes.one.amqp.address}/"


async def test_what_a_client_of_amqp_publishes(nodes: Nodes):
    async with await aio_pika.connect(await url_of(nodes)) as connection:
        sure = await connection.channel(publisher_confirms=True, on_return_raises=True)
        plain = await connection.channel(publisher_confirms=False)
        await sure.declare_queue("orders", durable=True)
        await sure.declare_queue("copies", durable=True)
        fan = await sure.declare_exchange("fan", "fanout")
        for name in ("orders", "copies"):
            queue = await sure.get_queue(name)
            await queue.bind(fan)
        await publish(sure, "orders", b"x" * 100, b"x" * 101)
        await publish(plain, "orders", b"", b"y" * 2_000_000)
        await fan.publish(aio_pika.Message(b"to both"), "")
        await publish(plain, "nowhere", b"dropped")
        await publish(sure, "nowhere", b"dropped, and confirmed")
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await sure.default_exchange.publish(aio_pika.Message(b"back"), "nowhere")

        async def arrived() -> Exposed | None:
            said = await told(nodes)
            return said if said("rabbitmq_queue_messages_ready") == 6 else None

        said = await until(arrived)

        assert counted(said, "received", "amqp091") == 8
        assert counted(said, "received_confirm", "amqp091") == 5
        assert counted(said, "confirmed", "amqp091") == 5
        assert counted(said, "routed", "amqp091") == 6
        assert said("rabbitmq_queue_messages_published_total") == 6
        assert counted(said, "unroutable_dropped", "amqp091") == 2
        assert counted(said, "unroutable_returned", "amqp091") == 1
        assert said("rabbitmq_channel_messages_unroutable_dropped_total") == 2
        assert said("rabbitmq_channel_messages_unroutable_returned_total") == 1
        sizes = {
            bound: said("rabbitmq_message_size_bytes_bucket", protocol="amqp091", le=bound)
            for bound in ("100.0", "1000.0", "1e+06", "1e+07", "+Inf")
        }
        assert sizes == {"100.0": 6, "1000.0": 7, "1e+06": 7, "1e+07": 8, "+Inf": 8}
        assert said("rabbitmq_message_size_bytes_sum", protocol="amqp091") == 2_000_241
        assert said("rabbitmq_global_publishers", protocol="amqp091") == 2
        assert said("rabbitmq_queues") == 2
        assert said("rabbitmq_connections") == 1
        assert said("rabbitmq_channels") == 2
        assert counted(said, "received", "quorate") == counted(said, "received", "http") == 0


async def test_what_a_client_of_amqp_consumes_and_gets(nodes: Nodes):
    async with await aio_pika.connect(await url_of(nodes)) as connection:
        channel = await connection.channel()
        orders = await channel.declare_queue("orders", durable=True)
        passing = await channel.declare_queue("passing", durable=False, exclusive=True)
        await publish(channel, "orders", *[b"m"] * 7)
        await publish(channel, "passing", *[b"m"] * 3)
        got = await orders.get()
        await got.ack()
        await orders.get(no_ack=True)
        back = await orders.get()
        await back.nack(requeue=True)
        taken: list[AbstractIncomingMessage] = []

        async def take(message: AbstractIncomingMessage) -> None:
            taken.append(message)

        tag = await orders.consume(take)
        await passing.consume(take, no_ack=True)
        await until(lambda: len(taken) == 8)
        for message in taken:
            if message.routing_key == "orders":
                await message.ack()
        await until(lambda: nodes.one.traffic.dispatcher.counts.settled == 6)
        assert await orders.get(fail=False) is None
        said = await told(nodes)

        assert counted(said, "delivered_get_manual_ack", "amqp091", QUORUM) == 2
        assert counted(said, "delivered_get_auto_ack", "amqp091", QUORUM) == 1
        assert counted(said, "get_empty", "amqp091", QUORUM) == 1
        assert counted(said, "delivered_consume_manual_ack", "amqp091", QUORUM) == 5
        assert counted(said, "delivered_consume_auto_ack", "amqp091", QUORUM) == 0
        assert counted(said, "delivered_consume_auto_ack", "amqp091", CLASSIC) == 3
        assert counted(said, "delivered", "amqp091", QUORUM) == 8
        assert counted(said, "delivered", "amqp091", CLASSIC) == 3
        assert counted(said, "redelivered", "amqp091", QUORUM) == 1
        assert counted(said, "acknowledged", "amqp091", QUORUM) == 6
        assert said("rabbitmq_channel_messages_acked_total") == 6
        assert said("rabbitmq_global_consumers", protocol="amqp091") == 2
        assert said("rabbitmq_queue_consumers") == 2

        each = await told(nodes, "metrics/per-object")
        orders_labels = {"queue": "orders", "vhost": "/"}
        assert each("rabbitmq_queue_messages_published_total", **orders_labels) == 7
        # A queue does not know that one was acknowledged by the node, for a get that need not.
        assert each("rabbitmq_queue_messages_acked_total", **orders_labels) == 7
        assert each("rabbitmq_queue_consumers", **orders_labels) == 1
        assert (
            each("rabbitmq_queue_info", **orders_labels, queue_type=QUORUM, membership="leader")
            == 1
        )
        await orders.cancel(tag)
        said = await told(nodes)
        assert said("rabbitmq_global_consumers", protocol="amqp091") == 1


async def test_connections_channels_and_queues_that_come_and_go(nodes: Nodes):
    async with await aio_pika.connect(await url_of(nodes)) as connection:
        first = await connection.channel()
        await first.declare_queue("orders", durable=True)
        await first.declare_queue("orders", durable=True)
        await first.queue_delete("orders")
        await first.close()
        await connection.channel()
        said = await told(nodes)
        assert said("rabbitmq_channels") == 1
    await until(lambda: nodes.one.metrics.counters.connections_closed == 1)
    said = await told(nodes)

    assert said("rabbitmq_connections_opened_total") == 1
    assert said("rabbitmq_connections_closed_total") == 1
    assert said("rabbitmq_channels_opened_total") == 2
    assert said("rabbitmq_channels_closed_total") == 2
    assert said("rabbitmq_queues_declared_total") == 2
    assert said("rabbitmq_queues_created_total") == 1
    assert said("rabbitmq_queues_deleted_total") == 1
    assert said("rabbitmq_connections") == said("rabbitmq_channels") == said("rabbitmq_queues") == 0


async def test_what_a_native_client_does(nodes: Nodes):
    await nodes.declare("q")
    async with Client(nodes.url("n1")) as client:
        await client.publish("q", *[b"m" * 50] * 5)
        _, _, consumer, _ = await client.ask(20, 2, "q", {"tag": "t", "credit": 3})
        first = await client.deliveries(3)
        await client.ask(30, 3, "q", consumer, [[first[0][0], first[-1][0]]])
        await client.deliveries(2)
        said = await told(nodes)

    assert counted(said, "received", "quorate") == 5
    assert counted(said, "received_confirm", "quorate") == 5
    assert counted(said, "confirmed", "quorate") == 5
    assert counted(said, "routed", "quorate") == 5
    assert counted(said, "delivered_consume_manual_ack", "quorate", QUORUM) == 5
    assert counted(said, "acknowledged", "quorate", QUORUM) == 3
    assert said("rabbitmq_global_publishers", protocol="quorate") == 1
    assert said("rabbitmq_global_consumers", protocol="quorate") == 1
    assert said("rabbitmq_message_size_bytes_bucket", protocol="quorate", le="100.0") == 5
    assert said("rabbitmq_queue_messages_unacked") == 2


async def test_gets_and_settles_over_http_are_deliveries_and_acknowledgements(nodes: Nodes):
    await nodes.declare("q")
    base = f"{nodes.url('n1')}/v1/queues/%2F/q"
    async with aiohttp.ClientSession(headers=LOGIN) as http:

        async def post(path: str, **body: object) -> dict[str, object]:
            async with http.post(f"{base}/{path}", json=body) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        for _ in range(3):
            async with http.post(f"{base}/messages", data=b"m") as answer:
                assert answer.status == 200
        got = await post("get", count=2)
        await post("settle", consumer=got["consumer"], ranges=[[1, 2]])
        await post("get", count=5, auto_settle=True)
        await post("get", count=5)
    said = await told(nodes)

    assert counted(said, "received", "http") == 3
    assert counted(said, "confirmed", "http") == 3
    assert counted(said, "delivered_get_manual_ack", "http", QUORUM) == 2
    assert counted(said, "delivered_get_auto_ack", "http", QUORUM) == 1
    assert counted(said, "get_empty", "http", QUORUM) == 1
    assert counted(said, "delivered", "http", QUORUM) == 3
    assert counted(said, "acknowledged", "http", QUORUM) == 2
    assert said("quorate_messages_delivered_total") == 3
    assert said("quorate_messages_settled_total") >= 2


async def test_messages_by_hand_through_the_management_api_are_counted_as_http(nodes: Nodes):
    await nodes.declare("q")
    api = f"{nodes.url('n1')}/api"
    async with aiohttp.ClientSession(headers=LOGIN) as http:
        for key in ("q", "nowhere"):
            body = {"properties": {}, "routing_key": key, "payload": "m"}
            body["payload_encoding"] = "string"
            async with http.post(f"{api}/exchanges/%2F/amq.default/publish", json=body) as answer:
                assert answer.status == 200, await answer.text()
        take = {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto"}
        for _ in range(2):
            async with http.post(f"{api}/queues/%2F/q/get", json=take) as answer:
                assert answer.status == 200, await answer.text()
    said = await told(nodes)

    assert counted(said, "received", "http") == 2
    assert counted(said, "unroutable_dropped", "http") == 1
    assert counted(said, "routed", "http") == 1
    assert counted(said, "delivered", "http", QUORUM) == 1
    assert counted(said, "acknowledged", "http", QUORUM) == 1
    assert counted(said, "get_empty", "http", QUORUM) == 1


async def test_messages_are_counted_where_the_client_is_and_queues_where_they_are_led(
    tmp_path: Path,
):
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("q")
        leader = await nodes.leader("q")
        here = next(name for name in nodes.nodes if name != leader)
        async with Client(nodes.url(here), forward=True) as client:
            await client.publish("q", b"1", b"2", b"3")
            _, _, consumer, _ = await client.ask(20, 2, "q", {"tag": "t", "credit": 2})
            first = await client.deliveries(2)
            await client.ask(30, 3, "q", consumer, [[first[0][0], first[0][0]]])
            await client.deliveries(1)
            said = {name: await told(nodes, name=name) for name in nodes.nodes}

        assert counted(said[here], "received", "quorate") == 3
        assert counted(said[here], "delivered", "quorate", QUORUM) == 3
        assert counted(said[here], "acknowledged", "quorate", QUORUM) == 1
        assert said[here]("rabbitmq_global_consumers", protocol="quorate") == 1
        assert counted(said[leader], "received", "quorate") == 0
        assert counted(said[leader], "delivered", "quorate", QUORUM) == 0
        assert {name: each("rabbitmq_queues") for name, each in said.items()} == {
            name: int(name == leader) for name in nodes.nodes
        }
        assert said[leader]("rabbitmq_queue_messages_unacked") == 2
        assert said[leader]("rabbitmq_queue_consumers") == 1

        each = {name: await told(nodes, "metrics/per-object", name=name) for name in nodes.nodes}
        for name, one in each.items():
            role = "leader" if name == leader else "follower"
            labels = {"queue": "q", "vhost": "/", "queue_type": QUORUM, "membership": role}
            assert one("rabbitmq_queue_info", **labels) == 1
            assert one("rabbitmq_raft_term", queue="q", vhost="/") >= 1


async def test_each_dead_letter_is_counted_once_in_the_whole_cluster(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("dead")
        await nodes.declare("limited", max_length=1, overflow="drop-head")
        await nodes.declare(
            "short", message_ttl=1, dead_letter_exchange="", dead_letter_routing_key="dead"
        )
        async with Client(nodes.url("n1"), forward=True) as client:
            await client.publish("limited", b"1", b"2", b"3")
            await client.publish("short", b"4", b"5", request=2)

        async def sums() -> dict[tuple[str, str], float] | None:
            every = [await told(nodes, name=name) for name in nodes.nodes]
            found = {
                (reason, strategy): sum(
                    one(
                        f"rabbitmq_global_messages_dead_lettered_{reason}_total",
                        queue_type=QUORUM,
                        dead_letter_strategy=strategy,
                    )
                    for one in every
                )
                for reason in ("expired", "maxlen", "rejected", "delivery_limit")
                for strategy in ("disabled", "at_least_once")
            }
            return found if found["expired", "at_least_once"] else None

        found = await until(sums)
        await asyncio.sleep(0.2)

        assert {key: value for key, value in found.items() if value} == {
            ("maxlen", "disabled"): 2,
            ("expired", "at_least_once"): 2,
        }


async def test_the_detailed_endpoint_tells_of_the_queues_that_were_asked_for(nodes: Nodes):
    await nodes.declare("a")
    await nodes.declare("b")
    asked = await told(nodes, "metrics/detailed?family=queue_coarse_metrics&vhost=/&queue=b")
    other = await told(nodes, "metrics/detailed?family=queue_coarse_metrics&vhost=elsewhere")
    bindings = await told(nodes, "metrics/detailed?family=exchange_bindings&family=vhost_status")

    assert asked.labels("rabbitmq_detailed_queue_messages", "queue") == {"b"}
    assert other.labels("rabbitmq_detailed_queue_messages", "queue") == set()
    labels = {"vhost": "/", "exchange": "amq.topic", "type": "topic"}
    assert bindings("rabbitmq_cluster_exchange_bindings", **labels) == 0
    assert bindings("rabbitmq_cluster_vhost_status", vhost="/") == 1


async def test_names_with_quotes_and_backslashes_arrive_as_they_are(nodes: Nodes):
    name = 'a "quoted" \\ queue'
    await nodes.declare(name)
    each = await told(nodes, "metrics/per-object")

    assert name in each.labels("rabbitmq_queue_messages", "queue")
