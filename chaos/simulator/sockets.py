"""The product's own client under simulation: its WebSockets, in place of aiohttp's.

What it sends is decoded by the node's own protocol and travels as the values that these are; what
nodes answer is encoded for it as nodes do it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
from aiohttp import WSMessage, WSMsgType

from chaos.load.addresses import Address
from chaos.load.amqp_driver import AmqpDriver, Lengths
from chaos.load.driver import Driver, Protocols
from chaos.load.native_driver import Exchanges, NativeDriver
from chaos.simulator.amqp_sockets import SimLinks
from chaos.simulator.channel import Channel, Closed, Welcome
from chaos.simulator.clock import WALL_START_MS
from chaos.simulator.loop import Process
from chaos.simulator.sim_cluster import SimCluster
from cluster.types import NodeId
from node.protocols.native import replies
from node.protocols.native.frames import NativeProtocol
from node.protocols.native.requests import CloseCode, Goodbye, Pong
from node.protocols.native.websocket import CLOSE_CODES
from node.settings.sections import LimitSettings

#: Of a connection that ended without a word (RFC 6455, 7.4.1).
ABNORMAL = 1006


class SimDrivers:
    """New clients of one simulated cluster, for `chaos.load.workload.Scene.open_driver`."""

    def __init__(self, cluster: SimCluster, process: Process) -> None:
        self._cluster = cluster
        self._process = process
        self._addresses = [
            Address(node, url_of(node), f"amqp://guest:guest@{node}") for node in cluster.nodes
        ]
        self._serials = itertools.count()
        self._links = SimLinks(cluster, process)
        # The client draws its pauses and its next node from the module.
        random.seed(f"doors/{cluster.plan.seed}")

    def open(self, name: str, protocol: Protocols) -> Driver:
        native = self._native(name, self._amqp(f"{name}/exchanges", None))
        return native if protocol == "native" else self._amqp(name, native)

    def _native(self, name: str, exchanges: Exchanges) -> NativeDriver:
        world = self._cluster.world
        return NativeDriver(
            name,
            self._addresses,
            self._dice(name),
            wall_ms=lambda: WALL_START_MS + world.now_ns // 1_000_000,
            http=lambda: cast("aiohttp.ClientSession", SimHttp(self._cluster, self._process)),
            exchanges=exchanges,
        )

    def _amqp(self, name: str, lengths: Lengths | None) -> AmqpDriver:
        return AmqpDriver(
            name,
            self._addresses,
            self._dice(name),
            self._serials,
            connect=self._links.connected,
            lengths=lengths,
        )

    def _dice(self, name: str) -> random.Random:
        return random.Random(f"{self._cluster.plan.seed}/{name}/door")


def url_of(node: str) -> str:
    return f"http://{node}:80"


class SimHttp:
    """As much of an `aiohttp.ClientSession` as the client uses."""

    def __init__(self, cluster: SimCluster, process: Process) -> None:
        self._cluster = cluster
        self._process = process

    async def ws_connect(self, url: str, **_options: Any) -> SimSocket:
        node = NodeId(str(urlsplit(url).hostname))
        channel = self._cluster.connect(self._process, node)
        if channel is None:
            raise ConnectionRefusedError(f"nobody listens at {node}")
        return SimSocket(channel, self._cluster.nodes)

    async def close(self) -> None:
        """Sockets end by themselves."""


class SimSocket:
    """As much of an `aiohttp.ClientWebSocketResponse` as the client uses."""

    def __init__(self, channel: Channel, nodes: list[NodeId]) -> None:
        self.close_code: int | None = None
        limits = LimitSettings()
        self._limits = {
            "frame_bytes_max": int(limits.frame_bytes_max),
            "message_bytes_max": int(limits.message_bytes_max),
            "in_flight_bytes_max": int(limits.in_flight_bytes_max),
        }
        self._nodes: dict[str, str] = {node: url_of(node) for node in nodes}
        self._channel = channel
        self._protocol = NativeProtocol(frame_bytes_max=limits.frame_bytes_max)
        self._inbox: asyncio.Queue[WSMessage] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._said_goodbye = False
        channel.on_client = self._arrived
        channel.on_client_lost = lambda: self._end(ABNORMAL)

    async def send_bytes(self, data: bytes) -> None:
        if self._ended.is_set():
            raise ConnectionResetError("the connection is closed")
        request = self._protocol.receive(data)
        self._said_goodbye |= type(request) is Goodbye
        if request is not None:
            self._channel.to_node(request)

    async def receive(self) -> WSMessage:
        return await self._inbox.get()

    async def close(self) -> None:
        """A node that was told goodbye answers that; whoever waits has a limit."""
        try:
            if self._said_goodbye:
                await self._ended.wait()
        finally:
            self._channel.cut()
            self._end(CloseCode.NORMAL)

    def _arrived(self, frame: Any) -> None:
        match frame:
            case Welcome(session, resumed):
                data = replies.welcome(
                    node=self._channel.at,
                    cluster="simulated",
                    session=session,
                    resumed=resumed,
                    limits=self._limits,
                    nodes=self._nodes,
                )
            case Closed(reason):
                self._end(CLOSE_CODES.get(reason, CloseCode.NORMAL))
                return
            case Pong(number):
                data = replies.pong(number)
            case _:
                data = replies.encode(frame, self._nodes.get)
        self._inbox.put_nowait(WSMessage(WSMsgType.BINARY, data, None))

    def _end(self, code: int) -> None:
        if not self._ended.is_set():
            self.close_code = code
            self._ended.set()
            self._inbox.put_nowait(WSMessage(WSMsgType.CLOSED, None, None))
