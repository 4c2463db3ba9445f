"""The stock PySyncObj under the same network, the same nemesis and the same invariants: proof that
the harness can see.

Only the two seams that PySyncObj offers are used, its transport and its journal, plus its clock and
its dice. The journal keeps the stock semantics: nothing is ever synced, and what is deleted is
gone. Snapshots are off.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# -- pysyncobj ships no types, and this is about the stock class as it is.

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, cast

import pysyncobj.pickle as stock_pickle
import pysyncobj.syncobj as engine
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from chaos.simulator.invariants import LogWatch, Violation
from chaos.simulator.links import NetworkOptions, SimLinks, SimNetwork
from chaos.simulator.loop import Process, World
from cluster.seams import Down
from cluster.types import NodeId

GROUP = 0
REGULAR_S = 4.0  # the load runs this long; the strike comes in its second half
SETTLE_S = 8.0
COMMANDS_PER_S = 1_500
COMMAND_BYTES = 4_096
TICK_S = 0.01
#: How long the fragile moment is waited for; then the leader is killed anyway.
PATIENCE_S = 1.0
#: The kernel writes dirty pages back after this long; what is younger is lost with the power.
WRITEBACK_S = 1.0


class Peer(Node):
    """A node whose hash does not depend on PYTHONHASHSEED: PySyncObj keeps nodes in sets."""

    def __init__(self, node: NodeId, number: int) -> None:
        super().__init__(node)
        self._number = number

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and other._number == self._number


class LinkTransport(Transport):
    """PySyncObj's messages over simulated links."""

    def __init__(self, links: SimLinks, peers: dict[NodeId, Peer]) -> None:
        super().__init__(None, None, None)
        self._links = links
        self._peers = peers

    def send(self, node: Node, message: Any) -> bool:
        sent = self._links.send(NodeId(node.id), [GROUP, message])
        self._links.flush()
        return sent

    async def start(self) -> None:
        await self._links.start(self._received, self._up, self._down)

    def _received(self, peer: NodeId, message: list[Any]) -> None:
        self._onMessageReceived(self._peers[peer], message[1])

    def _up(self, peer: NodeId, _incarnation: int) -> None:
        self._onNodeConnected(self._peers[peer])

    def _down(self, peer: NodeId, _down: Down) -> None:
        self._onNodeDisconnected(self._peers[peer])


EntryRow = tuple[bytes, int, int]


@dataclass(eq=False)
class StockDisk:
    """What the stock journal and its `.meta` leave on one machine: page cache that nobody ever
    syncs.
    """

    entries: list[EntryRow] = field(default_factory=list[EntryRow])
    hashes: list[bytes] = field(default_factory=list[bytes])
    meta: tuple[int, str | None] = (0, None)
    commit: int = 1
    history: list[tuple[float, list[EntryRow], list[bytes], tuple[int, str | None]]] = field(
        default_factory=list[Any]
    )  # what writeback had reached, and when

    def write_back(self, now_s: float) -> None:
        self.history.append((now_s, list(self.entries), list(self.hashes), self.meta))
        del self.history[:-16]

    def lose_power(self, now_s: float) -> None:
        kept = [row for row in self.history if row[0] <= now_s - WRITEBACK_S]
        _, self.entries, self.hashes, self.meta = kept[-1] if kept else (0.0, [], [], (0, None))
        self.entries, self.hashes = list(self.entries), list(self.hashes)
        self.commit = 1


class StockJournal:
    """The semantics of PySyncObj's FileJournal over a simulated machine."""

    def __init__(self, disk: StockDisk) -> None:
        self._disk = disk

    def add(self, command: bytes, idx: int, term: int) -> None:
        disk = self._disk
        before = disk.hashes[-1] if disk.hashes else b""
        chained = blake2b(before + term.to_bytes(8, "big") + command, digest_size=16).digest()
        disk.entries.append((command, idx, term))
        disk.hashes.append(chained)

    def clear(self) -> None:
        self._disk.entries.clear()
        self._disk.hashes.clear()

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 the stock names
        del self._disk.entries[entryFrom:]
        del self._disk.hashes[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803 the stock names
        del self._disk.entries[:entryTo]
        del self._disk.hashes[:entryTo]

    def __getitem__(self, item: Any) -> Any:
        return self._disk.entries[item]

    def __len__(self) -> int:
        return len(self._disk.entries)

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802 the stock name
        self._disk.commit = index

    def getRaftCommitIndex(self) -> int:  # noqa: N802 the stock name
        return min(self._disk.commit, len(self._disk.entries) or 1)

    def setCurrentTerm(self, term: int, vote: str | None) -> None:  # noqa: N802 the stock name
        self._disk.meta = (term, vote)

    def getCurrentTerm(self) -> int:  # noqa: N802 the stock name
        return self._disk.meta[0]

    def getVotedForNodeId(self) -> str | None:  # noqa: N802 the stock name
        return self._disk.meta[1]

    def onOneSecondTimer(self) -> None:  # noqa: N802 the stock name
        """The commit index is always in the page cache here."""

    def _destroy(self) -> None:
        """Nothing to close."""


class StockMember(SyncObj):
    """The stock class with one replicated method."""

    def __init__(self, this: Peer, others: list[Peer], conf: SyncObjConf, transport: LinkTransport):
        super().__init__(this, others, conf, transport=transport)
        self.applied: list[bytes] = []

    @replicated
    def put(self, payload: bytes) -> None:
        self.applied.append(payload[:16])


@dataclass(eq=False)
class StockNode:
    """One machine with its process; also the view that the invariants have of it."""

    name: NodeId
    disk: StockDisk
    process: Process
    member: StockMember

    @property
    def term(self) -> int:
        return self.member.raftCurrentTerm

    @property
    def leads(self) -> bool:
        return self.member._isLeader()  # pyright: ignore[reportPrivateUsage] the stock class has no other way

    @property
    def last_index(self) -> int:
        return self.disk.entries[-1][1]

    @property
    def commit_index(self) -> int:
        return self.member.raftCommitIndex

    def hash_at(self, index: int) -> bytes | None:
        return self.disk.hashes[index - 1] if 1 <= index <= len(self.disk.hashes) else None

    def term_at(self, index: int) -> int | None:
        return self.disk.entries[index - 1][2] if 1 <= index <= len(self.disk.entries) else None


@dataclass(frozen=True, slots=True)
class StockResult:
    """One seed of the stock engine."""

    seed: int
    scenario: str
    acknowledged: int
    lost: int
    violations: list[Violation]

    def kinds(self) -> Counter[str]:
        return Counter(violation.invariant for violation in self.violations)


class StockCluster:
    """Three stock members under load, and one strike."""

    def __init__(self, seed: int, scenario: str) -> None:
        self.seed = seed
        self.scenario = scenario
        self.dice = random.Random(f"stock/{scenario}/{seed}")
        self.world = World()
        self.watch = LogWatch()
        self.network = SimNetwork(
            self.world,
            random.Random(self.dice.random()),
            NetworkOptions(latency_ms=self.dice.uniform(10.0, 40.0), bytes_per_s=2e9),
        )
        self.network.on_send = self._sent
        self.nodes: dict[NodeId, StockNode] = {}
        self.acknowledged: list[bytes] = []
        self._names = [NodeId(f"n{number}") for number in (1, 2, 3)]
        self._number = 0
        self._look_for_moment: Callable[[], None] = lambda: None

    def start(self, name: NodeId, disk: StockDisk) -> None:
        process = Process(self.world, name)
        peers = {node: Peer(node, number) for number, node in enumerate(self._names)}
        links = self.network.open(name, process, [n for n in self._names if n != name], 1)
        transport = LinkTransport(links, peers)
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesPeriod=0.02,
            raftMinTimeout=0.5,
            raftMaxTimeout=1.2,
            commandsWaitLeader=False,
            commandsQueueSize=10_000,
            logCompactionMinEntries=1 << 40,
            logCompactionMinTime=1 << 40,
        )
        with _engine_seams(self.world, self.dice, lambda: StockJournal(disk)):
            member = StockMember(
                peers[name], [p for n, p in peers.items() if n != name], conf, transport
            )
        node = StockNode(name, disk, process, member)
        self.nodes[name] = node
        process.spawn(self._drive(node, transport), "drive")

    async def _drive(self, node: StockNode, transport: LinkTransport) -> None:
        await transport.start()
        ticks = 0
        while True:
            node.member.doTick(0.0)
            ticks += 1
            if ticks % 20 == 0:
                node.disk.write_back(self.world.now_s)
            await asyncio.sleep(TICK_S)

    def _sent(self, source: NodeId, target: NodeId, message: list[Any]) -> None:
        body = cast(dict[str, Any], message[1])
        match body["type"]:
            case "response_vote":
                self.watch.voted(source, GROUP, body["term"], target)
            case "next_node_idx" if body["success"]:
                # The stock acknowledgement names no term: it means the one its sender is in.
                term = self.nodes[source].term
                self.watch.acknowledged(source, GROUP, term, body["next_node_idx"] - 1)
            case _:
                pass

    def _after_step(self, process: Process) -> None:
        node = self.nodes.get(NodeId(process.name))
        if node is not None and node.process is process:
            self.watch.now_s = self.world.now_s
            self.watch.look(node.name, GROUP, node)
            self._look_for_moment()

    def leader(self) -> StockNode | None:
        led = [n for n in self.nodes.values() if n.process.alive and n.leads]
        return max(led, key=lambda node: node.term, default=None)

    async def _load(self) -> None:
        body = bytes(COMMAND_BYTES)
        while self.world.now_s < REGULAR_S:
            leader = self.leader()
            for _ in range(COMMANDS_PER_S // 100):
                if leader is not None:
                    self._number += 1
                    payload = self._number.to_bytes(16, "big")
                    cast(Any, leader.member).put(
                        payload + body, callback=self._acknowledge(payload)
                    )
            await asyncio.sleep(0.01)

    def _acknowledge(self, payload: bytes) -> Callable[[Any, int], None]:
        def told(_result: Any, error: int) -> None:
            if error == 0:
                self.acknowledged.append(payload)

        return told

    async def _strike(self) -> None:
        await asyncio.sleep(self.dice.uniform(REGULAR_S / 2, REGULAR_S - 1.0))
        while (leader := self.leader()) is None:
            await asyncio.sleep(0.01)
        if self.scenario == "power loss":
            for node in self.nodes.values():
                self.network.power_off(node.name)
                node.process.kill()
                node.disk.lose_power(self.world.now_s)
                self.watch.forget(node.name)
            victims = list(self.nodes.values())
        else:
            victims = [await self._cut_and_kill(leader)]
        await asyncio.sleep(self.dice.uniform(2.0, 4.0))
        for victim in victims:
            self.start(victim.name, victim.disk)

    async def _cut_and_kill(self, leader: StockNode) -> StockNode:
        """Cut one follower; kill the leader while several batches are in flight to the other.

        The instant is one in which the other's log ends before what is committed: a batch sent
        again has just arrived.
        """
        followers = [node.name for node in self.nodes.values() if node is not leader]
        cut = self.dice.choice(followers)
        other = next(
            node for node in self.nodes.values() if node.name in followers and node.name != cut
        )
        rest = [name for name in self._names if name != cut]
        self.network.set_cut({(cut, name) for name in rest} | {(name, cut) for name in rest})
        for name in rest:
            self.network.reset(cut, name)
        await asyncio.sleep(0.3)
        struck = asyncio.Event()
        machine_lost = self.dice.random() < 0.5  # with what its kernel had not sent yet

        def strike() -> None:
            if other.last_index < leader.commit_index and not struck.is_set():
                if machine_lost:
                    self.network.power_off(leader.name)
                leader.process.kill()
                struck.set()

        self._look_for_moment = strike
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await struck.wait()
        leader.process.kill()
        self.watch.forget(leader.name)
        await asyncio.sleep(0.05)
        self.network.set_cut(set())
        return leader

    def run(self) -> StockResult:
        clients = Process(self.world, "clients")
        with _engine_seams(self.world, self.dice, None):
            for name in self._names:
                self.start(name, StockDisk())
            self.world.after_step = self._after_step
            clients.spawn(self._load(), "load")
            self.world.kernel.spawn(self._strike(), "strike")
            self.world.run(REGULAR_S + SETTLE_S)
        crashes = [*clients.crashes, *self.world.kernel.crashes]
        if crashes:
            raise RuntimeError(f"the harness crashed: {crashes[0]!r}")
        self.world.close()
        applied = max((node.member.applied for node in self.nodes.values()), key=len)
        lost = set(self.acknowledged) - set(applied)
        return StockResult(
            self.seed, self.scenario, len(self.acknowledged), len(lost), self.watch.violations
        )


@contextmanager
def _engine_seams(
    world: World, dice: random.Random, journal: Callable[[], StockJournal] | None
) -> Generator[None]:
    """PySyncObj finds its clock, its dice and its journal by module names: ours meanwhile."""
    module = cast(Any, engine)
    before = (module.monotonicTime, module.random, module.createJournal, module.pickle)
    module.pickle = stock_pickle  # the hardened engine refuses pickle for the whole process
    module.monotonicTime = lambda: world.now_ns / 1e9
    module.random = random.Random(dice.random()) if journal is None else module.random
    if journal is not None:
        module.createJournal = lambda _file=None: journal()
    try:
        yield
    finally:
        module.monotonicTime, module.random, module.createJournal, module.pickle = before


SCENARIOS = ("cut and kill", "power loss")


def run_stock(seed: int, scenario: str = SCENARIOS[0]) -> StockResult:
    return StockCluster(seed, scenario).run()
