"""AMQP clients that publish in confirm mode to queues led anywhere, or to one node's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pamqp import commands

from chaos.history import Op
from chaos.simulator.amqp_clients import AmqpChannel, AmqpClient
from chaos.simulator.amqp_queues import AmqpQueues
from chaos.simulator.amqp_wire import Confirmed
from chaos.simulator.clients import RETRY_S, Scene, first_of
from node.broker.bodies import NewBody
from node.messages import properties as props
from node.messages.message import where_of
from node.protocols.amqp.events import Publish, publish_of

PLAIN = props.build({"delivery_mode": 2})
RUNS_A_READ_MAX = 4


class AmqpPublisher(AmqpClient):
    """Each of its publishes gets one outcome, and no second one, while its channel lives (B27)."""

    kind = "amqp-publisher"

    def __init__(self, scene: Scene, name: str, queues: Sequence[str], others: AmqpQueues) -> None:
        super().__init__(scene, name)
        self._queues = queues
        self._others = others
        self._fresh: str | None = None  # declared on this channel
        self._open: dict[int, list[Op]] = {}  # by number, ascending
        self._published = 0
        self._again = 0  # messages without an outcome when a channel ended
        self._told = asyncio.Event()

    @property
    def waits(self) -> str | None:
        return f"{self.name} waits for {len(self._open)} confirms" if self._open else None

    @property
    def finished(self) -> bool:
        return self.scene.stopping and not self._open and not self._again

    async def work(self, channel: AmqpChannel) -> None:
        plan = self.scene.cluster.plan
        channel.on_confirm = self._confirmed
        self._published = 0
        self._fresh = None
        if await channel.ask(commands.Confirm.Select, commands.Confirm.SelectOk) is None:
            return
        if not await self.prepare(channel):
            return
        while not channel.over.is_set() and not self.finished:
            full = len(self._open) >= plan.window * plan.batch_max
            if full or (self.scene.stopping and not self._again):
                self._told.clear()
                await first_of(self._told, channel.over)
                continue
            fresh = self._others.fresh
            if fresh is not None and fresh != self._fresh:
                # Others do the same at the same time; whoever is told that it is there may publish.
                if not await self._others.declare(channel, fresh):
                    return
                self._fresh = fresh
            self._publish(channel)
            await self._pace()
            if self.dice.random() < 0.01:
                return

    async def prepare(self, channel: AmqpChannel) -> bool:
        """False: the channel is over."""
        return True

    async def _pace(self) -> None:
        await self.pause(self.scene.cluster.plan.pause_ms / 1e3)
        while not self.scene.stopping and self.scene.crowded:
            await asyncio.sleep(RETRY_S)

    def _publish(self, channel: AmqpChannel) -> None:
        """One read of the node."""
        events = self.events(channel)
        channel.send(*events)
        sent = sum(len(event.bodies) for event in events)
        again = min(self._again, sent)
        self._again -= again
        self.count("republished by the client", again)

    def events(self, channel: AmqpChannel) -> list[Publish]:
        """Runs of messages, each run to one queue."""
        plan = self.scene.cluster.plan
        event = Publish(channel.number, False, False, 0, [], [], [])
        for _ in range(self.dice.randint(1, RUNS_A_READ_MAX)):
            queue = self._choose()
            count = self.dice.randint(1, plan.batch_max)
            bodies: list[NewBody] = [self.body(channel, queue) for _ in range(count)]
            run = publish_of(channel.number, where_of("", queue), PLAIN, bodies)
            for all_of_it, part in zip(event[4:], run[4:], strict=True):
                all_of_it += part
        return [event]

    def body(self, channel: AmqpChannel, *queues: str) -> bytes:
        """Of one more message, which shall be in all these queues when it is confirmed."""
        self._published += 1
        number = self._published
        head = f"{channel.name}:{number}|".encode()
        body = head + bytes(self.dice.randint(0, self.scene.cluster.plan.body_bytes_max))
        self._open[number] = self.invoke_publish(channel, number, queues)
        return body

    def _choose(self) -> str:
        chance = self.dice.random()
        if chance < 0.2 and self._fresh is not None:
            return self._fresh
        if chance < 0.3 and self._others.owned:
            return self.dice.choice(list(self._others.owned))
        return self.dice.choice(self._queues)

    def _confirmed(self, confirm: Confirmed) -> None:
        tag, multiple, refused = confirm.tag, confirm.multiple, confirm.refused
        assert tag in self._open, f"{self.name}: a second outcome, or one of no publish: {confirm}"
        if multiple:
            tags = [number for number in self._open if number <= tag]
        else:
            tags = [tag]
        for number in tags:
            self.scene.history.end_all(self._open.pop(number), "refused" if refused else "ok")
        self.count("publishes refused" if refused else "messages confirmed", len(tags))
        self._told.set()

    def lost(self, channel: AmqpChannel) -> None:
        for ops in self._open.values():
            self.scene.history.end_all(ops, "unknown")
        self._again += len(self._open)
        self._open.clear()
