"""w6: messages that expire, by their own time and by their queue's, into queues for dead letters;
messages that wait before they may be taken; and messages that may stay for a day, and so must.

AMQP has no word for a delay: there only what comes out of a queue that nobody consumes is late on
purpose, by its time to live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from chaos.checker import dead_letters, total_queue, vanished
from chaos.checker.expiry import expiry
from chaos.checker.verdict import Checker
from chaos.load.client import Client, Handle, close_all, publish_until, wait
from chaos.load.draining import Left, drain
from chaos.load.driver import Consumption, Protocols, Received
from chaos.load.workload import Scene, only

#: How far the clocks of one machine, and what reads them, may be apart.
TOLERANCE_MS = 100
QUEUE_TTL_MS = 400
DAY_MS = 86_400_000
DAILY = "daily"
DAILY_MAX = 400  # messages of the daily queue, which nobody takes before the end
TTLS_MS = (None, 0, 50, 300, 1_000, 3_000)
DELAYS_MS = (None, 100, 700, 2_000)
PUBLISHES_PER_S = 10.0  # to each queue, of 1 to 4 messages
REST_SHARE, REST_S_MAX = 0.1, 1.0  # of the deliveries of a source: others expire meanwhile
CRASH_SHARE = 0.01


class Expiry:
    """`tolerance_ms` None: clocks will jump, and times are not judged."""

    def __init__(
        self, scene: Scene, protocol: Protocols, *, tolerance_ms: int | None = TOLERANCE_MS
    ) -> None:
        self.name = name = f"w6-{protocol}"
        self._scene = scene
        self.tolerance_ms = tolerance_ms
        # Its own time; the queue's, with consumers; the queue's, and nobody consumes.
        self.mixed, self.short, self.waiting = (f"{name}.{q}" for q in ("mixed", "short", "wait"))
        self.delayed = f"{name}.delayed" if protocol == "native" else None
        self.daily = f"{name}.{DAILY}"
        self.sources = (self.mixed, self.short, self.waiting)
        self.dead = {f"{source}.dead": source for source in self.sources}
        queues = (*self.sources, self.daily, *([self.delayed] if self.delayed else []))
        self._publishers = {
            queue: Client(scene, f"{name}/p{number}", protocol)
            for number, queue in enumerate(queues)
        }
        waiting = (self.waiting, self.daily)
        consumed = [queue for queue in (*queues, *self.dead) if queue not in waiting]
        self._consumers = {
            queue: Client(scene, f"{name}/c{number}", protocol)
            for number, queue in enumerate(consumed)
        }
        self._left = Left()

    @property
    def checkers(self) -> Mapping[str, Checker]:
        times = {self.short: QUEUE_TTL_MS, self.waiting: QUEUE_TTL_MS}
        checkers: dict[str, Checker] = {
            "expiry": expiry(self.dead, times, tolerance_ms=self.tolerance_ms)
        }
        for target, source in self.dead.items():
            checkers[f"dead-letters of {source}"] = dead_letters(source, target)
        for queue in filter(None, (self.daily, self.delayed)):
            checkers[f"total-queue of {queue}"] = only(queue, total_queue)
            checkers[f"vanished of {queue}"] = only(queue, vanished)
        return checkers

    async def prepare(self) -> None:
        declaring = self._publishers[self.mixed]
        for target, source in self.dead.items():
            own_ttl = {} if source == self.mixed else {"x-message-ttl": QUEUE_TTL_MS}
            dies = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
            await declaring.declare_all({target: {}, source: {**own_ttl, **dies}})
        await declaring.declare_all({self.daily: {"x-message-ttl": DAY_MS}})
        if self.delayed is not None:
            await declaring.declare_all({self.delayed: {}})

    async def run(self) -> None:
        ending = self._scene.ending
        await asyncio.gather(
            *(
                publish_until(ending, client, PUBLISHES_PER_S, self._publishing(queue, client))
                for queue, client in self._publishers.items()
            ),
            *(
                client.consume(queue, ending, self._working(queue, client), prefetch=4)
                for queue, client in self._consumers.items()
            ),
        )

    async def drain(self) -> None:
        takers: dict[str, tuple[Client, Handle]] = {
            queue: (client, self._taking(queue, client))
            for queue, client in self._consumers.items()
        }
        for queue in (self.waiting, self.daily):
            publisher = self._publishers[queue]
            takers[queue] = publisher, self._taking(queue, publisher)
        await drain(self.name, self._left, takers)
        await close_all([*self._publishers.values(), *self._consumers.values()])

    def _publishing(self, queue: str, client: Client) -> Callable[[], Awaitable[None]]:
        async def publish() -> None:
            if self._left.too_many:
                return
            count, dice = client.dice.randint(1, 4), client.dice
            if queue == self.delayed:
                await client.publish(queue, count, delay_ms=dice.choice(DELAYS_MS))
                return
            if queue == self.daily and client.published >= DAILY_MAX:
                return
            ttl_ms = None if queue == self.daily else dice.choice(TTLS_MS)
            first = client.published
            answer = await client.publish(queue, count, ttl_ms=ttl_ms)
            if answer.ok:
                self._left.confirmed(queue, client.name, first, count)

        return publish

    def _working(self, queue: str, client: Client) -> Handle:
        """Under load: a slow consumer that dies at times."""
        take, dice, ending = self._taking(queue, client), client.dice, self._scene.ending

        async def work(consumption: Consumption, received: Received) -> bool:
            if queue in self.sources and dice.random() < REST_SHARE:
                await wait(ending, dice.uniform(0, REST_S_MAX))
            if dice.random() < CRASH_SHARE:
                await client.crash()
                return False
            return await take(consumption, received)

        return work

    def _taking(self, queue: str, client: Client) -> Handle:
        source = self.dead.get(queue, queue)

        async def take(consumption: Consumption, received: Received) -> bool:
            self._left.out(source, received.messages)
            return await client.settle_all(consumption, received)

        return take
