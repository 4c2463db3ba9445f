"""One process of a workload: a door, and what it does in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from chaos.history import delivery_value, publish_value, settle_value
from chaos.load.driver import Answer, Consumption, Driver, Protocols, Publish, Received
from chaos.load.workload import Scene, recorded

#: Between a call that failed and the next one.
PAUSE_S = 0.1
PREFETCH = 20
#: Most answers to deliveries that a consumer waits for while it goes on.
UNDERWAY_MAX = 50

#: What a consumer does with what it got. False: it wants another subscription.
Handle = Callable[[Consumption, Received], Awaitable[bool]]


class Client:
    """Its messages are `name:0`, `name:1` and so on."""

    def __init__(self, scene: Scene, name: str, protocol: Protocols) -> None:
        self.name = name
        self._scene = scene
        self._protocol: Protocols = protocol
        self.recorder = scene.recorder
        self.pace = scene.pace
        self.dice = scene.dice(name)
        self.driver: Driver = scene.open_driver(name, protocol)
        self.published = 0  # so far: the next number
        self._underway: dict[asyncio.Future[Answer], None] = {}

    async def close(self) -> None:
        await self.driver.close()
        await asyncio.gather(*self._underway)

    async def crash(self) -> None:
        """Its connections end without a word, and it comes back as a new program."""
        await self.driver.drop()
        self.driver = self._scene.open_driver(self.name, self._protocol)

    # --- what is declared -------------------------------------------------------------------------

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> Answer:
        value = {"queue": queue, "arguments": dict(arguments)}
        return await self.record("declare", value, self.driver.declare(queue, arguments))

    async def declare_all(self, queues: Mapping[str, Mapping[str, Any]]) -> None:
        """Before a run. Raises when one cannot be had."""
        for queue, arguments in queues.items():
            answer = await self.declare(queue, arguments)
            if not answer.ok:
                raise RuntimeError(f"{queue} cannot be declared: {answer.type}, {answer.reason}")

    # --- messages ---------------------------------------------------------------------------------

    def take_numbers(self, count: int) -> tuple[int, list[str]]:
        """The next numbers of this publisher, and their messages."""
        first = self.published
        self.published += count
        return first, [f"{self.name}:{first + each}" for each in range(count)]

    async def publish(
        self, queue: str, count: int = 1, *, ttl_ms: int | None = None, delay_ms: int | None = None
    ) -> Answer:
        """To one queue."""
        first, messages = self.take_numbers(count)
        value = publish_value(queue, self.name, first, count)
        if ttl_ms is not None:
            value["ttl_ms"] = ttl_ms
        if delay_ms is not None:
            value["delay_ms"] = delay_ms
        publish = Publish(queue, messages, ttl_ms=ttl_ms, delay_ms=delay_ms)
        return await self.record("publish", value, self.driver.publish(publish), _kept_out)

    def saw(self, received: Received) -> None:
        value = delivery_value(
            received.queue,
            received.consumer,
            received.token,
            received.first,
            received.messages,
            delivery_count=received.delivery_count,
            acquired_count=int(received.redelivered),
        )
        if received.deaths:
            death = received.deaths[0]
            value |= {"reason": death.get("reason"), "died_in": death.get("queue")}
        self.recorder.saw(self.name, "deliver", value, node=received.node)

    async def settle(
        self, consumption: Consumption, received: Received, call: Awaitable[Answer] | None = None
    ) -> Answer:
        """`call`: another way to do it."""
        call = call or consumption.settle(received)
        return await self.record("settle", about(received), call)

    async def give_back(self, consumption: Consumption, received: Received) -> Answer:
        """As failed."""
        call = consumption.give_back(received, failed=True)
        return await self.record("return", about(received), call)

    async def discard(self, consumption: Consumption, received: Received) -> Answer:
        return await self.record("discard", about(received), consumption.discard(received))

    async def length(self, queue: str) -> Answer:
        call = self.driver.length(queue)
        return await self.record("length", {"queue": queue}, call, lambda a: {"length": a.value})

    async def record(
        self,
        f: str,
        value: dict[str, Any],
        call: Awaitable[Answer],
        extra: Callable[[Answer], dict[str, Any]] | None = None,
    ) -> Answer:
        def more(answer: Answer) -> dict[str, Any]:
            return extra(answer) if extra is not None and answer.ok else {}

        return await recorded(self.recorder, self.name, f, value, call, more)

    # --- consuming --------------------------------------------------------------------------------

    async def consume(
        self, queue: str, stop: asyncio.Event, handle: Handle, *, prefetch: int = PREFETCH
    ) -> None:
        """Until `stop`, through as many subscriptions as it takes."""
        while not stop.is_set():
            consumption = await self.driver.consume(queue, prefetch=prefetch)
            if isinstance(consumption, Answer):
                await wait(stop, PAUSE_S)
                continue
            await self.work_off(consumption, stop, handle)

    async def subscribe(self, queue: str) -> Consumption | Answer:
        """For `work_off`."""
        started: list[Consumption] = []

        async def subscribed() -> Answer:
            consumption = await self.driver.consume(queue, prefetch=PREFETCH)
            if isinstance(consumption, Answer):
                return consumption
            started.append(consumption)
            return Answer("ok", consumption.consumer)

        answer = await self.record(
            "consume", {"queue": queue}, subscribed(), lambda answer: {"consumer": answer.value}
        )
        return started[0] if started else answer

    async def work_off(self, consumption: Consumption, stop: asyncio.Event, handle: Handle) -> None:
        """What one subscription brings, until it ends or `stop`."""
        while (received := await _next_or(consumption, stop)) is not None:
            self.saw(received)
            if not await handle(consumption, received):
                break
        await consumption.close()

    async def soon(self, call: Coroutine[Any, Any, Answer]) -> None:
        """Answer to a delivery, and go on: one answer after the other is slow."""
        while len(self._underway) >= UNDERWAY_MAX:
            await asyncio.wait(self._underway, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.ensure_future(call)
        self._underway[task] = None
        task.add_done_callback(self._underway.pop)

    async def settle_all(self, consumption: Consumption, received: Received) -> bool:
        """A consumer that just does its work."""
        return (await self.settle(consumption, received)).type != "refused"


async def publish_until(
    stop: asyncio.Event, client: Client, rate: float, publish: Callable[[], Awaitable[object]]
) -> None:
    """One call after the other, about `rate` in a second."""
    rate *= client.pace
    while not stop.is_set():
        await publish()
        await wait(stop, client.dice.uniform(0.5, 1.5) / rate)


async def until_empty(client: Client, queue: str) -> None:
    """Others take out what is in it. Nothing is in flight either: that counts as in the queue."""
    invoked = client.recorder.invoke(client.name, "drain", {"queue": queue})
    while True:
        answer = await client.driver.length(queue)
        if answer.ok and answer.value == 0:
            break
        await asyncio.sleep(PAUSE_S)
    client.recorder.end(invoked, "ok", node=answer.node)


async def wait(event: asyncio.Event, timeout_s: float) -> None:
    """Until it is set, at most so long."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass


async def close_all(clients: Sequence[Client]) -> None:
    await asyncio.gather(*(client.close() for client in clients))


async def _next_or(consumption: Consumption, stop: asyncio.Event) -> Received | None:
    coming = asyncio.ensure_future(consumption.next())
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((coming, stopped), return_when=asyncio.FIRST_COMPLETED)
        return coming.result() if coming.done() else None
    finally:
        stopped.cancel()
        if coming.cancel():
            await asyncio.gather(coming, return_exceptions=True)


def about(received: Received) -> dict[str, Any]:
    return settle_value(received.queue, received.consumer, received.token, received.messages)


def _kept_out(answer: Answer) -> dict[str, Any]:
    return {"refused": [list(each) for each in answer.refused]} if answer.refused else {}
