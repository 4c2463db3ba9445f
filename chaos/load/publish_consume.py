"""w1: messages are published with confirms, consumed and settled. Nothing confirmed is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from chaos.checker import ack_finality, total_queue, vanished
from chaos.checker.verdict import Checker
from chaos.load.client import Client, Handle, close_all, publish_until
from chaos.load.draining import Left, drain
from chaos.load.driver import Consumption, Protocols, Received
from chaos.load.workload import Scene

PUBLISHERS, CONSUMERS = 2, 2
#: Of each publisher, of 1 to 20 messages.
PUBLISHES_PER_S = 6.0
BATCH_MAX = 20
#: Of the publishes, and of what a consumer is handed.
CRASH_SHARE = 0.01


class PublishConsume:
    """Publishers and consumers of one queue, all of which die at times."""

    def __init__(self, scene: Scene, protocol: Protocols) -> None:
        self.name = name = f"w1-{protocol}"
        self.queue = f"{name}.orders"
        self._ending = scene.ending
        self._publishers = [Client(scene, f"{name}/p{n}", protocol) for n in range(PUBLISHERS)]
        self._consumers = [Client(scene, f"{name}/c{n}", protocol) for n in range(CONSUMERS)]
        self._left = Left()

    @property
    def checkers(self) -> Mapping[str, Checker]:
        return {"total-queue": total_queue, "ack-finality": ack_finality, "vanished": vanished}

    async def prepare(self) -> None:
        await self._publishers[0].declare_all({self.queue: {}})

    async def run(self) -> None:
        await asyncio.gather(
            *(
                publish_until(self._ending, client, PUBLISHES_PER_S, partial(self._publish, client))
                for client in self._publishers
            ),
            *(
                client.consume(self.queue, self._ending, self._working(client))
                for client in self._consumers
            ),
        )

    async def drain(self) -> None:
        await close_all(self._publishers)
        client = self._consumers[0]
        await drain(
            self.name, self._left, {self.queue: (client, self._left.taking(client, self.queue))}
        )
        await close_all(self._consumers)

    async def _publish(self, client: Client) -> None:
        await self._left.publish(client, self.queue, BATCH_MAX)
        if client.dice.random() < CRASH_SHARE:
            await client.crash()

    def _working(self, client: Client) -> Handle:
        """It dies with what it holds, before or after it has settled this."""
        take = self._left.taking(client, self.queue)

        async def work(consumption: Consumption, received: Received) -> bool:
            crash = client.dice.random() < CRASH_SHARE
            goes_on = (crash and client.dice.random() < 0.5) or await take(consumption, received)
            if crash:
                await client.crash()
            return goes_on and not crash

        return work
