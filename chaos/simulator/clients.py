"""What every simulated client shares: finding the leader, asking, and never mistaking silence for a
no.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chaos.history import History
from chaos.simulator.door import Channel, Message
from chaos.simulator.loop import Process
from chaos.simulator.sim_cluster import SimCluster
from cluster.group import Outcome
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Command
from cluster.types import NodeId

ANSWER_S_MAX = 4.0  # then the outcome is unknown and the connection is given up
RETRY_S = 0.1

UNKNOWN = Outcome(
    "unknown", None, None, "no_answer", "the connection broke or no answer came in time"
)


@dataclass(eq=False)
class Scene:
    """What all clients of a run have in common."""

    cluster: SimCluster
    history: History
    began_s: float = 0.0  # when the load began
    stopping: bool = False  # publishers start nothing new
    stores: dict[str, int] = field(
        default_factory=dict[str, int]
    )  # guarded stores: highest token seen

    def now(self) -> dict[str, int]:
        world = self.cluster.world
        return {"wall_ms": world.now_ns // 1_000_000, "monotonic_ns": world.now_ns}


class Connection:
    """A client's connection: requests with numbers, and what the node sends unasked."""

    def __init__(self, channel: Channel, node: NodeId, on_event: Callable[[Message], None]) -> None:
        self.node = node
        self.lost = asyncio.Event()
        self._channel = channel
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._on_event = on_event
        channel.on_client = self._arrived
        channel.on_client_lost = self._broke

    def request(self, kind: str, *fields: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.lost.is_set():
            future.set_result(None)
            return future
        self._number += 1
        self._waiting[self._number] = future
        self._channel.to_node((kind, self._number, *fields))
        return future

    async def answer(self, kind: str, *fields: Any) -> Any:
        """None: unknown, and the connection is of no more use."""
        future = self.request(kind, *fields)
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await future
        except TimeoutError:
            self.close()
            return None

    def _arrived(self, message: Message) -> None:
        if message[0] == "answer":
            future = self._waiting.pop(message[1], None)
            if future is not None and not future.done():
                future.set_result(message[2])
        else:
            self._on_event(message)

    def _broke(self) -> None:
        self.lost.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def close(self) -> None:
        self._channel.cut()
        self._broke()


class Client:
    """A simulated client process."""

    def __init__(self, scene: Scene, name: str, queue: str) -> None:
        self.scene = scene
        self.name = name
        self.queue = queue
        self.process = Process(scene.cluster.world, name)
        self.dice = random.Random(f"client/{scene.cluster.plan.seed}/{name}")
        self.connection: Connection | None = None
        self.info: QueueInfo | None = None

    def on_event(self, message: Message) -> None:
        if message[0] == "moved" and self.info is not None and message[1] == self.info.group:
            self.disconnect()

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    async def connect(self) -> Connection:
        """A connection to the node that leads the queue's group, however long that takes."""
        nodes = self.scene.cluster.nodes
        target = self.dice.choice(nodes)
        while True:
            channel = self.scene.cluster.connect(self.process, target)
            if channel is not None:
                connection = Connection(channel, target, self.on_event)
                found = await connection.answer("where", self.queue)
                if found is not None:
                    info, leader = found
                    if info is not None and leader == target and not connection.lost.is_set():
                        self.info, self.connection = info, connection
                        return connection
                    if leader is not None and leader != target:
                        target = leader
                        connection.close()
                        continue
                connection.close()
            await asyncio.sleep(RETRY_S * self.dice.uniform(0.5, 2.0))
            target = self.dice.choice(nodes)

    async def ask(self, command: Command) -> Outcome:
        """One try on the current connection."""
        connection, info = self.connection, self.info
        assert connection is not None
        assert info is not None
        outcome = await connection.answer("ask", info.group, command)
        return UNKNOWN if outcome is None else outcome


async def declare(scene: Scene, process: Process, name: str, arguments: dict[str, Any]) -> None:
    """The queue exists when this returns."""
    dice = random.Random(f"declare/{scene.cluster.plan.seed}/{name}")
    while True:
        node = dice.choice(scene.cluster.nodes)
        channel = scene.cluster.connect(process, node)
        if channel is not None:
            connection = Connection(channel, node, lambda _message: None)
            outcome = await connection.answer("declare", name, arguments)
            connection.close()
            if outcome is not None and outcome.kind == "ok":
                return
        await asyncio.sleep(RETRY_S)
