"""Plain HTTP: one-off calls, in JSON and CBOR, and where they are sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import cbor2
import pytest

from cluster.codec.entries import SURGERY_SINCE, version_needed
from tests.node.nodes import Nodes, until

ORDERS = "/v1/queues/%2F/orders"


class Http:
    """A session that follows nothing."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def __call__(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        from yarl import URL

        async with self.session.request(
            method, URL(self.url + path, encoded=True), allow_redirects=False, **options
        ) as answer:
            self.headers = answer.headers
            if answer.content_type == "application/cbor":
                return answer.status, cbor2.loads(await answer.read())
            if answer.content_type == "application/json":
                return answer.status, await answer.json()
            return answer.status, await answer.text()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, **{"limits.message_bytes_max": 100_000}) as nodes:
        yield nodes


@pytest.fixture
async def http(nodes: Nodes) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        http = Http(nodes.url("n1"), session)
        assert (await http("PUT", ORDERS))[0] == 201
        yield http


async def test_publish_receive_settle(http: Http):
    headers = {"X-Quorate-Key": "k", "Content-Type": "text/plain"}
    assert await http("POST", f"{ORDERS}/messages", data="hällo".encode(), headers=headers) == (
        200,
        {"outcome": "ok", "first": 1, "stored": 1, "duplicates": 0, "refused": []},
    )
    status, got = await http("POST", f"{ORDERS}/get", json={"count": 5})
    (message,) = got["messages"]
    assert (status, message["body"], message["meta"]) == (
        200,
        "hällo",
        {"key": "k", "content_type": "text/plain"},
    )
    settle = {"consumer": got["consumer"], "ranges": [[1, 1]]}
    assert await http("POST", f"{ORDERS}/settle", json=settle) == (
        200,
        {"outcome": "ok", "count": 1},
    )
    assert (await http("GET", ORDERS))[1]["messages"] == 0


async def test_cbor_carries_batches_and_bytes(http: Http):
    headers = {"Content-Type": "application/cbor", "Accept": "application/cbor"}
    batch = {"bodies": [b"\xff", b"b"], "publisher": "p", "seqno": 1}
    for expected in (2, 0):
        status, reply = await http(
            "POST", f"{ORDERS}/messages", data=cbor2.dumps(batch), headers=headers
        )
        assert (status, reply["stored"]) == (200, expected)
    _, got = await http(
        "POST",
        f"{ORDERS}/get",
        data=cbor2.dumps({"count": 2, "auto_settle": True}),
        headers=headers,
    )
    assert [message["body"] for message in got["messages"]] == [b"\xff", b"b"]


async def test_what_is_not_settled_within_the_lease_is_returned(http: Http):
    await http("POST", f"{ORDERS}/messages", data=b"a")
    await http("POST", f"{ORDERS}/get", json={"lease_ms": 1})

    async def back() -> bool:
        return (await http("GET", ORDERS))[1]["ready"] == 1

    await until(back)


async def opened(http: Http, count: int) -> None:
    """So many requests are with the node, as far as their client can know."""
    connector = http.session.connector
    assert connector is not None
    await until(lambda: len(connector._acquired) == count)


async def test_a_get_that_waits_is_answered_as_soon_as_there_is_a_message(http: Http):
    loop = asyncio.get_running_loop()
    waiting = [
        asyncio.create_task(http("POST", f"{ORDERS}/get", json={"wait_ms": 60_000}))
        for _ in range(2)
    ]
    await opened(http, 2)
    since_s = loop.time()
    await http("POST", f"{ORDERS}/messages", data=b"a")
    done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [len(each.result()[1]["messages"]) for each in done] == [1]
    assert len(left) == 1
    await http("POST", f"{ORDERS}/messages", data=b"b")
    (last,) = await asyncio.gather(*left)
    assert [message["body"] for message in last[1]["messages"]] == ["b"]
    assert loop.time() - since_s < 60


async def test_a_get_waits_no_longer_than_it_was_told_and_within_limits(http: Http):
    status, got = await http("POST", f"{ORDERS}/get", json={"wait_ms": 50})
    assert (status, got["messages"]) == (200, [])
    for wrong in ({"wait_ms": 60_001}, {"wait_ms": 10, "positions": [[1, 1]]}):
        status, refused = await http("POST", f"{ORDERS}/get", json=wrong)
        assert (status, refused["code"]) == (400, "bad_argument")
        assert "wait_ms" in refused["reason"]


async def test_what_comes_after_the_waiting_client_has_gone_is_for_others(http: Http):
    waiting = asyncio.create_task(http("POST", f"{ORDERS}/get", json={"wait_ms": 60_000}))
    await opened(http, 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    await http("POST", f"{ORDERS}/messages", data=b"a")

    async def ready() -> bool:
        return (await http("GET", ORDERS))[1]["ready"] == 1

    await until(ready)


async def test_a_get_that_waits_at_a_message_group_is_told_when_its_key_is_free(http: Http):
    grouped = "/v1/queues/%2F/grouped"
    await http("PUT", grouped, json={"arguments": {"x-group-key": "routing-key"}})
    for body in (b"a", b"b"):
        await http("POST", f"{grouped}/messages", data=body, headers={"X-Quorate-Key": "k"})
    _, first = await http("POST", f"{grouped}/get", json={})
    waiting = asyncio.create_task(http("POST", f"{grouped}/get", json={"wait_ms": 60_000}))
    settle = {"consumer": first["consumer"], "ranges": [[1, 1]]}
    await http("POST", f"{grouped}/settle", json=settle)
    _, second = await waiting
    assert [message["body"] for message in second["messages"]] == ["b"]


async def test_a_lease_is_extended_and_what_was_deferred_is_fetched_by_position(http: Http):
    await http("POST", f"{ORDERS}/messages", data=b"one")
    _, taken = await http("POST", f"{ORDERS}/get", json={"count": 1, "lease_ms": 60_000})
    settle = {"consumer": taken["consumer"], "ranges": [[1, 1]]}
    longer = settle | {"outcome": "extend"}
    answer = await http("POST", f"{ORDERS}/settle", json=longer)
    assert answer == (200, {"outcome": "ok", "count": 1})
    # It counts from now on: a short one ends what was lent for a minute.
    await http("POST", f"{ORDERS}/settle", json=longer | {"lease_ms": 1})
    await until(lambda: is_ready(http, 1))
    status, over = await http("POST", f"{ORDERS}/settle", json=longer)
    assert (status, over["code"]) == (404, "no_consumer")

    _, again = await http("POST", f"{ORDERS}/get", json={})
    deferred = {"consumer": again["consumer"], "ranges": [[1, 1]], "outcome": "return"}
    await http("POST", f"{ORDERS}/settle", json=deferred | {"delay_ms": 3_600_000})
    assert (await http("POST", f"{ORDERS}/get", json={}))[1]["messages"] == []
    named = {"positions": [[1, 1], [5, 5]]}
    _, fetched = await http("POST", f"{ORDERS}/get", json=named)
    assert [(each["position"], each["body"]) for each in fetched["messages"]] == [(1, "one")]


async def is_ready(http: Http, count: int) -> bool:
    return (await http("GET", ORDERS))[1]["ready"] == count


async def test_a_get_without_positions_is_one_that_former_releases_know(
    http: Http, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    """So it is taken while nodes of two releases are mixed."""
    proposed: list[int] = []
    info = nodes.one.cluster.catalog_machine.queue("/", "orders")
    assert info is not None
    group = nodes.one.broker.led(info.group)
    ask = group.ask

    async def noted(command: Any) -> Any:
        proposed.append(version_needed(command))
        return await ask(command)

    monkeypatch.setattr(group, "ask", noted)
    assert (await http("POST", f"{ORDERS}/get", json={"count": 5}))[0] in (200, 204)
    assert max(proposed) < SURGERY_SINCE


async def test_behind_what_does_not_fit_into_the_answer_of_a_get_nothing_is_taken(
    http: Http, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    """It would be delivered before what is given back; and need not be read."""
    monkeypatch.setattr("node.broker.broker.GET_BYTES_MAX", 10)
    headers = {"Content-Type": "application/cbor"}
    for bodies in ([b"first", b"too large"], [b"c"], [b"d"]):
        batch = cbor2.dumps({"bodies": bodies})
        await http("POST", f"{ORDERS}/messages", data=batch, headers=headers)
    info = nodes.one.broker.locate("/", "orders")
    assert info is not None
    group = nodes.one.broker.led(info.group)
    load, read = group.load_bodies, []

    async def loaded(ref: Any) -> Any:
        read.append(ref.count)
        return await load(ref)

    monkeypatch.setattr(group, "load_bodies", loaded)

    async def take() -> list[tuple[str, bool]]:
        _, got = await http("POST", f"{ORDERS}/get", json={"count": 9, "auto_settle": True})
        return [(each["body"], each["redelivered"]) for each in got["messages"]]

    assert await take() == [("first", False)]
    assert read == [2]
    await until(lambda: nodes.one.broker.machine(info.group).queue(info.queue).ready_count == 3)
    assert await take() == [("too large", False), ("c", False)]
    await until(lambda: nodes.one.broker.machine(info.group).queue(info.queue).ready_count == 1)
    assert await take() == [("d", False)]


async def test_peek_takes_nothing(http: Http):
    for body in (b"a", b"\xff"):
        await http("POST", f"{ORDERS}/messages", data=body)
    _, found = await http("GET", f"{ORDERS}/peek?start=1&count=5&state=ready")
    assert [row["body"] for row in found["messages"]] == ["a", {"base64": "/w=="}]
    assert (await http("GET", ORDERS))[1]["ready"] == 2


async def test_peek_counts_only_messages_in_the_state_asked_for(http: Http):
    tomorrow_ms = time.time_ns() // 1_000_000 + 86_400_000
    for number in range(4):
        headers = {"X-Quorate-Deliver-At-Ms": str(tomorrow_ms)} if number == 1 else {}
        await http("POST", f"{ORDERS}/messages", data=b"%d" % number, headers=headers)
    await http("POST", f"{ORDERS}/get", json={"count": 1})

    async def seen(query: str) -> list[tuple[str, str]]:
        rows = (await http("GET", f"{ORDERS}/peek?{query}"))[1]["messages"]
        return [(row["body"], row["state"]) for row in rows]

    assert await seen("count=1&state=unsettled") == [("0", "unsettled")]
    assert await seen("count=1&state=delayed") == [("1", "delayed")]
    assert await seen("count=1&state=ready") == [("2", "ready")]
    assert await seen("count=5&start=4&state=ready") == [("3", "ready")]
    assert await seen("count=5&start=2&state=unsettled") == []
    assert len(await seen("state=")) == 4


async def test_pause_purge_list_status_and_delete(http: Http):
    await http("POST", f"{ORDERS}/messages", data=b"a")
    assert (await http("POST", f"{ORDERS}/pause", json={"paused": True}))[0] == 200
    assert (await http("GET", ORDERS))[1]["paused"] is True
    assert (await http("POST", f"{ORDERS}/purge"))[1] == {"outcome": "ok", "count": 1}
    assert [each["name"] for each in (await http("GET", "/v1/queues"))[1]["queues"]] == ["orders"]
    assert (await http("GET", "/v1/status"))[1]["node"] == "n1"
    assert (await http("DELETE", ORDERS))[0] == 200
    assert (await http("GET", ORDERS))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "code"),
    [
        ("GET", "/v1/queues/%2F/nowhere", {}, 404, "no_queue"),
        ("POST", "/v1/queues/%2F/nowhere/messages", {"data": b"x"}, 404, "no_queue"),
        (
            "PUT",
            ORDERS,
            {"json": {"arguments": {"x-max-length": 9}}},
            409,
            "inequivalent_arguments",
        ),
        ("PUT", f"{ORDERS}2", {"json": {"arguments": {"x-nope": 9}}}, 400, "bad_argument"),
        ("PUT", f"{ORDERS}2", {"json": {"arguments": 5}}, 400, "bad_argument"),
        ("PUT", f"{ORDERS}2", {"data": b"{"}, 400, "bad_argument"),
        ("POST", f"{ORDERS}/messages", {"data": b"x" * 100_001}, 413, "message_too_large"),
        ("POST", f"{ORDERS}/get", {"json": {"count": 0}}, 400, "bad_argument"),
        ("POST", f"{ORDERS}/get", {"json": [1]}, 400, "bad_argument"),
        ("POST", f"{ORDERS}/settle", {"json": {"consumer": 5}}, 400, "bad_argument"),
        (
            "POST",
            f"{ORDERS}/settle",
            {"json": {"consumer": 5, "ranges": [[1, 1]]}},
            404,
            "no_consumer",
        ),
        ("GET", f"{ORDERS}/peek?count=many", {}, 400, "bad_argument"),
        ("GET", f"{ORDERS}/peek?state=odd", {}, 400, "bad_argument"),
        ("DELETE", f"{ORDERS}?if_empty=perhaps", {}, 400, "bad_argument"),
    ],
)
async def test_a_refusal_has_its_status_and_its_code(
    http: Http, method: str, path: str, options: dict[str, Any], status: int, code: str
):
    answered, body = await http(method, path, **options)

    assert (answered, body["outcome"], body["code"]) == (status, "refused", code)
    assert body["reason"]


async def test_health_and_metrics(http: Http):
    await http("POST", f"{ORDERS}/messages", data=b"a")
    assert await http("GET", "/health/live") == (200, {"ok": True, "reasons": []})

    async def ready() -> bool:
        return (await http("GET", "/health/ready"))[0] == 200

    await until(ready)
    _, text = await http("GET", "/metrics")
    for line in (
        "quorate_messages_ready 1.0",
        "quorate_messages_published_total 1.0",
        "quorate_messages_confirmed_total 1.0",
        'quorate_raft_leader{group="catalog"} 1.0',
        "quorate_log_fsync_seconds_count",
    ):
        assert line in text


async def test_a_follower_answers_307_with_the_leaders_address(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes, aiohttp.ClientSession() as session:
        await nodes.declare("orders")
        leader = await nodes.leader("orders")
        other = next(name for name in nodes.nodes if name != leader)
        http = Http(nodes.url(other), session)

        status, body = await http("POST", f"{ORDERS}/messages?x=%2F", data=b"a")

        assert (status, body["code"]) == (307, "not_leader")
        assert http.headers["Location"] == f"{nodes.url(leader)}{ORDERS}/messages?x=%2F"


async def test_a_redirect_names_the_address_and_port_that_clients_are_told(tmp_path: Path):
    """As in a Kubernetes cluster where all nodes have one host name, and ports tell them apart."""
    nodes = Nodes(tmp_path, 3)
    told = {f"n{number}": f"machines.example:{31000 + number}" for number in (1, 2, 3)}
    for name, address in told.items():
        nodes.set(name, http_advertise=address)
    async with nodes, aiohttp.ClientSession() as session:
        await nodes.declare("orders")
        leader = await nodes.leader("orders")
        other = next(name for name in nodes.nodes if name != leader)
        http = Http(nodes.nodes[other]._http.local_url, session)

        status, _ = await http("POST", f"{ORDERS}/messages", data=b"a")

        assert status == 307
        assert http.headers["Location"] == f"http://{told[leader]}{ORDERS}/messages"
