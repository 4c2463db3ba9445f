"""A network for a machine where nothing is allowed: nodes on loopback, with a proxy between them.

Each ordered pair of nodes has a port by which the first reaches the second. The proxy forwards
what arrives there, in order: later in bad weather, and over a cut only once that has healed. It
sees streams, not packets, and clients pass it by: `missing` says what that costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from chaos.faults import FAIR, Grudge, Weather
from chaos.live.loopback import free_place
from chaos.live.packets import BACKLOG_S_MAX, Lane
from chaos.live.seams import Place
from cluster.types import NodeId
from quorate.ports import HOST, free_port

CHUNK_BYTES = 16 << 10
#: Of one direction of a connection; when it is full the sender has to wait.
CHUNKS_ON_THE_WAY_MAX = 64
CALL_S_MAX = 20.0
#: Close sends a reset instead of what is left.
_LINGER_NOT = struct.pack("ii", 1, 0)

Outcome = TypeVar("Outcome")


class LoopbackProxy:
    """A `Network` for everybody."""

    missing: Mapping[str, str] = {
        "degrade:loss": "a proxy of streams loses no packets; it takes network namespaces",
        "cut_clients": "clients connect to the node itself; it takes network namespaces",
    }

    def __init__(self, because: str = "") -> None:
        self.kind = "a proxy between nodes on loopback" + (f" ({because})" if because else "")
        self._places: dict[NodeId, Place] = {}
        self._ports: dict[tuple[NodeId, NodeId], int] = {}
        self._proxy = _Proxy()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="loopback proxy", daemon=True
        )
        self._thread.start()
        self._closed = False

    def add(self, node: NodeId) -> Place:
        assert node not in self._places, f"{node} is here already"
        self._places[node] = free_place()
        return self._places[node]

    def peer_address(self, node: NodeId, peer: NodeId) -> str:
        if node == peer:
            return f"{HOST}:{self._places[node].ports.peer}"
        if (node, peer) not in self._ports:
            opened = self._proxy.open(node, peer, self._places[peer].ports.peer)
            self._ports[node, peer] = self._call(opened)
        return f"{HOST}:{self._ports[node, peer]}"

    def partition(self, grudge: Grudge, *, reset: bool) -> None:
        cuts = {(source, target) for target, sources in grudge.items() for source in sources}
        self._call(self._proxy.cut(cuts, reset=reset))

    def degrade(self, weather: Weather) -> None:
        self._call(self._proxy.degrade(weather))

    def cut_clients(self, node: NodeId) -> None:
        """It cannot: see `missing`."""

    def heal(self) -> None:
        self.partition({}, reset=False)
        self.degrade(FAIR)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._call(self._proxy.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S_MAX)
        self._loop.close()

    def _call(self, asked: Coroutine[Any, Any, Outcome]) -> Outcome:
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result(CALL_S_MAX)


class _Proxy:
    """What runs in the thread."""

    def __init__(self) -> None:
        self.weather = FAIR
        self._cuts: set[tuple[NodeId, NodeId]] = set()
        self._resetting = False
        self._changed = asyncio.Event()  # set, and another one made, when cuts change
        self._servers: list[asyncio.Server] = []
        self._connections: dict[asyncio.Task[None], tuple[NodeId, NodeId]] = {}

    async def open(self, node: NodeId, peer: NodeId, port: int) -> int:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            forwarding = self._forward(node, peer, port, (reader, writer))
            task = asyncio.get_running_loop().create_task(forwarding, name=f"{node} to {peer}")
            self._connections[task] = (node, peer)
            task.add_done_callback(self._connections.pop)

        proxy_port = free_port()
        self._servers.append(
            await asyncio.start_server(accepted, HOST, proxy_port, limit=CHUNK_BYTES)
        )
        return proxy_port

    async def cut(self, cuts: set[tuple[NodeId, NodeId]], *, reset: bool) -> None:
        self._cuts, self._resetting = cuts, reset
        self._changed.set()
        self._changed = asyncio.Event()
        if reset:
            # What is cancelled resets both of its sides.
            for task, (node, peer) in self._connections.items():
                if self._cut_anyhow(node, peer):
                    task.cancel()

    async def degrade(self, weather: Weather) -> None:
        self.weather = replace(weather, loss=0.0)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def until_heard(self, source: NodeId, target: NodeId) -> None:
        while (source, target) in self._cuts:
            await self._changed.wait()

    def _cut_anyhow(self, node: NodeId, peer: NodeId) -> bool:
        return (node, peer) in self._cuts or (peer, node) in self._cuts

    async def _forward(
        self,
        node: NodeId,
        peer: NodeId,
        port: int,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """One connection, until both have ended it or one has broken it."""
        writers = [near[1]]
        try:
            # To be made a connection needs both directions.
            while self._cut_anyhow(node, peer):
                if self._resetting:
                    return
                await self._changed.wait()
            far = await asyncio.open_connection(HOST, port, limit=CHUNK_BYTES)
            writers.append(far[1])
            async with asyncio.TaskGroup() as both:
                both.create_task(_Direction(self, node, peer).run(near[0], far[1]))
                both.create_task(_Direction(self, peer, node).run(far[0], near[1]))
            writers.clear()
            near[1].close()
            far[1].close()
        except* OSError:
            pass  # one side is gone, and the other is told in the same way
        finally:
            for writer in writers:
                _reset(writer)


class _Direction:
    """What one node says to the other over one connection."""

    def __init__(self, proxy: _Proxy, source: NodeId, target: NodeId) -> None:
        self._proxy = proxy
        self._source = source
        self._target = target
        self._lane = Lane()
        # With the time at which each is due; empty: the end, None: it broke.
        self._chunks = asyncio.Queue[tuple[float, bytes | None]](CHUNKS_ON_THE_WAY_MAX)

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._take(reader))
            both.create_task(self._give(writer))

    async def _take(self, reader: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        chance = random.Random()
        due = 0.0
        chunk: bytes | None = b"-"
        while chunk:
            try:
                chunk = await reader.read(CHUNK_BYTES)
            except OSError:
                chunk = None
            now = loop.time()
            leaves = self._lane.leaves_at(self._proxy.weather, len(chunk or b""), now, chance)
            assert leaves is not None
            # A stream keeps its order whatever the jitter.
            due = max(due, leaves)
            await self._chunks.put((due, chunk))
            # Over a slow line the sender waits; a packet would be lost.
            await asyncio.sleep(max(0.0, self._lane.free_at - now - BACKLOG_S_MAX / 2))

    async def _give(self, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, chunk = await self._chunks.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            await self._proxy.until_heard(self._source, self._target)
            if chunk is None:
                raise ConnectionResetError
            if not chunk:
                writer.write_eof()
                return
            writer.write(chunk)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    writer.transport.abort()
