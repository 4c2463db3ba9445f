"""The brokers that clients are tried against: addresses, and how a queue's leader is killed."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import quorate
from cluster.catalog.placement import preferred_leader
from quorate.errors import QuorateError
from quorate.local import LocalCluster, LocalNode

LEADER_S_MAX = 60.0

#: Where clients of a protocol find a node.
Door = Callable[[LocalNode], str]


def amqp(node: LocalNode) -> str:
    return node.amqp_url


def nats(node: LocalNode) -> str:
    return node.nats_url


class Broker(Protocol):
    """A cluster whose nodes may be killed, and come back."""

    @property
    def name(self) -> str: ...
    @property
    def urls(self) -> list[str]: ...
    #: For NATS. None: there are none.
    @property
    def websocket_urls(self) -> list[str]: ...
    #: None: its nodes cannot be killed from here.
    @property
    def killable(self) -> bool: ...

    async def leader(self, queue: str) -> str:
        """The address of the node that leads the queue."""
        ...

    async def kill(self, url: str) -> None: ...

    async def mend(self) -> None:
        """Start again what was killed, and wait until the cluster is whole."""
        ...


class QuorateBroker:
    """Three nodes of ours on loopback."""

    name = "Quorate"
    killable = True

    def __init__(self, cluster: LocalCluster, door: Door) -> None:
        self._cluster = cluster
        self._door = door
        self._killed: list[LocalNode] = []

    @property
    def urls(self) -> list[str]:
        return [self._door(node) for node in self._cluster.nodes]

    @property
    def management_urls(self) -> list[str]:
        """Of the nodes that run."""
        return [node.url for node in self._cluster.nodes if node.running]

    @property
    def websocket_urls(self) -> list[str]:
        return [f"{node.url.replace('http', 'ws', 1)}/nats" for node in self._cluster.nodes]

    def _client(self) -> quorate.Client:
        running = [node.url for node in self._cluster.nodes if node.running]
        return quorate.connect(running, name="clients")

    async def leader(self, queue: str) -> str:
        """One that stays: leaderships go back to a node some seconds after its start, and a client
        that was told of the one before would count on a node that is killed.
        """
        async with self._client() as client, asyncio.timeout(LEADER_S_MAX):
            while True:
                with contextlib.suppress(QuorateError):
                    group = (await client.info(queue))["group"]
                    rows = (await client.status(timeout=2))["groups"]
                    row = next(row for row in rows if row["name"] == group)
                    name = preferred_leader(row["id"], row["members"])
                    if row["leader"] == name and (node := self._cluster.named(name)).running:
                        return self._door(node)
                await asyncio.sleep(0.02)

    async def kill(self, url: str) -> None:
        node = next(node for node in self._cluster.nodes if self._door(node) == url)
        await self._cluster.kill(node)
        self._killed.append(node)

    async def mend(self) -> None:
        if not self._killed:
            return
        while self._killed:
            await self._cluster.start(self._killed.pop())
        await self._cluster.until_ready()
        async with self._client() as client, asyncio.timeout(LEADER_S_MAX):
            while True:
                with contextlib.suppress(QuorateError):
                    groups = (await client.status(timeout=2)).get("groups", [])
                    if groups and all(row.get("leader") for row in groups):
                        return
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def quorate_nodes(folder: Path, door: Door = amqp) -> AsyncGenerator[QuorateBroker]:
    """Started in the folder, and stopped afterwards; their logs stay there."""
    cluster = LocalCluster.prepare(folder, preferred_ports=False)
    try:
        await cluster.start_all()
        await cluster.until_ready()
        yield QuorateBroker(cluster, door)
    finally:
        await cluster.stop()


def _with_vhost(url: str) -> str:
    """AMQP's path that is missing means the default virtual host, which not all clients know."""
    parts = urlsplit(url)
    return f"{url}/%2F" if parts.scheme.startswith("amqp") and not parts.path.strip("/") else url


class GivenBroker:
    """A broker that runs already. `command`, if given, knows its nodes, numbered from 1 as `urls`:

    COMMAND leader QUEUE    prints the number of the node that leads the queue
    COMMAND kill N          kills that node
    COMMAND start-node N    starts it again, and waits for it
    """

    def __init__(self, urls: list[str], command: str | None) -> None:
        self.urls = [_with_vhost(url) for url in urls]
        self.websocket_urls: list[str] = []
        self.name = ", ".join(urlsplit(url).netloc.rpartition("@")[2] for url in urls)
        self._command = shlex.split(command) if command else []
        self._killed: list[int] = []

    @property
    def killable(self) -> bool:
        return bool(self._command)

    async def leader(self, queue: str) -> str:
        return self.urls[int(await self._run("leader", queue)) - 1]

    async def kill(self, url: str) -> None:
        number = self.urls.index(url) + 1
        await self._run("kill", str(number))
        self._killed.append(number)

    async def mend(self) -> None:
        while self._killed:
            await self._run("start-node", str(self._killed.pop()))

    async def _run(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        answer, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{shlex.join([*self._command, *arguments])} failed")
        return answer.decode().strip()
