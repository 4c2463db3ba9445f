"""Real nodes on loopback, and a client that sends frames by hand."""

# pyright: basic
from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from unittest import mock

import aiohttp
import cbor2

from cluster.types import GroupId, NodeId
from node.node import Node
from node.settings.settings import Settings, load
from quorate.ports import free_port
from tests.testkit import threads
from tests.testkit.waiting import WAIT_S, until

__all__ = [
    "WAIT_S",
    "Client",
    "Nodes",
    "Running",
    "free_ports",
    "in_a_thread",
    "machine_of",
    "until",
]

T = TypeVar("T")

#: Leaders stay where they are: seconds after a start, each would be handed to the member that is
#: preferred, in the middle of a test.
NEVER_S = 3_600.0


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


class Nodes:
    """A cluster of nodes in this process."""

    def __init__(
        self, folder: Path, count: int = 1, *, balance_after_s: float = NEVER_S, **flags: Any
    ) -> None:
        self.folder = folder
        self._balance_after_s = balance_after_s
        names = [f"n{number}" for number in range(1, count + 1)]
        peers = dict(zip(names, free_ports(count), strict=True))
        self._flags: dict[str, dict[str, Any]] = {
            name: {
                "node": name,
                "cluster": "test",
                "data_dir": str(folder / name),
                "http": "127.0.0.1:0",
                "amqp": "127.0.0.1:0",
                "peer": f"127.0.0.1:{port}",
                "peers": {node: f"127.0.0.1:{at}" for node, at in peers.items()},
                "secret": "a secret for tests",
                "default_groups": 3,
                "log.min_free_bytes": 0,
                "auth.passwordless_guest": True,
                # A node that ended is replaced without a timeout. Those that live share a loop,
                # which may stand still for seconds: no reason for an election.
                "raft.election_ms_min": 6_000,
                "raft.election_ms_max": 9_000,
                "raft.heartbeat_ms": 60,
                **flags,
            }
            for name, port in peers.items()
        }
        self.nodes: dict[str, Node] = {}

    @property
    def one(self) -> Node:
        return next(iter(self.nodes.values()))

    def set(self, name: str, **flags: Any) -> None:
        """From its next start on."""
        self._flags[name] |= flags

    def settings(self, name: str) -> Settings:
        return load(environment={}, flags=self._flags[name])

    async def start(self, name: str) -> Node:
        node = Node(self.settings(name))
        await node.start()
        node.cluster.config = replace(node.cluster.config, balance_after_s=self._balance_after_s)
        self.nodes[name] = node
        return node

    async def stop(self, name: str, *, transfer: bool = True) -> None:
        await self.nodes.pop(name).stop(transfer=transfer)

    async def __aenter__(self) -> Self:
        await asyncio.gather(*[self.start(name) for name in self._flags])
        await until(self.settled)
        return self

    def settled(self) -> bool:
        """Every node is ready, knows all the others, and every group has a leader."""
        names = set(self._flags) & set(self.nodes)
        for node in self.nodes.values():
            machine = node.cluster.catalog_machine
            if len(machine.groups()) < 3 or node.cluster.catalog.leader is None:
                return False
            if any(node.cluster.address_of(NodeId(name), "http") is None for name in names):
                return False
            if any(node.cluster.leader_of(g.id) not in names for g in machine.groups()):
                return False
        return True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # All end at once, so nobody commits any more what a leader has under way.
        with mock.patch("node.operating.drain.SETTLE_S_MAX", 0):
            await asyncio.gather(*[node.stop(transfer=False) for node in self.nodes.values()])

    def url(self, name: str) -> str:
        return f"http://{self.nodes[name].http_address}"

    async def declare(self, queue: str, **arguments: Any) -> None:
        given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        await self.one.broker.declare("/", queue, given)

    async def led_by(self, name: str, group: GroupId) -> None:
        """Its leader hands it over until that node leads it."""

        def there() -> bool:
            for node in self.nodes.values():
                copy = node.cluster.groups.get(group)
                if copy is not None and copy.ready and node.cluster.node != name:
                    copy.transfer(NodeId(name))
            return self.nodes[name].cluster.groups[group].ready

        await until(there)

    async def leader(self, queue: str) -> str:
        """Which node leads the queue, once all of them agree."""

        async def agreed() -> str | None:
            leaders = {
                None
                if (info := node.broker.locate("/", queue)) is None
                else node.broker.leader(info)
                for node in self.nodes.values()
            }
            return leaders.pop() if len(leaders) == 1 else None

        return await until(agreed)


@dataclass(frozen=True)
class Running:
    """A node, and its loop, which is the only place where it may be touched."""

    node: Node
    loop: asyncio.AbstractEventLoop

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


@contextmanager
def in_a_thread(folder: Path, **flags: Any) -> Generator[Running]:
    """One node in a thread of its own, for clients that block."""
    with threads.in_a_thread(Nodes(folder, **flags)) as (nodes, loop):
        yield Running(nodes.one, loop)


def machine_of(nodes: Nodes, queue: str) -> tuple[Any, Any]:
    """The queue's id, and the machine of its leader."""
    for node in nodes.nodes.values():
        info = node.broker.locate("/", queue)
        if info is not None and node.broker.leads(info.group):
            return info.queue, node.broker.machine(info.group)
    raise AssertionError(f"nobody leads {queue}")


class Client:
    """One WebSocket; frames go in and out as they are."""

    def __init__(self, url: str, *, hello: bool = True, **options: Any) -> None:
        self._url = url
        self._hello = hello
        self._options = options
        self._http = aiohttp.ClientSession()
        self.socket: aiohttp.ClientWebSocketResponse
        self.welcome: list[Any] = []
        self._seen: list[list[Any]] = []

    async def __aenter__(self) -> Self:
        self.socket = await self._http.ws_connect(
            f"{self._url}/v1/connect", compress=0, max_msg_size=1 << 26
        )
        if self._hello:
            await self.send(1, 1, self._options)
            self.welcome = await self.expect(2)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.socket.close()
        await self._http.close()

    async def send(self, *fields: Any) -> None:
        await self.socket.send_bytes(cbor2.dumps(list(fields)))

    async def receive(self) -> list[Any] | int:
        """The next frame, or the close code."""
        async with asyncio.timeout(WAIT_S):
            message = await self.socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            return cbor2.loads(message.data)
        assert self.socket.close_code is not None
        return self.socket.close_code

    async def expect(self, opcode: int, request: int | None = None) -> list[Any]:
        """The next frame with this opcode; those that come before it are kept for later."""
        for position, frame in enumerate(self._seen):
            if frame[0] == opcode and (request is None or frame[1] == request):
                return self._seen.pop(position)
        while True:
            frame = await self.receive()
            assert isinstance(frame, list), f"closed with {frame} instead of opcode {opcode}"
            if frame[0] == opcode and (request is None or frame[1] == request):
                return frame
            self._seen.append(frame)

    async def ask(self, opcode: int, request: int, *fields: Any) -> list[Any]:
        """The answer to a request, whatever it is."""
        await self.send(opcode, request, *fields)
        while True:
            frame = await self.receive()
            assert isinstance(frame, list), f"closed with {frame}"
            if frame[0] == 11 and any(confirm[0] == request for confirm in frame[1]):
                return frame
            if frame[0] in {3, 4, 5, 21, 41} and frame[1] == request:
                return frame
            self._seen.append(frame)

    async def closed(self) -> int:
        """The close code, once the node has closed."""
        while True:
            frame = await self.receive()
            if isinstance(frame, int):
                return frame
            self._seen.append(frame)

    @property
    def seen(self) -> list[list[Any]]:
        return self._seen

    async def publish(self, queue: str, *bodies: bytes, request: int = 1) -> list[Any]:
        return await self.ask(10, request, queue, None, 0, list(bodies), None, None)

    async def deliveries(self, count: int) -> list[tuple[int, bytes]]:
        """(position, body) of the next messages."""
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            _, _, _, chunks = await self.expect(24)
            for first, _, _, _, bodies, _, _ in chunks:
                found += [(first + offset, body) for offset, body in enumerate(bodies)]
        return found
