"""w4: what one publisher sends in order is stored and handed out in order.

A publisher that does not know an outcome ends there, and another begins: what was on its way then
may be stored after what comes over another connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from chaos.checker import publisher_order, total_queue, vanished
from chaos.checker.verdict import Checker
from chaos.load.client import Client, Handle, close_all, publish_until
from chaos.load.draining import Left, drain
from chaos.load.driver import Protocols
from chaos.load.workload import Scene

PUBLISHERS = 2
PUBLISHES_PER_S = 6.0  # of each, of 1 to 20 messages
BATCH_MAX = 20
CRASH_SHARE = 0.02


class PublisherOrder:
    """Several publishers, and one consumer at a time, which settles all but dies at times."""

    def __init__(self, scene: Scene, protocol: Protocols) -> None:
        self.name = name = f"w4-{protocol}"
        self.queue = f"{name}.log"
        self._scene = scene
        self._protocol: Protocols = protocol
        self._publishers = [self._publisher(n, 0) for n in range(PUBLISHERS)]
        self._ended = [0] * PUBLISHERS  # publishers of each place that are gone
        self._consumer = Client(scene, f"{name}/c0", protocol)
        self._left = Left()

    @property
    def checkers(self) -> Mapping[str, Checker]:
        return {
            "publisher-order": publisher_order,
            "total-queue": total_queue,
            "vanished": vanished,
        }

    async def prepare(self) -> None:
        await self._consumer.declare_all({self.queue: {}})

    async def run(self) -> None:
        ending = self._scene.ending
        await asyncio.gather(
            *(
                publish_until(ending, client, PUBLISHES_PER_S, partial(self._publish, place))
                for place, client in enumerate(self._publishers)
            ),
            self._consumer.consume(self.queue, ending, self._taking(CRASH_SHARE)),
        )

    async def drain(self) -> None:
        await close_all(self._publishers)
        await drain(self.name, self._left, {self.queue: (self._consumer, self._taking())})
        await self._consumer.close()

    async def _publish(self, place: int) -> None:
        client = self._publishers[place]
        answer = await self._left.publish(client, self.queue, BATCH_MAX)
        if answer is not None and answer.type == "unknown":
            self._ended[place] += 1
            self._publishers[place] = self._publisher(place, self._ended[place])
            await client.close()

    def _taking(self, crash_share: float = 0.0) -> Handle:
        return self._left.taking(self._consumer, self.queue, crash_share)

    def _publisher(self, place: int, number: int) -> Client:
        return Client(self._scene, f"{self.name}/p{place}.{number}", self._protocol)
