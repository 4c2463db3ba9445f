"""Clients that do nothing wrong, and so must not notice what others do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import cast

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from pamqp.commands import Basic

from quorate.local import LocalNode

HEARTBEAT_S = 10
PUBLISH_EVERY_S = 0.02
LANES = 4
CONFIRM_S_MAX = 60.0
DRAIN_S_MAX = 60.0
IDLE_NAME = "idle"


@dataclass
class SteadyAmqp:
    """Through each node: a publisher with confirms, a consumer, and one that is only there.

    Publisher and consumer of a queue are at different nodes.
    """

    nodes: list[LocalNode]
    findings: list[str] = field(default_factory=list[str])
    slowest_confirm_s: float = 0.0
    redelivered: int = 0
    _connections: dict[str, AbstractConnection] = field(
        default_factory=dict[str, AbstractConnection]
    )
    _confirmed: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    _seen: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _stopping: bool = False

    @property
    def connections_a_node(self) -> int:
        return 3

    @property
    def listed(self) -> dict[str, int]:
        count = len(self.nodes)
        return {"connections": 3 * count, "channels": 3 * count, "consumers": count}

    @property
    def facts(self) -> dict[str, object]:
        return {
            "confirmed by well-behaved clients": sum(map(len, self._confirmed.values())),
            "their slowest confirm": f"{self.slowest_confirm_s * 1000:.0f} ms",
            "delivered to them again": self.redelivered,
        }

    async def start(self) -> None:
        count = len(self.nodes)
        for index, node in enumerate(self.nodes):
            queue = f"well-behaved-{index}"
            self._confirmed[queue], self._seen[queue] = set(), set()
            publisher = await self._open(f"publisher of {queue}", node)
            await publisher.queue_declare(queue, durable=True)
            await self._consume(queue, self.nodes[(index + 1) % count])
            await self._open(f"{IDLE_NAME} at {node.name}", node)
            for lane in range(LANES):
                self._tasks.append(
                    asyncio.create_task(self._publish(publisher, queue, lane), name=queue)
                )

    async def _open(self, what: str, node: LocalNode) -> AbstractChannel:
        connection = await aiormq.connect(f"{node.amqp_url}?heartbeat={HEARTBEAT_S}")
        self._connections[what] = connection
        channel = await connection.channel(publisher_confirms=True)

        def ended(_: object) -> None:
            if not self._stopping:
                self.findings.append(f"the connection or channel of the {what} ended")

        for each in (connection, channel):
            closing = cast("asyncio.Future[None]", each.closing)  # pyright: ignore[reportUnknownMemberType]
            closing.add_done_callback(ended)
        return channel

    async def _consume(self, queue: str, node: LocalNode) -> None:
        channel = await self._open(f"consumer of {queue}", node)
        await channel.basic_qos(prefetch_count=50)

        async def got(message: DeliveredMessage) -> None:
            self.redelivered += bool(message.redelivered)
            self._seen[queue].add(int(message.body))
            assert message.delivery_tag is not None
            await channel.basic_ack(message.delivery_tag)

        await channel.basic_consume(queue, got)

    async def _publish(self, channel: AbstractChannel, queue: str, lane: int) -> None:
        number = lane
        while not self._stopping:
            started_s = time.monotonic()
            try:
                async with asyncio.timeout(CONFIRM_S_MAX):
                    answer = await channel.basic_publish(
                        str(number).encode(),
                        routing_key=queue,
                        properties=Basic.Properties(delivery_mode=2),
                        mandatory=True,
                    )
            except TimeoutError:
                self.findings.append(f"no confirm of {queue} within {CONFIRM_S_MAX:.0f} s")
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, we did nothing to deserve it
                self.findings.append(f"a publish to {queue} failed: {error!r}")
                return
            if not isinstance(answer, Basic.Ack):
                self.findings.append(f"a publish to {queue} was answered with {answer!r}")
            self._confirmed[queue].add(number)
            self.slowest_confirm_s = max(self.slowest_confirm_s, time.monotonic() - started_s)
            number += LANES
            await asyncio.sleep(PUBLISH_EVERY_S)

    async def drain(self) -> None:
        """No more is published; what was confirmed must arrive."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        self._stopping = False  # the connections still have to live
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S_MAX):
                while any(self._lost(queue) for queue in self._seen):
                    await asyncio.sleep(0.05)
        for queue in self._seen:
            if lost := self._lost(queue):
                self.findings.append(
                    f"{len(lost)} confirmed messages of {queue} did not arrive: {sorted(lost)[:5]}"
                )

    def _lost(self, queue: str) -> set[int]:
        return self._confirmed[queue] - self._seen[queue]

    async def stop(self) -> None:
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._connections.values():
            with contextlib.suppress(Exception):
                async with asyncio.timeout(5):
                    await connection.close()
