"""Whole groups in one process: real log, real rounds, virtual time. Each node is what ClusterNode
makes of the parts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from random import Random
from typing import Any

import cbor2

from cluster.groups.group import Group, GroupOptions
from cluster.log import Log, LogIdentity, LogOptions
from cluster.machine.commands import DeleteQueue, Enqueue, Purge, Tick
from cluster.machine.effects import Applied, DeadLettersReady, Effect
from cluster.machine.replies import Enqueued, Ok, Refused
from cluster.machine.versions import NeedsNewer
from cluster.raft.drive_loop import DriveLoop
from cluster.raft.link_auth import LINK_VERSIONS
from cluster.raft.messages import NODE_LEVEL
from cluster.types import GroupId, NodeId, QueueId, Stamp
from tests.log.memory_disk import MemoryDisk
from tests.testkit.clocks import FakeClock
from tests.testkit.virtual_time import running

OPTIONS = GroupOptions(election_min_ms=1000, election_max_ms=2000, heartbeat_ms=200)


class ListMachine:
    """A machine that remembers which bodies it was given, in order."""

    def __init__(self) -> None:
        self.version = self.newest = 1
        self.refs: list[list[int]] = []  # index, offset, count
        self.now_ms = 0
        self.ticks = 0
        self.ready = self.delivered = 0  # messages, as it says
        self.due_ms: int | None = None
        self.applied: list[tuple[Stamp, Any]] = []
        self.raises_on: type | None = None

    def apply(self, stamp: Stamp, command: Any) -> Applied:
        if self.raises_on is not None and isinstance(command, self.raises_on):
            raise ZeroDivisionError("a bug")
        self.applied.append((stamp, command))
        self.now_ms = max(self.now_ms, stamp.now_ms)
        match command:
            case Enqueue():
                self.refs.append([stamp.index, stamp.body_offset, len(command.bodies)])
                effects: Sequence[Effect] = (DeadLettersReady(command.queue),)
                return Applied(Enqueued(len(self.refs), len(command.bodies)), effects)
            case Purge():
                self.refs.clear()
                return Applied(Ok())
            case Tick():
                self.ticks += 1
                self.due_ms = None
                return Applied(Ok())
            case DeleteQueue():
                return Applied(Refused("no_queue", "there is none"))
            case _:
                return Applied(Ok())

    def on_leader(self) -> Sequence[Effect]:
        return ()

    def snapshot(self) -> bytes:
        return cbor2.dumps([self.refs, self.now_ms], canonical=True)

    def prepare_snapshot(self) -> Iterator[None]:
        return iter(())

    def snapshot_pieces(self) -> Iterator[bytes]:
        return iter((self.snapshot(),))

    def beyond(self, data: bytes) -> NeedsNewer | None:
        return None

    def restore(self, data: bytes) -> None:
        self.refs, self.now_ms = cbor2.loads(data)

    def live_indexes(self) -> list[tuple[int, int]]:
        return [(index, index) for index in sorted({ref[0] for ref in self.refs})]

    def digest(self) -> bytes:
        return blake2b(self.snapshot(), digest_size=16).digest()

    def next_due_ms(self) -> int | None:
        return self.due_ms

    def backlog(self, queue: QueueId) -> tuple[int, int, int]:
        return self.ready, len(self.refs), self.delivered

    def overview(self) -> dict[str, Any]:
        return {"stored": len(self.refs)}

    def invariants(self) -> None: ...


class LoopLinks:
    """FIFO links between the nodes of one cluster."""

    incarnation = 1

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.out: deque[tuple[str, bytes]] = deque()

    def peers(self) -> list[NodeId]:
        return [NodeId(n) for n in self.cluster.names if n != self.name]

    async def start(self, on_message: Any, on_up: Any, on_down: Any) -> None: ...
    async def stop(self) -> None: ...

    def send(self, peer: NodeId, message: list[Any]) -> bool:
        if not self.connected(peer):
            return False
        self.out.append((peer, cbor2.dumps(message)))
        return True

    def flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self.out:
            peer, data = self.out.popleft()
            loop.call_later(0.0005, self.cluster.deliver, self.name, peer, data)

    def connected(self, peer: NodeId) -> bool:
        return self.cluster.connected(self.name, peer)

    def buffered(self, peer: NodeId) -> int:
        return 0

    def version(self, peer: NodeId) -> int:
        return self.cluster.link_version


class Cluster:
    """Nodes with groups of the same members, on memory disks."""

    def __init__(
        self,
        count: int = 3,
        groups: int = 1,
        options: GroupOptions = OPTIONS,
        log_options: LogOptions | None = None,
        machine: Callable[[], Any] = ListMachine,
    ) -> None:
        self.names = [f"n{i + 1}" for i in range(count)]
        self.group_count, self.options, self.machine = groups, options, machine
        self.log_options = log_options or LogOptions(min_free_bytes=0)
        self.link_version = LINK_VERSIONS[1]
        self.cut: set[frozenset[str]] = set()
        self.nodes: dict[str, ClusterMember] = {}
        self.disks = {name: MemoryDisk() for name in self.names}

    async def start(self) -> Cluster:
        for name in self.names:
            await self.start_node(name)
        return self

    async def start_node(self, name: str) -> ClusterMember:
        node = ClusterMember(self, name)
        await node.start()
        self.nodes[name] = node
        for other in self.nodes.values():
            if other is not node and self.connected(name, other.name):
                other.peer_up(name)
                node.peer_up(other.name)
        return node

    def connected(self, a: str, b: str) -> bool:
        return a in self.nodes and b in self.nodes and frozenset((a, b)) not in self.cut

    def deliver(self, sender: str, to: str, data: bytes) -> None:
        if self.connected(sender, to):
            message = cbor2.loads(data)
            loop = self.nodes[to].drive_loop
            if message[0] == NODE_LEVEL:
                loop.receive_joined(NodeId(sender), message[1], message[2])
            else:
                loop.receive(GroupId(message[0]), NodeId(sender), message)
            self.nodes[to].links.flush()

    def kill(self, name: str) -> None:
        """The power of one node goes."""
        node = self.nodes.pop(name)
        node.task.cancel()
        self.disks[name] = self.disks[name].after_crash()
        for other in self.nodes.values():
            other.peer_down(name, closed=True)

    def isolate(self, name: str) -> None:
        for other in self.names:
            if other != name:
                self.cut.add(frozenset((name, other)))
                self.nodes[name].peer_down(other, closed=False)
                self.nodes[other].peer_down(name, closed=False)

    def heal(self) -> None:
        pairs, self.cut = self.cut, set()
        for a, b in map(sorted, pairs):
            if a in self.nodes and b in self.nodes:
                self.nodes[a].peer_up(b)
                self.nodes[b].peer_up(a)

    def leader(self, group: int = 1) -> Group | None:
        led = [n.groups[group] for n in self.nodes.values() if n.groups[group].ready]
        return max(led, key=lambda g: g.term, default=None)

    async def elect(self, group: int = 1) -> Group:
        await self.until(lambda: self.leader(group) is not None)
        leader = self.leader(group)
        assert leader is not None
        return leader

    async def until(self, condition: Callable[[], Any], seconds: float = 20) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not condition():
            assert loop.time() < deadline, "it never happened"
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()

    def all_applied(self, index: int, group: int = 1) -> bool:
        return all(n.groups[group].applied_index >= index for n in self.nodes.values())


class ClusterMember:
    """What one process holds."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.clock = FakeClock(running())
        self.links = LoopLinks(cluster, name)
        self.groups: dict[int, Group] = {}

    async def start(self) -> None:
        cluster = self.cluster
        self.log = await Log.open(
            "/data",
            disk=cluster.disks[self.name],
            clock=self.clock,
            identity=LogIdentity(self.name, "test"),
            options=cluster.log_options,
        )
        self.drive_loop = DriveLoop(self.log.wal, self.links, self.clock)
        for number in range(1, cluster.group_count + 1):
            group = Group(
                GroupId(number),
                f"group-{number}",
                [NodeId(n) for n in cluster.names],
                NodeId(self.name),
                machine=cluster.machine(),
                journal=self.log.journal(number),
                log=self.log,
                links=self.links,
                clock=self.clock,
                random=Random(f"{self.name}{number}"),
                options=cluster.options,
            )
            self.groups[number] = group
            self.drive_loop.add(group)
        self.task = asyncio.create_task(self.drive_loop.run())

    def peer_up(self, name: str) -> None:
        for group in self.groups.values():
            group.peer_up(NodeId(name))

    def peer_down(self, name: str, *, closed: bool) -> None:
        for group in self.groups.values():
            group.peer_down(NodeId(name), closed=closed)

    async def stop(self) -> None:
        await self.drive_loop.stop()
        await self.task
        await self.log.close()


def enqueue(*bodies: bytes, meta: Any = None) -> Enqueue:
    return Enqueue(QueueId(1), None, 0, list(bodies), meta)
