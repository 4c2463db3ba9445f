"""Dead letters through exchanges, on real nodes: to several queues, by headers, to none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from node.node import Node
from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes, until


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Nodes(tmp_path) as nodes:
        yield nodes.one


async def arrived(api: Api, queue: str) -> dict[str, Any]:
    async def taken() -> list[dict[str, Any]]:
        return await api.take(queue)

    return (await until(taken))[0]


async def test_a_fanout_gives_a_dead_letter_to_each_of_its_queues(node: Node):
    """In three groups, so at least one copy leaves the group of its source."""
    api = api_of(node)
    await api.put("exchanges/%2F/dlx", type="fanout", durable=True)
    await api.queue("work", dead_letter_exchange="dlx")
    for name in ("d1", "d2", "d3"):
        await api.queue(name)
        await api.post(f"bindings/%2F/e/dlx/q/{name}")
    await api.publish("work", "m", headers={"h": 1})

    await api.take("work", ackmode="reject_requeue_false")

    for name in ("d1", "d2", "d3"):
        letter = await arrived(api, name)
        assert letter["payload"] == "m"
        headers = letter["properties"]["headers"]
        assert headers["h"] == 1
        assert headers["x-first-death-queue"] == "work"
        assert headers["x-death"][0]["reason"] == "rejected"
    assert (await api.get("queues/%2F/work"))["messages"] == 0


async def test_headers_and_topics_choose_among_dead_letters(node: Node):
    api = api_of(node)
    await api.put("exchanges/%2F/by-headers", type="headers", durable=True)
    await api.put("exchanges/%2F/by-key", type="topic", durable=True)
    await api.queue("work", dead_letter_exchange="by-headers")
    await api.queue("red")
    await api.queue("blue")
    for color in ("red", "blue"):
        await api.post(f"bindings/%2F/e/by-headers/q/{color}", arguments={"color": color})
    await api.queue("other", dead_letter_exchange="by-key", dead_letter_routing_key="was.red")
    await api.post("bindings/%2F/e/by-key/q/red", routing_key="*.red")
    await api.publish("work", "1", headers={"color": "blue"})
    await api.publish("other", "2")

    await api.take("work", ackmode="reject_requeue_false")
    await api.take("other", ackmode="reject_requeue_false")

    assert (await arrived(api, "blue"))["payload"] == "1"
    assert (await arrived(api, "red"))["payload"] == "2"


async def test_what_its_exchange_sends_nowhere_is_dropped_and_counted(node: Node):
    api = api_of(node)
    await api.put("exchanges/%2F/dlx", type="direct", durable=True)
    await api.queue("work", dead_letter_exchange="dlx")
    await api.queue("lost", dead_letter_exchange="nowhere")
    await api.publish("work", "m")
    await api.publish("lost", "m")

    await api.take("work", ackmode="reject_requeue_false")
    await api.take("lost", ackmode="reject_requeue_false")

    await until(lambda: node.metrics.dead_letters_dropped == 2)
