"""Connections of real clients: limits hold for the cluster; who may no longer stay must go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pika
import pytest
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
)

from cluster.machine.commands import DropEntry, PutEntry
from node.clients.clients import Clients
from tests.node.nodes import Client, Nodes, until
from tests.node.test_native_auth import add_user, change

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
VHOST = "a/b %"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, 2) as nodes:
        await add_user(nodes, "ann", "secret", **EVERYTHING)
        await change(nodes, PutEntry("vhosts", (VHOST,), {"description": "", "tags": []}))
        await change(nodes, PutEntry("permissions", ("ann", VHOST), EVERYTHING))
        await until(lambda: knows(nodes, "permissions", "ann", VHOST))
        yield nodes


def knows(nodes: Nodes, table: str, *key: str) -> bool:
    return all(
        node.cluster.catalog_machine.entry(table, key) is not None for node in nodes.nodes.values()
    )


def nothing(*_: Any) -> None:
    pass


class Pika:
    """A connection that its own thread waits on."""

    def __init__(self, connection: pika.BlockingConnection) -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, nodes: Nodes, name: str, vhost: str = VHOST) -> Pika:
        host, _, port = str(nodes.nodes[name].amqp.address).rpartition(":")
        parameters = pika.ConnectionParameters(
            host, int(port), vhost, pika.PlainCredentials("ann", "secret"), heartbeat=0
        )
        return cls(await asyncio.to_thread(pika.BlockingConnection, parameters))

    async def channel(self) -> Any:
        return await asyncio.to_thread(self.connection.channel)

    async def end(self) -> ConnectionClosedByBroker:
        """What the broker closes it with."""

        def wait() -> None:
            while True:
                self.connection.process_data_events(time_limit=20)

        with pytest.raises(ConnectionClosedByBroker) as caught:
            await asyncio.to_thread(wait)
        return caught.value

    async def close(self) -> None:
        with suppress(AMQPError):  # it is closed
            await asyncio.to_thread(self.connection.close)


async def native(nodes: Nodes, name: str) -> Client:
    return Client(
        nodes.url(name).replace("http://", "http://ann:secret@"), vhost=VHOST, resume_ms=60_000
    )


ENDS = [
    (DropEntry("vhosts", (VHOST,)), f"vhost '{VHOST}' is deleted"),
    (DropEntry("users", ("ann",)), "user 'ann' is deleted"),
    (
        DropEntry("permissions", ("ann", VHOST)),
        f"access to vhost '{VHOST}' refused for user 'ann'",
    ),
]


@pytest.mark.parametrize(("drop", "text"), ENDS)
async def test_a_connection_ends_with_its_vhost_its_user_and_its_permissions(
    nodes: Nodes, drop: DropEntry, text: str
):
    connections = [await Pika.connect(nodes, name) for name in ("n1", "n2")]
    async with await native(nodes, "n2") as client:
        ended = asyncio.gather(*[each.end() for each in connections])
        told = asyncio.ensure_future(client.closed())
        await change(nodes, drop)

        said, code = await ended, await told
    assert code == 4030
    expected = (320, f"CONNECTION_FORCED - {text}")
    assert [(end.reply_code, end.reply_text) for end in said] == [expected, expected]
    await until(lambda: not any(len(node.clients) for node in nodes.nodes.values()))


@pytest.mark.parametrize(
    ("table", "key", "text"),
    [
        (
            "vhost_limits",
            VHOST,
            f"access to vhost '{VHOST}' refused for user 'ann': connection limit (2) is reached",
        ),
        (
            "user_limits",
            "ann",
            "connection refused for user 'ann': user connection limit (2) is reached",
        ),
    ],
)
async def test_connections_of_all_nodes_and_doors_count(
    nodes: Nodes, table: str, key: str, text: str
):
    await change(nodes, PutEntry(table, (key,), {"max-connections": 2}))
    await until(lambda: knows(nodes, table, key))
    first = await Pika.connect(nodes, "n1")
    async with await native(nodes, "n1"):
        with pytest.raises(AMQPConnectionError) as caught:
            await Pika.connect(nodes, "n2")
        assert f"NOT_ALLOWED - {text}" in str(caught.value.args[0])
        client = Client(
            nodes.url("n2").replace("http://", "http://ann:secret@"), hello=False, vhost=VHOST
        )
        async with client:
            await client.send(1, 1, {"vhost": VHOST})
            assert (await client.expect(4))[2:4] == ["too_many_connections", text]
    await first.close()
    await until(lambda: not any(len(node.clients) for node in nodes.nodes.values()))
    await (await Pika.connect(nodes, "n2")).close()


async def test_channels_of_all_nodes_count(nodes: Nodes):
    await change(nodes, PutEntry("user_limits", ("ann",), {"max-channels": 2}))
    await until(lambda: knows(nodes, "user_limits", "ann"))
    first, second = [await Pika.connect(nodes, name) for name in ("n1", "n2")]
    channel = await first.channel()
    await second.channel()
    with pytest.raises(ConnectionClosedByBroker) as caught:
        await second.channel()
    assert caught.value.reply_code == 530
    assert caught.value.reply_text.endswith(
        "number of channels opened for user 'ann' has reached the maximum allowed user limit of (2)"
    )

    await asyncio.to_thread(channel.close)
    third = await Pika.connect(nodes, "n2")
    await third.channel()
    await third.channel()
    for connection in (first, third):
        await connection.close()


async def test_many_connections_of_a_few_users_are_looked_at_quickly():
    looked: list[tuple[str, str]] = []
    ended: list[str] = []

    def farewell(user: str, vhost: str) -> str | None:
        looked.append((user, vhost))
        return "gone" if user == "bob" else None

    class Still:
        vhost, channel_count = "/", 0

        def __init__(self, user: str) -> None:
            self.user_name = user

        def force_close(self, text: str) -> None:
            ended.append(text)
            clients.remove(self)

    auth = SimpleNamespace(farewell=farewell)
    clients = Clients(cast(Any, auth), cast(Any, SimpleNamespace(on=nothing)))
    for _ in range(10_000):
        clients.add(Still("ann"))
    for _ in range(3):
        clients.add(Still("bob"))
    clients.look()

    assert looked == [("ann", "/"), ("bob", "/")]
    assert ended == ["gone"] * 3
    assert len(clients) == 10_000


async def test_a_copy_needs_the_permission_on_its_key_too(nodes: Nodes):
    value = {"write": "^ann", "read": ""}
    await change(nodes, PutEntry("topic_permissions", ("ann", VHOST, "amq.topic"), value))
    connection = await Pika.connect(nodes, "n1")
    channel = await connection.channel()
    await asyncio.to_thread(channel.confirm_delivery)

    def publish(*copies: str) -> None:
        properties = pika.BasicProperties(headers={"CC": list(copies)})
        channel.basic_publish("amq.topic", "ann.x", b"", properties)

    await asyncio.to_thread(publish, "ann.y")
    with pytest.raises(ChannelClosedByBroker) as caught:
        await asyncio.to_thread(publish, "ann.y", "bob.x")
    assert caught.value.reply_code == 403
    assert "access to topic 'bob.x' in exchange 'amq.topic'" in caught.value.reply_text
    await connection.close()
