"""A drained queue and a lost one can be told apart: what left otherwise than acked is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog

from node.clients import traffic
from tests.node.metrics.exposed import told
from tests.node.nodes import Client, Nodes, until

QUEUE = {"vhost": "/", "queue": "q"}


async def removed(nodes: Nodes, queue: str) -> dict[str, Any]:
    """As the queue's leader tells it."""
    leader = await nodes.leader(queue)
    async with Client(nodes.url(leader)) as client:
        return (await client.ask(54, 90, queue))[2]["removed"]


async def test_counts_survive_a_change_of_leader_and_are_in_the_metrics(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("q", max_length=5, delivery_limit=0)
        first = await nodes.leader("q")
        async with Client(nodes.url(first)) as client:
            await client.publish("q", *[b"x"] * 8)
            _, _, consumer, _ = await client.ask(20, 2, "q", {"credit": 1})
            ((position, _),) = await client.deliveries(1)
            await client.ask(31, 3, "q", consumer, [[position, position]], True, None, None)
            ((position, _),) = await client.deliveries(1)
            await client.ask(32, 4, "q", consumer, [[position, position]])
            ((position, _),) = await client.deliveries(1)
            await client.ask(22, 5, "q", consumer)
            await client.ask(30, 6, "q", consumer, [[position, position]])
            await client.ask(52, 7, "q")
        wanted = {
            "maxlen": {"dropped": 3, "dead_lettered": 0},
            "delivery_limit": {"dropped": 1, "dead_lettered": 0},
            "rejected": {"dropped": 1, "dead_lettered": 0},
            "purged": {"dropped": 2, "dead_lettered": 0},
        }
        assert await removed(nodes, "q") == wanted
        each = await told(nodes, "metrics/per-object", name=first)
        name, why = "quorate_queue_messages_removed_total", {"outcome": "dropped"}
        assert each(name, **QUEUE, reason="maxlen", **why) == 3
        said = await told(nodes, name=first)
        assert said("quorate_messages_removed_total", reason="maxlen", **why) == 3
        assert said("quorate_messages_removed_total", reason="deleted", **why) == 0

        await nodes.stop(first)
        assert await removed(nodes, "q") == wanted
        second = await nodes.leader("q")
        each = await told(nodes, "metrics/per-object", name=second)
        assert each(name, **QUEUE, reason="maxlen", **why) == 3
        assert first != second


async def test_deaths_by_the_delivery_limit_are_logged_and_not_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(traffic, "DEATHS_LOG_S", 0.3)
    with structlog.testing.capture_logs() as logs:
        async with Nodes(tmp_path) as nodes:
            await nodes.declare("q", delivery_limit=0)
            async with Client(nodes.url("n1")) as client:
                await client.publish("q", *[b"x"] * 20)
                _, _, consumer, _ = await client.ask(20, 2, "q", {"credit": 1})
                for request in range(3, 23):
                    ((position, _),) = await client.deliveries(1)
                    which = [[position, position]]
                    await client.ask(31, request, "q", consumer, which, True, None, None)

            def lines() -> list[Any]:
                return [each for each in logs if each["event"] == "delivery_limit_reached"]

            await until(lambda: sum(each["messages"] for each in lines()) == 20)
    assert {each["queue"] for each in lines()} == {"q"}
    assert lines()[0]["messages"] == 1, "the first is told at once"
    assert len(lines()) < 20
