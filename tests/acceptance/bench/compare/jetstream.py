"""What is measured of brokers that speak NATS."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js import JetStreamContext, api

from tests.acceptance.bench.compare.brokers import (
    API_S_MAX,
    POLL_S,
    START_S_MAX,
    NatsContender,
    Quorate,
    stream_of,
)
from tests.acceptance.bench.compare.workloads import (
    SINGLES,
    WINDOW,
    Figures,
    Scale,
    idle,
    metered,
    native,
)
from tests.acceptance.bench.nats_works import (
    NatsPublish,
    NatsPull,
    NatsPythonPublish,
    NatsSend,
    NatsTake,
)
from tests.acceptance.bench.workers import run_all

PULLED = 100
READ_BYTES, READ_AT_ONCE = 1024, 500
KILLS = 3
PROBE_S = 0.01
GAP_S_MAX = 60.0
CONSUMERS_A_STREAM = 3
REQUESTS_AT_ONCE = 50


async def publish(broker: NatsContender, scale: Scale, *, window: int = WINDOW) -> Figures:
    """By the C client, which leaves the nodes more of the machine than a Python one."""
    async with broker.stream() as place:
        work = NatsPublish(place.leader, place.queue, window=window)
        _, figures = await metered(broker, [work], scale.seconds)
    return figures


async def publish_by_python(broker: NatsContender, scale: Scale) -> Figures:
    """By NATS' client for Python, 256 calls at a time."""
    async with broker.stream() as place:
        work = NatsPythonPublish(place.leader, place.queue, window=SINGLES)
        _, figures = await metered(broker, [work], scale.seconds)
    return figures


async def single_beside_native(broker: Quorate, scale: Scale) -> Figures:
    """One outstanding, and the same by our own protocol to a queue."""
    own = await native(broker, scale, window=1)
    figures = await publish(broker, scale, window=1)
    return {**figures, "p50_times": figures["p50_ms"] / own["p50_ms"]}


async def pull(broker: NatsContender, scale: Scale) -> Figures:
    """What is there already, each message acknowledged."""
    async with broker.stream() as place, broker.client() as client:
        fill = NatsPublish(place.leader, place.queue, scale.consumed)
        await run_all([fill], lambda _: None)
        config = api.ConsumerConfig(
            durable_name="reader", ack_policy=api.AckPolicy.EXPLICIT, max_ack_pending=10 * PULLED
        )
        await client.jetstream(timeout=API_S_MAX).add_consumer(place.queue, config)
        work = NatsPull(place.leader, place.queue, "reader", scale.consumed, PULLED)
        _, figures = await metered(broker, [work])
    return figures


async def read(broker: NatsContender, scale: Scale) -> Figures:
    """From the first to the last, without acknowledgements."""
    async with broker.stream() as place, broker.client() as client:
        fill = NatsPublish(place.leader, place.queue, scale.consumed, READ_BYTES)
        await run_all([fill], lambda _: None)
        config = api.ConsumerConfig(durable_name="reader", ack_policy=api.AckPolicy.NONE)
        await client.jetstream(timeout=API_S_MAX).add_consumer(place.queue, config)
        count, batch = scale.consumed, READ_AT_ONCE
        work = NatsPull(place.leader, place.queue, "reader", count, batch, acks=False)
        _, figures = await metered(broker, [work])
    return figures


async def core(broker: NatsContender, scale: Scale, *, across: bool = False) -> Figures:
    """Messages that no stream keeps, from one client to another."""
    here, there, *_ = broker.nats_ports().values()
    works = [NatsTake(there if across else here, "core"), NatsSend(here, "core")]
    _, figures = await metered(broker, works, scale.seconds)
    return figures


# --- faults ---------------------------------------------------------------------------------------


class Probe:
    """Publishes every 10 ms to a stream, whatever becomes of it, and notes what is acknowledged."""

    def __init__(self, client: Client, subject: str) -> None:
        self._client, self._subject = client, subject
        self._inbox = client.new_inbox()
        self._sent_s: list[float] = []
        self._over = False
        #: When each of them was sent and acknowledged.
        self.acked: list[tuple[float, float]] = []

    async def _on_ack(self, message: Msg) -> None:
        number = int(message.subject.rpartition(".")[2])
        if b'"seq"' in message.data:
            self.acked.append((self._sent_s[number], time.monotonic()))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_ack)
        task = asyncio.create_task(self._send())
        try:
            yield
        finally:
            self._over = True  # the client may swallow the cancellation
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _send(self) -> None:
        while not self._over:
            number = len(self._sent_s)
            self._sent_s.append(time.monotonic())
            reply = f"{self._inbox}.{number}"
            await self._client.publish(self._subject, b"x" * 100, reply=reply)
            await self._client.flush()
            await asyncio.sleep(PROBE_S)

    async def acked_after(self, at_s: float) -> float:
        """When the first was acknowledged of those that were sent after this moment."""
        async with asyncio.timeout(GAP_S_MAX):
            while True:
                if later := [acked_s for sent_s, acked_s in self.acked if sent_s > at_s]:
                    return min(later)
                await asyncio.sleep(PROBE_S)


async def failover(broker: NatsContender, scale: Scale) -> Figures:
    """By a client of a node that survives. What was under way at the kill does not count."""
    gaps_ms: list[float] = []
    async with broker.stream() as place:
        for _ in range(KILLS):
            async with broker.client() as client:
                leader = await broker.stream_leader(client.jetstream(), place.queue)
            port = next(port for node, port in broker.nats_ports().items() if node != leader)
            async with broker.client(port) as client:
                probe = Probe(client, place.queue)
                async with probe.running():
                    await probe.acked_after(time.monotonic())
                    killed_s = time.monotonic()
                    await broker.kill(leader)
                    gone_s = time.monotonic()
                    gaps_ms.append(1000 * (await probe.acked_after(gone_s) - killed_s))
            await broker.restart(leader)
    return {"messages": KILLS, "gap_ms": statistics.median(gaps_ms), "gap_most_ms": max(gaps_ms)}


# --- many -----------------------------------------------------------------------------------------


async def many_streams(broker: NatsContender, scale: Scale) -> Figures:
    """Streams with consumers that nobody uses; then a node is killed and started again."""
    names = [f"many-{number}" for number in range(scale.streams)]
    async with broker.client() as client:
        stream = client.jetstream(timeout=API_S_MAX)
        start_s = time.monotonic()
        await _each(names, lambda name: _declare(stream, name))
        declared = (1 + CONSUMERS_A_STREAM) * len(names) / (time.monotonic() - start_s)
        figures = await idle(broker, scale)
        node, port = max(broker.nats_ports().items())
        await broker.kill(node)
        start_s = time.monotonic()
        await broker.restart(node)
        async with broker.client(port) as there:  # it knows all streams, and serves the last one
            await _acked(there.jetstream(timeout=1.0), names[-1])
        started_s = time.monotonic() - start_s
        await _each(names, stream.delete_stream)
    return {**figures, "declares": declared, "start_s": started_s}


async def _declare(stream: JetStreamContext, name: str) -> None:
    await stream.add_stream(stream_of(name))
    for number in range(CONSUMERS_A_STREAM):
        config = api.ConsumerConfig(durable_name=f"c{number}", ack_policy=api.AckPolicy.EXPLICIT)
        await stream.add_consumer(name, config)


async def _acked(stream: JetStreamContext, name: str) -> None:
    async with asyncio.timeout(START_S_MAX):
        while True:
            with contextlib.suppress(Error):
                await stream.publish(name, b"x")
                return
            await asyncio.sleep(POLL_S)


async def _each(names: list[str], act: Callable[[str], Awaitable[object]]) -> None:
    waiting = iter(names)

    async def lane() -> None:
        for name in waiting:
            await act(name)

    async with asyncio.TaskGroup() as group:
        for _ in range(REQUESTS_AT_ONCE):
            group.create_task(lane())
