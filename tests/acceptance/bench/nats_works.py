"""Clients of NATS: one in C of our own, and NATS' own for Python."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass

import uvloop

from tests.acceptance.bench.amqp_works import c_client
from tests.acceptance.bench.worker import Progress, say
from tests.acceptance.bench.workers import Outcome


@dataclass(frozen=True)
class NatsPublish:
    """Keeps `window` messages unconfirmed."""

    port: int
    subject: str
    count: int = 0  # 0: until standard input is closed
    size: int = 100
    window: int = 1000

    def command(self) -> list[str]:
        return _c_client("publish", self.port, self.subject, self.count, self.size, self.window)


@dataclass(frozen=True)
class NatsPull:
    """Two pulls wait."""

    port: int
    stream: str
    consumer: str
    count: int
    batch: int = 100
    acks: bool = True  # each message

    def command(self) -> list[str]:
        verb = "pull" if self.acks else "read"
        return _c_client(verb, self.port, self.stream, self.consumer, self.count, self.batch)


@dataclass(frozen=True)
class NatsSend:
    """Core messages, as fast as the node reads them."""

    port: int
    subject: str
    count: int = 0
    size: int = 100

    def command(self) -> list[str]:
        return _c_client("send", self.port, self.subject, self.count, self.size)


@dataclass(frozen=True)
class NatsTake:
    """What comes of core messages. Latency is from client to client."""

    port: int
    subject: str
    count: int = 0

    def command(self) -> list[str]:
        return _c_client("take", self.port, self.subject, self.count)


def _c_client(*words: str | int) -> list[str]:
    return [c_client("nats_load.c"), *map(str, words)]


@dataclass(frozen=True)
class NatsPythonPublish:
    """The same by `publish_async` of nats-py, whose futures are awaited."""

    port: int
    subject: str
    size: int = 100
    window: int = 256
    count: int = 0

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.acceptance.bench.nats_works", json.dumps(asdict(self))]


async def publish(work: NatsPythonPublish) -> Outcome:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{work.port}")
    stream = client.jetstream()
    progress, body, latencies_ms = Progress(), b"x" * work.size, list[float]()
    stopping = False

    async def lane() -> None:
        while not stopping:
            sent_s = time.monotonic()
            await (await stream.publish_async(work.subject, body))
            latencies_ms.append((time.monotonic() - sent_s) * 1000)
            progress.add(1)

    say({"done": 0})
    start_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(work.window):
            group.create_task(lane())
        await asyncio.to_thread(sys.stdin.read)
        stopping = True
    end_s = time.monotonic()
    await client.close()
    return Outcome(progress.done, start_s, end_s, latencies_ms)


if __name__ == "__main__":
    say(asdict(uvloop.run(publish(NatsPythonPublish(**json.loads(sys.argv[1]))))))
