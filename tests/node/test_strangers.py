"""What one user or connection has is not for another to take, on any listener of a real node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.node.nodes import Client, Nodes
from tests.node.test_http import Http
from tests.node.test_native_auth import DECLARE, DELETE, GET, PAUSE, PURGE, SUBSCRIBE, add_user

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
#: A queue of one connection, as AMQP declares them.
LOCKED = "cannot obtain exclusive access to locked queue 'mine' in vhost '/'"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path) as nodes:
        await nodes.declare("orders")
        for name in ("ann", "bob"):
            await add_user(nodes, name, "secret", **EVERYTHING)
        outcome = await nodes.one.cluster.declare_queue(
            "/", "mine", {}, durable=False, exclusive=True, transient=True, owner="n1.1.1"
        )
        assert outcome.kind == "ok"
        yield nodes


def as_user(nodes: Nodes, name: str) -> str:
    return nodes.url("n1").replace("http://", f"http://{name}:secret@")


async def test_a_session_is_its_users_alone(nodes: Nodes):
    url = as_user(nodes, "ann")
    async with Client(url, session="worker", resume_ms=60_000) as ann:
        await ann.publish("orders", b"a")
        assert (await ann.ask(SUBSCRIBE, 2, "orders", {"tag": "t"}))[0] == 21
        assert await ann.deliveries(1) == [(1, b"a")]
        async with Client(as_user(nodes, "bob"), session="worker", resume_ms=60_000) as bob:
            assert (bob.welcome[2]["session"], bob.welcome[2]["resumed"]) == ("worker", False)
            assert (await bob.ask(GET, 3, "orders", 1, True))[5] == []
        assert (await ann.ask(54, 4, "orders"))[0] == 3  # not taken over
    async with Client(url, session="worker", resume_ms=60_000) as again:
        assert again.welcome[2]["resumed"] is True


FRAMES: list[tuple[int, list[Any]]] = [
    (GET, [1, True]),
    (SUBSCRIBE, [{"tag": "t"}]),
    (PURGE, []),
    (PAUSE, [True]),
    (DECLARE, [{}]),
    (DELETE, [False, False]),
]


@pytest.mark.parametrize(("opcode", "fields"), FRAMES)
async def test_a_queue_of_one_connection_is_locked_for_native_clients(
    nodes: Nodes, opcode: int, fields: list[Any]
):
    async with Client(as_user(nodes, "ann")) as client:
        answer = await client.ask(opcode, 1, "mine", *fields)

    assert answer[:3] == [4, 1, "exclusive_owner"]
    assert answer[3].startswith(LOCKED)
    assert nodes.one.broker.locate("/", "mine") is not None


async def test_anybody_may_answer_to_a_queue_of_one_connection(nodes: Nodes):
    async with Client(as_user(nodes, "ann")) as client:
        assert (await client.publish("mine", b"reply"))[0] == 11


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/peek", None),
        ("POST", "/get", {}),
        ("POST", "/settle", {"consumer": 1, "ranges": [[1, 1]]}),
        ("POST", "/purge", None),
        ("POST", "/pause", {}),
        ("DELETE", "", None),
    ],
)
async def test_a_queue_of_one_connection_is_locked_over_http(
    nodes: Nodes, method: str, path: str, body: Any
):
    async with aiohttp.ClientSession() as session:
        http = Http(nodes.url("n1"), session)
        options = {} if body is None else {"json": body}
        status, refusal = await http(method, "/v1/queues/%2F/mine" + path, **options)

    assert (status, refusal["code"]) == (409, "exclusive_owner")
    assert refusal["reason"].startswith(LOCKED)
