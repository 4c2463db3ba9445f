"""What is asked of nodes that lose their power: publishes at a steady rate, and too slow consumers.

Messages are numbered and confirmed by both protocols; one publisher repeats what has no outcome
under the same numbers until it is confirmed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial

from chaos.checker.ack_finality import ack_finality
from chaos.checker.total_queue import total_queue
from chaos.checker.vanished import vanished
from chaos.checker.verdict import Checker
from chaos.history import publish_value
from chaos.load.client import Client, Handle, close_all, publish_until
from chaos.load.door import PROTOCOLS, Answer, Consumption, Protocols, Publish, Received
from chaos.load.draining import Left, drain
from chaos.load.workload import Scene

CHECKERS: Mapping[str, Checker] = {
    "total-queue": total_queue,
    "ack-finality": ack_finality,
    "vanished": vanished,
}

PUBLISHERS, CONSUMERS = 2, 3
#: Batches a second of one publisher, and messages in one.
RATE = 15.0
BATCH_MAX = 20
#: How long a consumer works on what it was handed, so that queues grow and settles go on always;
#: batches are of one message above this many that did not come out.
WORK_S = 0.01
BACKLOG_MAX = 2_000


class Load:
    """One queue and the same clients for each protocol."""

    name = "power"

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._publishers: dict[Protocols, list[Client]] = {
            protocol: [self._client(f"{protocol}/p{each}", protocol) for each in range(PUBLISHERS)]
            for protocol in PROTOCOLS
        }
        self._numbered = self._client("native/numbered", "native")
        self._consumers: dict[Protocols, list[Client]] = {
            protocol: [self._client(f"{protocol}/c{each}", protocol) for each in range(CONSUMERS)]
            for protocol in PROTOCOLS
        }
        self._left = Left()
        self.confirmed = 0
        self.confirmed_s: dict[str, float] = {}  # by protocol: when the newest was, monotonic
        self._progress = asyncio.Condition()

    def _client(self, name: str, protocol: Protocols) -> Client:
        return Client(self._scene, f"{self.name}-{name}", protocol)

    async def declare(self) -> None:
        client = self._numbered
        await client.declare_all({_queue(protocol): {} for protocol in PROTOCOLS})

    async def run(self) -> None:
        """Until the scene ends."""
        ending = self._scene.ending
        async with asyncio.TaskGroup() as tasks:
            for protocol, clients in self._publishers.items():
                for client in clients:
                    publish = partial(self._publish, client, protocol)
                    tasks.create_task(publish_until(ending, client, RATE, publish))
            numbered = partial(self._publish_numbered, self._numbered)
            tasks.create_task(publish_until(ending, self._numbered, RATE, numbered))
            for protocol, clients in self._consumers.items():
                for client in clients:
                    take = self._take(client, WORK_S)
                    tasks.create_task(client.consume(_queue(protocol), ending, take))

    async def confirmed_since(self, start_s: float) -> float:
        """Waits until both protocols have confirmed something after that: when they had."""
        async with self._progress:
            await self._progress.wait_for(
                lambda: all(self.confirmed_s.get(each, 0.0) > start_s for each in PROTOCOLS)
            )
            return max(self.confirmed_s.values())

    async def drain(self) -> None:
        takers = {
            _queue(protocol): (clients[0], self._take(clients[0], 0.0))
            for protocol, clients in self._consumers.items()
        }
        await drain(self.name, self._left, takers)

    async def close(self) -> None:
        each = [*self._publishers.values(), *self._consumers.values(), [self._numbered]]
        await close_all([client for clients in each for client in clients])

    async def _publish(self, client: Client, protocol: Protocols) -> None:
        first, count = client.published, self._count(client)
        answer = await client.publish(_queue(protocol), count)
        if answer.ok:
            await self._tell(protocol, client, first, count)

    async def _publish_numbered(self, client: Client) -> None:
        first, messages = client.take_numbers(self._count(client))
        queue = _queue("native")
        publish = Publish(queue, messages)
        value = publish_value(queue, client.name, first, len(messages))

        async def until_confirmed() -> Answer:
            while True:
                answer = await client.door.numbered(client.name, first, publish)
                if answer.ok:
                    return answer
                if self._scene.ending.is_set():  # a queue that lost numbers may never take more
                    return Answer("unknown", reason=answer.reason)
                await asyncio.sleep(1 / RATE)

        answer = await client.record("publish", value, until_confirmed())
        if answer.ok:
            await self._tell("native", client, first, len(messages))

    def _count(self, client: Client) -> int:
        most = BATCH_MAX if len(self._left.keys) < BACKLOG_MAX else 1
        return client.dice.randint(1, most)

    async def _tell(self, protocol: Protocols, client: Client, first: int, count: int) -> None:
        self._left.confirmed(_queue(protocol), client.name, first, count)
        async with self._progress:
            self.confirmed += count
            self.confirmed_s[protocol] = time.monotonic()
            self._progress.notify_all()

    def _take(self, client: Client, work_s: float) -> Handle:
        async def take(consumption: Consumption, received: Received) -> bool:
            self._left.out(received.queue, received.messages)
            await asyncio.sleep(work_s)
            goes_on = await client.settle_all(consumption, received)
            # There is always more, which would keep it from noticing that the load is over.
            return goes_on and not (work_s and self._scene.ending.is_set())

        return take


def _queue(protocol: Protocols) -> str:
    return f"{Load.name}-{protocol}.orders"
