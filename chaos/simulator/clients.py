"""What every simulated client shares: finding the leader, asking, and never mistaking silence for a
no.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from chaos.history import History
from chaos.simulator.channel import Channel, Closed, Welcome
from chaos.simulator.loop import Process
from chaos.simulator.machine import Machine
from chaos.simulator.sim_cluster import SimCluster
from cluster.groups.outcome import Outcome
from cluster.machine.commands import Command
from cluster.types import NodeId
from node.dispatch.outgoing import (
    Failure,
    GetAnswer,
    Moved,
    PublishConfirms,
    RequestAnswer,
    SubscribeAnswer,
)
from node.protocols.native.requests import Declare, Goodbye, Hello

ANSWER_S_MAX = 4.0  # then the outcome is unknown and the connection is given up
RETRY_S = 0.1
LOOK_S = 0.01


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

    @property
    def load_s(self) -> float:
        """How long the load has been going on."""
        return self.cluster.world.now_s - self.began_s

    @property
    def crowded(self) -> bool:
        """So much is not settled, or was published so fast, that publishers wait."""
        plan, counts = self.cluster.plan, self.cluster.trace.counts
        sent = counts["messages confirmed"]
        done = counts["messages settled"] + counts["messages discarded"]
        slow = sent <= plan.messages_per_s_max * self.load_s
        return not (sent - done < plan.backlog_max and slow)

    @property
    def now_ms(self) -> int:
        """As the history has it."""
        return self.cluster.world.now_ns // 1_000_000


async def first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Until one of them is set, or the time is up."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


class Connection:
    """A client's connection: requests with numbers, and what the node sends unasked."""

    def __init__(
        self, channel: Channel, node: NodeId, hello: Hello, on_frame: Callable[[Any], None]
    ) -> None:
        self.node = node
        self.lost = asyncio.Event()
        self._channel = channel
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._on_frame = on_frame
        channel.on_client = self._arrived
        channel.on_client_lost = self._broke
        self.welcomed = self._promise(0)
        channel.to_node(hello)

    def _promise(self, number: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.lost.is_set():
            future.set_result(None)
        else:
            self._waiting[number] = future
        return future

    def request(self, kind: Callable[..., Any], *fields: Any) -> asyncio.Future[Any]:
        """The answer's frame; None: unknown, and the connection is of no more use."""
        self._number += 1
        future = self._promise(self._number)
        self._channel.to_node(kind(self._number, *fields))
        return future

    async def answer(self, future: asyncio.Future[Any]) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await future
        except TimeoutError:
            self.close()
            return None

    def _arrived(self, frame: Any) -> None:
        match frame:
            case PublishConfirms(confirms):
                for confirm in confirms:
                    self._resolve(confirm.request, confirm)
            case Welcome():
                self._resolve(0, frame)
            case Closed():
                self._on_frame(frame)
                self.close()
            case RequestAnswer(request) | SubscribeAnswer(request) | GetAnswer(request):
                self._on_frame(frame)
                self._resolve(request, frame)
            case Failure(request) | Moved(request) if request:
                self._on_frame(frame)
                self._resolve(request, frame)
            case _:
                self._on_frame(frame)

    def _resolve(self, number: int, value: Any) -> None:
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result(value)

    def _broke(self) -> None:
        self.lost.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def shut_down(self) -> None:
        """What the session holds need not wait for it."""
        self._channel.to_node(Goodbye(1000, ""))

    def close(self) -> None:
        self._channel.cut()
        self._broke()


class Client:
    """A simulated client process."""

    def __init__(self, scene: Scene, name: str, queue: str) -> None:
        plan = scene.cluster.plan
        self.scene = scene
        self.name = name
        self.queue = queue
        self.process = Process(scene.cluster.world, name)
        self.dice = random.Random(f"client/{plan.seed}/{name}")
        self.forward = random.Random(f"forward/{plan.seed}/{name}").random() < plan.forwarded
        self.connection: Connection | None = None
        self._leader: NodeId | None = None  # as a node said

    def hello(self) -> Hello:
        return Hello(self.name, 0, "simulated", "/", self.forward)

    def on_frame(self, frame: Any) -> None:
        if isinstance(frame, Moved):
            self._leader = None if frame.leader is None else NodeId(frame.leader)
            if not frame.request:
                self.disconnect()

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    async def connect(self) -> Connection:
        """A connection to the node that is said to lead the queue, or to any, however long that
        takes.
        """
        while True:
            target, self._leader = self._leader, None
            if target is None:
                target = self.dice.choice(self.scene.cluster.nodes)
            channel = self.scene.cluster.connect(self.process, target)
            if channel is not None:
                connection = Connection(channel, target, self.hello(), self.on_frame)
                if await connection.answer(connection.welcomed) is not None:
                    self.connection = connection
                    return connection
                connection.close()
            await asyncio.sleep(RETRY_S * self.dice.uniform(0.5, 2.0))

    @property
    def sent_on(self) -> bool:
        """A node said who leads: nothing to wait for."""
        return self._leader is not None


async def asked(client: Client, kind: Callable[..., Any], *fields: Any) -> Any:
    """The answer of any node, or of the one to which that forwards it. None: unknown."""
    cluster = client.scene.cluster
    channel = cluster.connect(client.process, client.dice.choice(cluster.nodes))
    answer = await _asked_once(channel, None, kind, *fields)
    if not isinstance(answer, RequestAnswer):
        await asyncio.sleep(RETRY_S)
    return answer


async def _asked_once(
    channel: Channel | None, session: str | None, kind: Callable[..., Any], *fields: Any
) -> Any:
    """On a connection of its own. None: unknown."""
    if channel is None:
        return None
    hello = Hello(session, 0, "simulated", "/", True)
    connection = Connection(channel, channel.at, hello, lambda _frame: None)
    answer = None
    if await connection.answer(connection.welcomed) is not None:
        answer = await connection.answer(connection.request(kind, *fields))
    connection.close()
    return answer


async def change(cluster: SimCluster, dice: random.Random, command: Command) -> Outcome:
    """A change of the catalog, asked for at one node after the other until it is answered."""
    while True:
        serving = [machine for machine in cluster.machines.values() if machine.serves]
        if serving:
            machine = dice.choice(serving)
            assert machine.cluster is not None
            outcome = await outcome_at(machine, machine.cluster.change(command))
            if outcome is not None and (outcome.kind == "ok" or outcome.reply is not None):
                return outcome
        await asyncio.sleep(RETRY_S)


async def outcome_at(
    machine: Machine,
    work: Coroutine[Any, Any, Outcome],
    look: Callable[[], None] = lambda: None,
) -> Outcome | None:
    """Of what its node does. None: that did not live to tell. `look`: at it, meanwhile."""
    process = machine.process
    assert process is not None
    asked = process.spawn(work, "work")
    while not asked.done() and process.alive:
        await asyncio.sleep(LOOK_S)
        look()
    told = asked.done() and not asked.cancelled() and asked.exception() is None
    return asked.result() if told else None


async def declare(scene: Scene, process: Process, name: str, arguments: dict[str, Any]) -> None:
    """The queue exists when this returns."""
    dice = random.Random(f"declare/{scene.cluster.plan.seed}/{name}")
    while True:
        channel = scene.cluster.connect(process, dice.choice(scene.cluster.nodes))
        answer = await _asked_once(channel, f"declare-{name}", Declare, name, arguments)
        if isinstance(answer, RequestAnswer):
            return
        await asyncio.sleep(RETRY_S)
