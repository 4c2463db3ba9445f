"""aioamqp: the client that opens with `AMQP 1 1 0 9`, and names its queues itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import aioamqp
import aioamqp.exceptions

from tests.acceptance.clients.programs import program
from tests.acceptance.clients.programs.program import Given, NotOfferedError, equal, until_true


@contextlib.asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Any]:
    parts = urlsplit(url)
    transport, protocol = await aioamqp.connect(
        parts.hostname,
        parts.port,
        login=parts.username,
        password=parts.password,
        virtualhost=unquote(parts.path[1:]) or "/",
        **options,
    )
    try:
        yield protocol
    finally:
        with contextlib.suppress(Exception):
            await protocol.close(timeout=10)
        transport.close()


@contextlib.asynccontextmanager
async def opened(url: str, *, confirms: bool = True, **options: Any) -> AsyncIterator[Any]:
    async with connected(url, **options) as protocol:
        channel = await protocol.channel()
        if confirms:
            await channel.confirm_select()
        yield channel


@contextlib.asynccontextmanager
async def queue(given: Given, what: str, **arguments: Any) -> AsyncIterator[tuple[Any, str]]:
    async with opened(given.url) as channel:
        name = given.name(what)
        await channel.queue_declare(name, durable=True, arguments=arguments)
        try:
            yield channel, name
        finally:
            await channel.queue_delete(name)


async def count_of(channel: Any, name: str) -> int:
    return (await channel.queue_declare(name, passive=True))["message_count"]


async def confirms(given: Given) -> str:
    """One by one: it does not know that an ack may be about several."""
    async with queue(given, "confirms") as (channel, name):
        for number in range(200):
            await channel.publish(b"%d" % number, "", name)
        equal(await count_of(channel, name), 200, "messages in the queue")
    return "200 confirmed"


async def acks(given: Given) -> str:
    async with queue(given, "acks") as (channel, name):
        for number in range(60):
            await channel.publish(b"%d" % number, "", name)
        await channel.basic_qos(prefetch_count=10)
        held: list[tuple[bytes, int]] = []

        async def take(_: Any, body: bytes, envelope: Any, __: Any) -> None:
            held.append((body, envelope.delivery_tag))

        await channel.basic_consume(take, queue_name=name)
        await until_true(lambda: len(held) >= 10, "ten deliveries")
        await asyncio.sleep(0.2)
        equal(len(held), 10, "deliveries while none is acknowledged")
        while len(held) < 60:
            count = len(held)
            await channel.basic_client_ack(held[-1][1], multiple=True)
            await until_true(lambda count=count: len(held) > count, "more after an ack")
        await channel.basic_client_ack(held[-1][1], multiple=True)
        equal([body for body, _ in held], [b"%d" % number for number in range(60)], "bodies")
    return "60 in order, never more than 10 held"


async def channel_error(given: Given) -> str:
    async with connected(given.url) as protocol:
        channel = await protocol.channel()
        try:
            await channel.queue_declare(given.name("missing"), passive=True)
        except aioamqp.exceptions.ChannelClosed as error:
            equal(error.code, 404, "code")
            text = error.message
        else:
            raise AssertionError("a queue that is not there was found")
        again = await protocol.channel()
        await again.queue_declare(given.name("here"), exclusive=True)
    return text


async def topic(given: Given) -> None:
    async with opened(given.url) as channel:
        exchange, name = given.name("topic"), given.name("bound")
        await channel.exchange_declare(exchange, "topic", auto_delete=True)
        await channel.queue_declare(name, exclusive=True)
        await channel.queue_bind(name, exchange, "*.b.#")
        for key in ("a.b", "a.c", "x.b.y.z", "b"):
            await channel.publish(key.encode(), exchange, key)
        found = [
            (await channel.basic_get(name, no_ack=True))["message"]
            for _ in range(await count_of(channel, name))
        ]
        equal(found, [b"a.b", b"x.b.y.z"], "what the binding let through")


async def rpc(given: Given) -> str:
    async with opened(given.url) as server, opened(given.url, confirms=False) as client:
        name, heard = given.name("rpc"), dict[str, bytes]()
        await server.queue_declare(name, auto_delete=True)

        async def answer(channel: Any, body: bytes, envelope: Any, properties: Any) -> None:
            about = {"correlation_id": properties.correlation_id}
            await channel.basic_publish(body.upper(), "", properties.reply_to, properties=about)
            await channel.basic_client_ack(envelope.delivery_tag)

        async def take(_: Any, body: bytes, __: Any, properties: Any) -> None:
            heard[properties.correlation_id] = body

        await server.basic_consume(answer, queue_name=name)
        reply_to = "amq.rabbitmq.reply-to"
        await client.basic_consume(take, queue_name=reply_to, no_ack=True)
        for number in range(10):
            about = {"reply_to": reply_to, "correlation_id": str(number)}
            await client.publish(b"ask %d" % number, "", name, properties=about)
        await until_true(lambda: len(heard) == 10, "ten answers")
        equal(heard["7"], b"ASK 7", "an answer")
    return "10 answers through amq.rabbitmq.reply-to"


async def exclusive(given: Given) -> None:
    async with opened(given.url) as channel, opened(given.url) as other:
        name = given.name("mine")
        await channel.queue_declare(name, exclusive=True)
        try:
            await other.queue_declare(name, passive=True)
        except aioamqp.exceptions.ChannelClosed as error:
            equal(error.code, 405, "code")
        else:
            raise AssertionError("another connection may use an exclusive queue")


async def mandatory(given: Given) -> str:
    returned: list[tuple[bytes, Any]] = []

    async def take(_: Any, body: bytes, envelope: Any, __: Any) -> None:
        returned.append((body, envelope))

    async with connected(given.url) as protocol:
        channel = await protocol.channel(return_callback=take)
        await channel.confirm_select()
        await channel.publish(b"back", "", given.name("nowhere"), mandatory=True)
    equal([(body, each.reply_code) for body, each in returned], [(b"back", 312)], "returned")
    return returned[0][1].reply_text


async def get(given: Given) -> None:
    async with queue(given, "get") as (channel, name):
        with contextlib.suppress(aioamqp.exceptions.EmptyQueue):
            await channel.basic_get(name)
            raise AssertionError("the empty queue gave a message")
        await channel.publish(b"one", "", name)
        message = await channel.basic_get(name)
        equal(message["message"], b"one", "first")
        await channel.basic_client_ack(message["delivery_tag"])


async def headers(given: Given) -> None:
    sent = {"number": 2**40, "double": 0.5, "table": {"list": [1, "two", None]}, "void": None}
    async with queue(given, "headers") as (channel, name):
        about = {"headers": sent, "priority": 5, "message_id": "m", "delivery_mode": 2}
        await channel.publish(b"", "", name, properties=about)
        message = await channel.basic_get(name, no_ack=True)
        equal(message["message"], b"", "the empty body")
        equal(message["properties"].headers, sent, "headers")
        equal(message["properties"].message_id, "m", "message-id")


async def cancel(given: Given) -> None:
    async with opened(given.url) as channel, opened(given.url) as other:
        name, told = given.name("cancel"), list[str]()
        await channel.queue_declare(name, durable=True)

        async def heard(_: Any, tag: str) -> None:
            told.append(tag)

        async def take(*_: Any) -> None:
            return

        channel.add_cancellation_callback(heard)
        tag = (await channel.basic_consume(take, queue_name=name))["consumer_tag"]
        await other.queue_delete(name)
        await until_true(lambda: told == [tag], "cancel")


async def tx(_: Given) -> None:
    raise NotOfferedError("aioamqp has no transactions")


async def large(given: Given) -> str:
    """It fills frames to frame-max without counting what surrounds a payload."""
    async with queue(given, "large") as (channel, name):
        body = bytes(range(251)) * 4178
        await channel.publish(body, "", name)
        equal((await channel.basic_get(name, no_ack=True))["message"], body, "body")
    return f"{len(body):,} bytes"


async def heartbeat(given: Given) -> str:
    async with opened(given.url, heartbeat=1) as channel:
        await asyncio.sleep(4)
        await channel.queue_declare(given.name("after"), exclusive=True)
    return "idle for 4 s at 1 s"


async def requeue(given: Given) -> None:
    async with queue(given, "requeue") as (channel, name):
        await channel.publish(b"again", "", name)
        message = await channel.basic_get(name)
        equal(message["redelivered"], False, "redelivered at first")
        await channel.basic_client_nack(message["delivery_tag"], requeue=True)
        message = await channel.basic_get(name)
        equal(message["redelivered"], True, "redelivered after nack")


async def dead_letter(given: Given) -> str:
    async with queue(given, "dead") as (channel, dead):
        dying = {
            "x-message-ttl": 50,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        }
        async with queue(given, "short", **dying) as (other, short):
            await other.publish(b"late", "", short)
            deadline = asyncio.get_running_loop().time() + program.WAIT_S_MAX
            while not await count_of(channel, dead):
                assert asyncio.get_running_loop().time() < deadline, "no dead letter"
                await asyncio.sleep(0.05)
            message = await channel.basic_get(dead, no_ack=True)
            [death] = message["properties"].headers["x-death"]
            equal((death["reason"], death["queue"], death["count"]), ("expired", short, 1), "death")
    return "expired, with x-death"


async def failover(given: Given) -> str:
    name, seen = given.name("failover"), list[bytes]()
    async with opened(given.url) as channel:
        await channel.queue_declare(name, durable=True, arguments=program.REPLICATED)
    survivor = given.led(name)[1]

    @contextlib.asynccontextmanager
    async def publisher(url: str) -> AsyncIterator[Callable[[bytes], Awaitable[Any]]]:
        async with opened(url) as channel:

            def publish(body: bytes) -> Awaitable[Any]:
                sending = channel.publish(body, "", name, properties={"delivery_mode": 2})
                return asyncio.wait_for(sending, 30)

            yield publish

    async with opened(survivor) as channel:
        await channel.basic_qos(prefetch_count=20)

        async def take(_: Any, body: bytes, envelope: Any, __: Any) -> None:
            seen.append(body)
            await channel.basic_client_ack(envelope.delivery_tag)

        await channel.basic_consume(take, queue_name=name)
        verdict = await program.failover_async(given, name, publisher, seen)
        await channel.queue_delete(name)
    return verdict


if __name__ == "__main__":
    program.run(vars())
