"""Clients that write down what was confirmed to them and what they have acked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aio_pika

import quorate

BATCH = 20
PRIORITIES = 4
DELAY_MS = 25_000
QUIET_S = 2.0
#: Queue by queue; `rejected` gives its letters to `dead`, and nobody consumes `kept` and `later`.
QUEUES: dict[str, dict[str, Any]] = {
    "orders": {},
    "mail": {"x-max-priority": PRIORITIES},
    "later": {},
    "kept": {},
    "single": {"x-single-active-consumer": True},
    "dead": {},
    "rejected": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
}
NAME = "backup-test"  # of the publisher whose numbers outlive the cluster


@dataclass
class Ledger:
    """Of one queue, by the numbers in the bodies."""

    published: int = 0
    confirmed: set[int] = field(default_factory=set[int])
    sent_acks: set[int] = field(default_factory=set[int])
    acked: set[int] = field(default_factory=set[int])

    def copy(self) -> Ledger:
        return Ledger(self.published, set(self.confirmed), set(self.sent_acks), set(self.acked))


class Load:
    """Runs until `stop`."""

    def __init__(self, urls: Sequence[str], amqp: int, *, pad: int = 64) -> None:
        self.urls = list(urls)
        self.ledgers = {queue: Ledger() for queue in QUEUES}
        self._amqp = amqp
        self._pad = b"." * pad
        self._ending = asyncio.Event()
        self._going = asyncio.Event()
        self._going.set()
        self._tasks: list[asyncio.Task[None]] = []

    async def declare(self) -> None:
        async with quorate.connect(self.urls) as client:
            for queue, arguments in QUEUES.items():
                await client.declare(queue, {"x-queue-type": "quorum", **arguments})

    def start(self, *, consume: bool = True) -> None:
        native = ("orders", "later", "kept", "single", "rejected")
        work = [self._publish(queue) for queue in native] + [self._publish_amqp()]
        if consume:
            work += [self._consume(queue) for queue in ("orders", "single", "single", "rejected")]
            work += [self._consume_amqp()]
        self._tasks = [asyncio.create_task(each) for each in work]

    def pause(self) -> None:
        self._going.clear()

    def resume(self) -> None:
        self._going.set()

    async def stop(self) -> None:
        self._ending.set()
        self._going.set()
        _, late = await asyncio.wait(self._tasks, timeout=30)
        for task in late:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def copy(self) -> dict[str, Ledger]:
        return {queue: ledger.copy() for queue, ledger in self.ledgers.items()}

    def _bodies(self, queue: str) -> list[bytes]:
        ledger = self.ledgers[queue]
        first = ledger.published
        ledger.published += BATCH
        return [b"%d " % number + self._pad for number in range(first, first + BATCH)]

    async def _publish(self, queue: str) -> None:
        ledger = self.ledgers[queue]
        async with quorate.connect(self.urls) as client:
            publisher = client.publisher(queue, NAME)
            while not self._ending.is_set():
                await self._going.wait()
                bodies = self._bodies(queue)
                due = round(time.time() * 1000) + DELAY_MS if queue == "later" else None
                await publisher.publish_many(bodies, deliver_at_ms=due)
                ledger.confirmed |= set(map(number_of, bodies))
                await asyncio.sleep(0.02)

    async def _publish_amqp(self) -> None:
        ledger = self.ledgers["mail"]
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{self._amqp}/")
        async with connection, connection.channel() as channel:
            while not self._ending.is_set():
                await self._going.wait()
                for body in self._bodies("mail"):
                    number = number_of(body)
                    message = aio_pika.Message(
                        body,
                        priority=number % PRIORITIES,
                        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    )
                    await channel.default_exchange.publish(message, "mail")
                    ledger.confirmed.add(number)

    async def _consume(self, queue: str) -> None:
        """Half of what comes is held for a while, so that a backup meets it unsettled."""
        ledger = self.ledgers[queue]
        async with (
            quorate.connect(self.urls) as client,
            client.consume_batches(queue, credit=40, count_max=BATCH) as consumer,
        ):
            while not self._ending.is_set():
                try:
                    async with asyncio.timeout(0.5):
                        batch = await anext(consumer)
                except TimeoutError:
                    continue
                numbers = set(map(number_of, batch.bodies))
                await asyncio.sleep(0.1)
                ledger.sent_acks |= numbers
                if queue == "rejected":
                    await batch.discard(wait=True)
                else:
                    await batch.settle(wait=True)
                ledger.acked |= numbers

    async def _consume_amqp(self) -> None:
        ledger = self.ledgers["mail"]
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{self._amqp}/")
        async with connection, connection.channel() as channel:
            queue = await channel.get_queue("mail", ensure=False)
            while not self._ending.is_set():
                message = await queue.get(fail=False, no_ack=False)
                await asyncio.sleep(0.01)
                if message is not None:
                    ledger.sent_acks.add(number_of(message.body))
                    await message.ack()


def number_of(body: bytes) -> int:
    return int(body.split(b" ", 1)[0])


async def drain(urls: Sequence[str], amqp: int) -> dict[str, list[int]]:
    """All that comes of each queue, in its order, until the queue is empty."""
    async with quorate.connect(urls) as client:
        found = {queue: await _drain(client, queue) for queue in QUEUES if queue != "mail"}
    return {**found, "mail": await _get_all(amqp)}


async def _get_all(amqp: int) -> list[int]:
    """One by one: a batch of the native protocol has its messages by position."""
    numbers: list[int] = []
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{amqp}/")
    async with connection, connection.channel() as channel:
        queue = await channel.get_queue("mail", ensure=False)
        while (message := await queue.get(fail=False, no_ack=True)) is not None:
            numbers.append(number_of(message.body))
    return numbers


async def _drain(client: quorate.Client, queue: str) -> list[int]:
    numbers: list[int] = []
    # One that holds nothing more is asked once more, since its letters may be on their way.
    async with client.consume_batches(queue, credit=1000, count_max=500) as consumer:
        while True:
            try:
                async with asyncio.timeout(QUIET_S):
                    batch = await anext(consumer)
            except TimeoutError:
                info = await client.info(queue)
                if not any(info[kind] for kind in ("ready", "unsettled", "delayed")):
                    return numbers
                continue
            numbers += map(number_of, batch.bodies)
            await batch.settle(wait=True)
