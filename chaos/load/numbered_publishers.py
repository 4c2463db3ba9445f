"""w9: publishers with a name die, come back and repeat what was not confirmed, and some that was,
under the same numbers. Nothing is stored twice, and nothing confirmed is lost.

AMQP has no numbers to repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from chaos.checker import ack_finality, publisher_order, total_queue, vanished
from chaos.checker.verdict import Checker
from chaos.history import publish_value
from chaos.load.client import Client, close_all, publish_until
from chaos.load.draining import Left, drain
from chaos.load.driver import Answer, Protocols, Publish
from chaos.load.workload import Scene

PUBLISHERS = 2
PUBLISHES_PER_S = 6.0  # of each, of 1 to 20 messages
BATCH_MAX = 20
#: Of the publishes: the publisher is killed in the middle; it is killed after, and had not noted
#: the confirm.
KILL_SHARE, FORGET_SHARE = 0.03, 0.03
#: How long a publisher that is killed lives on after it has begun to publish.
KILL_S_MAX = 0.02


class _Named:
    """One name and its next number, whichever client uses it now."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.waiting = 0  # the count of the batch that has to be confirmed next
        self.first = 0


class NumberedPublishers:
    """Named publishers of one queue, one consumer."""

    def __init__(self, scene: Scene, protocol: Protocols) -> None:
        self.name = name = f"w9-{protocol}"
        self.queue = f"{name}.ledger"
        self._ending = scene.ending
        self._publishers = [
            _Named(Client(scene, f"{name}/p{n}", protocol)) for n in range(PUBLISHERS)
        ]
        self._consumer = Client(scene, f"{name}/c0", protocol)
        self._left = Left()
        self._take = self._left.taking(self._consumer, self.queue)

    @property
    def checkers(self) -> Mapping[str, Checker]:
        return {
            "total-queue": total_queue,
            "publisher-order": publisher_order,
            "ack-finality": ack_finality,
            "vanished": vanished,
        }

    async def prepare(self) -> None:
        await self._consumer.declare_all({self.queue: {}})

    async def run(self) -> None:
        await asyncio.gather(
            *(
                publish_until(
                    self._ending, named.client, PUBLISHES_PER_S, partial(self._publish, named)
                )
                for named in self._publishers
            ),
            self._consumer.consume(self.queue, self._ending, self._take),
        )

    async def drain(self) -> None:
        await close_all([named.client for named in self._publishers])
        await drain(self.name, self._left, {self.queue: (self._consumer, self._take)})
        await self._consumer.close()

    async def _publish(self, named: _Named) -> None:
        """One batch, or once more the one before it."""
        if self._left.too_many:
            return
        client, dice = named.client, named.client.dice
        named.waiting = named.waiting or dice.randint(1, BATCH_MAX)
        call = asyncio.ensure_future(self._send(named))
        if dice.random() < KILL_SHARE:
            await asyncio.wait((call,), timeout=dice.uniform(0, KILL_S_MAX))
            await client.crash()
        answer = await call
        if not answer.ok:
            return
        self._left.confirmed(self.queue, client.name, named.first, named.waiting)
        if dice.random() < FORGET_SHARE:
            await client.crash()
        else:
            named.first, named.waiting = named.first + named.waiting, 0

    async def _send(self, named: _Named) -> Answer:
        client, first, count = named.client, named.first, named.waiting
        value = publish_value(self.queue, client.name, first, count)
        value["ordered"] = True
        messages = [f"{client.name}:{first + each}" for each in range(count)]

        async def sent() -> Answer:
            answer = await client.driver.numbered(client.name, first, Publish(self.queue, messages))
            if answer.type == "refused":
                # This try surely did nothing: the ones before it may have, the next ones will.
                return Answer("unknown", reason=answer.reason, node=answer.node)
            return answer

        return await client.record("publish", value, sent())
