"""AMQPStorm: one thread reads, any number of threads use its channels."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import amqpstorm
from amqpstorm import AMQPChannelError, AMQPMessageError, Channel, Message, UriConnection

from tests.acceptance.clients.programs import program
from tests.acceptance.clients.programs.program import Given, equal, until


@contextlib.contextmanager
def opened(url: str, options: str = "heartbeat=60&timeout=20") -> Iterator[Channel]:
    connection = UriConnection(f"{url}?{options}")
    try:
        yield connection.channel(rpc_timeout=10)
    finally:
        with contextlib.suppress(amqpstorm.AMQPError):
            # Else the close of a lost connection waits for an answer.
            connection.check_for_errors()
            connection.close()


@contextlib.contextmanager
def queue(given: Given, what: str, **options: Any) -> Iterator[tuple[Channel, str]]:
    with opened(given.url) as channel:
        name = given.name(what)
        channel.queue.declare(name, durable=True, **options)
        try:
            yield channel, name
        finally:
            with opened(given.url) as other:
                other.queue.delete(name)


def count(channel: Channel, name: str) -> int:
    return channel.queue.declare(name, passive=True)["message_count"]


def confirms(given: Given) -> str:
    with queue(given, "confirms") as (channel, name):
        channel.confirm_deliveries()
        for number in range(200):
            equal(channel.basic.publish(f"{number}", name), True, f"confirm of {number}")
        equal(count(channel, name), 200, "messages in the queue")
    return "200 confirmed"


def acks(given: Given) -> str:
    with queue(given, "acks") as (channel, name):
        channel.confirm_deliveries()
        for number in range(60):
            channel.basic.publish(f"{number}", name)
        channel.basic.qos(10)
        held: list[Message] = []
        channel.basic.consume(held.append, name)
        work = channel.process_data_events
        until(lambda: len(held) >= 10, "ten deliveries", step=work)
        time.sleep(0.2)
        work()
        equal(len(held), 10, "deliveries while none is acknowledged")
        for number in range(60):
            until(lambda number=number: len(held) > number, f"delivery {number}", step=work)
            held[number].ack()
        equal([m.body for m in held], [f"{number}" for number in range(60)], "bodies")
    return "60 in order, never more than 10 held"


def channel_error(given: Given) -> str:
    connection = UriConnection(given.url)
    with connection:
        channel = connection.channel()
        try:
            channel.queue.declare(given.name("missing"), passive=True)
        except AMQPChannelError as error:
            equal(error.error_code, 404, "code")
            text = str(error)
        else:
            raise AssertionError("a queue that is not there was found")
        connection.channel().queue.declare(given.name("here"), exclusive=True)
    return text


def topic(given: Given) -> None:
    with opened(given.url) as channel:
        exchange = given.name("topic")
        channel.exchange.declare(exchange, "topic", auto_delete=True)
        name = channel.queue.declare("", exclusive=True)["queue"]
        channel.queue.bind(name, exchange, "*.b.#")
        channel.confirm_deliveries()
        for key in ("a.b", "a.c", "x.b.y.z", "b"):
            channel.basic.publish(key, key, exchange)
        found = []
        while (message := channel.basic.get(name, no_ack=True)) is not None:
            found.append(message.body)
        equal(found, ["a.b", "x.b.y.z"], "keys that match")


def rpc(given: Given) -> str:
    with opened(given.url) as server, opened(given.url) as client:
        name = server.queue.declare(given.name("rpc"), auto_delete=True)["queue"]

        def serve(message: Message) -> None:
            answer = {"correlation_id": message.correlation_id}
            server.basic.publish(message.body.upper(), message.reply_to, properties=answer)
            message.ack()

        server.basic.consume(serve, name)
        thread = threading.Thread(target=server.start_consuming, daemon=True)
        thread.start()
        answers: dict[str, str] = {}
        client.basic.consume(
            lambda m: answers.update({m.correlation_id: m.body}),
            "amq.rabbitmq.reply-to",
            no_ack=True,
        )
        for number in range(10):
            properties = {"reply_to": "amq.rabbitmq.reply-to", "correlation_id": str(number)}
            client.basic.publish(f"ask {number}", name, properties=properties)
        until(lambda: len(answers) == 10, "ten answers", step=client.process_data_events)
        equal(answers["7"], "ASK 7", "answer")
        server.close()
        thread.join(program.WAIT_S_MAX)
    return "10 answers through amq.rabbitmq.reply-to"


def exclusive(given: Given) -> None:
    with opened(given.url) as channel, opened(given.url) as other:
        name = channel.queue.declare("", exclusive=True)["queue"]
        equal(name.startswith("amq.gen-"), True, "the server named it")
        try:
            other.queue.declare(name, passive=True)
        except AMQPChannelError as error:
            equal(error.error_code, 405, "code for another connection")
        else:
            raise AssertionError("another connection may use an exclusive queue")


def mandatory(given: Given) -> str:
    with opened(given.url) as channel:
        channel.confirm_deliveries()
        try:
            channel.basic.publish("back", given.name("nowhere"), mandatory=True)
        except AMQPMessageError as error:
            equal(error.error_code, 312, "code")
            return str(error)
    raise AssertionError("nothing was returned")


def get(given: Given) -> None:
    with queue(given, "get") as (channel, name):
        equal(channel.basic.get(name), None, "the empty queue")
        channel.confirm_deliveries()
        channel.basic.publish("one", name)
        message = channel.basic.get(name)
        assert message is not None
        equal((message.body, message.redelivered), ("one", False), "first")
        message.ack()


def headers(given: Given) -> None:
    sent = {"long": 2**40, "double": 0.5, "table": {"list": [1, "two", None]}, "void": None}
    with queue(given, "headers") as (channel, name):
        channel.confirm_deliveries()
        body = bytes(range(256))
        properties = {"headers": sent, "priority": 5, "message_id": "m", "delivery_mode": 2}
        channel.basic.publish(body, name, properties=properties)
        message = channel.basic.get(name, no_ack=True, auto_decode=False)
        assert message is not None
        equal(message.body, body, "body")
        equal(message.properties["headers"], sent, "headers")
        equal(message.properties["priority"], 5, "priority")


def cancel(given: Given) -> None:
    with opened(given.url) as channel, opened(given.url) as other:
        name = given.name("cancel")
        channel.queue.declare(name, durable=True)
        channel.basic.consume(lambda _: None, name)
        other.queue.delete(name)
        until(lambda: not channel.consumer_tags, "cancel notification")
        channel.check_for_errors()


def tx(given: Given) -> None:
    with queue(given, "tx") as (channel, name), opened(given.url) as other:
        channel.tx.select()
        channel.basic.publish("dropped", name)
        channel.tx.rollback()
        channel.basic.publish("kept", name)
        equal(count(other, name), 0, "messages before the commit")
        channel.tx.commit()
        equal(count(other, name), 1, "messages after the commit")


def large(given: Given) -> str:
    with queue(given, "large") as (channel, name):
        channel.confirm_deliveries()
        body = bytes(range(251)) * 4178
        channel.basic.publish(body, name)
        message = channel.basic.get(name, no_ack=True, auto_decode=False)
        equal(message and message.body, body, "body")
    return f"{len(body):,} bytes"


def heartbeat(given: Given) -> str:
    with opened(given.url, "heartbeat=1") as channel:
        time.sleep(4)
        channel.queue.declare("", exclusive=True)
    return "idle for 4 s at 1 s"


def requeue(given: Given) -> None:
    with queue(given, "requeue") as (channel, name):
        channel.confirm_deliveries()
        channel.basic.publish("again", name)
        message = channel.basic.get(name)
        assert message is not None
        equal(message.redelivered, False, "redelivered at first")
        message.nack(requeue=True)
        message = channel.basic.get(name)
        assert message is not None
        equal(message.redelivered, True, "redelivered after nack")
        message.reject(requeue=False)
        equal(channel.basic.get(name), None, "the queue after reject")


def failover(given: Given) -> str:
    name = given.name("failover")
    with opened(given.url) as channel:
        channel.queue.declare(name, durable=True, arguments=program.REPLICATED)

    @contextlib.contextmanager
    def publisher(url: str) -> Iterator[Callable[[bytes], Any]]:
        # Only its heartbeat tells it that the other side is gone.
        with opened(url, "heartbeat=2") as channel:
            channel.confirm_deliveries()
            yield lambda body: channel.basic.publish(body, name, properties={"delivery_mode": 2})

    def drain(url: str, took: Callable[[bytes], bool]) -> None:
        with opened(url) as channel:
            done: list[bool] = []

            def take(message: Message) -> None:
                message.ack()
                done.append(took(message.body.encode()))

            channel.basic.qos(20)
            channel.basic.consume(take, name)
            until(lambda: any(done), "all that is confirmed", step=channel.process_data_events)
            channel.stop_consuming()
            channel.queue.delete(name)

    return program.failover(given, name, publisher, drain)


if __name__ == "__main__":
    program.run(vars())
