"""pika's BlockingConnection."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from tests.acceptance.clients.programs import program
from tests.acceptance.clients.programs.program import Given, equal, until

#: pika encodes no floats.
ALL_TYPES = {
    "true": True,
    "integer": -(2**31),
    "long": 2**62,
    "decimal": decimal.Decimal("3.1415"),
    "text": "zażółć ☃",
    "bytes": b"\x00\xff",
    "time": dt.datetime(2024, 2, 29, 12, 30, 45, tzinfo=dt.UTC),
    "table": {"nested": {"deep": [1, "two", None]}},
    "list": [False, 2**40, {"in": "list"}, b"raw"],
    "void": None,
}


@contextlib.contextmanager
def opened(url: str, **options: Any) -> Iterator[BlockingChannel]:
    parameters = pika.URLParameters(url)
    for name, value in options.items():
        setattr(parameters, name, value)
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection.channel()
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


@contextlib.contextmanager
def queue(given: Given, what: str, **options: Any) -> Iterator[tuple[BlockingChannel, str]]:
    with opened(given.url) as channel:
        name = given.name(what)
        channel.queue_declare(name, durable=True, **options)
        try:
            yield channel, name
        finally:
            channel.connection.channel().queue_delete(name)


def works(channel: BlockingChannel, until_true: Callable[[], Any], what: str) -> None:
    until(until_true, what, step=lambda: channel.connection.process_data_events(0.05))


def confirms(given: Given) -> str:
    with queue(given, "confirms") as (channel, name):
        channel.confirm_delivery()
        for number in range(200):
            channel.basic_publish("", name, b"%d" % number, mandatory=True)
        found = channel.queue_declare(name, passive=True).method.message_count
        equal(found, 200, "messages in the queue")
    return "200 confirmed"


def acks(given: Given) -> str:
    with queue(given, "acks") as (channel, name):
        channel.confirm_delivery()
        for number in range(60):
            channel.basic_publish("", name, b"%d" % number)
        channel.basic_qos(prefetch_count=10)
        held: list[tuple[int, bytes]] = []
        channel.basic_consume(name, lambda _c, m, _p, body: held.append((m.delivery_tag, body)))
        works(channel, lambda: len(held) >= 10, "ten deliveries")
        channel.connection.process_data_events(0.2)
        equal(len(held), 10, "deliveries while none is acknowledged")
        while len(held) < 60:
            count = len(held)
            channel.basic_ack(held[-1][0], multiple=True)
            works(channel, lambda count=count: len(held) > count, "more after an acknowledgement")
        channel.basic_ack(held[-1][0], multiple=True)
        equal([body for _, body in held], [b"%d" % number for number in range(60)], "bodies")
    return "60 in order, never more than 10 held"


def channel_error(given: Given) -> str:
    with opened(given.url) as channel:
        try:
            channel.queue_declare(given.name("missing"), passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            equal(error.reply_code, 404, "code")
            text = error.reply_text
        else:
            raise AssertionError("a queue that is not there was found")
        equal(channel.is_closed, True, "the channel is closed")
        again = channel.connection.channel()
        again.queue_declare(given.name("here"), exclusive=True)
    return text


def topic(given: Given) -> None:
    with opened(given.url) as channel:
        exchange = given.name("topic")
        channel.exchange_declare(exchange, "topic", auto_delete=True)
        keys = ("a.b", "a.b.c", "x.b", "a", "")
        patterns = {"a.*": ["a.b"], "#": list(keys), "*.b.#": ["a.b", "a.b.c", "x.b"]}
        queues = {}
        for pattern in patterns:
            queues[pattern] = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(queues[pattern], exchange, pattern)
        channel.confirm_delivery()
        for key in keys:
            channel.basic_publish(exchange, key, key.encode())
        for pattern, wanted in patterns.items():
            found = []
            while (got := channel.basic_get(queues[pattern], auto_ack=True))[0] is not None:
                found.append(got[2].decode())
            equal(found, wanted, f"keys that match {pattern}")


def rpc(given: Given) -> str:
    with opened(given.url) as server, opened(given.url) as client:
        name = server.queue_declare(given.name("rpc"), exclusive=False, auto_delete=True)
        name = name.method.queue

        def serve(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
            equal(properties.reply_to.startswith("amq.rabbitmq.reply-to."), True, "reply-to")
            answer = pika.BasicProperties(correlation_id=properties.correlation_id)
            channel.basic_publish("", properties.reply_to, body.upper(), answer)
            channel.basic_ack(method.delivery_tag)

        server.basic_consume(name, serve)
        answers: dict[str, bytes] = {}
        client.basic_consume(
            "amq.rabbitmq.reply-to",
            lambda _c, _m, p, body: answers.update({p.correlation_id: body}),
            auto_ack=True,
        )
        for number in range(10):
            properties = pika.BasicProperties(
                reply_to="amq.rabbitmq.reply-to", correlation_id=str(number)
            )
            client.basic_publish("", name, b"ask %d" % number, properties)
            client.connection.process_data_events(0)
            works(server, lambda: server.connection.process_data_events(0.02) is None, "serving")
        works(client, lambda: len(answers) == 10, "ten answers")
        equal(answers["7"], b"ASK 7", "answer")
    return "10 answers through amq.rabbitmq.reply-to"


def found(channel: BlockingChannel, name: str) -> bool:
    try:
        channel.connection.channel().queue_declare(name, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    return True


def exclusive(given: Given) -> str:
    with opened(given.url) as channel:
        name = channel.queue_declare("", exclusive=True).method.queue
        equal(name.startswith("amq.gen-"), True, f"{name} was named by the server")
        with opened(given.url) as other:
            try:
                other.queue_declare(name, passive=True)
            except pika.exceptions.ChannelClosedByBroker as error:
                equal(error.reply_code, 405, "code for another connection")
            else:
                raise AssertionError("another connection may use an exclusive queue")
    with opened(given.url) as channel:
        until(lambda: not found(channel, name), "the queue goes with its connection")
    return "amq.gen-..., gone with its connection"


def mandatory(given: Given) -> str:
    with opened(given.url) as channel:
        channel.confirm_delivery()
        try:
            channel.basic_publish("", given.name("nowhere"), b"back", mandatory=True)
        except pika.exceptions.UnroutableError as error:
            (returned,) = error.messages
        else:
            raise AssertionError("nothing was returned")
        equal(returned.method.reply_code, 312, "code")
        equal(returned.body, b"back", "body")
        channel.basic_publish("", given.name("nowhere"), b"dropped")
    return returned.method.reply_text


def get(given: Given) -> None:
    with queue(given, "get") as (channel, name):
        equal(channel.basic_get(name)[0], None, "the empty queue")
        channel.confirm_delivery()
        channel.basic_publish("", name, b"one")
        channel.basic_publish("", name, b"two")
        method, _, body = channel.basic_get(name)
        equal((body, method.message_count, method.redelivered), (b"one", 1, False), "first")
        channel.basic_ack(method.delivery_tag)
        equal(channel.basic_get(name, auto_ack=True)[2], b"two", "second")


def headers(given: Given) -> str:
    with queue(given, "headers") as (channel, name):
        channel.confirm_delivery()
        sent = pika.BasicProperties(
            content_type="application/x-test",
            content_encoding="none",
            headers=ALL_TYPES,
            delivery_mode=2,
            priority=5,
            correlation_id="c",
            reply_to="r",
            expiration="600000",
            message_id="m",
            timestamp=1700000000,
            type="t",
            user_id="guest",
            app_id="a",
        )
        body = bytes(range(256))
        channel.basic_publish("", name, body, sent)
        _, properties, found = channel.basic_get(name, auto_ack=True)
        equal(found, body, "body")
        for key, value in ALL_TYPES.items():
            equal(properties.headers[key], value, f"header {key}")
        equal(list(properties.headers), list(ALL_TYPES), "order of headers")
        equal(vars(properties), vars(sent), "properties")
    return f"{len(ALL_TYPES)} headers, 14 properties"


def cancel(given: Given) -> None:
    with opened(given.url) as channel:
        name = given.name("cancel")
        channel.queue_declare(name, durable=True)
        cancelled: list[str] = []
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        tag = channel.basic_consume(name, lambda *_: None)
        with opened(given.url) as other:
            other.queue_delete(name)
        works(channel, lambda: cancelled, "cancel notification")
        equal(cancelled, [tag], "cancelled")
        equal(channel.is_open, True, "the channel stays open")


def tx(given: Given) -> None:
    with queue(given, "tx") as (channel, name), opened(given.url) as other:

        def count() -> int:
            return other.queue_declare(name, passive=True).method.message_count

        channel.tx_select()
        channel.basic_publish("", name, b"dropped")
        channel.tx_rollback()
        channel.basic_publish("", name, b"kept")
        channel.basic_publish("", name, b"kept too")
        equal(count(), 0, "messages before the commit")
        channel.tx_commit()
        equal(count(), 2, "messages after the commit")
        method, _, body = channel.basic_get(name)
        equal(body, b"kept", "first message")
        channel.basic_ack(method.delivery_tag)
        channel.tx_rollback()
        channel.basic_ack(method.delivery_tag)
        channel.tx_commit()
        equal(count(), 1, "messages after the acknowledgement is committed")


def large(given: Given) -> str:
    with queue(given, "large") as (channel, name):
        channel.confirm_delivery()
        body = bytes(range(251)) * 4178
        channel.basic_publish("", name, body)
        equal(channel.basic_get(name, auto_ack=True)[2], body, "body")
    return f"{len(body):,} bytes"


def heartbeat(given: Given) -> str:
    with opened(given.url, heartbeat=1) as channel:
        channel.connection.process_data_events(4)
        channel.queue_declare("", exclusive=True)
    return "idle for 4 s at 1 s"


def requeue(given: Given) -> None:
    with queue(given, "requeue") as (channel, name):
        channel.confirm_delivery()
        channel.basic_publish("", name, b"again")
        method, _, _ = channel.basic_get(name)
        equal(method.redelivered, False, "redelivered at first")
        channel.basic_nack(method.delivery_tag, requeue=True)
        method, _, _ = channel.basic_get(name)
        equal(method.redelivered, True, "redelivered after nack")
        channel.basic_reject(method.delivery_tag, requeue=False)
        equal(channel.basic_get(name)[0], None, "the queue after reject")


def dead_letter(given: Given) -> str:
    exchange, dead = given.name("dlx"), given.name("dead")
    with queue(given, "dead") as (channel, _):
        channel.exchange_declare(exchange, "fanout", auto_delete=True)
        channel.queue_bind(dead, exchange)
        arguments = {"x-message-ttl": 50, "x-dead-letter-exchange": exchange}
        with queue(given, "short", arguments=arguments) as (other, short):
            other.confirm_delivery()
            other.basic_publish("", short, b"late")
            got: list[Any] = []

            def arrived() -> bool:
                got[:] = channel.basic_get(dead, auto_ack=True)
                return got[0] is not None

            until(arrived, "the dead letter")
    (death,) = got[1].headers["x-death"]
    equal(got[2], b"late", "body")
    equal(
        {key: death[key] for key in ("reason", "queue", "exchange", "routing-keys", "count")},
        {"reason": "expired", "queue": short, "exchange": "", "routing-keys": [short], "count": 1},
        "x-death",
    )
    equal(got[1].headers["x-first-death-reason"], "expired", "x-first-death-reason")
    return "expired, with x-death"


def failover(given: Given) -> str:
    name = given.name("failover")
    with opened(given.url) as channel:
        channel.queue_declare(name, durable=True, arguments=program.REPLICATED)

    @contextlib.contextmanager
    def publisher(url: str) -> Iterator[Callable[[bytes], Any]]:
        with opened(url, blocked_connection_timeout=30, socket_timeout=5) as channel:
            channel.confirm_delivery()
            yield lambda body: channel.basic_publish(
                "", name, body, pika.BasicProperties(delivery_mode=2), mandatory=True
            )

    def drain(url: str, took: Callable[[bytes], bool]) -> None:
        with opened(url) as channel:
            channel.basic_qos(prefetch_count=20)
            for method, _, body in channel.consume(name, inactivity_timeout=program.WAIT_S_MAX):
                if method is None:
                    break
                channel.basic_ack(method.delivery_tag)
                if took(body):
                    break
            channel.cancel()
            channel.queue_delete(name)

    return program.failover(given, name, publisher, drain)


STREAM = {"x-queue-type": "stream"}


@contextlib.contextmanager
def reading(url: str, name: str, **arguments: Any) -> Iterator[list[tuple[int, bytes]]]:
    """Offsets and bodies that a consumer in a thread of its own gets."""
    found: list[tuple[int, bytes]] = []
    begun, ends = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def read() -> None:
        try:
            with opened(url) as channel:
                channel.basic_qos(prefetch_count=20)
                channel.basic_consume(name, take, arguments=arguments)
                begun.set()
                while not ends.is_set():
                    channel.connection.process_data_events(0.05)
        except pika.exceptions.AMQPError as error:
            failed.append(error)
            begun.set()

    def take(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        found.append((properties.headers["x-stream-offset"], body))
        channel.basic_ack(method.delivery_tag)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    begun.wait(program.WAIT_S_MAX)
    try:
        yield found
    finally:
        ends.set()
        thread.join()
    equal(failed, [], "errors of a consumer")


def until_count(found: list[Any], count: int, what: str) -> None:
    until(lambda: len(found) >= count, what)


def streams(given: Given) -> str:
    with queue(given, "streams", arguments=STREAM) as (channel, name):
        channel.confirm_delivery()
        for number in range(20):
            if number == 10:
                time.sleep(1.1)  # a timestamp has seconds
                moment = dt.datetime.now(dt.UTC).replace(microsecond=0)
            headers = {"x-stream-filter-value": "odd" if number % 2 else "even"}
            properties = pika.BasicProperties(headers=headers)
            channel.basic_publish("", name, b"%d" % number, properties)
        wanted: list[tuple[dict[str, Any], list[int]]] = [
            ({"x-stream-offset": "first"}, list(range(21))),
            ({"x-stream-offset": "last"}, [19, 20]),
            ({"x-stream-offset": "next"}, [20]),
            ({}, [20]),
            ({"x-stream-offset": 15}, list(range(15, 21))),
            ({"x-stream-offset": moment}, list(range(10, 21))),
            ({"x-stream-offset": "1h"}, list(range(21))),
            ({"x-stream-offset": "first", "x-stream-filter": "odd"}, list(range(1, 20, 2))),
        ]
        with contextlib.ExitStack() as stack:
            found = [
                stack.enter_context(reading(given.url, name, **arguments))
                for arguments, _ in wanted
            ]
            channel.basic_publish("", name, b"20")
            for (arguments, offsets), each in zip(wanted, found, strict=True):
                until_count(each, len(offsets), f"messages of {arguments}")
                expected = [(offset, b"%d" % offset) for offset in offsets]
                equal(each, expected, f"messages of {arguments}")
    return f"{len(wanted)} readers, each from its own place"


def streams_kill(given: Given) -> str:
    name = given.name("streams-kill")
    with opened(given.url) as channel:
        channel.queue_declare(name, durable=True, arguments=STREAM)

    @contextlib.contextmanager
    def publisher(url: str) -> Iterator[Callable[[bytes], Any]]:
        with opened(url, blocked_connection_timeout=30, socket_timeout=5) as channel:
            channel.confirm_delivery()
            yield lambda body: channel.basic_publish("", name, body)

    survivors = given.led(name)[1:]
    with contextlib.ExitStack() as stack:
        readers = [
            stack.enter_context(reading(url, name, **{"x-stream-offset": "first"}))
            for url in survivors
        ]

        def drain(_: str, took: Callable[[bytes], bool]) -> None:
            for at in itertools.count():
                until_count(readers[0], at + 1, f"message {at}")
                if took(readers[0][at][1]):
                    return

        detail = program.failover(given, name, publisher, drain)
        until(lambda: len({len(each) for each in readers}) == 1, "all readers at the end")
        for each in readers:
            equal(each, readers[0], "what another reader got")
            equal([offset for offset, _ in each], list(range(len(each))), "offsets")
    with opened(survivors[0]) as channel:
        channel.queue_delete(name)
    return f"{detail}; {len(readers)} readers that stayed connected: in order, no gap, none again"


if __name__ == "__main__":
    program.run(vars())
