"""py-amqp, the client beneath kombu and Celery: blocking, in one thread."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from amqp import Channel, Connection, Message
from amqp.exceptions import NotFound, ResourceLocked

from tests.acceptance.clients.programs import program
from tests.acceptance.clients.programs.program import Given, equal, until

#: Bytes come as "x" from kombu only.
ALL_TYPES = {
    "true": True,
    "integer": -(2**31),
    "long": 2**62,
    "double": 0.1,
    "decimal": decimal.Decimal("3.1415"),
    "text": "zażółć ☃",
    "time": dt.datetime(2024, 2, 29, 12, 30, 45),  # noqa: DTZ001 (as it comes back)
    "table": {"nested": {"deep": [1, "two", None]}},
    "list": [False, 2**40, {"in": "list"}],
    "void": None,
}


@contextlib.contextmanager
def connected(url: str, **options: Any) -> Iterator[Connection]:
    parts = urlsplit(url)
    connection = Connection(
        parts.netloc.rpartition("@")[2],
        parts.username,
        parts.password,
        connect_timeout=10,
        **options,
    )
    connection.connect()
    try:
        yield connection
    finally:
        with contextlib.suppress(Exception):
            connection.close()


@contextlib.contextmanager
def opened(url: str, **options: Any) -> Iterator[Channel]:
    with connected(url, **options) as connection:
        yield connection.channel()


@contextlib.contextmanager
def queue(given: Given, what: str, **options: Any) -> Iterator[tuple[Channel, str]]:
    with opened(given.url) as channel:
        name = given.name(what)
        channel.queue_declare(name, durable=True, auto_delete=False, **options)
        try:
            yield channel, name
        finally:
            with opened(given.url) as other:
                other.queue_delete(name)


def works(channel: Channel, until_true: Callable[[], Any], what: str) -> None:
    def step() -> None:
        with contextlib.suppress(TimeoutError):
            channel.connection.drain_events(timeout=0.05)

    until(until_true, what, step=step)


def publish(channel: Channel, name: str, body: Any, **properties: Any) -> None:
    channel.basic_publish_confirm(
        Message(body, **properties), routing_key=name, timeout=program.WAIT_S_MAX
    )


def confirms(given: Given) -> str:
    with queue(given, "confirms") as (channel, name):
        for number in range(200):
            publish(channel, name, f"{number}")
        found = channel.queue_declare(name, passive=True)
        equal(found.message_count, 200, "messages in the queue")
    return "200 confirmed"


def acks(given: Given) -> str:
    with queue(given, "acks") as (channel, name):
        for number in range(60):
            publish(channel, name, f"{number}")
        channel.basic_qos(0, 10, False)
        held: list[Message] = []
        channel.basic_consume(name, callback=held.append)
        works(channel, lambda: len(held) >= 10, "ten deliveries")
        with contextlib.suppress(TimeoutError):
            channel.connection.drain_events(timeout=0.2)
        equal(len(held), 10, "deliveries while none is acknowledged")
        for number in range(60):
            works(channel, lambda number=number: len(held) > number, f"delivery {number}")
            channel.basic_ack(held[number].delivery_tag)
        equal([m.body for m in held], [f"{number}" for number in range(60)], "bodies")
    return "60 in order, never more than 10 held"


def channel_error(given: Given) -> str:
    with connected(given.url) as connection:
        channel = connection.channel()
        try:
            channel.queue_declare(given.name("missing"), passive=True)
        except NotFound as error:
            equal(error.reply_code, 404, "code")
            text = error.reply_text
        else:
            raise AssertionError("a queue that is not there was found")
        connection.channel().queue_declare(given.name("here"), exclusive=True)
    return text


def topic(given: Given) -> None:
    """Through a second exchange."""
    with opened(given.url) as channel:
        first, second = given.name("topic"), given.name("inner")
        channel.exchange_declare(first, "topic", auto_delete=True)
        channel.exchange_declare(second, "fanout", auto_delete=True)
        name = channel.queue_declare("", exclusive=True).queue
        channel.queue_bind(name, second)
        channel.exchange_bind(second, first, "*.b.#")
        for key in ("a.b", "a.c", "x.b.y.z", "b"):
            channel.basic_publish_confirm(Message(key), exchange=first, routing_key=key)
        found = []
        while (message := channel.basic_get(name, no_ack=True)) is not None:
            found.append(message.body)
        equal(found, ["a.b", "x.b.y.z"], "keys that match")


def exclusive(given: Given) -> None:
    with opened(given.url) as channel, opened(given.url) as other:
        name = channel.queue_declare("", exclusive=True).queue
        equal(name.startswith("amq.gen-"), True, "the server named it")
        with contextlib.suppress(ResourceLocked):
            other.queue_declare(name, passive=True)
            raise AssertionError("another connection may use an exclusive queue")


def mandatory(given: Given) -> None:
    with opened(given.url) as channel:
        returned: list[Any] = []
        channel.events["basic_return"].add(lambda *fields: returned.append(fields))
        channel.basic_publish_confirm(
            Message("back"), routing_key=given.name("nowhere"), mandatory=True
        )
        # The return comes before the confirm.
        ((error, _exchange, _key, message),) = returned
        equal(error.reply_code, 312, "code")
        equal(message.body, "back", "body")


def get(given: Given) -> None:
    with queue(given, "get") as (channel, name):
        equal(channel.basic_get(name), None, "the empty queue")
        publish(channel, name, "one")
        message = channel.basic_get(name)
        assert message is not None
        equal((message.body, message.delivery_info["redelivered"]), ("one", False), "first")
        channel.basic_ack(message.delivery_tag)


def headers(given: Given) -> str:
    with queue(given, "headers") as (channel, name):
        body = bytes(range(256))
        publish(
            channel, name, body, application_headers=ALL_TYPES, priority=5, message_id="m",
            delivery_mode=2, expiration="600000", user_id="guest",
        )  # fmt: skip
        message = channel.basic_get(name, no_ack=True)
        assert message is not None
        equal(message.body, body, "body")
        for key, value in ALL_TYPES.items():
            equal(message.headers[key], value, f"header {key}")
        found = {key: message.properties[key] for key in ("priority", "message_id", "expiration")}
        equal(found, {"priority": 5, "message_id": "m", "expiration": "600000"}, "properties")
    return f"{len(ALL_TYPES)} headers"


def cancel(given: Given) -> None:
    with opened(given.url) as channel, opened(given.url) as other:
        name = given.name("cancel")
        channel.queue_declare(name, durable=True, auto_delete=False)
        cancelled: list[str] = []
        tag = channel.basic_consume(name, on_cancel=cancelled.append)
        other.queue_delete(name)
        works(channel, lambda: cancelled, "cancel notification")
        equal(cancelled, [tag], "cancelled")


def tx(given: Given) -> None:
    with queue(given, "tx") as (channel, name), opened(given.url) as other:
        channel.tx_select()
        channel.basic_publish(Message("dropped"), routing_key=name)
        channel.tx_rollback()
        channel.basic_publish(Message("kept"), routing_key=name)
        equal(other.queue_declare(name, passive=True).message_count, 0, "before the commit")
        channel.tx_commit()
        equal(other.queue_declare(name, passive=True).message_count, 1, "after the commit")


def large(given: Given) -> str:
    with queue(given, "large") as (channel, name):
        body = bytes(range(251)) * 4178
        publish(channel, name, body)
        message = channel.basic_get(name, no_ack=True)
        equal(message and message.body, body, "body")
    return f"{len(body):,} bytes"


def heartbeat(given: Given) -> str:
    with connected(given.url, heartbeat=2) as connection:
        channel = connection.channel()
        for _ in range(10):
            time.sleep(0.5)
            connection.heartbeat_tick()
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.01)
        channel.queue_declare("", exclusive=True)
    return "idle for 5 s at 2 s"


def requeue(given: Given) -> None:
    with queue(given, "requeue") as (channel, name):
        publish(channel, name, "again")
        message = channel.basic_get(name)
        assert message is not None
        channel.basic_reject(message.delivery_tag, requeue=True)
        message = channel.basic_get(name)
        assert message is not None
        equal(message.delivery_info["redelivered"], True, "redelivered after reject")
        channel.basic_recover(requeue=True)
        message = channel.basic_get(name)
        assert message is not None
        equal(message.delivery_info["redelivered"], True, "redelivered after recover")


def failover(given: Given) -> str:
    name = given.name("failover")
    with opened(given.url) as channel:
        channel.queue_declare(name, durable=True, auto_delete=False, arguments=program.REPLICATED)

    @contextlib.contextmanager
    def publisher(url: str) -> Iterator[Callable[[bytes], Any]]:
        with opened(url, read_timeout=30) as channel:
            yield lambda body: publish(channel, name, body, delivery_mode=2)

    def drain(url: str, took: Callable[[bytes], bool]) -> None:
        with opened(url) as channel:
            done: list[bool] = []

            def take(message: Message) -> None:
                channel.basic_ack(message.delivery_tag)
                done.append(took(bytes(message.body)))

            channel.basic_qos(0, 20, False)
            channel.basic_consume(name, callback=take)
            works(channel, lambda: any(done), "all that is confirmed")
            channel.queue_delete(name)

    return program.failover(given, name, publisher, drain)


if __name__ == "__main__":
    program.run(vars())
