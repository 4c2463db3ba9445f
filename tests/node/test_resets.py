"""A firewall resets the links of a node for seconds: its clients notice nothing but a pause."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiormq
import pytest

from cluster.types import CATALOG_GROUP, GroupId, NodeId
from node.errors import Elsewhere, Refused
from node.node import Node
from quorate.ports import free_port
from tests.node.management.api import api_of
from tests.node.nodes import WAIT_S, Nodes, until
from tests.testkit.waiting import stays


class Firewall:
    """Passes connections on to a port of loopback; while it is shut it resets and refuses them."""

    def __init__(self, to: int) -> None:
        self.port = free_port()
        self._to = to
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)

    def shut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            at = writer.get_extra_info("socket")
            at.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, there[1]}
        await asyncio.gather(self._copy(reader, there[1]), self._copy(there[0], writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.transport.abort()
            self._open.discard(writer)


@pytest.fixture
async def walled_off(tmp_path: Path) -> AsyncIterator[tuple[Nodes, Firewall]]:
    """Three nodes, of which the third hears the others through a firewall."""
    nodes = Nodes(tmp_path, 3)
    flags = nodes._flags
    firewall = Firewall(int(flags["n3"]["peer"].rpartition(":")[2]))
    await firewall.open()
    for name in ("n1", "n2"):  # of two nodes the first dials
        flags[name]["peers"] = {**flags[name]["peers"], "n3": f"127.0.0.1:{firewall.port}"}
    async with nodes:
        yield nodes, firewall
    firewall.shut()


@asynccontextmanager
async def one_of_two_bound(nodes: Nodes) -> AsyncGenerator[tuple[Any, Any]]:
    """Of the queues `before` and `after` the first is bound to the exchange `all`. Channels: at n1,
    where the other one will be bound, and at n3, which does not lead the catalog.
    """
    home, other = nodes.nodes["n3"], nodes.nodes["n1"]
    await until(lambda: led_elsewhere(home, CATALOG_GROUP))
    there = aiormq.Connection(f"amqp://guest:guest@{other.amqp.address}/%2F")
    here = aiormq.Connection(f"amqp://guest:guest@{home.amqp.address}/%2F")
    await there.connect()
    await here.connect()
    binds: Any = await there.channel()
    await binds.exchange_declare("all", exchange_type="fanout", durable=True)
    for queue in ("before", "after"):
        await binds.queue_declare(queue, durable=True)
    await binds.queue_bind("before", "all")
    yield binds, await here.channel()
    await here.close()
    await there.close()


def alone(node: Node) -> bool:
    return not any(map(node.cluster.peers.is_up, (NodeId("n1"), NodeId("n2"))))


def led_elsewhere(node: Node, group_id: GroupId) -> bool:
    group = node.cluster.groups[group_id]
    if group.ready:
        group.transfer(NodeId("n1"))
    return node.cluster.leader_of(group_id) not in {None, node.cluster.node}


async def test_three_seconds_of_resets_end_nothing_of_a_living_node(
    walled_off: tuple[Nodes, Firewall],
):
    nodes, firewall = walled_off
    home = nodes.nodes["n3"]
    connection = aiormq.Connection(f"amqp://guest:guest@{home.amqp.address}/%2F")
    await connection.connect()
    channel: Any = await connection.channel()
    delivered: list[Any] = []

    async def take(message: Any) -> None:
        delivered.append(message)

    await channel.queue_declare("orders", durable=True)
    own = (await channel.queue_declare("", exclusive=True)).queue
    for queue in ("orders", own):
        await channel.basic_consume(queue, take)
    info = home.cluster.queue_info("/", "orders")
    assert info is not None
    await until(lambda: led_elsewhere(home, info.group))
    await channel.basic_publish(b"held", routing_key="orders")
    await until(lambda: len(delivered) == 1)

    firewall.shut()
    await until(lambda: alone(home))
    await asyncio.sleep(3)
    await firewall.open()
    await until(nodes.settled)
    await until(lambda: all(map(home.cluster.peers.is_up, (NodeId("n1"), NodeId("n2")))))

    await channel.basic_ack(delivered[0].delivery_tag)
    other = aiormq.Connection(f"amqp://guest:guest@{nodes.nodes['n1'].amqp.address}/%2F")
    await other.connect()
    published: Any = await other.channel()
    for queue in ("orders", own):
        await published.basic_publish(b"after", routing_key=queue)
    async with asyncio.timeout(WAIT_S):
        await until(lambda: len(delivered) == 3)
    assert [bytes(each.body) for each in delivered] == [b"held", b"after", b"after"]
    assert not any(each.redelivered for each in delivered)
    assert not connection.is_closed
    await other.close()
    await connection.close()


@pytest.mark.parametrize("change", ["protect", "describe", "limit"])
async def test_a_node_that_was_cut_off_keeps_what_was_said_meanwhile(
    walled_off: tuple[Nodes, Firewall], change: str
):
    """What a change there leaves as it is, is not what its own copy of the catalog says."""
    nodes, firewall = walled_off
    home, other = nodes.nodes["n3"], nodes.nodes["n1"]
    await until(lambda: led_elsewhere(home, CATALOG_GROUP))
    there, here = api_of(other), api_of(home)
    assert await there.put("vhosts/v") == 201
    assert (await there.post("vhosts/v/deletion/protection")).status == 204
    assert (await here.get("vhosts/v"))["protected_from_deletion"]  # its users are known
    firewall.shut()
    await until(lambda: alone(home) and home.cluster.catalog.leader is None)

    if change == "protect":  # it was, as far as this node knows
        assert await there.delete("vhosts/v/deletion/protection") == 204
        asked = here.ask("POST", "vhosts/v/deletion/protection")
    elif change == "describe":
        assert await there.delete("vhosts/v/deletion/protection") == 204
        asked = here.ask("PUT", "vhosts/v", {"description": "new"})
    else:
        assert await there.put("vhost-limits/v/max-queues", value=7) == 204
        asked = here.ask("PUT", "vhost-limits/v/max-connections", {"value": 8})
    changing = asyncio.ensure_future(asked)
    await stays(lambda: not changing.done())
    await firewall.open()
    assert (await asyncio.wait_for(changing, WAIT_S)).status == 204

    shown = await there.get("vhosts/v")
    assert shown["protected_from_deletion"] is (change != "describe")
    if change == "limit":
        [limits] = await there.get("vhost-limits/v")
        assert limits["value"] == {"max-queues": 7, "max-connections": 8}


@pytest.mark.parametrize("listener", ["amqp", "http"])
async def test_what_a_node_that_was_cut_off_confirms_is_in_all_queues_that_were_bound(
    walled_off: tuple[Nodes, Firewall], listener: str
):
    """One queue was bound before it was cut off, and another one, by others, after it."""
    nodes, firewall = walled_off
    async with one_of_two_bound(nodes) as (binds, publishes):
        home = nodes.nodes["n3"]
        firewall.shut()
        await until(lambda: alone(home) and home.cluster.catalog.leader is None)

        await binds.queue_bind("after", "all")
        if listener == "amqp":
            publishing = asyncio.ensure_future(publishes.basic_publish(b"1", exchange="all"))
        else:
            publishing = asyncio.ensure_future(api_of(home).publish("", "1", "all"))
        await stays(lambda: not publishing.done())
        await firewall.open()
        await asyncio.wait_for(publishing, WAIT_S)

        for queue in ("before", "after"):
            assert (await binds.basic_get(queue)).body == b"1"


async def test_a_node_that_hears_the_others_again_first_catches_up_with_what_was_bound(
    walled_off: tuple[Nodes, Firewall],
):
    """The leader of the catalog is heard before what this node missed has come."""
    nodes, firewall = walled_off
    async with one_of_two_bound(nodes) as (binds, publishes):
        home = nodes.nodes["n3"]
        await publishes.basic_publish(b"0", exchange="all")
        firewall.shut()
        await until(lambda: alone(home) and home.cluster.catalog.leader is None)
        await binds.queue_bind("after", "all")

        member = home.cluster.catalog.member
        commit, missed = member.commit, []
        member.commit = missed.append
        await firewall.open()
        await until(lambda: home.cluster.catalog.leader is not None and missed)
        publishing = asyncio.ensure_future(publishes.basic_publish(b"1", exchange="all"))
        await stays(lambda: not publishing.done())
        member.commit = commit
        await asyncio.wait_for(publishing, WAIT_S)

        assert (await binds.basic_get("before")).body == b"0"
        for queue in ("before", "after"):
            assert (await binds.basic_get(queue)).body == b"1"


async def test_a_node_that_heard_nothing_of_the_catalog_for_long_first_catches_up(tmp_path: Path):
    """Its process stood still, or the leader that it follows leads no more: the links are up."""
    async with Nodes(tmp_path, 3) as nodes, one_of_two_bound(nodes) as (binds, publishes):
        home = nodes.nodes["n3"]
        await publishes.basic_publish(b"0", exchange="all")

        catalog = home.cluster.catalog
        receive, catalog.member.receive = catalog.member.receive, lambda *_: None
        await binds.queue_bind("after", "all")
        assert catalog.leader is not None
        publishing = asyncio.ensure_future(publishes.basic_publish(b"1", exchange="all"))
        await stays(lambda: not publishing.done())
        catalog.member.receive = receive
        await asyncio.wait_for(publishing, WAIT_S)

        assert (await binds.basic_get("before")).body == b"0"
        for queue in ("before", "after"):
            assert (await binds.basic_get(queue)).body == b"1"


async def test_what_was_declared_elsewhere_meanwhile_is_not_said_to_be_missing(
    walled_off: tuple[Nodes, Firewall],
):
    """Simulator seed 491153857: a node that was cut off answered `no_queue` for it."""
    nodes, firewall = walled_off
    home, other = nodes.nodes["n3"], nodes.nodes["n1"]
    firewall.shut()
    await until(lambda: alone(home) and other.cluster.catalog.leader in {"n1", "n2"})
    assert (await other.cluster.declare_queue("/", "later", {})).kind == "ok"
    with pytest.raises(Elsewhere, match="try again"):
        await home.broker.find("/", "later")

    await firewall.open()
    await until(nodes.settled)
    assert (await home.broker.find("/", "later")).name == "later"
    with pytest.raises(Refused, match="there is no queue"):
        await home.broker.find("/", "never")


async def test_a_copy_that_lags_does_not_miss_that_a_binding_is_to_a_topic(tmp_path: Path):
    """Users' rights to keys hold at every node."""
    async with Nodes(tmp_path, 3) as nodes:
        home, other = nodes.nodes["n3"], nodes.nodes["n1"]
        await until(lambda: led_elsewhere(home, CATALOG_GROUP))
        api = api_of(other)
        await api.put("users/ann", password="secret", tags="management")
        await api.put("permissions/%2F/ann", configure=".*", write=".*", read=".*")
        await api.put("topic-permissions/%2F/ann", exchange="news", write="", read="^ann")
        await api.queue("q")
        ann = aiormq.Connection(f"amqp://ann:secret@{home.amqp.address}/%2F")
        await ann.connect()
        channel: Any = await ann.channel()

        member = home.cluster.catalog.member
        receive, member.receive = member.receive, lambda *_: None
        await api.put("exchanges/%2F/news", type="topic", durable=True)
        assert home.cluster.catalog_machine.exchange("/", "news") is None
        binding = asyncio.ensure_future(channel.queue_bind("q", "news", routing_key="bob"))
        await stays(lambda: not binding.done())
        member.receive = receive

        with pytest.raises(aiormq.exceptions.ChannelAccessRefused):
            await asyncio.wait_for(binding, WAIT_S)
        await ann.close()
