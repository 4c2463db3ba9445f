"""Queues that AMQP clients make while a run goes on: fresh ones that many declare at once, and
transient ones that end with their client's connection or node.
"""

from __future__ import annotations

from typing import Any

from pamqp import commands

from chaos.simulator.amqp_clients import AmqpChannel
from chaos.simulator.amqp_consumers import AmqpConsumer
from chaos.simulator.clients import RETRY_S, Scene

FRESH_QUEUES = ("fresh-1", "fresh-2", "fresh-3")
FRESH_EVERY_S = 4.0
OWNED_PREFIX = "owned-"
Queue = commands.Queue


class AmqpQueues:
    """Of one run."""

    def __init__(self, scene: Scene, arguments: dict[str, Any]) -> None:
        self.owned: dict[str, None] = {}  # alive, as far as clients know
        self._scene = scene
        self._arguments = arguments

    @property
    def fresh(self) -> str | None:
        """The one whose time has come."""
        scene = self._scene
        at = int((scene.cluster.world.now_s - scene.began_s) / FRESH_EVERY_S)
        return FRESH_QUEUES[at - 1] if 1 <= at <= len(FRESH_QUEUES) else None

    async def declare(self, channel: AmqpChannel, name: str, *, exclusive: bool = False) -> bool:
        flags = {"durable": not exclusive, "exclusive": exclusive}
        how = {"queue": name, "arguments": self._arguments, **flags}
        return await channel.ask(Queue.Declare, Queue.DeclareOk, **how) is not None


class FreshConsumer(AmqpConsumer):
    """Declares its queue when its time has come, and consumes from it."""

    kind = "amqp-fresh"

    def __init__(self, scene: Scene, name: str, queue: str, others: AmqpQueues) -> None:
        super().__init__(scene, name, queue)
        self._others = others

    async def begin(self, channel: AmqpChannel) -> bool:
        return await self._others.declare(channel, self.queue)

    async def run(self) -> None:
        while self._others.fresh != self.queue and not self.scene.stopping:
            await self.pause(RETRY_S)
        await super().run()


class Owner(AmqpConsumer):
    """Consumes from an exclusive queue, which is on its own node only."""

    kind = "amqp-owner"
    stays = True
    owns_queues = True

    def __init__(self, scene: Scene, name: str, others: AmqpQueues) -> None:
        super().__init__(scene, name, "")
        self._others = others

    @property
    def alive(self) -> bool:
        return self.queue in self._others.owned

    async def begin(self, channel: AmqpChannel) -> bool:
        self.queue = OWNED_PREFIX + channel.name
        channel.on_cancel = lambda: self._ended(channel)
        if not await self._others.declare(channel, self.queue, exclusive=True):
            return False
        self._others.owned[self.queue] = None
        return True

    def _ended(self, channel: AmqpChannel) -> None:
        """The cluster took its node for gone, and the queue went with it."""
        self.count("AMQP owned queues ended by the cluster")
        channel.end("the queue is gone")

    def lost(self, channel: AmqpChannel) -> None:
        super().lost(channel)
        self._others.owned.pop(self.queue, None)
