"""w2: messages are settled, given back and discarded. What was discarded, or failed too often,
comes out of the queue for dead letters, and tells why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from chaos.checker import ack_finality, dead_letters, delivery_count, total_queue
from chaos.checker.deaths import deaths
from chaos.checker.verdict import Checker, Verdict
from chaos.history import Op
from chaos.load.client import Client, Handle, close_all, publish_until
from chaos.load.draining import Left, drain
from chaos.load.driver import Consumption, Protocols, Received
from chaos.load.workload import Scene, only

CONSUMERS = 2
DELIVERY_LIMIT = 2
PUBLISHES_PER_S = 12.0  # of 1 to 10 messages
BATCH_MAX = 10
#: Of what a consumer is handed; the rest is settled.
GIVE_BACK_SHARE, DISCARD_SHARE, CRASH_SHARE = 0.25, 0.1, 0.01


class DeadLettering:
    """A queue whose consumers fail, and the queue for what they failed at."""

    def __init__(self, scene: Scene, protocol: Protocols) -> None:
        self.name = name = f"w2-{protocol}"
        self.source, self.dead = f"{name}.work", f"{name}.work.dead"
        self._ending = scene.ending
        self._publisher = Client(scene, f"{name}/p0", protocol)
        self._consumers = [Client(scene, f"{name}/c{n}", protocol) for n in range(CONSUMERS)]
        self._burying = Client(scene, f"{name}/d0", protocol)
        self._left = Left()
        self._bury = self._left.taking(self._burying, self.source)

    @property
    def checkers(self) -> Mapping[str, Checker]:
        return {
            # What died may come out of the other queue alone: its consumers here may never have
            # seen it. So the checker of dead letters says what is lost, over both queues.
            "total-queue": only(self.source, _tried(total_queue)),
            "dead-letters": dead_letters(self.source, self.dead),
            "deaths": deaths(self.source, self.dead, {"rejected", "delivery_limit"}),
            "delivery-count": only(self.source, delivery_count(DELIVERY_LIMIT)),
            "ack-finality": ack_finality,
        }

    async def prepare(self) -> None:
        arguments = {
            "x-delivery-limit": DELIVERY_LIMIT,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.dead,
        }
        await self._publisher.declare_all({self.dead: {}, self.source: arguments})

    async def run(self) -> None:
        publish = partial(self._left.publish, self._publisher, self.source, BATCH_MAX)
        await asyncio.gather(
            publish_until(self._ending, self._publisher, PUBLISHES_PER_S, publish),
            *(
                client.consume(
                    self.source, self._ending, partial(self._work, client, CRASH_SHARE), prefetch=10
                )
                for client in self._consumers
            ),
            self._burying.consume(self.dead, self._ending, self._bury),
        )

    async def drain(self) -> None:
        await self._publisher.close()
        working = self._consumers[0]
        takers: dict[str, tuple[Client, Handle]] = {
            self.source: (working, partial(self._work, working, 0.0)),
            self.dead: (self._burying, self._bury),
        }
        await drain(self.name, self._left, takers)
        await close_all([*self._consumers, self._burying])

    async def _work(
        self, client: Client, crash_share: float, consumption: Consumption, received: Received
    ) -> bool:
        if client.dice.random() < crash_share:
            await client.crash()
            return False
        if (chance := client.dice.random()) < GIVE_BACK_SHARE:
            await client.soon(client.give_back(consumption, received))
        elif chance < GIVE_BACK_SHARE + DISCARD_SHARE:
            await client.soon(client.discard(consumption, received))
        else:
            self._left.out(self.source, received.messages)
            await client.soon(client.settle(consumption, received))
        return True


def _tried(checker: Checker) -> Checker:
    """Judges what came out by what was asked for, not by what was confirmed."""

    def check(ops: Sequence[Op]) -> Verdict:
        return checker([op for op in ops if op.f != "publish" or op.type != "ok"])

    return check
