"""Queues over the management API: declared, filled, looked at, emptied, deleted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import aio_pika
import pytest

from cluster.machine.catalog import QueueInfo
from cluster.types import QueueId
from node.management import queues
from node.management.context import Call
from node.management.facts import COUNTED, QueueFacts
from node.management.observer import Observer
from node.management.queues import queue
from tests.node.management.api import Api, api_of
from tests.node.nodes import Client, Nodes, until


async def test_a_queue_is_declared_listed_and_deleted(api: Api):
    assert await api.queue("a/b") == 201
    assert await api.queue("a/b") == 204

    shown = await api.get("queues/%2F/a%2Fb")
    assert shown["name"] == "a/b"
    assert shown["type"] == "quorum"
    assert shown["state"] == "running"
    assert shown["leader"] == "n1"
    assert shown["members"] == shown["online"] == ["n1"]
    assert shown["messages"] == 0
    assert [queue["name"] for queue in await api.get("queues")] == ["a/b"]

    assert await api.delete("queues/%2F/a%2Fb") == 204
    assert await api.delete("queues/%2F/a%2Fb") == 404


async def test_booleans_and_numbers_may_be_text_and_paths_may_end_with_slashes(api: Api):
    reply = await api.ask("PUT", "queues/%2F/q", {"durable": "true", "auto_delete": "false"})
    assert reply.status == 201

    assert [queue["name"] for queue in await api.get("queues/")] == ["q"]
    assert [queue["name"] for queue in await api.get("queues//")] == ["q"]
    assert [queue["name"] for queue in await api.get("queues/%2F/")] == ["q"]
    got = await api.post("queues/%2F/q/get", count="1", ackmode="ack_requeue_true", encoding="auto")
    assert got.value == []


async def test_what_is_not_durable_is_a_classic_queue_of_one_node(api: Api):
    assert (await api.ask("PUT", "queues/%2F/brief", {})).status == 201

    shown = await api.get("queues/%2F/brief")

    assert (shown["type"], shown["durable"], shown["node"]) == ("classic", False, "n1")
    assert "members" not in shown
    assert await api.publish("brief", "x")
    assert (await api.get("queues/%2F/brief"))["messages"] == 1
    assert (await api.take("brief"))[0]["payload"] == "x"


async def test_other_arguments_are_refused_in_rabbitmqs_words(api: Api):
    await api.queue("q")

    reply = await api.ask("PUT", "queues/%2F/q", {"durable": "true", "arguments": {"x-expires": 5}})

    assert reply.status == 400
    assert reply.value["error"] == "bad_request"
    assert "inequivalent arg 'x-expires' for queue 'q' in vhost '/'" in reply.value["reason"]


async def test_messages_are_published_counted_taken_and_purged(api: Api):
    await api.queue("q")
    for number in range(4):
        assert await api.publish("q", f"m{number}", headers={"n": number}, message_id="id")

    shown = await api.get("queues/%2F/q")
    assert (shown["messages"], shown["messages_ready"]) == (4, 4)
    assert shown["message_stats"]["publish"] == 4

    first = (await api.take("q"))[0]
    assert first["payload"] == "m0"
    assert first["properties"] == {"headers": {"n": 0}, "message_id": "id"}
    assert (first["exchange"], first["routing_key"]) == ("", "q")
    assert (first["redelivered"], first["message_count"]) == (False, 3)
    assert first["payload_encoding"] == "string"

    assert await api.delete("queues/%2F/q/contents") == 204
    assert (await api.get("queues/%2F/q"))["messages"] == 0


async def test_what_is_taken_and_requeued_is_there_again(api: Api):
    await api.queue("q")
    await api.publish("q", "m")

    looked = await api.take("q", ackmode="ack_requeue_true")
    rejected = await api.take("q", ackmode="reject_requeue_true")
    last = await api.take("q", count=5, ackmode="reject_requeue_false", truncate=0)

    assert [each[0]["redelivered"] for each in (looked, rejected, last)] == [False, True, True]
    assert last[0]["properties"]["headers"] == {"x-delivery-count": 1}
    assert (last[0]["payload"], last[0]["payload_bytes"]) == ("", 1)
    assert await api.take("q") == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"properties": {"headers": 5}}, "headers is 5"),
        ({"properties": {"headers": {"a": "\ud800"}}}, "half of a character"),
        ({"properties": {}, "payload": "\ud800"}, "half of a character"),
        ({"properties": {}, "\ud800": 1}, "half of a character"),
    ],
)
async def test_a_message_that_cannot_be_is_refused(api: Api, body: dict[str, Any], words: str):
    message = {"routing_key": "q", "payload": "m", "payload_encoding": "string"}

    reply = await api.ask("POST", "exchanges/%2F/amq.default/publish", {**message, **body})

    assert reply.status == 400, reply
    assert words in reply.value["reason"]


async def test_half_a_character_costs_its_request_and_not_the_catalog(api: Api):
    reply = await api.ask("PUT", "vhosts/v", {"description": "\ud800"})

    assert (reply.status, reply.value["error"]) == (400, "bad_request")
    assert await api.put("vhosts/v", description="\U0001f600") == 201


async def test_bytes_that_are_no_text_come_as_base64(api: Api):
    await api.queue("q")
    reply = await api.post(
        "exchanges/%2F/amq.default/publish",
        routing_key="q",
        payload="/w==",
        payload_encoding="base64",
        properties={},
    )
    assert reply.value == {"routed": True}

    got = (await api.take("q"))[0]

    assert (got["payload"], got["payload_encoding"], got["payload_bytes"]) == ("/w==", "base64", 1)


async def test_what_goes_nowhere_is_not_routed(api: Api):
    assert not await api.publish("nobody", "x")
    reply = await api.post(
        "exchanges/%2F/none/publish",
        routing_key="q",
        payload="",
        payload_encoding="string",
        properties={},
    )
    assert reply.status == 404


async def test_a_full_queue_is_no_success(api: Api):
    await api.queue("q", max_length=1, overflow="reject-publish")
    await api.publish("q", "one")

    reply = await api.post(
        "exchanges/%2F/amq.default/publish",
        routing_key="q",
        payload="two",
        payload_encoding="string",
        properties={},
    )

    assert reply.status == 400
    assert "full" in reply.value["reason"]


async def test_pages_filters_columns_and_order(api: Api):
    for name in ("alpha", "beta", "gamma"):
        await api.queue(name)
    await api.publish("beta", "x")

    typed = {"x-queue-type": "classic"}
    page = await api.get("queues?page=1&page_size=2&columns=name,message_stats.publish,arguments")
    assert page == {
        "filtered_count": 3,
        "item_count": 2,
        "items": [
            {"name": "alpha", "arguments": typed},
            {"name": "beta", "arguments": typed, "message_stats": {"publish": 1}},
        ],
        "page": 1,
        "page_count": 2,
        "page_size": 2,
        "total_count": 3,
    }
    found = await api.get("queues?page=1&use_regex=true&pagination=false&name=^.a&page_size=9")
    assert [item["name"] for item in found["items"]] == ["gamma"]
    assert (found["filtered_count"], found["total_count"]) == (1, 3)
    ordered = await api.get("queues?columns=name&sort=messages&sort_reverse=true")
    assert ordered[0] == {"name": "beta"}
    assert (await api.ask("GET", "queues?page=9")).value["error"] == "page_out_of_range"
    assert (await api.ask("GET", "queues?page=0")).status == 400
    assert (await api.ask("GET", "queues?page=1&use_regex=true&name=(")).status == 400


@pytest.mark.parametrize(
    "column",
    [
        "messages",
        "messages_ready",
        "messages_unacknowledged",
        "consumers",
        "oldest_ready_age",
        "leader",
    ],
)
async def test_pages_are_in_the_order_of_the_whole_list(api: Api, column: str):
    for name, count in (("a", 2), ("b", 0), ("c", 3), ("d", 1)):
        await api.queue(name)
        for _ in range(count):
            await api.publish(name, "m")
    await api.take("c", ackmode="ack_requeue_false")

    query = f"columns=name,{column}&sort={column}"
    pages = [await api.get(f"queues?{query}&page={n}&page_size=2") for n in (1, 2)]

    shown = [row for page in pages for row in page["items"]]
    values = [row[column] for row in shown]
    assert values == sorted(values)
    whole = [row["name"] for row in await api.get(f"queues?{query}")]
    assert [row["name"] for row in shown] == whole


UI_PAGE = Path(queues.__file__).parent / "ui" / "pages" / "queues.js"
SORTS = sorted(set(re.findall(r'sort: "([\w.]+)"', UI_PAGE.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("sort", SORTS)
async def test_whatever_the_web_ui_sorts_by_only_its_page_is_looked_at_closely(
    api: Api, monkeypatch: pytest.MonkeyPatch, sort: str
):
    """Every five seconds, of each who looks: with 10,000 queues it took a second and more."""
    for number in range(6):
        await api.queue(f"q{number}")
    await api.publish("q3", "m")
    shown: list[str] = []

    def show(call: Call, info: QueueInfo, facts: QueueFacts | None) -> dict[str, Any]:
        shown.append(info.name)
        return queue(call, info, facts)

    monkeypatch.setattr(queues, "queue", show)
    page = await api.get(f"queues?page=1&page_size=2&sort={sort}&sort_reverse=true")

    assert len(SORTS) > 6
    assert [row["name"] for row in page["items"]] == shown
    assert len(shown) == 2


async def test_pages_by_rate_begin_with_the_busiest(api: Api, monkeypatch: pytest.MonkeyPatch):
    rates = {"a": (1.0, 2.0), "b": (0.0, 0.0), "c": (3.0, 1.0), "d": (2.0, 3.5)}
    for name in rates:
        await api.queue(name)
        await api.publish(name, "m")
    await api.queue("unused")
    asked = Observer.queues

    async def known(self: Observer, infos: Sequence[QueueInfo]) -> dict[QueueId, QueueFacts]:
        facts = await asked(self, infos)
        for info in infos:
            if info.name in rates:
                published, got = rates[info.name]
                now = [0.0] * len(COUNTED)
                now[COUNTED.index("publish")], now[COUNTED.index("deliver")] = published, got
                facts[info.queue] = facts[info.queue]._replace(rates=now)
        return facts

    monkeypatch.setattr(Observer, "queues", known)

    async def order(of: str) -> list[str]:
        path = f"queues?page=1&sort=message_stats.{of}_details.rate&sort_reverse=true"
        page = await api.get(path)
        whole = await api.get(path.replace("page=1&", ""))
        assert [row["name"] for row in page["items"]] == [row["name"] for row in whole]
        return [row["name"] for row in page["items"]]

    assert await order("publish") == ["c", "d", "a", "b", "unused"]
    assert await order("deliver_get") == ["d", "a", "c", "b", "unused"]


async def test_a_queue_that_is_used_or_not_empty_is_kept_when_asked(api: Api):
    await api.queue("q")
    await api.publish("q", "x")

    assert await api.delete("queues/%2F/q?if-empty=true") == 400
    assert await api.delete("queues/%2F/q?if-unused=true") == 204


async def test_a_policy_shows_in_the_queue(api: Api):
    await api.queue("q")
    await api.put("policies/%2F/p", pattern="^q", definition={"max-length": 9}, priority="1")
    await api.put(
        "operator-policies/%2F/o", pattern="^q", definition={"max-length": 5, "expires": 10**6}
    )

    shown = await api.get("queues/%2F/q")

    assert (shown["policy"], shown["operator_policy"]) == ("p", "o")
    assert shown["effective_policy_definition"] == {"max-length": 5, "expires": 10**6}


async def test_consumer_capacity_and_details(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        api = api_of(nodes.one)
        await api.queue("q")
        assert (await api.get("queues/%2F/q"))["consumer_capacity"] == 0
        async with Client(nodes.url("n1")) as client:
            _, _, consumer, _ = await client.ask(20, 1, "q", {"credit": 2})
            shown = await api.get("queues/%2F/q")
            assert (shown["consumers"], shown["consumer_capacity"]) == (1, 1.0)
            assert shown["consumer_details"][0]["prefetch_count"] == 2
            assert shown["consumer_details"][0]["activity_status"] == "up"

            await client.publish("q", b"1", b"2", b"3")
            await client.deliveries(2)

            async def low() -> bool:
                return (await api.get("queues/%2F/q"))["consumer_capacity"] < 1.0

            await until(low)
            shown = await api.get("queues/%2F/q")
            assert (shown["messages_ready"], shown["messages_unacknowledged"]) == (1, 2)
            assert [each["consumer_tag"] for each in await api.get("consumers/%2F")] != []
            assert await client.ask(30, 3, "q", consumer, [[1, 2]]) == [3, 3, 2]
            assert (await api.get("queues/%2F/q"))["message_stats"]["ack"] == 2


async def test_the_single_active_consumer_is_named_with_its_channel(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        api = api_of(nodes.one)
        await api.queue("q", single_active_consumer=True)
        async with await aio_pika.connect(f"amqp://guest:guest@{nodes.one.amqp.address}/") as amqp:
            channel = await amqp.channel()
            await channel.set_qos(7)
            queue = await channel.get_queue("q", ensure=False)
            await queue.consume(ignore, consumer_tag="first", arguments={"x": 1})
            await queue.consume(ignore, consumer_tag="second", no_ack=True)

            shown = await api.get("queues/%2F/q")

            assert shown["single_active_consumer_tag"] == "first"
            first, second = shown["consumer_details"]
            (connection,) = await api.get("connections")
            (listed,) = await api.get("channels")
            details = first["channel_details"]
            assert details["name"] == listed["name"]
            assert details["connection_name"] == connection["name"]
            assert (details["number"], details["user"]) == (1, "guest")
            assert (first["active"], first["activity_status"]) == (True, "up")
            assert (first["prefetch_count"], first["arguments"]) == (7, {"x": 1})
            assert (second["active"], second["activity_status"]) == (False, "waiting")
            assert (first["ack_required"], second["ack_required"]) == (True, False)
            assert await api.get("consumers") == [first, second]


async def ignore(_: object) -> None:
    """A consumer that never acknowledges."""


async def test_a_connection_is_listed_and_closed(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        api = api_of(nodes.one)
        connection = await aio_pika.connect(f"amqp://guest:guest@{nodes.one.amqp.address}/")
        channel = await connection.channel()
        await channel.declare_queue("mine", exclusive=True)
        (shown,) = await api.get("connections")
        owner = (await api.get("queues/%2F/mine"))["owner_pid_details"]
        assert owner["name"] == shown["name"]
        locked = await api.ask("DELETE", "queues/%2F/mine")
        assert locked.status == 400
        assert "RESOURCE_LOCKED" in locked.value["reason"]
        assert "session" not in (await api.get("channels"))[0]

        path = f"connections/{quote(shown['name'], safe='')}"
        assert (await api.get(path))["user"] == "guest"
        assert len(await api.get(f"{path}/channels")) == 1
        underlay = cast(Any, await channel.get_underlay_channel())
        told: Any = underlay.connection.closing  # what the broker said is its error
        assert (await api.ask("DELETE", path, X_Reason="moving \N{EM DASH} soon")).status == 204

        async def gone() -> bool:
            return await api.get("connections") == []

        await until(gone)
        with pytest.raises(aio_pika.exceptions.ConnectionClosed, match=r"moving . soon"):
            await told
        assert await api.delete(path) == 404


async def test_any_node_shows_and_serves_queues_that_it_has_no_copy_of(tmp_path: Path):
    async with Nodes(tmp_path, 3, replication=1) as nodes:
        one, two, three = [api_of(node) for node in nodes.nodes.values()]
        names = [f"q{number}" for number in range(6)]
        for name in names:
            await one.queue(name)
        assert (await two.ask("PUT", "queues/%2F/brief", {})).status == 201
        for each, name in zip((one, two, three) * 3, [*names, "brief"], strict=False):
            assert await each.publish(name, name)

        shown: list[dict[str, Any]] = []
        for each in (one, two, three):
            shown = await each.get("queues")
            assert {queue["name"]: queue["messages"] for queue in shown} == dict.fromkeys(
                [*names, "brief"], 1
            )
        leaders = {queue["leader"] for queue in shown if queue["type"] == "quorum"}
        assert leaders == {"n1", "n2", "n3"}
        taken = await asyncio.gather(*[three.take(name) for name in [*names, "brief"]])
        assert [each[0]["payload"] for each in taken] == [*names, "brief"]
        hosts = await two.get("nodes")
        assert [host["running"] for host in hosts] == [True, True, True]
        status = await two.get("queues/quorum/%2F/q0/status")
        assert [row["Raft State"] for row in status] == ["leader"]
