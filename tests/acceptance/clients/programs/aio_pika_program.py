"""aio-pika: connect_robust, which reconnects and consumes again by itself."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import decimal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aio_pika
import aio_pika.exceptions
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue, AbstractRobustChannel
from aio_pika.patterns import RPC

from tests.acceptance.clients.programs import program
from tests.acceptance.clients.programs.program import Given, equal, until_true

ALL_TYPES = {
    "true": True,
    "byte": 7,
    "integer": -(2**31),
    "long": 2**62,
    "double": 0.5,  # sent with 32 bits
    "decimal": decimal.Decimal("3.1415"),
    "text": "zażółć ☃",
    "bytes": bytearray(b"\x00\xff"),
    "time": dt.datetime(2024, 2, 29, 12, 30, 45, tzinfo=dt.UTC),
    "table": {"nested": {"deep": [1, "two", None]}},
    "list": [False, 2**40, {"in": "list"}],
    "void": None,
}


@contextlib.asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[AbstractRobustChannel]:
    connection = await aio_pika.connect_robust(url, reconnect_interval=0.2, **options)
    async with connection:
        yield await connection.channel()


@contextlib.asynccontextmanager
async def queue(
    given: Given, what: str, **options: Any
) -> AsyncIterator[tuple[AbstractRobustChannel, AbstractQueue]]:
    async with opened(given.url) as channel:
        made = await channel.declare_queue(given.name(what), durable=True, **options)
        try:
            yield channel, made
        finally:
            await channel.queue_delete(made.name)


async def publish(
    channel: AbstractRobustChannel, made: AbstractQueue, body: bytes, **properties: Any
) -> None:
    message = aio_pika.Message(body, **properties)
    await channel.default_exchange.publish(message, routing_key=made.name)


async def count(channel: AbstractRobustChannel, made: AbstractQueue) -> int | None:
    """Asked beneath aio-pika, which remembers what it heard at first."""
    under = await channel.get_underlay_channel()
    return (await under.queue_declare(made.name, passive=True)).message_count


async def confirms(given: Given) -> str:
    async with queue(given, "confirms") as (channel, made):
        # All at once: confirms come for several.
        await asyncio.gather(*(publish(channel, made, b"%d" % n) for n in range(200)))
        equal(await count(channel, made), 200, "messages in the queue")
    return "200 confirmed"


async def acks(given: Given) -> str:
    async with queue(given, "acks") as (channel, made):
        for number in range(60):
            await publish(channel, made, b"%d" % number)
        await channel.set_qos(prefetch_count=10)
        held: list[AbstractIncomingMessage] = []

        async def take(message: AbstractIncomingMessage) -> None:
            held.append(message)

        await made.consume(take)
        await until_true(lambda: len(held) >= 10, "ten deliveries")
        await asyncio.sleep(0.2)
        equal(len(held), 10, "deliveries while none is acknowledged")
        for number in range(60):
            await until_true(lambda number=number: len(held) > number, f"delivery {number}")
            await held[number].ack()
        equal([m.body for m in held], [b"%d" % number for number in range(60)], "bodies")
    return "60 in order, never more than 10 held"


async def channel_error(given: Given) -> str:
    connection = await aio_pika.connect_robust(given.url)
    async with connection:
        channel = await connection.channel()
        try:
            await channel.declare_queue(given.name("missing"), passive=True)
        except aio_pika.exceptions.ChannelNotFoundEntity as error:
            text = str(error)
        else:
            raise AssertionError("a queue that is not there was found")
        again = await connection.channel()
        await again.declare_queue(given.name("here"), exclusive=True)
    return text


async def topic(given: Given) -> None:
    async with opened(given.url) as channel:
        exchange = await channel.declare_exchange(
            given.name("topic"), aio_pika.ExchangeType.TOPIC, auto_delete=True
        )
        keys = ("a.b", "a.b.c", "x.b", "a")
        patterns = {"a.*": ["a.b"], "#": list(keys), "*.b.#": ["a.b", "a.b.c", "x.b"]}
        queues = {pattern: await channel.declare_queue(exclusive=True) for pattern in patterns}
        for pattern, made in queues.items():
            await made.bind(exchange, pattern)
        for key in keys:
            await exchange.publish(aio_pika.Message(key.encode()), key, mandatory=True)
        for pattern, wanted in patterns.items():
            found: list[str] = []
            while message := await queues[pattern].get(no_ack=True, fail=False):
                found.append(message.body.decode())
            equal(found, wanted, f"keys that match {pattern}")


async def rpc(given: Given) -> str:
    """aio-pika's own RPC pattern, then direct reply-to."""
    async with opened(given.url) as server, opened(given.url) as client:

        async def add(*, left: int, right: int) -> int:
            return left + right

        serving, asking = await RPC.create(server), await RPC.create(client)
        await serving.register(given.name("add"), add, auto_delete=True)
        equal(await asking.call(given.name("add"), {"left": 2, "right": 3}), 5, "answer")
        await serving.close()
        await asking.close()
    async with opened(given.url) as server, opened(given.url) as client:
        made = await server.declare_queue(given.name("rpc"), auto_delete=True)

        async def serve(message: AbstractIncomingMessage) -> None:
            async with message.process():
                answer = aio_pika.Message(
                    message.body.upper(), correlation_id=message.correlation_id
                )
                await server.default_exchange.publish(answer, message.reply_to or "")

        await made.consume(serve)
        answers: dict[str | None, bytes] = {}

        async def take(message: AbstractIncomingMessage) -> None:
            answers[message.correlation_id] = message.body

        replies = await client.get_queue("amq.rabbitmq.reply-to", ensure=False)
        await replies.consume(take, no_ack=True)
        for number in range(10):
            properties = {"reply_to": replies.name, "correlation_id": str(number)}
            await publish(client, made, b"ask %d" % number, **properties)
        await until_true(lambda: len(answers) == 10, "ten answers")
        equal(answers["7"], b"ASK 7", "answer")
    return "the RPC pattern, and 10 answers through amq.rabbitmq.reply-to"


async def exclusive(given: Given) -> str:
    async with opened(given.url) as channel, opened(given.url) as other:
        made = await channel.declare_queue(exclusive=True)
        equal(made.name.startswith("amq"), True, f"{made.name} was named by the server")
        try:
            await other.declare_queue(made.name, passive=True)
        except aio_pika.exceptions.ChannelClosed as error:
            equal(getattr(error, "reply_code", 405), 405, "code for another connection")
        else:
            raise AssertionError("another connection may use an exclusive queue")
    return made.name[:4]


async def mandatory(given: Given) -> None:
    async with opened(given.url) as channel:
        try:
            await channel.default_exchange.publish(
                aio_pika.Message(b"back"), given.name("nowhere"), mandatory=True
            )
        except aio_pika.exceptions.PublishError as error:
            equal(error.message.body, b"back", "body")
            return
        returned = await channel.default_exchange.publish(
            aio_pika.Message(b"back"), given.name("nowhere"), mandatory=True
        )
        equal(getattr(returned, "body", None), b"back", "returned")


async def get(given: Given) -> None:
    async with queue(given, "get") as (channel, made):
        equal(await made.get(fail=False), None, "the empty queue")
        await publish(channel, made, b"one")
        message = await made.get(timeout=program.WAIT_S_MAX)
        equal((message.body, message.redelivered), (b"one", False), "first")
        await message.ack()


async def headers(given: Given) -> str:
    async with queue(given, "headers") as (channel, made):
        body = bytes(range(256))
        await publish(
            channel,
            made,
            body,
            headers=ALL_TYPES,
            content_type="application/x-test",
            content_encoding="none",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            priority=5,
            correlation_id="c",
            reply_to="r",
            expiration=600,
            message_id="m",
            timestamp=1700000000,
            type="t",
            user_id="guest",
            app_id="a",
        )
        message = await made.get(no_ack=True)
        equal(message.body, body, "body")
        equal(dict(message.headers), ALL_TYPES, "headers")
        found = (message.priority, message.expiration, message.message_id, message.user_id)
        equal(found, (5, 600, "m", "guest"), "properties")
        stamp = message.timestamp
        equal(stamp and stamp.timestamp(), 1700000000, "timestamp")
    return f"{len(ALL_TYPES)} headers"


async def cancel(given: Given) -> None:
    async with opened(given.url) as channel, opened(given.url) as other:
        made = await channel.declare_queue(given.name("cancel"), durable=True)
        under = await channel.get_underlay_channel()
        tag = await made.consume(lambda _: asyncio.sleep(0))
        await other.queue_delete(made.name)
        await until_true(lambda: tag not in under.consumers, "cancel notification")
        equal(channel.is_closed, False, "the channel is closed")


async def tx(given: Given) -> None:
    async with queue(given, "tx") as (other, made):
        connection = await aio_pika.connect_robust(given.url)
        async with connection:
            channel = await connection.channel(publisher_confirms=False)
            transaction = channel.transaction()
            await transaction.select()
            await publish(channel, made, b"dropped")
            await transaction.rollback()
            await publish(channel, made, b"kept")
            equal(await count(other, made), 0, "messages before the commit")
            await transaction.commit()
            equal(await count(other, made), 1, "messages after the commit")
        equal((await made.get(no_ack=True)).body, b"kept", "message")


async def large(given: Given) -> str:
    async with queue(given, "large") as (channel, made):
        body = bytes(range(251)) * 4178
        await publish(channel, made, body)
        equal((await made.get(no_ack=True)).body, body, "body")
    return f"{len(body):,} bytes"


async def heartbeat(given: Given) -> str:
    connection = await aio_pika.connect(f"{given.url}?heartbeat=1")
    async with connection:
        channel = await connection.channel()
        await asyncio.sleep(4)
        await channel.declare_queue(exclusive=True)
    return "idle for 4 s at 1 s"


async def requeue(given: Given) -> None:
    async with queue(given, "requeue") as (channel, made):
        await publish(channel, made, b"again")
        message = await made.get()
        equal(message.redelivered, False, "redelivered at first")
        await message.nack(requeue=True)
        message = await made.get(timeout=program.WAIT_S_MAX)
        equal(message.redelivered, True, "redelivered after nack")
        await message.reject(requeue=False)
        equal(await made.get(fail=False), None, "the queue after reject")


async def dead_letter(given: Given) -> str:
    async with queue(given, "dead") as (_, dead):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
        async with queue(given, "refused", arguments=arguments) as (other, refused):
            await publish(other, refused, b"bad", headers={"mine": 1})
            await (await refused.get(timeout=program.WAIT_S_MAX)).reject(requeue=False)
            got: list[AbstractIncomingMessage] = []

            async def take(message: AbstractIncomingMessage) -> None:
                got.append(message)

            await dead.consume(take, no_ack=True)
            await until_true(lambda: got, "the dead letter")
        headers: Any = got[0].headers
        death = headers["x-death"][0]
        equal((death["reason"], death["count"]), ("rejected", 1), "x-death")
        equal(death["queue"], refused.name, "queue of x-death")
        equal(headers["mine"], 1, "header")
    return "rejected, with x-death"


async def failover(given: Given) -> str:
    name, seen = given.name("failover"), list[bytes]()
    async with opened(given.url) as channel:
        await channel.declare_queue(name, durable=True, arguments=program.REPLICATED)
    survivor = given.led(name)[1]

    @contextlib.asynccontextmanager
    async def publisher(url: str) -> AsyncIterator[Callable[[bytes], Awaitable[Any]]]:
        connection = await aio_pika.connect(url, timeout=5)
        try:
            channel = await connection.channel()
            persistent = aio_pika.DeliveryMode.PERSISTENT
            yield lambda body: channel.default_exchange.publish(
                aio_pika.Message(body, delivery_mode=persistent), name, timeout=30
            )
        finally:
            with contextlib.suppress(Exception):
                await connection.close()

    async with opened(survivor) as channel:
        await channel.set_qos(prefetch_count=20)
        made = await channel.declare_queue(name, durable=True, arguments=program.REPLICATED)

        async def take(message: AbstractIncomingMessage) -> None:
            seen.append(message.body)
            await message.ack()

        await made.consume(take)
        verdict = await program.failover_async(given, name, publisher, seen)
        await channel.queue_delete(name)
    return verdict


if __name__ == "__main__":
    program.run(vars())
