"""Clients that do nothing wrong, and so must not notice what others do."""

# pyright: basic
from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from quorate.local import LocalNode

EVERY_S = 0.02
ACK_S_MAX = 60.0
DRAIN_S_MAX = 60.0
BATCH = 50


@dataclass
class SteadyNats:
    """Through each node: a publisher into a stream with acks, a reader of the stream that another
    node's clients publish into, and one that answers requests of the first.
    """

    nodes: list[LocalNode]
    findings: list[str] = field(default_factory=list)
    _clients: dict[str, Client] = field(default_factory=dict)
    _stored: dict[str, set[int]] = field(default_factory=dict)
    _seen: dict[str, set[int]] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _slowest_ack_s: float = 0.0
    _answered: int = 0
    _redelivered: int = 0
    _drained: bool = False
    _stopping: bool = False

    @property
    def connections_a_node(self) -> int:
        return 3

    @property
    def listed(self) -> dict[str, int]:
        return {"connections": 3 * len(self.nodes), "channels": 0}

    @property
    def facts(self) -> dict[str, object]:
        return {
            "stored by well-behaved clients": sum(map(len, self._stored.values())),
            "their slowest ack": f"{self._slowest_ack_s * 1000:.0f} ms",
            "their requests that were answered": self._answered,
            "delivered to them again": self._redelivered,
        }

    async def start(self) -> None:
        for index, node in enumerate(self.nodes):
            stream = f"well-behaved-{index}"
            self._stored[stream], self._seen[stream] = set(), set()
            publisher = await self._connect(f"publisher of {stream}", node)
            js = publisher.jetstream()
            await js.add_stream(name=stream, subjects=[f"{stream}.>"], num_replicas=3)
            reader = await self._connect(
                f"reader of {stream}", self.nodes[(index + 1) % len(self.nodes)]
            )
            answering = await self._connect(f"service at {node.name}", node)
            await answering.subscribe(f"service.{node.name}", queue="well-behaved", cb=_echo)
            await answering.flush()
            for work in (
                self._publish(publisher, stream),
                self._ask(publisher, f"service.{node.name}"),
                self._read(reader, stream),
            ):
                self._tasks.append(asyncio.create_task(work, name=stream))

    async def _connect(self, what: str, node: LocalNode) -> Client:
        async def ended(*why: object) -> None:
            if not self._stopping:
                self.findings.append(f"the connection of the {what}: {why or 'ended'}")

        client = await nats.connect(
            f"nats://guest:guest@127.0.0.1:{node.nats}",
            allow_reconnect=False,
            error_cb=ended,
            disconnected_cb=ended,
        )
        self._clients[what] = client
        return client

    async def _publish(self, client: Client, stream: str) -> None:
        js, number = client.jetstream(timeout=ACK_S_MAX), 0
        while not self._drained:
            started_s = time.monotonic()
            try:
                ack = await js.publish(
                    f"{stream}.x", b"%d" % number, headers={"Nats-Msg-Id": f"{number}"}
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, we did nothing to deserve it
                self.findings.append(f"a publish to {stream} failed: {error!r}")
                return
            if ack.seq != number + 1 or ack.duplicate:
                self.findings.append(f"message {number} of {stream} was acked with {ack}")
            self._stored[stream].add(number)
            self._slowest_ack_s = max(self._slowest_ack_s, time.monotonic() - started_s)
            number += 1
            await asyncio.sleep(EVERY_S)

    async def _ask(self, client: Client, subject: str) -> None:
        while not self._drained:
            try:
                answer = await client.request(subject, b"?", timeout=ACK_S_MAX)
            except Exception as error:  # noqa: BLE001 - as above
                self.findings.append(f"a request to {subject} failed: {error!r}")
                return
            if answer.data != b"?":
                self.findings.append(f"a request to {subject} was answered with {answer.data!r}")
            self._answered += 1
            await asyncio.sleep(EVERY_S)

    async def _read(self, client: Client, stream: str) -> None:
        consumer = await client.jetstream().pull_subscribe(f"{stream}.>", durable="reader")
        while True:
            try:
                messages = await consumer.fetch(BATCH, timeout=1)
            except TimeoutError:  # of nats-py, in three kinds: none within the second
                continue
            except Exception as error:  # noqa: BLE001 - as above
                self.findings.append(f"the reader of {stream} failed: {error!r}")
                return
            for message in messages:
                self._redelivered += message.metadata.num_delivered > 1
                self._seen[stream].add(int(message.data))
                await message.ack()

    async def drain(self) -> None:
        """No more is published; what was acked must arrive."""
        self._drained = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S_MAX):
                while any(self._lost(stream) for stream in self._seen):
                    await asyncio.sleep(0.05)
        for stream in self._seen:
            if lost := self._lost(stream):
                self.findings.append(
                    f"{len(lost)} acked messages of {stream} did not arrive: {sorted(lost)[:5]}"
                )

    def _lost(self, stream: str) -> set[int]:
        return self._stored[stream] - self._seen[stream]

    async def stop(self) -> None:
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients.values():
            with contextlib.suppress(Exception):
                async with asyncio.timeout(5):
                    await client.close()


async def _echo(message: Msg) -> None:
    await message.respond(message.data)
