"""A little of everything that clients do, for as long as it is asked, so that no metric is bare.

Small on purpose: some hundred messages a second. What is measured is the measuring.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import aio_pika
import aiohttp
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

import quorate
from quorate.local import LocalNode

QUORUM = {"x-queue-type": "quorum"}
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
QUEUES: dict[str, dict[str, str | int | bool]] = {
    "orders": {**QUORUM},
    "auto": {**QUORUM},
    "fetched": {**QUORUM},
    "dead": {**QUORUM},
    "backlog": {**QUORUM},
    "expires": {**QUORUM, **DEAD, "x-message-ttl": 200},
    "rejects": {**QUORUM, **DEAD},
    "fails": {**QUORUM, **DEAD, "x-delivery-limit": 2},
    "short": {**QUORUM, **DEAD, "x-max-length": 5},
    "one": {**QUORUM, "x-single-active-consumer": True},
    "classic": {"x-queue-type": "classic"},
    "shovelled": {**QUORUM},
}
#: From there to where it is consumed.
SHOVEL = {
    "src-uri": "amqp://",
    "src-queue": "shovelled",
    "dest-uri": "amqp://",
    "dest-queue": "orders",
}
#: One for most buckets of the sizes.
SIZES = (10, 400, 4_000, 40_000, 400_000)
HELD = 3  # unacked for as long as the load runs
PAUSE_S = 0.1

Step = Callable[[], Awaitable[None]]


class LoadError(Exception):
    """A client was refused what it must get."""


@dataclass(frozen=True)
class _Clients:
    """Where they connect; all is closed with the stack."""

    nodes: Sequence[LocalNode]
    stack: contextlib.AsyncExitStack

    async def channel(self, node: int, *, confirms: bool = True) -> AbstractChannel:
        """On a connection of its own to that node."""
        connection = await aio_pika.connect(self.nodes[node].amqp_url)
        await self.stack.enter_async_context(connection)
        return await connection.channel(publisher_confirms=confirms)


async def _publish(channel: AbstractChannel, queue: str, body: bytes) -> None:
    """A nack is an answer too: on a busy machine a leader may just have gone."""
    with contextlib.suppress(aio_pika.exceptions.DeliveryError):
        await channel.default_exchange.publish(aio_pika.Message(body), routing_key=queue)


async def _publisher(clients: _Clients) -> Step:
    channel = await clients.channel(0)
    sizes = count()

    async def step() -> None:
        size = SIZES[next(sizes) % len(SIZES)]
        for queue in ("orders", "auto", "fetched", "one", "classic", "shovelled"):
            await _publish(channel, queue, bytes(size))
        for queue in ("expires", "rejects", "fails", "short"):
            await _publish(channel, queue, b"to die")

    return step


async def _unroutable(clients: _Clients) -> Step:
    """Returned on a channel that confirms, dropped on one that does not."""
    confirming = await clients.channel(1)
    plain = await clients.channel(1, confirms=False)

    async def step() -> None:
        with contextlib.suppress(aio_pika.exceptions.PublishError):
            await confirming.default_exchange.publish(
                aio_pika.Message(b"back"), routing_key="nobody", mandatory=True
            )
        await plain.default_exchange.publish(
            aio_pika.Message(b"gone"), routing_key="nobody", mandatory=False
        )

    return step


async def _consumers(clients: _Clients) -> Step:
    """They are pushed what they get; a step has nothing to do."""

    async def ack(message: AbstractIncomingMessage) -> None:
        await message.ack()

    async def reject(message: AbstractIncomingMessage) -> None:
        await message.reject(requeue=False)

    async def fail(message: AbstractIncomingMessage) -> None:
        await message.nack(requeue=True)

    async def nothing(_: AbstractIncomingMessage) -> None:
        pass

    for queue, callback, no_ack in (
        ("orders", ack, False),
        ("dead", ack, False),
        ("one", ack, False),
        ("one", ack, False),
        ("classic", ack, False),
        ("rejects", reject, False),
        ("fails", fail, False),
        ("auto", nothing, True),
    ):
        channel = await clients.channel(2)
        await channel.set_qos(50)
        await (await channel.get_queue(queue)).consume(callback, no_ack=no_ack)
    held = await clients.channel(1)
    await held.set_qos(HELD)
    await (await held.get_queue("backlog")).consume(nothing)

    async def step() -> None:
        pass

    return step


async def _getter(clients: _Clients) -> Step:
    channel = await clients.channel(2)
    fetched = await channel.get_queue("fetched")

    async def step() -> None:
        if (message := await fetched.get(no_ack=False, fail=False)) is not None:
            await message.ack()
        while await fetched.get(no_ack=True, fail=False) is not None:
            pass  # the last one finds it empty

    return step


async def _churner(clients: _Clients) -> Step:
    """Connections, channels and queues that come and go; a wrong password now and then."""

    async def step() -> None:
        async with await aio_pika.connect(clients.nodes[0].amqp_url) as connection:
            channel = await connection.channel()
            await channel.declare_queue("passing", durable=True, arguments=dict(QUORUM))
            await channel.queue_delete("passing")
            await channel.close()
        with contextlib.suppress(aio_pika.exceptions.AMQPError, ConnectionError):
            await aio_pika.connect(clients.nodes[0].amqp_url.replace("guest:guest", "guest:wrong"))
            raise LoadError("a wrong password was taken")
        await asyncio.sleep(10 * PAUSE_S)

    return step


async def _native(client: quorate.Client) -> Step:
    consumer = client.consume("native")

    async def step() -> None:
        await client.publish("native", b"hello", dedup_id="once")
        await client.publish("native", b"hello")
        async for delivery in consumer:
            await delivery.settle()
            break

    return step


async def _http(http: aiohttp.ClientSession, node: LocalNode) -> Step:
    url = f"{node.url}/v1/queues/%2F/orders/messages"
    api = f"{node.url}/api/exchanges/%2F/amq.default/publish"
    asked: dict[str, Any] = {
        "routing_key": "orders",
        "payload": "by the API",
        "payload_encoding": "string",
        "properties": {},
    }
    guest = aiohttp.BasicAuth("guest", "guest")
    shovel = f"{node.url}/api/parameters/shovel/%2F/moves"
    async with http.put(shovel, json={"value": SHOVEL}, auth=guest) as answer:
        answer.raise_for_status()

    async def step() -> None:
        for answering in (
            await http.post(url, data=b"by HTTP", auth=guest),
            await http.post(api, json=asked, auth=guest),
        ):
            async with answering as answer:
                # 503: the leader may just have gone.
                if answer.status >= 400 and answer.status != 503:
                    raise LoadError(f"{answer.url}: {answer.status} {await answer.text()}")
        wrong = aiohttp.BasicAuth("guest", "wrong")
        async with http.get(f"{node.url}/api/overview", auth=wrong) as answer:
            if answer.status not in {401, 429}:
                raise LoadError(f"a wrong password was answered with {answer.status}")
        await asyncio.sleep(10 * PAUSE_S)

    return step


async def _again_and_again(name: str, step: Step) -> None:
    try:
        while True:
            await step()
            await asyncio.sleep(PAUSE_S)
    except Exception as error:
        raise LoadError(f"the load's {name} ended: {type(error).__name__}: {error}") from error


@contextlib.asynccontextmanager
async def load(nodes: Sequence[LocalNode]) -> AsyncGenerator[None]:
    """Runs while the body does; LoadError, if a client is refused what it must get."""
    async with contextlib.AsyncExitStack() as stack:
        clients = _Clients(nodes, stack)
        setup = await clients.channel(0)
        for name, arguments in QUEUES.items():
            await setup.declare_queue(name, durable=True, arguments=dict(arguments))
        for _ in range(10 * HELD):
            await _publish(setup, "backlog", b"nobody has time")
        http = await stack.enter_async_context(aiohttp.ClientSession())
        urls = [node.url for node in nodes]
        client = await stack.enter_async_context(quorate.connect(urls))
        await client.declare("native", {"x-dedup-window": 3_600_000})
        steps = {
            "publisher": await _publisher(clients),
            "unroutable publisher": await _unroutable(clients),
            "consumers": await _consumers(clients),
            "getter": await _getter(clients),
            "churn": await _churner(clients),
            "native client": await _native(client),
            "HTTP client": await _http(http, nodes[1]),
        }
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(_again_and_again(*each)) for each in steps.items()]
            try:
                yield
            finally:
                for task in running:
                    task.cancel()
