"""w8: how long a queue is, read by several clients while one puts in and takes out one by one.

Reads must be linearizable. Whether a history is that costs a search, so each queue is a small one:
few clients, few ops, and it is left for a new one as soon as some outcomes are unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from chaos.checker.linearizable import linearizable_lengths
from chaos.checker.verdict import Checker
from chaos.load.client import PAUSE_S, Client, close_all, wait
from chaos.load.draining import Left, drain
from chaos.load.driver import Answer, Consumption, Protocols, Received
from chaos.load.workload import Scene

READERS = 4
OPS_MAX = 200  # of each queue, about
UNKNOWN_MAX = 3  # publishes and settles of each queue
LENGTH_MAX = 6
WRITES_PER_S = 8.0
READS_PER_S = 4.0  # of each reader
#: Queues: a run of an hour leaves hundreds.
DRAINED_AT_ONCE = 50
#: How long a message that should be in the queue is waited for.
NEXT_S_MAX = 5.0


class Lengths:
    def __init__(self, scene: Scene, protocol: Protocols) -> None:
        self.name = f"w8-{protocol}"
        self._scene = scene
        self._protocol = protocol
        self._writer = Client(scene, f"{self.name}/p0", protocol)
        self._readers = [Client(scene, f"{self.name}/r{n}", protocol) for n in range(READERS)]
        self._queues: list[str] = []
        self._ops = 0  # of the newest queue
        self._unknown = 0  # of them
        self._inside = 0  # about as many messages are in it
        self._consumption: Consumption | None = None

    @property
    def checkers(self) -> Mapping[str, Checker]:
        return {"linearizable-lengths": linearizable_lengths()}

    async def prepare(self) -> None:
        self._turn_to(f"{self.name}.0")
        await self._writer.declare_all({self._queues[-1]: {}})

    async def run(self) -> None:
        await asyncio.gather(self._write(), *(self._read(client) for client in self._readers))

    async def drain(self) -> None:
        for start in range(0, len(self._queues), DRAINED_AT_ONCE):
            queues = self._queues[start : start + DRAINED_AT_ONCE]
            takers = dict.fromkeys(queues, (self._writer, self._settled))
            await drain(self.name, Left(), takers)
        await close_all([self._writer, *self._readers])

    async def _read(self, client: Client) -> None:
        ending = self._scene.ending
        while not ending.is_set():
            if self._ops < OPS_MAX:
                self._ops += 1
                await client.length(self._queues[-1])
            await wait(ending, client.dice.uniform(0.5, 1.5) / READS_PER_S)

    async def _write(self) -> None:
        ending, dice = self._scene.ending, self._writer.dice
        attempts = 0
        while not ending.is_set():
            if self._ops >= OPS_MAX or self._unknown >= UNKNOWN_MAX:
                attempts += 1
                queue = f"{self.name}.{attempts}"
                await self._stop_consuming()
                if (await self._writer.declare(queue, {})).ok:
                    self._turn_to(queue)
                await wait(ending, PAUSE_S)
                continue
            if not self._inside or (self._inside < LENGTH_MAX and dice.random() < 0.5):
                answer = await self._writer.publish(self._queues[-1])
                self._ops += 1
                self._unknown += answer.type == "unknown"
                self._inside += answer.type != "refused"
            else:
                await self._take_one()
            await wait(ending, dice.uniform(0.5, 1.5) / WRITES_PER_S)
        await self._stop_consuming()

    async def _take_one(self) -> None:
        if self._consumption is None:
            consumption = await self._writer.driver.consume(self._queues[-1], prefetch=1)
            if isinstance(consumption, Answer):
                return
            self._consumption = consumption
        try:
            async with asyncio.timeout(NEXT_S_MAX):
                received = await self._consumption.next()
        except TimeoutError:  # what was said to be unknown is not there
            received, self._inside = None, 0
        if received is None:
            await self._stop_consuming()
            return
        self._writer.saw(received)
        if not await self._settled(self._consumption, received):
            await self._stop_consuming()

    async def _settled(self, consumption: Consumption, received: Received) -> bool:
        """By a way that is answered: AMQP answers commits only."""
        writer = self._writer
        if self._protocol == "native":
            answer = await writer.settle(consumption, received)
        else:
            call = writer.driver.transaction([], [received])
            answer = await writer.settle(consumption, received, call)
        self._ops += 1
        self._unknown += answer.type == "unknown"
        self._inside = max(0, self._inside - len(received.messages))
        return answer.ok

    async def _stop_consuming(self) -> None:
        consumption, self._consumption = self._consumption, None
        if consumption is not None:
            await consumption.close()

    def _turn_to(self, queue: str) -> None:
        self._queues.append(queue)
        self._ops = self._unknown = self._inside = 0
