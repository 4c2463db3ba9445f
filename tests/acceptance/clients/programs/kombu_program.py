"""kombu over py-amqp: declared entities, retries, a list of brokers that it tries in turn."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from kombu import Connection, Consumer, Exchange, Message, Producer, Queue

from tests.acceptance.clients.programs import program
from tests.acceptance.clients.programs.program import Given, equal, until


def connected(urls: list[str], **options: Any) -> Connection:
    return Connection(
        ";".join(urls), transport_options={"confirm_publish": True}, connect_timeout=10, **options
    )


@contextlib.contextmanager
def queue(given: Given, what: str, **options: Any) -> Iterator[tuple[Connection, Queue]]:
    with connected([given.url]) as connection:
        made = Queue(given.name(what), channel=connection, **options)
        made.declare()
        try:
            yield connection, made
        finally:
            Queue(made.name, channel=connection.channel()).delete()


def drains(connection: Connection, until_true: Callable[[], Any], what: str) -> None:
    def step() -> None:
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.05)

    until(until_true, what, step=step)


def confirms(given: Given) -> str:
    with queue(given, "confirms") as (connection, made):
        producer = Producer(connection)
        for number in range(200):
            producer.publish({"number": number}, routing_key=made.name)
        equal(made.queue_declare(passive=True).message_count, 200, "messages in the queue")
    return "200 confirmed"


def acks(given: Given) -> str:
    with queue(given, "acks") as (connection, made):
        producer = Producer(connection)
        for number in range(60):
            producer.publish({"number": number}, routing_key=made.name)
        held: list[Message] = []
        consumer = Consumer(connection, [made], on_message=held.append, prefetch_count=10)
        with consumer:
            drains(connection, lambda: len(held) >= 10, "ten deliveries")
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.2)
            equal(len(held), 10, "deliveries while none is acknowledged")
            for number in range(60):
                drains(connection, lambda number=number: len(held) > number, f"{number}")
                held[number].ack()
        equal([m.payload["number"] for m in held], list(range(60)), "bodies")
    return "60 in order, never more than 10 held"


def channel_error(given: Given) -> str:
    with connected([given.url]) as connection:
        missing = Queue(given.name("missing"), channel=connection)
        try:
            missing.queue_declare(passive=True)
        except connection.channel_errors as error:
            text = str(error)
            equal(error.code, 404, "code")
        else:
            raise AssertionError("a queue that is not there was found")
        Queue(given.name("here"), channel=connection.channel(), exclusive=True).declare()
    return text


def topic(given: Given) -> None:
    with connected([given.url]) as connection:
        exchange = Exchange(given.name("topic"), "topic", durable=False, auto_delete=True)
        made = Queue(given.name("topic"), exchange, "*.b.#", exclusive=True, channel=connection)
        made.declare()
        producer = Producer(connection, exchange)
        for key in ("a.b", "a.c", "x.b.y.z", "b"):
            producer.publish(key, routing_key=key)
        found = []
        while (message := made.get(no_ack=True)) is not None:
            found.append(message.payload)
        equal(found, ["a.b", "x.b.y.z"], "keys that match")


def get(given: Given) -> None:
    """SimpleQueue."""
    with connected([given.url]) as connection:
        simple = connection.SimpleQueue(given.name("simple"))
        with contextlib.closing(simple):
            simple.put({"hello": "world"}, compression="zlib")
            message = simple.get(timeout=program.WAIT_S_MAX)
            equal(message.payload, {"hello": "world"}, "payload")
            message.ack()
        Queue(simple.queue.name, channel=connection).delete()


def headers(given: Given) -> None:
    sent = {"long": 2**40, "double": 0.1, "table": {"list": [1, "two", None]}, "void": None}
    with queue(given, "headers", max_priority=5) as (connection, made):
        Producer(connection).publish(b"\x00\xff", routing_key=made.name, headers=sent, priority=3)
        message = made.get(no_ack=True)
        assert message is not None
        equal(message.body, b"\x00\xff", "body")
        equal({key: message.headers[key] for key in sent}, sent, "headers")


def requeue(given: Given) -> None:
    with queue(given, "requeue") as (connection, made):
        Producer(connection).publish("again", routing_key=made.name)
        made.get().requeue()
        message = made.get()
        equal(message.delivery_info["redelivered"], True, "redelivered after requeue")
        message.reject()
        equal(made.get(), None, "the queue after reject")


def heartbeat(given: Given) -> str:
    with connected([given.url], heartbeat=2) as connection:
        connection.connect()
        for _ in range(10):
            time.sleep(0.5)
            connection.heartbeat_check(rate=4)
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.01)
        Queue(given.name("alive"), channel=connection, exclusive=True).declare()
    return "idle for 5 s at 2 s"


def failover(given: Given) -> str:
    """kombu reconnects by itself, to the next of its addresses, and publishes again."""
    name = given.name("failover")
    made = Queue(name, queue_arguments=program.REPLICATED)
    with connected([given.url]) as connection:
        made(connection).declare()
    state = program.Failover(given.led(name))
    with connected(state.urls) as connection:

        def lost(error: BaseException, _interval: float) -> None:
            state.lost(error)

        producer = Producer(connection)
        policy = {"interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.5}
        while not state.done:
            producer.publish(
                state.next,
                routing_key=name,
                delivery_mode=2,
                retry=True,
                retry_policy={**policy, "max_retries": 100, "errback": lost},
            )
            state.confirm(given, name)
    seen: list[bytes] = []

    def take(message: Message) -> None:
        seen.append(bytes(message.body))
        message.ack()

    with connected(state.urls[1:]) as connection:
        made = made(connection)
        with Consumer(connection, [made], on_message=take, prefetch_count=20):
            drains(connection, lambda: set(state.confirmed) <= set(seen), "all that is confirmed")
        made.delete()
    return state.verdict(seen)


if __name__ == "__main__":
    program.run(vars())
