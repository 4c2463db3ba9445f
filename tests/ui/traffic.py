"""A small shop: what the page is looked at with."""

# pyright: basic
from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Generator

import pika
from pika.adapters.blocking_connection import BlockingChannel

KEYS = ("order.created", "order.paid", "order.shipped", "payment.received", "mail.welcome")
PAUSE_S = 0.02


def connected(port: int, name: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1", port, client_properties={"connection_name": name}, heartbeat=0
        )
    )


def declare(channel: BlockingChannel) -> None:
    channel.exchange_declare("shop", "topic", durable=True)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "payments.dead"}
    for queue, key, arguments in (
        ("orders", "order.*", {}),
        ("payments", "payment.*", dead),
        ("payments.dead", None, {}),
        ("invoices", "order.paid", {}),
        ("emails", "mail.#", {}),
        ("audit", "#", {"x-max-length": 5_000}),
    ):
        channel.queue_declare(queue, durable=True, arguments=arguments)
        if key is not None:
            channel.queue_bind(queue, "shop", key)


class Shop:
    """Publishes and consumes until it is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(run,), daemon=True)
            for run in (self._publish, self._work, self._reject)
        ]

    def start(self) -> None:
        with contextlib.closing(connected(self._port, "setup")) as connection:
            declare(connection.channel())
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join()

    def _run(self, work: object) -> None:
        assert callable(work)
        with contextlib.closing(connected(self._port, work.__name__.strip("_"))) as connection:
            work(connection)

    def _publish(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in itertools.count():
            if self._closing.is_set():
                return
            key = KEYS[number % len(KEYS)]
            body = json.dumps({"id": number, "kind": key, "customer": "ann", "total": 41.5})
            properties = pika.BasicProperties(
                delivery_mode=2, content_type="application/json", headers={"tenant": "eu"}
            )
            channel.basic_publish("shop", key, body.encode(), properties)
            wave = 1 + time.monotonic() / 10 % 2
            connection.sleep(PAUSE_S * wave)

    def _work(self, connection: pika.BlockingConnection) -> None:
        for channel, tag in self._taken(connection, "orders", "emails"):
            channel.basic_ack(tag)

    def _reject(self, connection: pika.BlockingConnection) -> None:
        for channel, tag in self._taken(connection, "payments"):
            channel.basic_reject(tag, requeue=False)

    def _taken(
        self, connection: pika.BlockingConnection, *queues: str
    ) -> Generator[tuple[BlockingChannel, int]]:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        tags: list[int] = []
        for queue in queues:
            channel.basic_consume(queue, lambda _, method, *__: tags.append(method.delivery_tag))
        while not self._closing.is_set():
            connection.sleep(PAUSE_S)
            while len(tags) > 2:  # the last ones stay in its hands
                yield channel, tags.pop(0)
