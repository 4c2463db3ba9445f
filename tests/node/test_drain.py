"""A node that is about to be stopped: what is asked of it, what it does, and how it is undone."""

# pyright: basic
from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aio_pika
import aiohttp
import pytest

from cluster.types import GroupId, NodeId
from node.data_folder import DataFolder
from node.errors import Refused
from node.node import Node
from node.operating.drain import LOOK_S, QUORUM_CRITICAL
from node.protocols.local_token import read
from tests.node.management.api import Reply, api_of
from tests.node.nodes import WAIT_S, Client, Nodes, machine_of, until
from tests.testkit.waiting import QUIET_S, stays


def ready(node: Node) -> bool:
    return node.health.why_not_ready() == []


async def all_ready(nodes: Nodes) -> None:
    await until(lambda: all(map(ready, nodes.nodes.values())))


def led(node: Node) -> list[str]:
    return [group.name for group in node.cluster.groups.values() if group.ready]


async def drain(node: Node, *, timeout_s: float = 60.0, force: bool = False) -> dict[str, Any]:
    return await node.drain.drain(node.cluster.node, timeout_s=timeout_s, force=force, by="test")


async def with_token(node: Node, method: str, path: str, token: str, **headers: str) -> int:
    shown = {"Authorization": f"Bearer {token}", **headers}
    url = f"http://{node.http_address}/api/{path}"
    async with aiohttp.ClientSession() as http, http.request(method, url, headers=shown) as answer:
        return answer.status


async def ignored(_: object) -> None: ...


def balanced(folder: Path) -> Nodes:
    """Three, each of which leads something soon, also when it comes back."""
    return Nodes(folder, 3, balance_after_s=0.5)


async def test_leaderships_go_to_others_and_stay_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("node.operating.drain.LED_S_MAX", 60.0)
    async with balanced(tmp_path) as nodes:
        await all_ready(nodes)
        node = nodes.nodes["n1"]
        await until(lambda: led(node))  # once they are spread
        had = set(led(node))

        report = await drain(node)

        assert set(report["leaderships"]) >= had
        assert report["leaderships_kept"] == []
        assert set(report["leaderships"].values()) <= {"n2", "n3"}
        assert led(node) == []
        group = node.cluster.groups[next(iter(node.cluster.groups))]
        other = nodes.nodes["n2"].cluster.groups[group.id]
        await until(lambda: other.leader in ("n2", "n3"))
        nodes.nodes[str(other.leader)].cluster.groups[group.id].transfer(node.cluster.node)
        await until(lambda: group.role.name == "LEADER")
        await until(lambda: other.leader in ("n2", "n3"))  # it is handed on


async def test_the_report_waits_for_news_of_who_leads_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("node.operating.drain.LED_S_MAX", 60.0)
    async with balanced(tmp_path) as nodes:
        await all_ready(nodes)
        node = nodes.nodes["n1"]
        await until(lambda: led(node))
        known, asked = node.cluster.leader_of, 0

        def known_late(group: GroupId) -> NodeId | None:
            nonlocal asked
            asked += 1
            return None if asked < 20 else known(group)

        monkeypatch.setattr(node.cluster, "leader_of", known_late)
        report = await drain(node)

        assert report["leaderships"]
        assert set(report["leaderships"].values()) <= {"n2", "n3"}


async def test_who_leads_instead_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("node.operating.drain.LED_S_MAX", 0.1)
    async with balanced(tmp_path) as nodes:
        await all_ready(nodes)
        node = nodes.nodes["n1"]
        await until(lambda: led(node))
        monkeypatch.setattr(node.cluster, "leader_of", lambda _group: None)
        report = await drain(node)

        assert set(report["leaderships"].values()) == {None}


def far(node: NodeId) -> int:
    return 100_000


async def test_what_comes_back_is_kept_while_the_others_are_far_behind(tmp_path: Path):
    """A group that is being handed over takes nothing new."""
    async with Nodes(tmp_path, 3) as nodes:
        await all_ready(nodes)
        node = nodes.nodes["n1"]
        await drain(node)
        group = node.cluster.groups[max(node.cluster.groups)]
        copies = [each.cluster.groups[group.id] for each in nodes.nodes.values()]
        group.member.replication.lacks = far
        (await until(lambda: next((c for c in copies if c.ready), None))).transfer(group.node)
        await until(lambda: group.ready)
        await asyncio.sleep(3 * LOOK_S)

        assert (await group.barrier()).kind == "ok"
        del group.member.replication.lacks
        await until(lambda: not group.ready)


async def test_clients_are_told_to_go_and_doors_are_closed_until_it_is_undone(tmp_path: Path):
    async with balanced(tmp_path) as nodes:
        await all_ready(nodes)
        node = nodes.nodes["n1"]
        url = f"amqp://guest:guest@{node.amqp.address}/"
        connection = await aio_pika.connect(url)
        channel = await connection.channel()
        queue = await channel.declare_queue("orders", durable=True)
        await queue.consume(ignored)
        closed: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        async def ended(_: object, error: BaseException | None) -> None:
            if not closed.done():
                closed.set_result(error)

        connection.close_callbacks.add(ended)
        async with Client(nodes.url("n1")) as client:
            closing = asyncio.create_task(client.closed())
            report = await drain(node)

            assert await closing == 4013
        error = await asyncio.wait_for(closed, WAIT_S)
        assert "about to stop" in str(error)
        assert (report["amqp_connections"], report["consumers_cancelled"]) == (1, 1)
        assert report["native_connections"] == 1
        assert node.health.why_not_ready()[0].startswith("the node is draining")
        assert node.health.why_not_live() == []
        with pytest.raises(OSError):
            await aio_pika.connect(url, timeout=2)
        async with aiohttp.ClientSession() as http:
            for path in ("/v1/connect", "/v1/queues"):
                async with http.get(nodes.url("n1") + path) as answer:
                    assert (answer.status, (await answer.json())["code"]) == (503, "stopping")
            async with http.get(nodes.url("n1") + "/health/live") as answer:
                assert answer.status == 200
            async with http.get(nodes.url("n1") + "/metrics") as answer:
                assert answer.status == 200

        await node.drain.undo(node.cluster.node, by="test")

        assert ready(node)
        await (await aio_pika.connect(url)).close()
        async with Client(nodes.url("n1")) as client:
            assert client.welcome
        await until(lambda: led(node))  # it is given some again


async def test_a_session_that_can_be_resumed_moves_and_keeps_what_it_holds(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("orders")
        await all_ready(nodes)
        name = await nodes.leader("orders")
        options: dict[str, Any] = {"session": "worker", "resume_ms": 60_000}
        async with Client(nodes.url(name), **options) as client:
            _, _, consumer, _ = await client.ask(20, 1, "orders", {"tag": "t"})
            await client.publish("orders", b"a", request=2)
            _, _, _, ((first, token, *_),) = await client.expect(24)
            ending = asyncio.create_task(client.closed())

            await drain(nodes.nodes[name])
            assert await ending == 4013

        await nodes.stop(name)
        successor = await nodes.leader("orders")
        async with Client(nodes.url(successor), **options) as again:
            held = {"tag": "t", "held": [[first, first, token]]}
            assert (await again.ask(20, 3, "orders", held))[2] == consumer
            assert await again.ask(30, 4, "orders", consumer, [[1, 1]]) == [3, 4, 1]


async def test_what_a_session_held_that_cannot_be_resumed_did_not_fail(tmp_path: Path):
    """The node sent it away: that is no failed delivery, which would use up a delivery limit."""
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("orders", delivery_limit=1)
        await all_ready(nodes)
        name = await nodes.leader("orders")
        async with Client(nodes.url(name)) as client:
            await client.ask(20, 1, "orders", {"tag": "t"})
            await client.publish("orders", b"a", request=2)
            await client.expect(24)
            ending = asyncio.create_task(client.closed())

            await drain(nodes.nodes[name])
            assert await ending == 4013

        async with Client(nodes.url(await nodes.leader("orders"))) as later:
            await later.ask(20, 3, "orders", {"tag": "t"})
            assert await later.deliveries(1) == [(1, b"a")]
            number, machine = machine_of(nodes, "orders")
            (row,) = machine.browse(number, 1, 10)
            assert (row.chunk.acquired_count, row.chunk.delivery_count) == (1, 0)


async def test_what_was_published_before_is_confirmed_before_the_goodbye(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("orders")
        await all_ready(nodes)
        name = await nodes.leader("orders")
        async with Client(nodes.url(name)) as client:
            for number in range(1, 201):
                await client.send(10, number, "orders", "p", number, [b"x"], None, None)
            ending = asyncio.create_task(client.closed())
            await until(lambda: client.seen)
            await drain(nodes.nodes[name])
            assert await ending == 4013
        confirmed = sorted(one[0] for frame in client.seen if frame[0] == 11 for one in frame[1])
        async with Client(nodes.url(await nodes.leader("orders"))) as later:
            stored = (await later.ask(54, 1, "orders"))[2]["messages"]
        assert stored >= len(confirmed)


async def test_it_waits_for_the_others_says_for_whom_and_gives_up_in_time(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await all_ready(nodes)
        await nodes.stop("n3")
        node = nodes.nodes["n1"]
        with pytest.raises(Refused, match=r"catalog lacks n3; .*start n3") as refused:
            await drain(node, timeout_s=0.3)
        assert refused.value.code == QUORUM_CRITICAL
        assert ready(node)

        waiting = asyncio.create_task(drain(node, timeout_s=60))
        await stays(lambda: not waiting.done())
        await nodes.start("n3")
        assert (await waiting)["waited_ms"] >= QUIET_S * 1000


async def test_who_waits_for_a_drain_hears_that_it_was_taken_back(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await all_ready(nodes)
        node, other = nodes.nodes["n1"], nodes.nodes["n2"]
        other.catch_up.done = False  # n1 waits for it
        draining = asyncio.create_task(drain(node))
        await asyncio.sleep(2 * LOOK_S)
        await node.drain.undo(node.cluster.node, by="test")

        with pytest.raises(Refused, match="taken back"):
            await draining


async def test_it_may_be_forced(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await all_ready(nodes)
        await nodes.stop("n3")
        report = await drain(nodes.nodes["n1"], force=True)
        assert report["forced"]
        assert not ready(nodes.nodes["n1"])


async def test_of_two_at_once_one_goes_and_the_other_waits(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await all_ready(nodes)
        first, second = await asyncio.gather(
            drain(nodes.nodes["n1"], timeout_s=5.0),
            drain(nodes.nodes["n2"], timeout_s=5.0),
            return_exceptions=True,
        )
        outcomes = [isinstance(each, Refused) for each in (first, second)]
        assert sorted(outcomes) == [False, True], (first, second)
        assert nodes.nodes["n3"].cluster.peers.stays(nodes.nodes["n1"].cluster.node) is outcomes[0]


async def test_when_all_leave_nobody_is_waited_for(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await all_ready(nodes)
        async with asyncio.timeout(WAIT_S):  # or else each would wait for its own time
            reports = await asyncio.gather(
                *(drain(node, timeout_s=3_600) for node in nodes.nodes.values())
            )
        assert len(reports) == 3


async def test_any_node_is_asked_over_the_api_and_administrators_only_ask(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await all_ready(nodes)
        api = api_of(nodes.nodes["n1"])
        await api.ask("PUT", "users/ann", {"password": "p", "tags": "monitoring"})

        assert (await api.as_user("ann", "p").ask("PUT", "nodes/n2/drain", {})).status == 401
        assert (await api.ask("PUT", "nodes/n9/drain", {})).status == 404
        assert (await api.ask("PUT", "nodes/n2/drain", {"timeout_ms": -1})).status == 400
        reply = await api.ask("PUT", "nodes/n2/drain", {"timeout_ms": 60_000})
        assert (reply.status, reply.value["node"]) == (200, "n2")
        assert not ready(nodes.nodes["n2"])
        drained = {row["name"]: row["being_drained"] for row in await api.get("nodes")}
        assert drained == {"n1": False, "n2": True, "n3": False}
        refused: Reply = await api.ask("PUT", "nodes/n1/drain", {"timeout_ms": 100})
        assert (refused.status, refused.value["error"]) == (409, "quorum_critical")
        check = await api.ask("GET", "health/checks/node-is-quorum-critical")
        assert (check.status, check.value["groups"][0]) == (503, "catalog")
        assert (
            await api_of(nodes.nodes["n2"]).ask("GET", "health/checks/is-in-service")
        ).status == 503
        assert await api.delete("nodes/n2/drain") == 204
        assert ready(nodes.nodes["n2"])


async def test_the_token_of_the_data_folder_drains_from_this_machine_and_does_nothing_else(
    tmp_path: Path,
):
    async with Nodes(tmp_path, 3) as nodes:
        await all_ready(nodes)
        node = nodes.nodes["n1"]
        file = tmp_path / "n1" / "local-token"
        local = read(tmp_path / "n1")

        assert file.stat().st_mode & 0o777 == 0o600
        assert local.url == f"http://{node.http_address}"
        for token in ("", "x", local.token[:-1], read(tmp_path / "n2").token):
            assert await with_token(node, "PUT", "nodes/n1/drain", token) == 401
        proxied = {"X-Forwarded-For": "127.0.0.1"}
        assert await with_token(node, "PUT", "nodes/n1/drain", local.token, **proxied) == 401
        for method, path in (("GET", "users"), ("DELETE", "users/guest"), ("GET", "nodes/n1")):
            assert await with_token(node, method, path, local.token) == 401, path
        assert await with_token(node, "PUT", "nodes/n1/drain", local.token) == 200
        assert await with_token(node, "DELETE", "nodes/n1/drain", local.token) == 204

        await nodes.stop("n1")
        assert not file.exists()
        await nodes.start("n1")
        assert read(tmp_path / "n1").token != local.token


async def test_before_a_stop_only_those_that_will_be_back_soon_are_waited_for(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await all_ready(nodes)
        node, loop = nodes.nodes["n1"], asyncio.get_running_loop()
        nodes.nodes["n3"].catch_up.done = False
        waiting = asyncio.create_task(node.drain.until_others_came_back(loop.time() + 200))
        await stays(lambda: not waiting.done())
        nodes.nodes["n3"].catch_up.done = True
        await waiting

        nodes.nodes["n3"].cluster.liveness.leave()
        await until(lambda: not node.cluster.peers.stays(nodes.nodes["n3"].cluster.node))
        await asyncio.wait_for(node.drain.until_others_came_back(loop.time() + 200), 100)
        await nodes.stop("n3")
        await asyncio.wait_for(node.drain.until_others_came_back(loop.time() + 200), 100)


async def test_a_stop_without_any_time_still_says_goodbye(tmp_path: Path):
    async with Nodes(tmp_path, stop_ms_max=0) as nodes, Client(nodes.url("n1")) as client:
        closing = asyncio.create_task(client.closed())
        await nodes.stop("n1")
        assert await closing == 4013


async def test_a_restart_ends_the_drain(tmp_path: Path):
    async with balanced(tmp_path) as nodes:
        await all_ready(nodes)
        await drain(nodes.nodes["n1"])
        await nodes.stop("n1")
        back = await nodes.start("n1")
        await until(lambda: ready(back))
        await until(lambda: led(back))


async def test_a_node_that_is_alone_is_drained_at_once(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        await all_ready(nodes)
        report = await drain(nodes.one)
        assert report["leaderships"] == {}
        assert report["leaderships_kept"][0] == "catalog"


def test_a_token_that_a_killed_node_left_is_replaced(tmp_path: Path):
    folder = DataFolder(str(tmp_path))
    folder.open()
    (tmp_path / "local-token").write_text("{}")
    with pytest.raises(KeyError):
        read(tmp_path)
    folder.close()
    (tmp_path / "local-token").write_text(json.dumps({"url": "u", "token": "t"}))
    assert read(tmp_path) == ("u", "t")
