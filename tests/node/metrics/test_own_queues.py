"""Ages, capacity and dead letters of real nodes, as Prometheus would read them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.metrics.exposed import told
from tests.node.nodes import Client, Nodes, until

DETAILED = "metrics/detailed?family=quorate_queue_metrics"
PER_QUEUE = {
    "quorate_queue_oldest_ready_seconds",
    "quorate_queue_oldest_unacked_seconds",
    "quorate_queue_consumer_capacity",
}


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path) as started:
        yield started


async def subscribed(client: Client, queue: str, credit: int) -> int:
    answer = await client.ask(20, 50, queue, {"tag": "t", "credit": credit})
    return answer[2]


async def test_the_oldest_messages_age_until_they_are_settled(nodes: Nodes):
    await nodes.declare("q")
    async with Client(nodes.url("n1")) as client:
        said = await told(nodes)
        assert said("quorate_oldest_ready_seconds") == 0
        before_s = time.time()
        await client.publish("q", b"1", b"2")
        await asyncio.sleep(0.2)
        said = await told(nodes)
        age_s = said("quorate_oldest_ready_seconds")
        assert 0.2 <= age_s <= time.time() - before_s + 0.01
        assert said("quorate_oldest_unacked_seconds") == 0
        each = await told(nodes, DETAILED)
        assert each("quorate_queue_oldest_ready_seconds", vhost="/", queue="q") >= age_s

        consumer = await subscribed(client, "q", 1)
        ((position, _),) = await client.deliveries(1)
        said = await told(nodes)
        assert said("quorate_oldest_ready_seconds") >= age_s  # the other one
        assert said("quorate_oldest_unacked_seconds") >= age_s
        await client.ask(30, 7, "q", consumer, [[position, position]])
        ((position, _),) = await client.deliveries(1)
        await client.ask(30, 8, "q", consumer, [[position, position]])
        said = await told(nodes)
        assert said("quorate_oldest_ready_seconds") == 0
        assert said("quorate_oldest_unacked_seconds") == 0


async def test_the_oldest_message_is_told_as_a_share_of_how_old_it_may_become(nodes: Nodes):
    await nodes.declare("late", slo_oldest_age=10)
    await nodes.declare("fine", slo_oldest_age=3_600_000)
    await nodes.declare("any")
    async with Client(nodes.url("n1")) as client:
        for queue in ("late", "fine", "any"):
            await client.publish(queue, b"1")

        async def missed() -> bool:
            return (await told(nodes))("quorate_slo_oldest_age_ratio") > 1

        await until(missed)
        each = await told(nodes, DETAILED)
        name = "quorate_queue_slo_oldest_age_ratio"
        assert each.labels(name, "queue") == {"late", "fine"}
        assert each(name, vhost="/", queue="late") > 1
        assert 0 < each(name, vhost="/", queue="fine") < 0.1


async def test_a_queue_that_is_deleted_leaves_no_labels(nodes: Nodes):
    await nodes.declare("stays")
    await nodes.declare("goes", single_active_consumer=True)
    async with Client(nodes.url("n1")) as client:
        await client.publish("goes", b"1")
    each = await told(nodes, "metrics/per-object")
    for name in PER_QUEUE:
        assert each.labels(name, "queue") == {"stays", "goes"}
    assert each.labels("quorate_queue_sac_without_active", "queue") == {"goes"}
    assert each("quorate_queue_sac_without_active", vhost="/", queue="goes") == 0

    await nodes.one.broker.delete("/", "goes", if_unused=False, if_empty=False)
    each = await told(nodes, "metrics/per-object")
    for name in PER_QUEUE:
        assert each.labels(name, "queue") == {"stays"}
    assert not each.labels("quorate_queue_sac_without_active", "queue")
    assert (await told(nodes))("quorate_oldest_ready_seconds") == 0


async def test_the_aggregated_endpoint_names_no_queue(nodes: Nodes):
    await nodes.declare("q")
    said = await told(nodes)
    labels = {label for _, labels in said.values for label, _ in labels}
    assert not {"queue", "vhost"} & labels
    assert said("quorate_sac_queues_without_active") == 0


async def test_capacity_is_none_without_consumers_full_without_flow_and_less_when_held_up(
    nodes: Nodes,
):
    await nodes.declare("q")

    async def capacity() -> float:
        each = await told(nodes, DETAILED)
        return each("quorate_queue_consumer_capacity", vhost="/", queue="q")

    assert await capacity() == 0
    async with Client(nodes.url("n1")) as client:
        await subscribed(client, "q", 1)
        assert await capacity() == 1
        await client.publish("q", b"1", b"2", b"3")  # one is held, two have to wait
        await client.deliveries(1)
        await until(lambda: _below(capacity))
    await until(lambda: _is(capacity, 0.0))  # its consumer went with it


async def _below(capacity: Any) -> bool:
    return 0 <= await capacity() < 1


async def _is(capacity: Any, value: float) -> bool:
    return await capacity() == value


async def test_dead_letters_are_counted_once_by_why(tmp_path: Path):
    """On three nodes: each copy sees every death, and only the leader's counts."""
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("dead")
        target = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
        await nodes.declare("short", message_ttl=50, **target)
        await nodes.declare("small", max_length=2, overflow="drop-head", **target)
        await nodes.declare("nowhere", message_ttl=50)
        for queue, bodies in (("short", 3), ("small", 6), ("nowhere", 5)):
            async with Client(nodes.url(await nodes.leader(queue))) as client:
                await client.publish(queue, *[b"m"] * bodies)

        async def counted() -> dict[str, float]:
            found: dict[str, float] = {}
            for name in nodes.nodes:
                said = await told(nodes, name=name)
                for reason in said.labels("quorate_dead_letters_total", "reason"):
                    value = said("quorate_dead_letters_total", reason=reason)
                    found[reason] = found.get(reason, 0) + value
            return found

        wanted = {"expired": 3.0, "rejected": 0.0, "delivery_limit": 0.0, "maxlen": 4.0}

        async def reached() -> bool:
            return await counted() == wanted

        await until(reached)
        await asyncio.sleep(0.3)
        assert await counted() == wanted  # and no more, from no other copy
