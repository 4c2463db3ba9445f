"""Queues, routes and the session: the calls that are answered once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import quorate
from quorate import wire
from quorate.connection import Reasons
from quorate.ports import HOST
from tests.client.fake_node import FakeCluster
from tests.testkit.waiting import stays, until


async def test_declare_says_whether_it_made_the_queue(client: quorate.Client):
    assert (await client.declare("orders", {"x-max-priority": 5}))["created"]
    assert not (await client.declare("orders"))["created"]


async def test_the_queue_calls_answer(cluster: FakeCluster, client: quorate.Client):
    await client.declare("orders")
    await client.publish_many("orders", [b"1", b"2"])

    assert (await client.info("orders"))["ready"] == 2
    assert [row["body"] for row in await client.peek("orders", count=1)] == [b"1"]
    assert [row["name"] for row in await client.queues()] == ["orders"]
    assert (await client.status())["cluster"] == "fake"
    await client.pause("orders")
    await client.pause("orders", False)
    assert await client.purge("orders") == 2
    await client.delete("orders")
    with pytest.raises(quorate.Refused, match="no_queue"):
        await client.delete("orders")
    assert [frame[3] for frame in cluster.nodes[0].seen if frame[0] == wire.PAUSE] == [True, False]


async def test_peek_waits_while_nobody_leads(cluster: FakeCluster, client: quorate.Client):
    await client.declare("orders")
    await cluster.lead(None)
    with pytest.raises(quorate.Unreachable, match="no_leader"):
        await client.peek("orders", timeout=2)
    peeking = asyncio.create_task(client.peek("orders"))
    await stays(lambda: not peeking.done())

    await cluster.lead(cluster.nodes[1])

    assert await peeking == []


def test_what_a_node_said_before_says_more_than_that_time_ran_out():
    told = Reasons()
    told["http://a"] = "no_leader"
    for url in ("http://a", "http://b"):
        told.failed(url, TimeoutError())

    assert str(told.unreachable()).endswith(
        "no node answered: http://a: no_leader; http://b: no answer in time"
    )


async def test_nodes_that_never_answer_are_named():
    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3600)
        writer.close()

    server = await asyncio.start_server(silent, HOST, 0)
    url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
    try:
        async with quorate.connect([url]) as client:
            with pytest.raises(quorate.Unreachable, match=f"{url}: no answer in time"):
                await client.reach(0.2)
    finally:
        server.close()


async def test_peek_follows_the_leader_and_tells_refusals(
    cluster: FakeCluster, client: quorate.Client
):
    await client.declare("orders")
    await cluster.lead(cluster.nodes[1])

    assert await client.peek("orders") == []
    with pytest.raises(quorate.Refused, match="no_queue"):
        await client.peek("nowhere")


async def test_a_delete_whose_answer_was_lost_is_done(cluster: FakeCluster, client: quorate.Client):
    await client.declare("orders")
    node = cluster.nodes[0]
    node.mute = {wire.DELETE}
    deleting = asyncio.create_task(client.delete("orders"))
    while "orders" in cluster.queues:
        await asyncio.sleep(0)
    node.mute = set()
    node.cut()

    await deleting


async def test_any_address_will_do(cluster: FakeCluster):
    addresses = ["127.0.0.1:1", cluster.urls[2].removeprefix("http://")]
    async with quorate.connect(addresses) as client:
        assert (await client.declare("orders"))["leader"] == "n1"


async def test_a_node_that_is_cut_off_from_the_others_is_not_the_only_one_asked(
    cluster: FakeCluster, client: quorate.Client
):
    """It led once, is reached by its clients, and knows no leader now."""
    alone, leader = cluster.nodes[:2]
    await client.declare("q")
    await client.publish("q", b"1")
    await cluster.lead(leader)

    def knows_nobody(frame: list[Any]) -> list[Any] | None:
        asks = frame[0] in (wire.PUBLISH, wire.DECLARE)
        return [wire.REDIRECT, frame[1], frame[2], None, None] if asks else None

    alone.script = knows_nobody

    await client.publish("q", b"2")
    await client.declare("q")

    assert cluster.queue("q").last == 2
    assert any(frame[0] == wire.PUBLISH for frame in leader.seen)


async def test_one_connection_a_node_however_it_is_called(cluster: FakeCluster):
    """The same node by two addresses must not make the session take itself over."""
    other_name = cluster.nodes[0].url.replace("127.0.0.1", "localhost")
    async with quorate.connect(other_name) as client:
        await client.declare("orders")
        await asyncio.gather(*(client.publish("orders", b"x") for _ in range(5)))

    assert len(cluster.nodes[0].hellos) == 1


async def test_a_session_taken_over_ends_the_client(cluster: FakeCluster, client: quorate.Client):
    await client.declare("orders")
    for socket in list(cluster.nodes[0].sockets):
        await socket.close(code=wire.CLOSED_TAKEN_OVER)

    await until(lambda: not cluster.nodes[0].sockets)

    with pytest.raises(quorate.ClientClosed, match="session"):
        await client.info("orders")


async def test_a_silent_node_is_given_up(
    cluster: FakeCluster, client: quorate.Client, monkeypatch: pytest.MonkeyPatch
):
    """A paused process keeps its connections open: only silence tells."""
    monkeypatch.setattr(wire, "PING_INTERVAL_S", 0.1)
    monkeypatch.setattr(wire, "SILENCE_S_MAX", 1.0)
    await client.declare("orders")
    cluster.nodes[0].script = lambda _: []
    cluster.nodes[0].deaf = True
    publishing = asyncio.create_task(client.publish("orders", b"1"))
    await asyncio.sleep(0.01)

    cluster.leader = cluster.nodes[1]

    await publishing  # one that was held up may have stored it twice, and told of a duplicate
    assert list(cluster.queue("orders").bodies.values()) == [b"1"]


async def test_a_silent_node_is_given_up_soon_while_an_answer_is_waited_for(
    cluster: FakeCluster, client: quorate.Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wire, "SILENCE_S_MAX", 300.0)
    monkeypatch.setattr(wire, "PING_INTERVAL_S", 300.0)
    await client.declare("orders")
    cluster.nodes[0].script = lambda _: []
    cluster.nodes[0].deaf = True
    publishing = asyncio.create_task(client.publish("orders", b"1", timeout=60))
    await asyncio.sleep(0.01)
    cluster.leader = cluster.nodes[1]

    await publishing


async def test_a_node_that_is_slow_of_late_has_longer_to_answer(client: quorate.Client):
    await client.declare("orders")
    connection = client._core.routes.connections[0]
    assert connection.silence_s == wire.SILENCE_S_MIN
    connection._slowest_s = 1.0
    assert connection.silence_s == wire.ANSWER_TIMES
    connection._slowest_s = 60.0
    assert connection.silence_s == wire.SILENCE_S_MAX


async def test_addresses_that_do_not_answer_are_not_waited_for_one_after_the_other(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    """As those of pods that are gone: nobody refuses."""
    monkeypatch.setattr(wire, "CONNECT_TIMEOUT_S", 300.0)
    monkeypatch.setattr("random.shuffle", lambda _: None)
    mute = [
        await asyncio.start_server(lambda *_: asyncio.sleep(300), "127.0.0.1", 0) for _ in range(2)
    ]
    urls = [f"127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in mute]
    try:
        async with quorate.connect([*urls, *cluster.urls]) as client, asyncio.timeout(60):
            await client.declare("orders")
    finally:
        for each in mute:
            each.close()


async def test_refused_settings_of_connect_say_what_is_wanted():
    with pytest.raises(ValueError, match="host:port"):
        async with quorate.connect(""):
            pass
    with pytest.raises(RuntimeError, match="async with"):
        await quorate.connect("127.0.0.1:1").info("orders")


async def test_a_closed_client_refuses(client: quorate.Client):
    await client.close()
    await client.close()

    with pytest.raises(quorate.ClientClosed):
        await client.info("orders")
