"""A firewall resets the links of a node for seconds: its clients notice nothing but a pause."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import aiormq

from cluster.types import NodeId
from quorate.ports import free_port
from tests.node.nodes import WAIT_S, Nodes, until


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


async def test_three_seconds_of_resets_end_nothing_of_a_living_node(tmp_path: Path):
    nodes = Nodes(tmp_path, 3)
    flags = nodes._flags
    firewall = Firewall(int(flags["n3"]["peer"].rpartition(":")[2]))
    await firewall.open()
    for name in ("n1", "n2"):  # of two nodes the first dials
        flags[name]["peers"] = {**flags[name]["peers"], "n3": f"127.0.0.1:{firewall.port}"}
    async with nodes:
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

        def led_elsewhere() -> bool:
            group = home.cluster.groups[info.group]
            if group.ready:
                group.transfer(NodeId("n1"))
            return home.cluster.leader_of(info.group) not in {None, "n3"}

        await until(led_elsewhere)
        await channel.basic_publish(b"held", routing_key="orders")
        await until(lambda: len(delivered) == 1)

        firewall.shut()
        await until(lambda: not any(map(home.cluster.peers.is_up, (NodeId("n1"), NodeId("n2")))))
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
    firewall.shut()
