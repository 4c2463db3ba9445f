"""w3: consumers of which one at a time is served write to a store that their fencing tokens guard.

Now and then one stalls: its connection is cut while it holds messages, and it goes on writing as if
nothing had happened. The store must refuse it once another one has been there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from chaos.checker import sac_exclusion, total_queue, vanished
from chaos.checker.verdict import Checker
from chaos.load.client import Client, about, close_all, publish_until, wait
from chaos.load.draining import Left, drain
from chaos.load.driver import Consumption, Protocols, Received
from chaos.load.workload import Scene

ARGUMENTS = {"x-single-active-consumer": True}
CONSUMERS = 3
PREFETCH = 10
PUBLISHES_PER_S = 12.0
BATCH_MAX = 4
STALL_SHARE = 0.02
#: Longer than the cluster waits for a client's return, or the other way round.
STALL_S_MIN, STALL_S_MAX = 0.5, 5.0


class Store:
    """What consumers write to, shared by all of them."""

    def __init__(self) -> None:
        self._highest = 0

    def write(self, token: int) -> bool:
        """Whether it was accepted."""
        if token < self._highest:
            return False
        self._highest = token
        return True


class SingleActive:
    """`stall_share`: of the deliveries."""

    def __init__(
        self, scene: Scene, protocol: Protocols, *, stall_share: float = STALL_SHARE
    ) -> None:
        self.name = f"w3-{protocol}"
        self.queue = f"{self.name}.jobs"
        self._scene = scene
        self._stall_share = stall_share
        self._store = Store()
        self._left = Left()
        self._publisher = Client(scene, f"{self.name}/p0", protocol)
        self._consumers = [
            Client(scene, f"{self.name}/c{number}", protocol) for number in range(CONSUMERS)
        ]

    @property
    def checkers(self) -> Mapping[str, Checker]:
        return {
            "sac-exclusion": sac_exclusion(self.queue.__eq__),
            "total-queue": total_queue,
            "vanished": vanished,
        }

    async def prepare(self) -> None:
        await self._publisher.declare_all({self.queue: ARGUMENTS})

    async def run(self) -> None:
        ending = self._scene.ending
        publish = partial(self._left.publish, self._publisher, self.queue, BATCH_MAX)
        await asyncio.gather(
            publish_until(ending, self._publisher, PUBLISHES_PER_S, publish),
            *(self._consume(client) for client in self._consumers),
        )

    async def drain(self) -> None:
        client = self._consumers[0]

        async def handle(consumption: Consumption, received: Received) -> bool:
            return self._write(client, received) and await client.settle_all(consumption, received)

        await drain(self.name, self._left, {self.queue: (client, handle)})
        await close_all([self._publisher, *self._consumers])

    async def _consume(self, client: Client) -> None:
        async def handle(consumption: Consumption, received: Received) -> bool:
            if client.dice.random() < self._stall_share:
                await client.crash()
                await wait(self._scene.ending, client.dice.uniform(STALL_S_MIN, STALL_S_MAX))
                self._write(client, received)
                return False
            # Refused: another one has taken over, and what is held here is its own by now.
            return self._write(client, received) and await client.settle_all(consumption, received)

        await client.consume(self.queue, self._scene.ending, handle, prefetch=PREFETCH)

    def _write(self, client: Client, received: Received) -> bool:
        self._left.out(self.queue, received.messages)
        assert received.token is not None, "deliveries of a single active consumer carry a token"
        accepted = self._store.write(received.token)
        client.recorder.saw(client.name, "store", {**about(received), "accepted": accepted})
        return accepted
