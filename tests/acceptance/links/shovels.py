"""A shovel each way between brokers whose nodes are killed, its owner first."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import aiormq
from pamqp.commands import Basic

from quorate.local import LocalCluster, LocalNode
from tests.local_nodes import three_nodes
from tests.testkit.rabbitmq import Names, RabbitProcess
from tests.testkit.waiting import until

Say = Callable[[str], None]

SHOVEL = "moved"
SOURCE, DESTINATION = "source", "destination"
PREFETCH = 1_000
PUBLISHED_AT_ONCE = 2_000
#: All must have arrived by then.
WITHIN_S = 900.0
#: Shares of the messages after which somebody is killed.
KILLS = (0.15, 0.35, 0.55, 0.75)


class Side(Protocol):
    """A broker with a queue."""

    @property
    def uris(self) -> list[str]: ...
    async def kill(self, node: str | None = None) -> None:
        """A node, by its name if it has several, and start it again."""
        ...


class Quorate:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._turn = 0

    @property
    def uris(self) -> list[str]:
        return [node.amqp_url for node in self._cluster.nodes]

    async def kill(self, node: str | None = None) -> None:
        self._turn += 1
        nodes = self._cluster.nodes
        struck: LocalNode = (
            nodes[self._turn % len(nodes)] if node is None else self._cluster.named(node)
        )
        await self._cluster.kill(struck)
        await self._cluster.start(struck)
        await self._cluster.until_ready()

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Of any node that answers."""
        for node in self._cluster.nodes:
            try:
                async with (
                    aiohttp.ClientSession(auth=aiohttp.BasicAuth("guest", "guest")) as session,
                    session.request(method, f"{node.url}/api/{path}", json=body) as response,
                ):
                    assert response.status < 300, await response.text()
                    return await response.json() if response.status == 200 else None
            except aiohttp.ClientError:
                continue
        raise ConnectionError("no node answers")

    async def state(self) -> dict[str, Any]:
        return await self.ask("GET", f"shovels/vhost/%2F/{SHOVEL}")


class Rabbit:
    def __init__(self, process: RabbitProcess) -> None:
        self._process = process

    @property
    def uris(self) -> list[str]:
        return [self._process.url]

    async def kill(self, node: str | None = None) -> None:
        await asyncio.to_thread(self._process.kill)
        await asyncio.to_thread(self._process.start)


@dataclass(frozen=True)
class Result:
    scene: str
    messages: int
    lost: int
    strangers: int
    duplicates: int
    duplicates_max: int  # 0 where the destination is ours
    kills: int
    took_s: float

    @property
    def good(self) -> bool:
        return not self.lost and not self.strangers and self.duplicates <= self.duplicates_max

    def line(self) -> str:
        verdict = "ok" if self.good else "WRONG"
        return (
            f"{verdict}: {self.scene}: {self.messages} messages in {self.took_s:.0f} s,"
            f" {self.kills} kills: lost {self.lost}, twice {self.duplicates}"
            f" (allowed {self.duplicates_max}), from nowhere {self.strangers}"
        )


@dataclass(frozen=True)
class Scene:
    """`from_here`: the cluster that has the shovel is its source, else its destination; `other`
    opens the other side.
    """

    name: str
    from_here: bool
    needs_rabbitmq: bool
    other: Callable[[Path], Any]

    async def run(self, folder: Path, messages: int, say: Say) -> Result:
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(three_nodes(folder / "here"))
            here = Quorate(cluster)
            there: Side = await stack.enter_async_context(self.other(folder / "there"))
            return await self._between(here, there, messages, say)

    async def _between(self, here: Quorate, there: Side, messages: int, say: Say) -> Result:
        source, destination = (here, there) if self.from_here else (there, here)
        bodies = [f"{number}" for number in range(messages)]
        await declare(source, SOURCE)
        await declare(destination, DESTINATION)
        await publish(source, bodies, SOURCE)
        say(f"{self.name}: {messages} messages are at the source")
        begun_s = time.monotonic()
        value = {
            "src-uri": "amqp://" if self.from_here else there.uris,
            "src-queue": SOURCE,
            "dest-uri": there.uris if self.from_here else "amqp://",
            "dest-queue": DESTINATION,
            "src-prefetch-count": PREFETCH,
            "reconnect-delay": 0.5,
        }
        await here.ask("PUT", f"parameters/shovel/%2F/{SHOVEL}", {"value": value})
        kills = 0
        for share in KILLS:
            await until(
                lambda share=share: _holds(destination, share * messages), within_s=WITHIN_S
            )
            if kills % 2 == 0:
                owner = (await here.state())["node"]
                say(f"{self.name}: after {share:.0%} the owner is killed, {owner}")
                await here.kill(owner or None)
            else:
                say(f"{self.name}: after {share:.0%} the other side is killed")
                await there.kill()
            kills += 1
        await until(lambda: _holds(destination, messages), within_s=WITHIN_S)
        await until(lambda: _is_empty(source), within_s=WITHIN_S)
        took_s = time.monotonic() - begun_s
        await here.ask("DELETE", f"shovels/vhost/%2F/{SHOVEL}")
        found = await drained(destination, DESTINATION)
        times = Counter(found)
        return Result(
            self.name,
            messages,
            lost=len(set(bodies) - set(times)),
            strangers=len(set(times) - set(bodies)),
            duplicates=sum(count - 1 for count in times.values()),
            duplicates_max=kills * PREFETCH if self.from_here and self.needs_rabbitmq else 0,
            kills=kills,
            took_s=took_s,
        )


# --- clients --------------------------------------------------------------------------------------


@asynccontextmanager
async def channel_of(side: Side) -> AsyncGenerator[aiormq.abc.AbstractChannel]:
    """At any node that lets a client in."""
    last: Exception | None = None
    for uri in side.uris:
        try:
            connection = await aiormq.connect(uri)
        except (OSError, aiormq.AMQPError) as error:
            last = error
            continue
        try:
            yield await connection.channel()
        finally:
            await connection.close()
        return
    raise ConnectionError("no node lets a client in") from last


async def declare(side: Side, queue: str) -> None:
    async with channel_of(side) as channel:
        await channel.queue_declare(queue, durable=True)


async def publish(side: Side, bodies: Sequence[str], queue: str) -> None:
    """Confirmed. aiormq gives each a message id; the header is what a shovel must not believe."""
    properties = Basic.Properties(delivery_mode=2, headers={"x-message-position": "1.1"})
    async with channel_of(side) as channel:
        for start in range(0, len(bodies), PUBLISHED_AT_ONCE):
            sent = [
                channel.basic_publish(
                    body.encode(),
                    routing_key=queue,
                    properties=copy(properties),
                )
                for body in bodies[start : start + PUBLISHED_AT_ONCE]
            ]
            await asyncio.gather(*sent)


async def _ready(side: Side, queue: str) -> int | None:
    """How many messages it has; None: nobody can say now."""
    try:
        async with channel_of(side) as channel:
            return (await channel.queue_declare(queue, passive=True)).message_count
    except (OSError, TimeoutError, asyncio.CancelledError, aiormq.AMQPError) as error:
        if isinstance(error, asyncio.CancelledError) and _cancelled():
            raise
        return None


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _holds(side: Side, messages: float) -> bool:
    return (await _ready(side, DESTINATION) or 0) >= messages


async def _is_empty(side: Side) -> bool:
    return await _ready(side, SOURCE) == 0


async def drained(side: Side, queue: str) -> list[str]:
    """All that a queue has, when nothing comes any more."""
    bodies: list[str] = []
    async with channel_of(side) as channel:
        total = (await channel.queue_declare(queue, passive=True)).message_count or 0

        async def take(message: aiormq.abc.DeliveredMessage) -> None:
            bodies.append(message.body.decode())
            if len(bodies) % (PREFETCH // 2) == 0 or len(bodies) >= total:
                assert message.delivery_tag is not None
                await channel.basic_ack(message.delivery_tag, multiple=True)

        await channel.basic_qos(prefetch_count=PREFETCH)
        await channel.basic_consume(queue, take)
        await until(lambda: len(bodies) >= total or channel.is_closed, within_s=WITHIN_S)
    return bodies


# --- scenes ---------------------------------------------------------------------------------------


@asynccontextmanager
async def _rabbitmq(folder: Path) -> AsyncGenerator[Rabbit]:
    names = Names(folder)
    process = RabbitProcess(names)
    try:
        await asyncio.to_thread(process.start)
        yield Rabbit(process)
    finally:
        await asyncio.to_thread(process.kill)
        names.end()


@asynccontextmanager
async def _quorate(folder: Path) -> AsyncGenerator[Quorate]:
    async with three_nodes(folder) as cluster:
        yield Quorate(cluster)


SCENES = {
    scene.name: scene
    for scene in (
        Scene("ours to ours", from_here=True, needs_rabbitmq=False, other=_quorate),
        Scene("ours to RabbitMQ", from_here=True, needs_rabbitmq=True, other=_rabbitmq),
        Scene("RabbitMQ to ours", from_here=False, needs_rabbitmq=True, other=_rabbitmq),
    )
}
