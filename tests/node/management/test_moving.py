"""Messages that wait are moved, copied, delayed otherwise and cancelled, one by one or many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import quorate
from tests.node.management.api import Api, Reply, api_of
from tests.node.nodes import Nodes, until


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, 3) as nodes:
        yield nodes


async def select(api: Api, queue: str, **fields: Any) -> dict[str, Any]:
    reply = await api.post(f"queues/%2F/{queue}/select", **fields)
    assert reply.status == 200, reply
    return reply.value


async def move(api: Api, queue: str, how: str = "move", **fields: Any) -> dict[str, Any]:
    reply = await api.post(f"queues/%2F/{queue}/{how}", **fields)
    assert reply.status == 200, reply
    return reply.value


async def bodies(api: Api, queue: str) -> list[str]:
    return [each["payload"] for each in await api.take(queue, 1_000)]


async def length(api: Api, queue: str) -> int:
    return len(await api.take(queue, 1_000, "ack_requeue_true"))


async def test_messages_are_moved_between_queues_of_any_groups_with_all_that_they_carry(
    nodes: Nodes,
):
    api = api_of(nodes.one)
    # Names fall into groups by chance: with so many some targets share the source's.
    targets = [f"to{number}" for number in range(6)]
    for name in ("from", *targets):
        await api.queue(name, max_priority=5)
    infos = {name: nodes.one.broker.locate("/", name) for name in ("from", *targets)}
    groups = {info.group for info in infos.values() if info is not None}
    assert len(groups) == 3, "one of them has the source's group"
    for number, name in enumerate(targets):
        await api.publish(
            "from",
            f"m{number}",
            headers={"n": number},
            priority=number % 3,
            message_id=f"id{number}",
            correlation_id="c",
        )
        found = await select(api, "from", where={"header.n": str(number)})
        assert (found["count"], found["bytes"]) == (1, 2), found
        moved = await move(api, "from", to=name, positions=found["positions"])
        assert moved == {"done": 1, "gone": 0, "skipped": 0, "full": ""}
        # Repeated, as after a lost answer, it changes nothing.
        again = await move(api, "from", to=name, positions=found["positions"])
        assert again == {"done": 0, "gone": 1, "skipped": 0, "full": ""}
        [message] = await api.take(name, 2)
        assert message["payload"] == f"m{number}"
        properties = message["properties"]
        assert properties["headers"] == {"n": number}
        assert (properties["priority"], properties["message_id"]) == (number % 3, f"id{number}")
        assert message["routing_key"] == "from", "as it was published"
    assert await bodies(api, "from") == []


async def test_messages_with_large_headers_are_moved_and_copied(nodes: Nodes):
    """Together they are more than an entry of the log may hold."""
    api, count = api_of(nodes.one), 200
    for name in ("from", "to", "copies"):
        await api.queue(name)
    for number in range(count):
        await api.publish("from", str(number), headers={"large": "x" * 100_000})
    copied = await move(api, "from", "copy", to="copies", positions=[[1, count]], operation="o")
    assert copied == {"done": count, "gone": 0, "skipped": 0, "full": ""}
    moved = await move(api, "from", to="to", positions=[[1, count]])
    assert moved == {"done": count, "gone": 0, "skipped": 0, "full": ""}
    for name in ("to", "copies"):
        assert await length(api, name) == count


async def test_a_filter_and_a_count_choose(nodes: Nodes):
    api = api_of(nodes.one)
    await api.queue("q")
    for number in range(10):
        await api.publish("q", str(number), headers={"even": number % 2 == 0})
    await api.publish("q", "late", headers={"x-delay": 3_600_000})
    even = await select(api, "q", where={"header.even": "true"}, count=3)
    assert (even["positions"], even["next"]) == ([[1, 1], [3, 3], [5, 5]], 6)
    assert (await select(api, "q", where={"state": "delayed"}))["positions"] == [[11, 11]]
    assert (await select(api, "q", where={"key": "q", "state": "ready"}))["count"] == 10
    assert (await select(api, "q", where={"older-than-ms": 3_600_000}))["count"] == 0
    for wrong in ({"colour": "red"}, {"state": "gone"}, {"older-than-ms": "1h"}, {"header.": 1}):
        assert (await api.post("queues/%2F/q/select", where=wrong)).status == 400, wrong
    await api.queue("to")
    assert (await move(api, "q", to="to", positions=[[1, 4], [11, 11], [99, 99]]))["done"] == 5
    assert await bodies(api, "to") == ["0", "1", "2", "3"]
    [delayed] = await api.get("queues/%2F/to/delayed")
    assert delayed["payload"] == "late", "its delay goes on"


async def test_what_cannot_be_moved_is_refused_and_stays(nodes: Nodes):
    api = api_of(nodes.one)
    await api.queue("q")
    await api.queue("small", max_length=2, overflow="reject-publish")
    for number in range(5):
        await api.publish("q", str(number))

    async def refused(how: str, **fields: Any) -> Reply:
        return await api.post(f"queues/%2F/q/{how}", **fields)

    assert (await refused("move", to="none", positions=[[1, 1]])).status == 404
    assert (await refused("move", to="q", positions=[[1, 1]])).status == 400
    for wrong in ([], [[2, 1]], [[0, 1]], [[3, 4], [1, 1]], [[1, 2_000]], ["1"], 7, [[1]]):
        assert (await refused("move", to="small", positions=wrong)).status == 400, wrong
    assert (await refused("copy", to="small", positions=[[1, 1]], operation="")).status == 400
    # Full after two: what is left stays where it is, in order.
    moved = await move(api, "q", to="small", positions=[[1, 5]])
    assert moved == {"done": 2, "gone": 0, "skipped": 0, "full": "small"}
    copied = await move(api, "q", "copy", to="small", positions=[[3, 5]], operation="o")
    assert copied["full"] == "small"
    assert await bodies(api, "small") == ["0", "1"]
    assert await bodies(api, "q") == ["2", "3", "4"]


async def test_a_copy_that_is_repeated_is_stored_once(nodes: Nodes):
    api = api_of(nodes.one)
    for name in ("q", "to"):
        await api.queue(name)
    for number in range(6):
        await api.publish("q", str(number))
    for positions in ([[1, 3]], [[1, 3]], [[2, 4]], [[6, 6]], [[6, 6]]):
        await move(api, "q", "copy", to="to", positions=positions, operation="first")
    assert await bodies(api, "to") == ["0", "1", "2", "3", "5"]
    assert await length(api, "q") == 6
    await move(api, "q", "copy", to="to", positions=[[1, 1]], operation="second")
    assert await bodies(api, "to") == ["0"]


async def test_dead_letters_go_back_to_where_each_has_died(nodes: Nodes):
    api = api_of(nodes.one)
    await api.queue("dead")
    for name in ("a", "b", "gone"):
        await api.queue(name, dead_letter_exchange="", dead_letter_routing_key="dead")
        await api.publish(name, f"of {name}")
        assert await api.take(name, ackmode="reject_requeue_false")
    await api.publish("dead", "its own")
    await until(lambda: has(api, "dead", 4))
    assert await api.delete("queues/%2F/gone") == 204
    moved = await move(api, "dead", positions=[[1, 10]])
    assert (moved["done"], moved["skipped"]) == (2, 2), "one never died, one's queue is gone"
    assert await bodies(api, "a") == ["of a"]
    assert await bodies(api, "b") == ["of b"]
    assert sorted(await bodies(api, "dead")) == ["its own", "of gone"]


async def has(api: Api, queue: str, count: int) -> bool:
    found = await select(api, queue)
    return found["count"] == count


async def test_nothing_is_lost_or_doubled_while_consumers_take_and_leaders_change(nodes: Nodes):
    api = api_of(nodes.nodes["n1"])
    for name in ("busy", "aside"):
        await api.queue(name)
    async with quorate.connect([nodes.url("n2")]) as client:
        await client.publish_many("busy", [str(number).encode() for number in range(2_000)])
        taken: list[str] = []

        async def consume() -> None:
            async for delivery in client.consume("busy", credit=10):
                taken.append(delivery.body.decode())
                await delivery.settle()

        consuming = asyncio.create_task(consume())
        start, moved = 1, 0
        handed_over = False
        while True:
            found = await select(api, "busy", start=start, count=200)
            if found["positions"]:
                moved += (await move(api, "busy", to="aside", positions=found["positions"]))["done"]
            if not handed_over:
                info = nodes.one.broker.locate("/", "busy")
                assert info is not None
                await nodes.led_by("n3", info.group)
                handed_over = True
            if found["next"] is None:
                break
            start = found["next"]
        aside: list[str] = []
        while some := await bodies(api, "aside"):
            aside += some
        await until(lambda: len(taken) + len(aside) >= 2_000)
        consuming.cancel()
    assert len(aside) == moved
    assert sorted([*taken, *aside], key=int) == [str(number) for number in range(2_000)]


async def test_delayed_messages_are_listed_retimed_and_cancelled(nodes: Nodes):
    api = api_of(nodes.one)
    await api.queue("q")
    for body in "abc":
        await api.publish("q", body, headers={"x-delay": 3_600_000})
    a, b, c = await api.get("queues/%2F/q/delayed")
    assert [each["payload"] for each in (a, b, c)] == ["a", "b", "c"]
    assert a["due_ms"] - a["enqueued_ms"] > 3_000_000
    assert [each["payload"] for each in await api.get("queues/%2F/q/delayed?start=2&count=1")] == [
        "b"
    ]
    path = f"queues/%2F/q/delayed/{a['id']}"
    assert await api.get(path) == a
    assert await api.delete(path) == 204
    assert await api.delete(path) == 404
    assert (await api.ask("GET", path)).status == 404
    # By position too; at once, and later.
    assert (await api.ask("PATCH", f"queues/%2F/q/delayed/{b['position']}", {"delay_ms": 0})).status
    await until(lambda: has_ready(api, ["b"]))
    later = c["due_ms"] + 60_000
    reply = await api.ask("PATCH", f"queues/%2F/q/delayed/{c['id']}", {"due_ms": later})
    assert reply.status == 204
    assert (await api.get("queues/%2F/q/delayed"))[0]["due_ms"] == later
    for wrong in ({}, {"due_ms": 1, "delay_ms": 1}, {"delay_ms": "soon"}):
        assert (await api.ask("PATCH", f"queues/%2F/q/delayed/{c['id']}", wrong)).status == 400
    assert (await api.ask("DELETE", "queues/%2F/q/delayed/what")).status == 400
    assert (await api.ask("DELETE", "queues/%2F/q/delayed/99-1-1")).status == 404
    assert (await api.ask("DELETE", "queues/%2F/q/delayed/77")).status == 404
    assert (await api.ask("GET", "queues/%2F/q/delayed?count=0")).status == 400


async def test_all_that_consumers_hold_is_extended_at_once(nodes: Nodes):
    api = api_of(nodes.one)
    await api.queue("q")
    async with quorate.connect([nodes.url("n2")]) as client:
        await client.publish_many("q", [b"%d" % each for each in range(600)])
        mine = client.consume_batches("q", credit=500, timeout_ms=60_000)
        async with mine, client.consume_batches("q", timeout_ms=None) as yours:
            await anext(mine)
            await anext(yours)
            await until(lambda: holds(client, 600))
            reply = await api.post("queues/%2F/q/extend", timeout_ms=7_200_000)
            assert reply.value == {"extended": 600}
            rows = await client.peek("q", count=1_000, state="unsettled")
            assert max(each["due_ms"] for each in rows) - min(each["due_ms"] for each in rows) < 7e6
            assert min(each["due_ms"] for each in rows) > rows[0]["enqueued_ms"] + 7_100_000
            await api.queue("empty")
            for wrong in ({}, {"timeout_ms": -1}, {"timeout_ms": "long"}, {"timeout_ms": 1 << 41}):
                for queue in ("q", "empty"):
                    path = f"queues/%2F/{queue}/extend"
                    assert (await api.ask("POST", path, wrong)).status == 400


async def holds(client: quorate.Client, count: int) -> bool:
    return len(await client.peek("q", count=1_000, state="unsettled")) == count


async def has_ready(api: Api, wanted: list[str]) -> bool:
    return await bodies(api, "q") == wanted


async def test_who_may_not_read_or_write_moves_nothing(nodes: Nodes):
    api = api_of(nodes.one)
    for name in ("mine", "theirs"):
        await api.queue(name)
        await api.publish(name, "m")
    await api.put("users/eve", password="secret", tags="management")
    permissions = {"configure": "", "read": "^mine$", "write": "^mine$"}
    await api.put("permissions/%2F/eve", **permissions)
    eve = api.as_user("eve", "secret")
    moved = await eve.post("queues/%2F/theirs/move", to="mine", positions=[[1, 1]])
    assert moved.status == 401
    assert (await eve.post("queues/%2F/theirs/select")).status == 401
    assert (await eve.ask("DELETE", "queues/%2F/theirs/delayed/1")).status == 401
    moved = await eve.post("queues/%2F/mine/move", to="theirs", positions=[[1, 1]])
    assert moved.status == 401, "nor may she publish by the default exchange"
    assert await length(api, "mine") == 1
