"""One pika client of a benchmark, in a process of its own; writes lines as
`tests.acceptance.bench.worker`.
"""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any

import pika

from tests.acceptance.bench.amqp_works import PikaConsume, PikaPublish
from tests.acceptance.bench.worker import HEAD, Progress, say
from tests.acceptance.bench.workers import Outcome

SAMPLES_MAX = 20_000


class Client(ABC):
    """Counts until all is done, then reports."""

    def __init__(self, port: int, count: int) -> None:
        self.count = count
        self.progress = Progress()
        self.latencies_ms: list[float] = []
        self.start_s = self.end_s = 0.0
        self._sample_every = count // SAMPLES_MAX + 1
        parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
        # pika's own annotations do not hold.
        self.connection: Any = pika.SelectConnection(parameters, self.connected)

    def connected(self, connection: Any) -> None:
        connection.channel(on_open_callback=self.opened)

    @abstractmethod
    def opened(self, channel: Any) -> None: ...

    def begin(self) -> None:
        say({"done": 0})
        self.start_s = time.monotonic()

    def sample(self, number: int, ms: float) -> None:
        if number % self._sample_every == 0:
            self.latencies_ms.append(ms)

    def run(self) -> Outcome:
        self.connection.ioloop.start()
        return Outcome(self.progress.done, self.start_s, self.end_s, self.latencies_ms)

    def finish(self) -> None:
        self.end_s = time.monotonic()
        self.connection.ioloop.stop()


class Publisher(Client):
    def __init__(self, work: PikaPublish) -> None:
        super().__init__(work.port, work.count)
        self.work = work
        self.pad = b"x" * (work.size - HEAD.size)
        self.sent_ns: dict[int, int] = {}
        self.next = 1
        self.low = 1
        self.same = pika.BasicProperties(delivery_mode=2)

    def opened(self, channel: Any) -> None:
        def begun(_: Any) -> None:
            self.begin()
            self.fill(channel)

        def confirmed(frame: Any) -> None:
            self.confirmed(channel, frame)

        channel.confirm_delivery(confirmed, callback=begun)

    def fill(self, channel: Any) -> None:
        while self.next <= self.count and len(self.sent_ns) < self.work.window:
            number, now_ns = self.next, time.monotonic_ns()
            self.next += 1
            self.sent_ns[number] = now_ns
            properties = self.same
            if self.work.message_ids:
                properties = pika.BasicProperties(delivery_mode=2, message_id=f"id-{number}")
            body = HEAD.pack(number, now_ns) + self.pad
            channel.basic_publish("", self.work.queue, body, properties)

    def confirmed(self, channel: Any, frame: Any) -> None:
        tag, now_ns = frame.method.delivery_tag, time.monotonic_ns()
        first = self.low if frame.method.multiple else tag
        before = len(self.sent_ns)
        for each in range(first, tag + 1):
            sent_ns = self.sent_ns.pop(each, None)
            if sent_ns is not None:
                self.sample(each, (now_ns - sent_ns) / 1e6)
        if frame.method.multiple:
            self.low = tag + 1
        self.progress.add(before - len(self.sent_ns))
        if self.progress.done >= self.count:
            self.finish()
        else:
            self.fill(channel)


class Consumer(Client):
    def __init__(self, work: PikaConsume) -> None:
        super().__init__(work.port, work.count)
        self.work = work

    def opened(self, channel: Any) -> None:
        channel.basic_qos(prefetch_count=self.work.prefetch)
        self.begin()
        channel.basic_consume(self.work.queue, self.got)

    def got(self, channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        if self.progress.done == self.count:
            return
        self.sample(self.progress.done, (time.monotonic_ns() - HEAD.unpack_from(body)[1]) / 1e6)
        self.progress.add(1)
        done, every = self.progress.done, self.work.ack_every
        if done % every == 0 or done == self.count:
            channel.basic_ack(method.delivery_tag, multiple=every > 1)
        if done == self.count:
            channel.add_on_close_callback(self.closed)
            channel.close()  # its answer says that the acks came

    def closed(self, *_: Any) -> None:
        self.finish()


def main() -> None:
    fields = json.loads(sys.argv[1])
    if fields["verb"] == "publish":
        client: Client = Publisher(PikaPublish(**fields))
    else:
        client = Consumer(PikaConsume(**fields))
    say(asdict(client.run()))


if __name__ == "__main__":
    main()
