"""aiormq, the layer under aio-pika: its own connection, raw methods and properties."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiormq
import aiormq.exceptions
from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic

from tests.acceptance.clients.programs import program
from tests.acceptance.clients.programs.program import Given, equal, until_true


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[AbstractChannel]:
    connection = await aiormq.connect(url)
    try:
        yield await connection.channel()
    finally:
        with contextlib.suppress(Exception):
            await connection.close()


@contextlib.asynccontextmanager
async def queue(
    given: Given, what: str, **options: Any
) -> AsyncIterator[tuple[AbstractChannel, str]]:
    async with opened(given.url) as channel:
        name = given.name(what)
        await channel.queue_declare(name, durable=True, **options)
        try:
            yield channel, name
        finally:
            await channel.queue_delete(name)


async def confirms(given: Given) -> str:
    async with queue(given, "confirms") as (channel, name):
        answers = await asyncio.gather(
            *(channel.basic_publish(b"%d" % number, routing_key=name) for number in range(200))
        )
        equal({type(answer) for answer in answers}, {Basic.Ack}, "answers")
        found = await channel.queue_declare(name, passive=True)
        equal(found.message_count, 200, "messages in the queue")
    return "200 confirmed"


async def acks(given: Given) -> str:
    async with queue(given, "acks") as (channel, name):
        for number in range(60):
            await channel.basic_publish(b"%d" % number, routing_key=name)
        await channel.basic_qos(prefetch_count=10)
        held: list[DeliveredMessage] = []

        async def take(message: DeliveredMessage) -> None:
            held.append(message)

        await channel.basic_consume(name, take)
        await until_true(lambda: len(held) >= 10, "ten deliveries")
        await asyncio.sleep(0.2)
        equal(len(held), 10, "deliveries while none is acknowledged")
        while len(held) < 60:
            count = len(held)
            assert held[-1].delivery_tag is not None
            await channel.basic_ack(held[-1].delivery_tag, multiple=True)
            await until_true(lambda count=count: len(held) > count, "more after an ack")
        assert held[-1].delivery_tag is not None
        await channel.basic_ack(held[-1].delivery_tag, multiple=True)
        equal([m.body for m in held], [b"%d" % number for number in range(60)], "bodies")
    return "60 in order, never more than 10 held"


async def channel_error(given: Given) -> str:
    connection = await aiormq.connect(given.url)
    try:
        channel = await connection.channel()
        try:
            await channel.queue_declare(given.name("missing"), passive=True)
        except aiormq.exceptions.ChannelNotFoundEntity as error:
            text = str(error)
        else:
            raise AssertionError("a queue that is not there was found")
        again = await connection.channel()
        await again.queue_declare(given.name("here"), exclusive=True)
    finally:
        await connection.close()
    return text


async def exclusive(given: Given) -> None:
    async with opened(given.url) as channel, opened(given.url) as other:
        made = await channel.queue_declare("", exclusive=True)
        equal((made.queue or "").startswith("amq.gen-"), True, "the server named it")
        with contextlib.suppress(aiormq.exceptions.ChannelLockedResource):
            await other.queue_declare(made.queue or "", passive=True)
            raise AssertionError("another connection may use an exclusive queue")


async def mandatory(given: Given) -> None:
    async with opened(given.url) as channel:
        try:
            await channel.basic_publish(b"back", routing_key=given.name("nowhere"), mandatory=True)
        except aiormq.exceptions.PublishError as error:
            equal(error.message.body, b"back", "body")
        else:
            raise AssertionError("nothing was returned")


async def get(given: Given) -> None:
    async with queue(given, "get") as (channel, name):
        empty = await channel.basic_get(name)
        equal(type(empty.delivery), Basic.GetEmpty, "the empty queue")
        await channel.basic_publish(b"one", routing_key=name)
        message = await channel.basic_get(name, no_ack=True)
        equal(message.body, b"one", "first")


async def headers(given: Given) -> None:
    sent = {"number": 2**40, "double": 0.5, "table": {"list": [1, "two", None]}, "void": None}
    async with queue(given, "headers") as (channel, name):
        properties = Basic.Properties(headers=sent, priority=5, message_id="m", app_id="")
        await channel.basic_publish(b"", routing_key=name, properties=properties)
        message = await channel.basic_get(name, no_ack=True)
        equal(message.body, b"", "the empty body")
        equal(message.header.properties.headers, sent, "headers")
        equal(message.header.properties.message_id, "m", "message-id")


async def cancel(given: Given) -> None:
    async with opened(given.url) as channel, opened(given.url) as other:
        name = given.name("cancel")
        await channel.queue_declare(name, durable=True)
        answer = await channel.basic_consume(name, lambda _: asyncio.sleep(0))
        await other.queue_delete(name)
        await until_true(lambda: answer.consumer_tag not in channel.consumers, "cancel")
        equal(channel.is_closed, False, "the channel is closed")


async def tx(given: Given) -> None:
    async with queue(given, "tx") as (other, name):
        connection = await aiormq.connect(given.url)
        channel = await connection.channel(publisher_confirms=False)
        await channel.tx_select()
        await channel.basic_publish(b"dropped", routing_key=name)
        await channel.tx_rollback()
        await channel.basic_publish(b"kept", routing_key=name)
        await channel.tx_commit()
        await connection.close()
        found = await other.queue_declare(name, passive=True)
        equal(found.message_count, 1, "messages after the commit")


async def large(given: Given) -> str:
    async with queue(given, "large") as (channel, name):
        body = bytes(range(251)) * 4178
        await channel.basic_publish(body, routing_key=name)
        equal((await channel.basic_get(name, no_ack=True)).body, body, "body")
    return f"{len(body):,} bytes"


async def heartbeat(given: Given) -> str:
    async with opened(f"{given.url}?heartbeat=1") as channel:
        await asyncio.sleep(4)
        await channel.queue_declare("", exclusive=True)
    return "idle for 4 s at 1 s"


async def requeue(given: Given) -> None:
    async with queue(given, "requeue") as (channel, name):
        await channel.basic_publish(b"again", routing_key=name)
        message = await channel.basic_get(name)
        equal(message.redelivered, False, "redelivered at first")
        await channel.basic_nack(message.delivery_tag or 0, requeue=True)
        message = await channel.basic_get(name)
        equal(message.redelivered, True, "redelivered after nack")


async def failover(given: Given) -> str:
    name, seen = given.name("failover"), list[bytes]()
    async with opened(given.url) as channel:
        await channel.queue_declare(name, durable=True, arguments=program.REPLICATED)
    survivor = given.led(name)[1]

    @contextlib.asynccontextmanager
    async def publisher(url: str) -> AsyncIterator[Callable[[bytes], Awaitable[Any]]]:
        async with opened(url) as channel:
            persistent = Basic.Properties(delivery_mode=2)
            yield lambda body: channel.basic_publish(
                body, routing_key=name, properties=persistent, timeout=30
            )

    async with opened(survivor) as channel:
        await channel.basic_qos(prefetch_count=20)

        async def take(message: DeliveredMessage) -> None:
            seen.append(message.body)
            await channel.basic_ack(message.delivery_tag or 0)

        await channel.basic_consume(name, take)
        verdict = await program.failover_async(given, name, publisher, seen)
        await channel.queue_delete(name)
    return verdict


if __name__ == "__main__":
    program.run(vars())
