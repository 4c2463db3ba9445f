"""Bodies over 16 MiB by the native protocol and its client; what cannot carry them says so."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path
from typing import Any

import aiohttp
import cbor2
import pytest

import quorate
from cluster.groups.outcome import unknown
from cluster.machine.commands import Settle
from node.node import Node
from quorate.errors import Refused
from tests.node.amqp.test_large_bodies import send as send_by_amqp
from tests.node.nodes import Client, Nodes, until

MIB = 1 << 20
GUEST = {"Authorization": aiohttp.encode_basic_auth("guest", "guest")}
LIMIT = {"limits.message_bytes_max": 64 * MIB}


def body_of(size: int, seed: int = 1) -> bytes:
    block = hashlib.sha256(str(seed).encode()).digest() * 4_099
    return (block * (size // len(block) + 1))[:size]


def depth(node: Node, queue: str) -> int:
    info = node.cluster.queue_info("/", queue)
    assert info is not None
    machine: Any = node.cluster.groups[info.group].machine
    return machine.queue(info.queue).messages


async def test_a_large_body_comes_out_as_it_went_in(tmp_path: Path) -> None:
    bodies = [body_of(17 * MIB), b"small", body_of(20 * MIB, 2)]
    async with Nodes(tmp_path, 3, **LIMIT) as nodes:
        await nodes.declare("q")
        addresses = ",".join(nodes.url(name) for name in nodes.nodes)
        async with quorate.connect(addresses, timeout=60) as client:
            for body in bodies:
                published = await client.publish("q", body)
                assert published.position is not None
            found: list[bytes] = []
            async with client.consume("q", credit=2) as messages:
                async for message in messages:
                    found.append(message.body)
                    await message.settle()
                    if len(found) == len(bodies):
                        break
            assert found == bodies
            await until(lambda: depth(nodes.one, "q") == 0)


@pytest.mark.parametrize("auto_settle", [True, False])
async def test_get_and_auto_settle_take_it_once(tmp_path: Path, *, auto_settle: bool) -> None:
    body = body_of(17 * MIB)
    async with Nodes(tmp_path, 1, **LIMIT) as nodes:
        await nodes.declare("q")
        async with quorate.connect(nodes.url("n1"), timeout=60) as client:
            await client.publish("q", body)
            (delivery,) = await client.get("q", auto_settle=auto_settle)
            assert delivery.body == body
            if not auto_settle:
                await delivery.settle()
            await until(lambda: depth(nodes.one, "q") == 0)


async def test_a_forwarding_client_and_a_change_of_leader(tmp_path: Path) -> None:
    body = body_of(24 * MIB)
    async with Nodes(tmp_path, 3, **LIMIT) as nodes:
        await nodes.declare("q")
        info = nodes.one.cluster.queue_info("/", "q")
        leader = nodes.nodes[str(nodes.one.cluster.leader_of(info.group))]
        other = next(name for name, node in nodes.nodes.items() if node is not leader)
        group = leader.cluster.groups[info.group]
        await until(lambda: group.machine.version >= 3)
        async with quorate.connect(nodes.url(other), forward=True, timeout=60) as client:
            publishing = asyncio.create_task(client.publish("q", body))
            await until(group.machine.live_indexes)
            group.transfer(None)
            await publishing
            async with client.consume("q") as messages:
                async for message in messages:
                    assert message.body == body
                    await message.settle()
                    break


async def test_over_the_limit_it_is_refused(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 1, **{"limits.message_bytes_max": 20 * MIB}) as nodes:
        await nodes.declare("q")
        async with quorate.connect(nodes.url("n1"), timeout=60) as client:
            with pytest.raises(Refused) as refused:
                await client.publish("q", body_of(20 * MIB + 1))
            assert refused.value.code == "message_too_large"


async def test_http_shows_how_it_begins_and_does_not_take_it(tmp_path: Path) -> None:
    body = body_of(17 * MIB)
    async with Nodes(tmp_path, 1, **LIMIT) as nodes:
        await nodes.declare("q")
        url = nodes.url("n1")
        async with (
            quorate.connect(url, timeout=60) as client,
            aiohttp.ClientSession(headers=GUEST) as http,
        ):
            await client.publish("q", body)
            (row,) = await client.peek("q")
            assert row["bytes"] == len(body)
            assert body.startswith(row["body"])
            headers = {"Content-Type": "application/cbor", "Accept": "application/cbor"}
            where = f"{url}/v1/queues/%2F/q/get"
            async with http.post(where, data=cbor2.dumps({}), headers=headers) as answer:
                assert answer.status == 413, await answer.read()
            where = f"{url}/api/queues/%2F/q/get"
            asked = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
            async with http.post(where, json=asked) as answer:
                assert answer.status == 413, await answer.read()
            await until(lambda: depth(nodes.one, "q") == 1)
            async with http.post(where, json={**asked, "truncate": 10}) as answer:
                (message,) = await answer.json()
                assert message["payload_bytes"] == len(body)
            await until(lambda: depth(nodes.one, "q") == 0)


async def test_http_takes_what_is_small_beside_a_large_body(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 1, **LIMIT) as nodes:
        await nodes.declare("q")
        url = nodes.url("n1")
        async with (
            quorate.connect(url, timeout=60) as client,
            aiohttp.ClientSession(headers=GUEST) as http,
        ):
            await client.publish("q", b"before")
            await client.publish("q", body_of(17 * MIB))
            headers = {"Content-Type": "application/cbor", "Accept": "application/cbor"}
            asked = cbor2.dumps({"count": 10, "auto_settle": True})
            where = f"{url}/v1/queues/%2F/q/get"
            async with http.post(where, data=asked, headers=headers) as answer:
                found = cbor2.loads(await answer.read())
                assert [each["body"] for each in found["messages"]] == [b"before"]
                assert found["ready"] == 1
            await until(lambda: depth(nodes.one, "q") == 1)
            async with http.post(where, data=asked, headers=headers) as answer:
                assert answer.status == 413


async def test_what_may_travel_whole_arrives_whole_where_there_are_no_parts(
    tmp_path: Path,
) -> None:
    """AMQP publishes it in parts; HTTP, and clients that know nothing of parts, take it."""
    body = body_of(3 * MIB)
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("q")
        leader = await nodes.leader("q")
        other = next(name for name in nodes.nodes if name != leader)
        info = nodes.one.cluster.queue_info("/", "q")
        machine: Any = nodes.nodes[leader].cluster.groups[info.group].machine
        await until(lambda: machine.version >= 3)

        async def publish() -> None:
            await asyncio.to_thread(send_by_amqp, nodes.nodes[other], body)
            # The last entry does not hold the message: it went in parts.
            (live,) = [live for live in [machine.live_indexes()] if live]
            assert len({index for first, last in live for index in range(first, last + 1)}) > 3

        url = nodes.url(leader)
        headers = {"Content-Type": "application/cbor", "Accept": "application/cbor"}
        async with aiohttp.ClientSession(headers=GUEST) as http:
            await publish()
            async with http.get(f"{url}/v1/queues/%2F/q/peek", headers=headers) as answer:
                (row,) = cbor2.loads(await answer.read())["messages"]
                assert row["body"] == body
            asked = cbor2.dumps({"auto_settle": True})
            where = f"{url}/v1/queues/%2F/q/get"
            async with http.post(where, data=asked, headers=headers) as answer:
                (row,) = cbor2.loads(await answer.read())["messages"]
                assert row["body"] == body
            await until(lambda: depth(nodes.nodes[leader], "q") == 0)

            await publish()
            where = f"{nodes.url(other)}/api/queues/%2F/q/get"
            asked = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "base64"}
            async with http.post(where, json=asked) as answer:
                (row,) = await answer.json()
                assert base64.b64decode(row["payload"]) == body
            await until(lambda: depth(nodes.nodes[leader], "q") == 0)

        for listener in (leader, other):
            async with Client(nodes.url(listener), forward=True) as client:
                await publish()
                await client.ask(20, 99, "q", {"credit": 1, "auto_settle": True})
                assert [each for _, each in await client.deliveries(1)] == [body]
                assert all(frame[0] != 27 for frame in client.seen)
                await until(lambda: depth(nodes.nodes[leader], "q") == 0)
            async with Client(nodes.url(listener), forward=True) as client:
                await publish()
                answer = await client.ask(40, 1, "q", 1, True)
                assert answer[5][0][4] == [body]
                await until(lambda: depth(nodes.nodes[leader], "q") == 0)


async def test_a_settle_that_is_lost_on_its_way_is_repeated(tmp_path: Path) -> None:
    """Of a large body, for a client that settles nothing itself, led elsewhere."""
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("q")
        leader = await nodes.leader("q")
        name = next(name for name in nodes.nodes if name != leader)
        forwarder: Any = nodes.nodes[name].cluster.forwarder
        ask_peer, lost = forwarder._request, []

        def lossy(peer: Any, group: Any, command: Any, done: Any) -> None:
            if isinstance(command, Settle) and not lost:
                lost.append(command)
                done(unknown("the link broke"))
                return
            ask_peer(peer, group, command, done)

        forwarder._request = lossy
        async with Client(nodes.url(name), forward=True) as client:
            await asyncio.to_thread(send_by_amqp, nodes.nodes[name], body_of(3 * MIB))
            await client.ask(20, 99, "q", {"credit": 1, "auto_settle": True})
            await client.deliveries(1)
            await until(lambda: bool(lost) and depth(nodes.nodes[leader], "q") == 0)
