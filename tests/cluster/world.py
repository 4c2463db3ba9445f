"""Whole nodes in one process under virtual time: real log, real rounds, disks in memory, links that
keep order and break visibly, as TCP's do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import cbor2
import pytest

from cluster.cluster_node import ClusterConfig, ClusterNode
from cluster.groups.group import Group
from cluster.groups.outcome import Outcome
from cluster.log import LogOptions
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Command, Enqueue, RemoveQueue
from cluster.raft.link_auth import LINK_VERSIONS
from cluster.raft.messages import BEATS, BEATS_ANSWERED, singles
from cluster.seams import GONE_AFTER_S, Down
from cluster.types import CATALOG_GROUP, GroupId, NodeId, QueueId
from tests.log.memory_disk import MemoryDisk
from tests.testkit.clocks import FakeClock
from tests.testkit.virtual_time import running

LATENCY_S = 0.0005
#: How long the kernel takes to close the links of a process: less, so that down comes before up.
CLOSE_S = 0.0002


class MeshLinks:
    """The Links seam of one process."""

    def __init__(self, world: World, node: str, incarnation: int) -> None:
        self.world, self.node, self.incarnation = world, node, incarnation
        self.up: dict[str, int] = {}  # peer: number of the connection
        self.out: dict[str, list[bytes]] = {}
        self.full: set[str] = set()
        self.drop: Callable[[NodeId, list[Any]], bool] = lambda _peer, _message: False
        self.running = False
        self.known = {n for n in world.names if n != node}
        self.on_unknown_peer: Callable[[NodeId, int], bool] = lambda _node, _incarnation: False

    def peers(self) -> list[NodeId]:
        return [NodeId(n) for n in sorted(self.known)]

    def add_peer(self, peer: NodeId, address: str) -> None:
        self.known.add(peer)
        other = self.world.links.get(peer)
        if other is not None and other.running and peer not in self.up:
            self.world.connect(self.node, peer)

    def renumber(self, incarnation: int) -> None:
        self.incarnation = incarnation
        for peer in list(self.up):
            self.world.break_link(self.node, peer, Down.SILENT)
            self.world.loop.call_later(LATENCY_S, self.world.connect_again, self.node, peer)

    def remove_peer(self, peer: NodeId) -> None:
        self.known.discard(peer)
        if peer in self.up:
            self.world.break_link(self.node, peer, Down.SILENT)

    async def start(self, on_message: Any, on_up: Any, on_down: Any) -> None:
        self.on_message, self.on_up, self.on_down = on_message, on_up, on_down
        self.running = True
        self.world.dial(self)

    async def stop(self) -> None:
        self.running = False
        self.world.hang_up(self, Down.GONE)

    def version(self, peer: NodeId) -> int:
        return LINK_VERSIONS[1]

    def send(self, peer: NodeId, message: list[Any]) -> bool:
        if peer not in self.up or peer in self.full:
            return False
        if message[1] in (BEATS, BEATS_ANSWERED):
            apart = zip(message[2], singles(message[1], message[2]), strict=True)
            message = [*message[:2], [each for each, one in apart if not self.drop(peer, one)]]
        if not self.drop(peer, message):
            self.out.setdefault(peer, []).append(cbor2.dumps(message))
        return True

    def flush(self) -> None:
        out, self.out = self.out, {}
        loop = asyncio.get_running_loop()
        for peer, frames in out.items():
            number = self.up.get(peer)
            if number is not None:
                loop.call_later(LATENCY_S, self.world.deliver, self.node, peer, number, frames)

    def connected(self, peer: NodeId) -> bool:
        return peer in self.up

    def buffered(self, peer: NodeId) -> int:
        return 0


class World:
    """The nodes of a cluster, some of them running."""

    def __init__(
        self, count: int = 3, hosts: Mapping[str, str] | None = None, **config: Any
    ) -> None:
        self.loop = running()
        self.names = [f"n{i + 1}" for i in range(count)]
        self.founders = list(self.names)
        self.config = {"default_groups": 3, "balance_after_s": 60.0, **config}
        self.hosts = hosts or {}  # of nodes; else each has one of its own
        self.disks = {name: MemoryDisk() for name in self.names}
        self.links: dict[str, MeshLinks] = {}
        self.nodes: dict[str, ClusterNode] = {}
        self.cut: set[frozenset[str]] = set()
        self.calls: list[asyncio.Task[None]] = []  # of nodes that others do not know
        self._starts = 0
        self._connections = 0

    # --- nodes

    async def start_empty(self, name: str) -> None:
        """On a new disk."""
        self.disks[name] = MemoryDisk()
        await self.start(name)

    def make(self, name: str, **config: Any) -> ClusterNode:
        self._starts += 1
        links = MeshLinks(self, name, self._starts)
        given: dict[str, Any] = {"log": LogOptions(min_free_bytes=0), **self.config, **config}
        node = ClusterNode(
            ClusterConfig(
                NodeId(name),
                "test",
                [NodeId(n) for n in self.names if n == name or n in self.founders],
                "/data",
                addresses={"http": f"{name}:80", "peer": self.peer(name)},
                peers={NodeId(n): self.peer(n) for n in self.founders},
                join=name not in self.founders,
                **given,
            ),
            disk=self.disks[name],
            clock=FakeClock(self.loop),
            links=links,
            random=Random(f"{name}/{self._starts}"),
        )
        self.links[name] = links
        return node

    def peer(self, name: str) -> str:
        return f"{self.hosts.get(name, name)}:70"

    def add_machine(self, name: str) -> None:
        """A computer on which nothing has run yet. The others do not know of it."""
        self.names.append(name)
        self.disks[name] = MemoryDisk()

    async def start(self, *names: str, **config: Any) -> World:
        for name in names or self.names:
            node = self.make(name, **config)
            await node.start()
            self.nodes[name] = node
        return self

    async def born(self) -> World:
        """Everything leads and everybody knows it."""
        await self.start()
        await self.settled()
        return self

    async def settled(self) -> None:
        await self.until(self.calm)

    def calm(self) -> bool:
        nodes = self.nodes.values()
        wanted = [CATALOG_GROUP, *(info.id for info in self.any.catalog_machine.groups())]
        if len(wanted) <= self.config["default_groups"]:
            return False
        return all(
            (node.leader_of(group) or "nobody") == self.leading(group)
            for node in nodes
            for group in wanted
        )

    @property
    def any(self) -> ClusterNode:
        return next(iter(self.nodes.values()))

    def __getitem__(self, name: str) -> ClusterNode:
        return self.nodes[name]

    def leading(self, group: GroupId | int = CATALOG_GROUP) -> str | None:
        for name, node in self.nodes.items():
            if GroupId(group) in node.groups and node.groups[GroupId(group)].ready:
                return name
        return None

    def group(self, group: GroupId | int) -> Group:
        """The leader's copy."""
        name = self.leading(group)
        assert name is not None
        return self.nodes[name].groups[GroupId(group)]

    def other_than(self, name: str | None) -> ClusterNode:
        return next(node for other, node in self.nodes.items() if other != name)

    def kill(self, name: str, *, power: bool = True) -> None:
        """The process ends without a word; with `power` what was not synced is gone too."""
        node, links = self.nodes.pop(name), self.links.pop(name)
        for task in node._tasks:
            task.cancel()
        node.transient.stop()
        links.running = False
        self.hang_up(links, Down.CLOSED)
        for other in self.links:
            self.loop.call_later(GONE_AFTER_S, self._refused, other, name)
        if power:
            self.disks[name] = self.disks[name].after_crash()

    async def stop(self) -> None:
        for call in self.calls:
            call.cancel()
        for name in list(self.nodes):
            await self.nodes.pop(name).stop(transfer=False)

    # --- links

    def dial(self, links: MeshLinks) -> None:
        for other in list(self.links.values()):
            if other.running and other is not links:
                self.connect(links.node, other.node)

    def connect_again(self, a: str, b: str) -> None:
        if a in self.links and b in self.links and b not in self.links[a].up:
            self.connect(a, b)

    def connect(self, a: str, b: str) -> None:
        if frozenset((a, b)) in self.cut:
            return
        for here, there in ((a, b), (b, a)):
            if there not in self.links[here].known:
                stays = self.links[here].on_unknown_peer(
                    NodeId(there), self.links[there].incarnation
                )
                if not stays:
                    return  # refused
        self._connections += 1
        number = self._connections
        one, two = self.links[a], self.links[b]
        one.up[b] = two.up[a] = number
        for mine, peer in ((one, two), (two, one)):
            self.loop.call_later(LATENCY_S, self._tell_up, mine, peer, number)

    def _tell_up(self, links: MeshLinks, peer: MeshLinks, number: int) -> None:
        if links.running and links.up.get(peer.node) == number:
            links.on_up(NodeId(peer.node), peer.incarnation)

    def _refused(self, name: str, dead: str) -> None:
        links = self.links.get(name)
        if links is not None and links.running and dead not in self.links:
            links.on_down(NodeId(dead), Down.GONE)

    def hang_up(self, links: MeshLinks, down: Down) -> None:
        for peer in list(links.up):
            self.break_link(links.node, peer, down, mine=links)

    def break_link(self, a: str, b: str, down: Down, *, mine: MeshLinks | None = None) -> None:
        one, two = mine or self.links[a], self.links.get(b)
        one.up.pop(b, None)
        if two is not None and two.up.pop(a, None) is not None and two.running:
            delay_s = 0 if down is Down.SILENT else CLOSE_S
            self.loop.call_later(delay_s, two.on_down, NodeId(a), down)
        if one.running:
            one.on_down(NodeId(b), down)

    def isolate(self, name: str) -> None:
        for other in self.names:
            if other != name:
                self.cut.add(frozenset((name, other)))
                if name in self.links and other in self.links:
                    self.break_link(name, other, Down.SILENT)

    def refuse(self, name: str) -> None:
        """A firewall resets and refuses its links; its process lives."""
        for other in self.names:
            if other != name:
                self.cut.add(frozenset((name, other)))
                self.break_link(name, other, Down.CLOSED)

    def heal(self) -> None:
        pairs, self.cut = self.cut, set()
        for a, b in map(sorted, pairs):
            if a in self.links and b in self.links:
                self.connect(a, b)

    def deliver(self, sender: str, to: str, number: int, frames: list[bytes]) -> None:
        links = self.links.get(to)
        for frame in frames:
            if links is not None and links.running and links.up.get(sender) == number:
                links.on_message(NodeId(sender), cbor2.loads(frame))

    # --- time

    async def until(self, condition: Callable[[], Any], seconds: float = 30) -> None:
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, "it never happened"
            await asyncio.sleep(0.005)

    # --- queues

    async def declare(self, name: str, at: str | None = None, **arguments: Any) -> QueueId:
        """Declared anywhere; its id. Arguments without their `x-`."""
        node = self.any if at is None else self.nodes[at]
        given = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
        outcome = await node.declare_queue("/", name, given)
        assert outcome.kind == "ok", outcome
        return outcome.reply.queue  # type: ignore[union-attr]

    def group_of(self, name: str) -> GroupId:
        info = self.any.queue_info("/", name)
        assert isinstance(info, QueueInfo)
        return info.group

    async def publish(self, name: str, *bodies: bytes) -> None:
        info = await self.any.names.find("/", name)
        assert isinstance(info, QueueInfo)
        outcome = await self.any.ask(info.group, enqueue(info.queue, *bodies))
        assert outcome.kind == "ok", outcome

    def ready(self, name: str, at: str) -> int | None:
        """Messages that are ready, as the copy on that node has it."""
        info = self.nodes[at].queue_info("/", name)
        group = None if info is None else self.nodes[at].groups.get(info.group)
        view = None if group is None else group.machine.queue(info.queue)  # type: ignore[union-attr]
        return None if view is None else view.ready_count


#: Its arguments are those of `World`.
class HalfWay(Exception):
    """Here the deleter dies."""


async def delete_half(node: ClusterNode, name: str = "q", **how: Any) -> None:
    """The group drops the queue, and nobody tells the catalog."""
    retries = node.names._retries
    ask = retries.ask

    async def mortal(group: GroupId, command: Command, **more: Any) -> Outcome:
        if isinstance(command, RemoveQueue):
            raise HalfWay
        return await ask(group, command, **more)

    retries.ask = mortal
    try:
        with pytest.raises(HalfWay):
            await node.remove_queue("/", name, **how)
    finally:
        retries.ask = ask


MakeWorld = Callable[..., World]


@asynccontextmanager
async def worlds() -> AsyncGenerator[MakeWorld]:
    """What is made is stopped in the end."""
    made: list[World] = []

    def make(*args: Any, **config: Any) -> World:
        made.append(World(*args, **config))
        return made[-1]

    yield make
    for world in made:
        await world.stop()


def enqueue(queue: QueueId, *bodies: bytes) -> Enqueue:
    return Enqueue(queue, None, 0, list(bodies))
