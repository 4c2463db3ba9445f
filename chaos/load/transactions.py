"""w7: messages are moved out of one queue into two others, by transactions: wholly or not at all.

The three queues are likely to be of different groups. Only AMQP has transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from chaos.checker import total_queue, transactions, vanished
from chaos.checker.moves import moves
from chaos.checker.verdict import Checker
from chaos.load.client import Client, Handle, close_all, publish_until, until_empty
from chaos.load.draining import Left, drain
from chaos.load.driver import Answer, Consumption, Protocols, Publish, Received
from chaos.load.workload import Scene

MOVERS = 2
PREFETCH = 4
PUBLISHES_PER_S = 15.0
BATCH_MAX = 3
BACKLOG_MAX = 1_000
#: Of the transactions.
CRASH_SHARE, ROLLBACK_SHARE = 0.01, 0.05


class Transactions:
    def __init__(self, scene: Scene, protocol: Protocols) -> None:
        if protocol != "amqp":
            raise ValueError(f"there are no transactions over {protocol}")
        self.name = f"w7-{protocol}"
        self.source, self.one, self.other = (
            f"{self.name}.{place}" for place in ("source", "left", "right")
        )
        self._scene = scene
        self._left = Left(BACKLOG_MAX)  # in the source
        # On its way from there: what is done in one group is done in the others a moment later.
        self._moving = Left()
        self._names: dict[str, str] = {}  # of a moved message: that which it had in the source
        self._arrived: set[tuple[str, str]] = set()
        self._publisher = Client(scene, f"{self.name}/p0", protocol)
        self._movers = [Client(scene, f"{self.name}/t{n}", protocol) for n in range(MOVERS)]
        self._takers = [Client(scene, f"{self.name}/c{n}", protocol) for n in range(2)]

    @property
    def checkers(self) -> Mapping[str, Checker]:
        return {
            "all-or-nothing": transactions,
            "moves": moves(self.source, self.one),
            "total-queue": total_queue,
            "vanished": vanished,
        }

    async def prepare(self) -> None:
        await self._publisher.declare_all({self.source: {}, self.one: {}, self.other: {}})

    async def run(self) -> None:
        ending = self._scene.ending
        one, other = self._takers
        publish = partial(self._left.publish, self._publisher, self.source, BATCH_MAX)
        await asyncio.gather(
            publish_until(ending, self._publisher, PUBLISHES_PER_S, publish),
            *(self._move(client, ending) for client in self._movers),
            one.consume(self.one, ending, self._take(one)),
            other.consume(self.other, ending, self._take(other)),
        )

    async def drain(self) -> None:
        moved = asyncio.Event()
        moving = asyncio.create_task(self._move(self._movers[0], moved))
        await until_empty(self._publisher, self.source)
        moved.set()
        await moving
        one, other = self._takers
        takers = {self.one: (one, self._take(one)), self.other: (other, self._take(other))}
        await drain(self.name, self._moving, takers)
        await close_all([self._publisher, *self._movers, *self._takers])

    def _take(self, client: Client) -> Handle:
        async def handle(consumption: Consumption, received: Received) -> bool:
            self._arrived.update((received.queue, message) for message in received.messages)
            both = [
                self._names[message]
                for message in received.messages
                if {(self.one, message), (self.other, message)} <= self._arrived
            ]
            self._moving.out(self.source, both)
            return await client.settle_all(consumption, received)

        return handle

    async def _move(self, client: Client, stop: asyncio.Event) -> None:
        async def handle(_: Consumption, received: Received) -> bool:
            self._left.out(self.source, received.messages)
            if client.dice.random() < CRASH_SHARE:
                task = asyncio.create_task(self._transaction(client, received))
                await asyncio.sleep(client.dice.uniform(0, 0.01))
                await asyncio.gather(client.crash(), task)
                return False
            # What is not surely done may come again; another subscription sees to that.
            return (await self._transaction(client, received)).ok

        await client.consume(self.source, stop, handle, prefetch=PREFETCH)

    async def _transaction(self, client: Client, received: Received) -> Answer:
        """Each message that is taken becomes one of the same new name in both queues."""
        _, messages = client.take_numbers(len(received.messages))
        for name, message in zip(messages, received.messages, strict=True):
            self._names[name] = message
            publisher, _, number = message.rpartition(":")
            self._moving.confirmed(self.source, publisher, int(number), 1)
        queues = (self.one, self.other)
        value = {
            "consumer": received.consumer,
            "publishes": [[queue, message] for queue in queues for message in messages],
            "settles": [[self.source, message] for message in received.messages],
        }
        publishes = [Publish(queue, messages) for queue in queues]
        commit = client.dice.random() >= ROLLBACK_SHARE
        call = client.driver.transaction(publishes, [received], commit=commit)
        return await client.record("transaction", value, call)
