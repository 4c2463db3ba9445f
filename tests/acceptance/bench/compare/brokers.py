"""Three nodes of each broker, on loopback and under one folder, with the same way to use them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nats
import nats.errors
import pika
from nats.aio.client import Client
from nats.js import JetStreamContext, api

from tests.acceptance.bench.amqp_works import AmqpDeclare
from tests.acceptance.bench.nodes import Nodes
from tests.acceptance.bench.workers import run_all
from tests.testkit.nats_server import NatsServers
from tests.testkit.rabbitmq import Names, RabbitError, RabbitProcess

NODES = 3
START_S_MAX = 60.0
API_S_MAX = 20.0
POLL_S = 0.2
#: Nodes that have just met hand leaderships over to where they belong.
BALANCED_S = 8.0
RABBIT_SETTINGS = "cluster_formation.peer_discovery_backend = classic_config\n" + "".join(
    f"cluster_formation.classic_config.nodes.{number} = rabbit{number}@localhost\n"
    for number in range(1, NODES + 1)
)


class Place(NamedTuple):
    """A queue or stream, and ports: of the node that leads it and of another one."""

    queue: str
    leader: int
    follower: int


class Contender(ABC):
    """Three nodes of one broker."""

    name: str

    @abstractmethod
    async def start(self) -> None: ...
    @abstractmethod
    async def stop(self) -> None: ...
    @abstractmethod
    def pids(self) -> list[int]: ...


class NatsContender(Contender):
    """One that speaks NATS, with JetStream."""

    _streams: Iterator[int]

    @abstractmethod
    def nats_ports(self) -> dict[str, int]:
        """By the node's name, as the server says it."""

    @abstractmethod
    async def kill(self, node: str) -> None: ...
    @abstractmethod
    async def restart(self, node: str) -> None:
        """After `kill`; returns when its process serves clients."""

    @contextlib.asynccontextmanager
    async def client(self, port: int | None = None) -> AsyncGenerator[Client]:
        """At that node or the first. What it says of nodes that are away is not shown."""
        url = f"nats://127.0.0.1:{port or min(self.nats_ports().values())}"
        client = await nats.connect(url, error_cb=_pass)
        try:
            yield client
        finally:
            await client.close()

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncGenerator[Place]:
        """Of three copies in files; its subject is its name."""
        name = f"stream-{next(self._streams)}"
        async with self.client() as client:
            stream = client.jetstream(timeout=API_S_MAX)
            await stream.add_stream(stream_of(name))
            leader = await self.stream_leader(stream, name)
            ports = self.nats_ports()
            follower = next(port for node, port in ports.items() if node != leader)
            yield Place(name, ports[leader], follower)
            await stream.delete_stream(name)

    async def stream_leader(self, stream: JetStreamContext, name: str) -> str:
        """The name of the node that leads it and is up, when all its copies are as far."""
        async with asyncio.timeout(START_S_MAX):
            while True:
                with contextlib.suppress(nats.errors.Error):
                    cluster = (await stream.stream_info(name)).cluster
                    copies = (cluster and cluster.replicas) or []
                    if cluster and cluster.leader and all(copy.current for copy in copies):
                        return cluster.leader
                await asyncio.sleep(POLL_S)


async def _pass(_error: Exception) -> None: ...


def stream_of(name: str) -> api.StreamConfig:
    return api.StreamConfig(
        name=name, subjects=[name], num_replicas=NODES, storage=api.StorageType.FILE
    )


class AmqpContender(Contender):
    """One that speaks AMQP."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    @abstractmethod
    def ports(self) -> list[int]: ...
    @abstractmethod
    async def place(self, queue: str, declared_at: int) -> Place: ...

    @contextlib.asynccontextmanager
    async def queues(self, count: int = 1, exchange_keys: int = 0) -> AsyncGenerator[list[Place]]:
        """New quorum queues on nodes in turn, deleted afterwards. With `exchange_keys` each has a
        direct exchange of its name, with so many keys of it bound: the name, then 0, 1 ...
        """
        ports = self.ports()
        places: list[Place] = []
        try:
            for index in range(count):
                name, port = f"compare-{next(self._numbers)}", ports[index % len(ports)]
                with _channel(port) as channel:
                    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
                    if exchange_keys:
                        channel.exchange_declare(name, "direct", durable=True)
                    for key in range(exchange_keys):
                        channel.queue_bind(name, name, f"{name}{key}")
                places.append(await self.place(name, port))
            yield places
        finally:
            with _channel(ports[0]) as channel:
                for place in places:
                    channel.queue_delete(place.queue)
                    if exchange_keys:
                        channel.exchange_delete(place.queue)

    @contextlib.asynccontextmanager
    async def many(self, count: int, fanout: bool = False) -> AsyncGenerator[tuple[str, float]]:
        """So many queues, declared on one channel and named with 0, 1 ..., bound to a fanout
        exchange if asked for; their prefix, which is the exchange's name, and declares a second.
        """
        prefix, ports = f"many-{next(self._numbers)}-", self.ports()
        if fanout:
            with _channel(ports[0]) as channel:
                channel.exchange_declare(prefix, "fanout", durable=True)
        work = AmqpDeclare(ports[:1], prefix, count, exchange=prefix if fanout else "")
        try:
            (declared,) = await run_all([work], lambda _: None)
            yield prefix, count / (declared.end_s - declared.start_s)
        finally:  # also when it took too long
            await run_all([AmqpDeclare(ports[:1], prefix, count, delete=True)], lambda _: None)
            if fanout:
                with _channel(ports[0]) as channel:
                    channel.exchange_delete(prefix)


@contextlib.contextmanager
def _channel(port: int) -> Any:
    parameters = pika.ConnectionParameters("127.0.0.1", port, blocked_connection_timeout=60)
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection.channel()
    finally:
        connection.close()


class Quorate(AmqpContender, NatsContender):
    name = "quorate"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._streams = itertools.count(1)
        self.nodes = Nodes(folder)

    async def start(self) -> None:
        await self.nodes.start()
        with _channel(self.ports()[0]) as channel:  # waits until groups have been made
            channel.queue_declare("first", durable=True)
            channel.queue_delete("first")
        await asyncio.sleep(BALANCED_S)

    async def stop(self) -> None:
        await self.nodes.stop()

    def pids(self) -> list[int]:
        return self.nodes.pids()

    def ports(self) -> list[int]:
        return [node.amqp for node in self.nodes.all]

    def nats_ports(self) -> dict[str, int]:
        return {node.name: node.nats for node in self.nodes.all}

    async def kill(self, node: str) -> None:
        await self.nodes.kill(self.nodes.named(node))

    async def restart(self, node: str) -> None:
        await self.nodes.launch(self.nodes.named(node))
        await self.nodes.until_ready()

    async def place(self, queue: str, declared_at: int) -> Place:
        leader = await self.nodes.leader(queue)
        follower = next(node for node in self.nodes.all if node is not leader)
        return Place(queue, leader.amqp, follower.amqp)


class RabbitMq(AmqpContender):
    """Quorum queues, as Debian ships it: a queue is led where it was declared."""

    name = "rabbitmq"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._names = Names(folder)
        self._nodes = [
            RabbitProcess(self._names, f"rabbit{number}", settings=RABBIT_SETTINGS)
            for number in range(1, NODES + 1)
        ]

    async def start(self) -> None:
        for node in self._nodes:
            await asyncio.to_thread(node.start)
        status = json.loads(self._nodes[0].control("cluster_status", "--formatter", "json"))
        if len(status["running_nodes"]) != NODES:
            raise RabbitError(f"of RabbitMQ only {status['running_nodes']} found each other")

    async def stop(self) -> None:
        try:
            for node in self._nodes:
                await asyncio.to_thread(node.kill, signal.SIGTERM)
        finally:
            self._names.end()

    def pids(self) -> list[int]:
        return [node.pid for node in self._nodes]

    def ports(self) -> list[int]:
        return [node.amqp for node in self._nodes]

    async def place(self, queue: str, declared_at: int) -> Place:
        return Place(queue, declared_at, next(p for p in self.ports() if p != declared_at))


class Nats(NatsContender):
    """JetStream, as shipped or with further lines in its `jetstream` block."""

    def __init__(self, name: str, program: str, folder: Path, extra: str = "") -> None:
        self.name = name
        self._servers = NatsServers(program, folder, extra)
        self._streams = itertools.count(1)

    async def start(self) -> None:
        await asyncio.to_thread(self._servers.start)
        async with asyncio.timeout(START_S_MAX):
            while True:  # until a stream can be made
                with contextlib.suppress(nats.errors.Error):
                    async with self.stream():
                        return
                await asyncio.sleep(POLL_S)

    async def kill(self, node: str) -> None:
        await asyncio.to_thread(self._servers.kill, node)

    async def restart(self, node: str) -> None:
        await asyncio.to_thread(self._servers.launch, node)

    def nats_ports(self) -> dict[str, int]:
        return self._servers.ports

    async def stop(self) -> None:
        await asyncio.to_thread(self._servers.stop)

    def pids(self) -> list[int]:
        return self._servers.pids


async def stop_all(contenders: Sequence[Contender]) -> None:
    for contender in contenders:
        try:
            await contender.stop()
        except Exception as error:  # noqa: BLE001 - the others are to end as well
            print(f"{contender.name}: {error}")
