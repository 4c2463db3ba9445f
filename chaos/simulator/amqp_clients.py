"""What simulated AMQP clients share: a connection to one node, one channel at a time, and a watch
on what no client may ever see.

A client stays where it is until its connection breaks. What it published and has no confirm for is
published again then, as other messages: that is the client's doing, and counted as such, so a
message that is stored twice is always the cluster's.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from pamqp import base, commands

from chaos.history import Op, publish_value
from chaos.simulator.amqp_host import AmqpHello
from chaos.simulator.amqp_wire import Confirmed, Delivered, Frame, Reader, Returned, Said
from chaos.simulator.channel import Channel as Link
from chaos.simulator.channel import Closed
from chaos.simulator.clients import RETRY_S, Scene
from chaos.simulator.loop import Process
from cluster.types import NodeId
from node.protocols.amqp.events import Event, Method
from node.protocols.amqp.methods import made
from node.protocols.native.requests import Goodbye

#: How long a connection is silent before a client gives it up; dead machines say nothing.
HEARTBEAT_S = 1.0
#: An answer takes as long as an election, and longer while a majority is away.
ANSWER_S_MAX = 60.0


class AmqpChannel:
    """One channel of one connection, as the client sees it."""

    def __init__(self, link: Link, node: NodeId, number: int, name: str) -> None:
        self.link = link
        self.node = node
        self.number = number
        self.name = name  # of this life of the client: never used twice
        self.over = asyncio.Event()  # the channel, or with it the connection
        self.why = ""
        self.code: int | None = None  # of the node, when it closed the channel
        self.on_confirm: Callable[[Confirmed], None] | None = None
        self.on_return: Callable[[Returned], None] | None = None
        self.on_delivery: Callable[[Delivered], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        self._answers: dict[type[base.Frame], asyncio.Future[Any]] = {}
        self._tag = 0  # of the last delivery
        self._reader = Reader()
        self._closing = False

    # --- out

    def send(self, *events: Event) -> None:
        """All that the node reads at once."""
        self.link.to_node(list(events))

    def say(self, kind: type[base.Frame], **arguments: Any) -> Method:
        return Method(self.number, made(kind, **arguments))

    async def ask(self, kind: type[base.Frame], answer: type[base.Frame], **arguments: Any) -> Any:
        """The answer; None: the channel is over."""
        assert answer not in self._answers
        if self.over.is_set():
            return None
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[answer] = future
        self._closing = kind is commands.Channel.Close
        self.send(self.say(kind, **arguments))
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await future
        except TimeoutError as error:
            raise AssertionError(f"{self.name}: no {answer.name} in {ANSWER_S_MAX} s") from error
        finally:
            self._answers.pop(answer, None)

    # --- in

    def receive(self, data: bytes) -> None:
        for frame in self._reader.read(data):
            assert frame.channel == self.number or self.over.is_set() or self._closing, frame
            if not self.over.is_set() and frame.channel == self.number:
                self.take(frame)

    def take(self, frame: Frame) -> None:
        """One frame of this channel."""
        match frame:
            case Delivered():
                # Given once, one after the other (B01).
                assert frame.tag == self._tag + 1, f"{self.name}: {frame.tag} after {self._tag}"
                self._tag = frame.tag
                assert self.on_delivery is not None
                self.on_delivery(frame)
            case Returned():
                assert self.on_return is not None, f"{self.name} asked for no returns"
                self.on_return(frame)
            case Confirmed():
                assert self.on_confirm is not None
                self.on_confirm(frame)
            case Said(_, commands.Channel.Close() as method):
                self.send(self.say(commands.Channel.CloseOk))
                self.code = method.reply_code
                self.end(method.reply_text)
            case Said(_, commands.Basic.Cancel()):
                assert self.on_cancel is not None, f"{self.name} lost its consumer"
                self.on_cancel()
            case Said(_, method):
                self._answer(method)

    def _answer(self, method: base.Frame) -> None:
        future = self._answers.pop(type(method), None)
        assert future is not None, f"{self.name} never asked for {method.name}"
        if not future.done():
            future.set_result(method)

    def end(self, why: str) -> None:
        if not self.over.is_set():
            self.why = why
            self.over.set()
            for future in self._answers.values():
                if not future.done():
                    future.set_result(None)


class AmqpClient(ABC):
    """A simulated client process. `work` does on a channel whatever the client is for."""

    kind: str
    #: Queues that go with its connection.
    owns_queues = False

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene = scene
        self.name = name
        self.process = Process(scene.cluster.world, name)
        self.dice = random.Random(f"{self.kind}/{scene.cluster.plan.seed}/{name}")
        self.channel: AmqpChannel | None = None
        self._lives = 0
        self._numbers = 0  # of channels of this connection

    @property
    def waits(self) -> str | None:
        """What keeps the run from ending."""
        return None

    @property
    def finished(self) -> bool:
        return False

    @abstractmethod
    async def work(self, channel: AmqpChannel) -> None:
        """Until the channel is over, or no longer wanted."""

    def hurry(self) -> None:  # noqa: B027 -- most go on as they are
        """The load is over."""

    @abstractmethod
    def lost(self, channel: AmqpChannel) -> None:
        """Nothing more is heard of it."""

    def give_up(self) -> None:
        """The run ends: nobody knows what became of the rest."""
        if self.channel is not None:
            self.lost(self.channel)

    async def run(self) -> None:
        while not self.finished:
            node = self.dice.choice(self.scene.cluster.nodes)
            link = self.scene.cluster.connect(self.process, node)
            if link is not None:
                self.count("AMQP connections")
                frame_max = self.dice.choice((4096, 131_072))
                link.to_node(AmqpHello(f"{self.name}@{node}", frame_max))
                await self._connected(link, node)
                link.cut()
            await asyncio.sleep(RETRY_S * self.dice.uniform(0.5, 2.0))

    async def _connected(self, link: Link, node: NodeId) -> None:
        """One channel after the other, while the connection is."""
        broken = asyncio.Event()

        def lost(why: str) -> None:
            broken.set()
            if self.channel is not None:
                self.channel.end(why)

        def heard(message: Any) -> None:
            if type(message) is Closed:
                lost(message.reason)
            elif self.channel is not None:
                self.channel.receive(message)

        link.on_client = heard
        link.on_client_lost = lambda: lost("connection lost")
        self._numbers = 0
        while not broken.is_set() and not self.finished:
            self._lives += 1
            self._numbers += 1
            channel = AmqpChannel(link, node, self._numbers, f"{self.name}.{self._lives}")
            self.channel = channel
            watch = asyncio.ensure_future(self._watch(link, lost))
            if await channel.ask(commands.Channel.Open, commands.Channel.OpenOk) is not None:
                await self.work(channel)
            # What came to such a queue later than its channel closed goes with the connection.
            ends = self.finished or (self.owns_queues and self.scene.stopping)
            if not channel.over.is_set() and not ends and self.dice.random() < 0.7:
                await channel.ask(commands.Channel.Close, commands.Channel.CloseOk)
                self.count("AMQP channels closed")
            elif not channel.over.is_set():
                if self.dice.random() < 0.5:
                    link.to_node(Goodbye(1000, ""))
                    await asyncio.wait([asyncio.ensure_future(broken.wait())], timeout=20.0)
                broken.set()
            watch.cancel()
            channel.end("")
            self.lost(channel)

    async def _watch(self, link: Link, lost: Callable[[str], None]) -> None:
        while link.open:
            await asyncio.sleep(HEARTBEAT_S)
        lost("silent")

    def invoke_publish(self, channel: AmqpChannel, number: int, queues: Sequence[str]) -> list[Op]:
        """Of one message, which shall be in all these queues."""
        return [
            self.scene.history.invoke(
                self.name,
                "publish",
                {**publish_value(queue, channel.name, number, 1), "ordered": True},
                node=channel.node,
            )
            for queue in queues
        ]

    async def pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.dice.expovariate(1.0) * mean_s)

    def count(self, name: str, by: int = 1) -> None:
        self.scene.cluster.trace.count(name, by)
