"""Links between simulated nodes that promise what TCP promises, no more and no less.

Messages of one connection arrive in order, each once, or not at all when the connection breaks.
What may happen:
- latency and bandwidth: drawn for each direction; a message waits for those before it;
- a silent cut, also of one direction alone: packets are dropped (a firewall, a dead switch port).
  TCP resends them when it heals in time; else the end that hears nothing gives up (`SILENT`)
  and its FIN, if it gets through, tells the other;
- a reset: both ends are told and what was in flight is lost (a NAT that forgets); for as long as a
  pair is `refused`, every connect is answered with a reset as well (a firewall that rejects);
- a killed process: its kernel closes the socket, with a FIN behind what was sent or with a RST that
  loses it;
- a lost machine: silence, and nobody answers a connect until it is back; then its kernel answers
  old connections with RST;
- a paused process: its kernel goes on buffering, so nothing is lost, but the others hear nothing;
- a full buffer: over `bytes_max` a message is dropped by the sender, which is told at once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cbor2

from chaos.simulator.loop import NS, Process, ProcessState, World
from cluster.raft.link_auth import LINK_VERSIONS
from cluster.seams import GONE_AFTER_S, Down, OnDown, OnMessage, OnUp
from cluster.types import NodeId

MS = 1_000_000


@dataclass
class NetworkOptions:
    latency_ms: float = 0.5
    jitter_ms: float = 0.2
    bytes_per_s: float = 100e6
    silence_ms: int = 1_000  # an end that hears nothing for this long gives the connection up
    dial_ms: int = 100  # between two attempts to connect
    gone_after_ms: int = round(GONE_AFTER_S * 1000)  # of nothing but refused attempts
    bytes_max: int = 8 << 20  # of one direction, unsent


@dataclass(eq=False)
class Way:
    """One direction of a connection, as its two kernels hold it."""

    source: SimLinks
    target: SimLinks
    queue: deque[tuple[int, bytes | None]] = field(
        default_factory=deque[tuple[int, "bytes | None"]]
    )  # (due, message); None: FIN
    buffered: int = 0
    due_ns: int = 0
    pumping: bool = False
    open: bool = True  # the source's end is open
    heard_ns: int = 0  # when the target last could hear the source


@dataclass(eq=False)
class Connection:
    ways: dict[NodeId, Way]  # by source


class SimNetwork:
    """All wires of a run, and the kernels at their ends."""

    def __init__(self, world: World, dice: random.Random, options: NetworkOptions) -> None:
        self.world = world
        self.options = options
        self.cut: set[tuple[NodeId, NodeId]] = set()  # directions in which packets are dropped
        self.refused: set[frozenset[NodeId]] = set()  # pairs between which a firewall rejects
        self.machines_off: set[NodeId] = set()
        self.on_send: Callable[[NodeId, NodeId, list[Any]], None] | None = None
        self.on_deliver: Callable[[NodeId, NodeId, list[Any], int], None] | None = None
        self.on_flush: Callable[[NodeId], None] | None = None  # before anything leaves a node
        self.delivered = 0
        self._dice = dice
        self._ends: dict[NodeId, SimLinks] = {}
        self._connections: dict[frozenset[NodeId], Connection] = {}
        self._latency: dict[tuple[NodeId, NodeId], float] = {}

    # --- ends

    def open(
        self,
        node: NodeId,
        process: Process,
        peers: list[NodeId],
        incarnation: int,
        newest_version: int = LINK_VERSIONS[1],
    ) -> SimLinks:
        return SimLinks(self, node, process, peers, incarnation, newest_version)

    def register(self, end: SimLinks) -> None:
        self._ends[end.node] = end
        self.machines_off.discard(end.node)
        end.process.deaths.append(lambda: self._process_died(end))
        for peer in end.peers():
            self.dial_later(end, peer, self._dice.random() * self.options.dial_ms)

    def connection(self, a: NodeId, b: NodeId) -> Connection | None:
        return self._connections.get(frozenset((a, b)))

    def passes(self, source: NodeId, target: NodeId) -> bool:
        return (
            (source, target) not in self.cut
            and source not in self.machines_off
            and target not in self.machines_off
        )

    def _later(self, delay_ms: float, call: Callable[..., None], *args: Any) -> None:
        self.world.kernel.call_later(delay_ms / 1e3, call, *args)

    # --- connecting

    def dial_later(self, end: SimLinks, peer: NodeId, delay_ms: float) -> None:
        if peer not in end.dialing:
            end.dialing.add(peer)
            self._later(delay_ms, self._dial, end, peer)

    def _dial(self, end: SimLinks, peer: NodeId) -> None:
        end.dialing.discard(peer)
        connection = self.connection(end.node, peer)
        mine = None if connection is None else connection.ways[end.node]
        if not end.listening or peer not in end.peers():
            return
        if mine is not None and mine.source is end and mine.open:
            return
        other = self._ends.get(peer)
        answered = self.passes(end.node, peer) and self.passes(peer, end.node)
        if end.process.state is ProcessState.PAUSED or not answered:
            end.refused_since_ns.pop(peer, None)
            self.dial_later(end, peer, 3 * self.options.dial_ms)
        elif other is None or not other.listening or frozenset((end.node, peer)) in self.refused:
            end.process.call_soon(end.was_refused, peer)
            self.dial_later(end, peer, self.options.dial_ms)
        elif other.process.state is ProcessState.PAUSED:
            self.dial_later(end, peer, self.options.dial_ms)
        elif end.node not in other.peers():
            other.process.call_soon(self._knock, end, other)
            self.dial_later(end, peer, self.options.dial_ms)
        else:
            self._connect(end, other)

    def _knock(self, end: SimLinks, other: SimLinks) -> None:
        """In the process that is called, by a node that is no peer of it."""
        stays = other.on_unknown_peer(end.node, end.incarnation)
        there = self._ends.get(end.node) is end and self._ends.get(other.node) is other
        running = end.listening and other.listening
        passes = self.passes(end.node, other.node) and self.passes(other.node, end.node)
        if stays and there and running and passes and other.node in end.peers():
            mine = self.connection(end.node, other.node)
            if mine is None or not all(way.open for way in mine.ways.values()):
                self._connect(end, other)

    def _connect(self, a: SimLinks, b: SimLinks) -> None:
        old = self._connections.pop(frozenset((a.node, b.node)), None)
        if old is not None:
            for way in old.ways.values():
                now_there = b if way.source.node == a.node else a
                later = now_there.incarnation > way.target.incarnation
                self._close_if_open(way, Down.GONE if later else Down.SILENT)
        now = self.world.now_ns
        ways = {
            source.node: Way(source, target, heard_ns=now, due_ns=now)
            for source, target in ((a, b), (b, a))
        }
        connection = Connection(ways)
        self._connections[frozenset((a.node, b.node))] = connection
        for way in ways.values():
            delay = self._delay_ms(way.source.node, way.target.node) * 2
            self._later(delay, way.source.came_up, way.target, connection)
        self._later(self.options.silence_ms / 4, self._watch, connection)

    def _delay_ms(self, source: NodeId, target: NodeId) -> float:
        base = self._latency.get((source, target))
        if base is None:
            base = self.options.latency_ms * self._dice.uniform(0.5, 1.5)
            self._latency[source, target] = base
        return base + self._dice.expovariate(1.0) * self.options.jitter_ms

    # --- carrying

    def carry(self, way: Way, data: bytes | None) -> None:
        now = self.world.now_ns
        size = 0 if data is None else len(data)
        delay = self._delay_ms(way.source.node, way.target.node) * MS
        way.due_ns = max(way.due_ns, now + round(delay)) + round(
            size / self.options.bytes_per_s * NS
        )
        way.queue.append((way.due_ns, data))
        way.buffered += size
        if not way.pumping:
            way.pumping = True
            self.world.kernel.call_at(way.due_ns / NS, self._pump, way)

    def _pump(self, way: Way) -> None:
        """Hand over what has arrived; stop while the direction is cut (`heal` starts it again)."""
        way.pumping = False
        source, target = way.source, way.target
        if not self.passes(source.node, target.node):
            return
        while way.queue and way.queue[0][0] <= self.world.now_ns:
            _, data = way.queue.popleft()
            if data is None:
                self._fin_arrived(way)
                return
            way.buffered -= len(data)
            self.delivered += 1
            target.process.call_soon(target.arrived, way, data)
        if way.queue:
            way.pumping = True
            self.world.kernel.call_at(way.queue[0][0] / NS, self._pump, way)

    def _fin_arrived(self, way: Way) -> None:
        back = self._way_back(way)
        if back is not None and back.open:
            back.open = False
            way.target.process.call_soon(way.target.lost, way.source.node, back, Down.CLOSED)

    def _way_back(self, way: Way) -> Way | None:
        connection = self.connection(way.source.node, way.target.node)
        if connection is None or connection.ways.get(way.source.node) is not way:
            return None
        return connection.ways[way.target.node]

    # --- breaking

    def set_cut(self, cut: set[tuple[NodeId, NodeId]]) -> None:
        """Drop packets in exactly these directions from now on."""
        healed = self.cut - cut
        self.cut = set(cut)
        for source, target in sorted(healed):
            self._resend(source, target)

    def _resend(self, source: NodeId, target: NodeId) -> None:
        connection = self.connection(source, target)
        if connection is None:
            return
        way = connection.ways[source]
        if way.queue and not way.pumping:
            way.pumping = True
            wait_ms = self._dice.uniform(
                0, 200
            )  # TCP's retransmission timer, which backed off meanwhile
            self._later(wait_ms, self._pump, way)

    def reset(self, a: NodeId, b: NodeId, down: Down = Down.CLOSED) -> None:
        """Both ends are told that the connection was reset; what was in flight is lost."""
        connection = self.connection(a, b)
        if connection is not None:
            for way in connection.ways.values():
                self._close_if_open(way, down)

    def set_refused(self, pairs: set[frozenset[NodeId]]) -> None:
        """Reset the connections of exactly these pairs, and whatever they try, from now on."""
        self.refused = set(pairs)
        for pair in sorted(map(sorted, pairs)):
            self.reset(NodeId(pair[0]), NodeId(pair[1]))

    def _close_if_open(self, way: Way, down: Down) -> None:
        way.queue.clear()
        way.buffered = 0
        if way.open:
            self._close(way, down)

    def _process_died(self, end: SimLinks) -> None:
        """Its kernel closes its sockets; when the machine is gone too, nobody is told anything."""
        end.listening = False
        if self._ends.get(end.node) is not end:
            return
        linked = {node for pair in self._connections if end.node in pair for node in pair}
        for peer in [*end.peers(), *sorted(linked - {end.node, *end.peers()})]:
            connection = self.connection(end.node, peer)
            if connection is None:
                continue
            out, back = connection.ways[end.node], connection.ways[peer]
            out.open = False
            back.queue.clear()
            back.buffered = 0
            if end.node in self.machines_off:
                out.queue.clear()
                continue
            # A FIN follows what was sent; a RST overtakes what the network has not yet carried.
            count = len(out.queue)
            kept = self._dice.choices((0, count, self._dice.randint(0, count)), (1, 3, 6))[0]
            while len(out.queue) > kept:
                out.queue.pop()
            out.due_ns = out.queue[-1][0] if out.queue else self.world.now_ns
            self.carry(out, None)

    def power_off(self, node: NodeId) -> None:
        self.machines_off.add(node)

    def _watch(self, connection: Connection) -> None:
        """What the two ends' own timers notice: silence, or an answer from a kernel that knows no
        such connection.
        """
        ways = list(connection.ways.values())
        if self.connection(ways[0].source.node, ways[1].source.node) is not connection:
            return
        now = self.world.now_ns
        for way, back in ((ways[0], ways[1]), (ways[1], ways[0])):
            speaks = way.open and way.source.process.state is ProcessState.RUNNING
            clear = self.passes(way.source.node, way.target.node)
            if speaks and clear:
                way.heard_ns = now
            if not back.open or way.target.process.state is not ProcessState.RUNNING:
                continue
            if now - way.heard_ns >= self.options.silence_ms * MS:
                self._close(back, Down.SILENT)
                self.carry(back, None)
                continue
            answers = not way.open and clear and self.passes(way.target.node, way.source.node)
            if answers and not any(data is None for _, data in way.queue):
                self._close(back, Down.CLOSED)  # RST: "I know no such connection"
        if any(way.open for way in ways):
            self._later(self.options.silence_ms / 4, self._watch, connection)

    def _close(self, way: Way, down: Down) -> None:
        way.open = False
        way.queue.clear()
        way.buffered = 0
        way.source.process.call_soon(way.source.lost, way.target.node, way, down)

    def redial(self, end: SimLinks, peer: NodeId) -> None:
        self.dial_later(end, peer, self._dice.uniform(0.1, 1.0) * self.options.dial_ms)


class SimLinks:
    """One node's end of all its links (`cluster.seams.Links`)."""

    def __init__(
        self,
        network: SimNetwork,
        node: NodeId,
        process: Process,
        peers: list[NodeId],
        incarnation: int,
        newest_version: int,
    ) -> None:
        self.node = node
        self.process = process
        self.incarnation = incarnation
        self.newest_version = newest_version
        self.listening = False
        self.dialing: set[NodeId] = set()  # an attempt is already planned
        self.refused_since_ns: dict[NodeId, int] = {}
        self.on_unknown_peer: Callable[[NodeId, int], bool] = lambda _node, _incarnation: False
        self._network = network
        self._peers = peers
        self._up: dict[NodeId, Way] = {}
        self._told: dict[NodeId, Down | None] = {}
        self._unflushed: dict[NodeId, list[bytes]] = {}
        self._on_message: OnMessage = lambda _peer, _message: None
        self._on_up: OnUp = lambda _peer, _incarnation: None
        self._on_down: OnDown = lambda _peer, _down: None

    # --- the seam

    def peers(self) -> list[NodeId]:
        return list(self._peers)

    def add_peer(self, peer: NodeId, address: str) -> None:
        if peer not in self._peers:
            self._peers.append(peer)
            self._network.dial_later(self, peer, self._network.options.dial_ms)

    def renumber(self, incarnation: int) -> None:
        self.incarnation = incarnation
        for peer in list(self._up):
            self._network.reset(self.node, peer)

    def remove_peer(self, peer: NodeId) -> None:
        if peer in self._peers:
            self._peers.remove(peer)
        self._network.reset(self.node, peer)

    async def start(self, on_message: OnMessage, on_up: OnUp, on_down: OnDown) -> None:
        self._on_message, self._on_up, self._on_down = on_message, on_up, on_down
        self.listening = True
        self._network.register(self)

    async def stop(self) -> None:
        self.listening = False
        for peer in list(self._up):
            self._network.reset(self.node, peer, Down.GONE)  # it says goodbye

    def send(self, peer: NodeId, message: list[Any]) -> bool:
        way = self._up.get(peer)
        if way is None:
            return False
        data = cbor2.dumps(message)
        if way.buffered + len(data) > self._network.options.bytes_max:
            return False
        if self._network.on_send is not None:
            self._network.on_send(self.node, peer, message)
        way.buffered += len(data)
        self._unflushed.setdefault(peer, []).append(data)
        return True

    def flush(self) -> None:
        if self._network.on_flush is not None:
            self._network.on_flush(self.node)
        for peer, messages in self._unflushed.items():
            way = self._up.get(peer)
            if way is None or not way.open:
                continue  # the connection is broken and this process has not been told yet: lost
            for data in messages:
                way.buffered -= len(data)
                self._network.carry(way, data)
        self._unflushed.clear()

    def connected(self, peer: NodeId) -> bool:
        return peer in self._up

    def buffered(self, peer: NodeId) -> int:
        way = self._up.get(peer)
        return 0 if way is None else way.buffered

    def version(self, peer: NodeId) -> int:
        way = self._up.get(peer)
        return 0 if way is None else min(self.newest_version, way.target.newest_version)

    # --- what the kernel tells this process

    def came_up(self, other: SimLinks, connection: Connection) -> None:
        way = connection.ways[self.node]
        if way.open and self._network.connection(self.node, other.node) is connection:
            self.process.call_soon(self._now_up, other, way)

    def _now_up(self, other: SimLinks, way: Way) -> None:
        if not way.open or not self.listening or self._up.get(other.node) is way:
            return
        self._up[other.node] = way
        self._told[other.node] = None
        self.refused_since_ns.pop(other.node, None)
        self._on_up(other.node, other.incarnation)

    def arrived(self, way: Way, data: bytes) -> None:
        peer = way.source.node
        mine = self._up.get(peer)
        if mine is None or mine.target is not way.source:
            # The handshake's answer travels the same way, so the first message never overtakes it.
            connection = self._network.connection(self.node, peer)
            if connection is None or connection.ways[peer] is not way:
                return
            self._now_up(way.source, connection.ways[self.node])
            if peer not in self._up:
                return
        message = cbor2.loads(data)
        if self._network.on_deliver is not None:
            self._network.on_deliver(peer, self.node, message, len(data))
        self._on_message(peer, message)
        if self._unflushed:
            self.flush()

    def lost(self, peer: NodeId, way: Way, down: Down) -> None:
        if self._up.get(peer) is way:
            del self._up[peer]
            self._unflushed.pop(peer, None)
            self.went_down(peer, down)
        self._network.redial(self, peer)

    def was_refused(self, peer: NodeId) -> None:
        since_ns = self.refused_since_ns.setdefault(peer, self._network.world.now_ns)
        refused_ns = self._network.world.now_ns - since_ns
        gone = refused_ns >= self._network.options.gone_after_ms * MS
        self.went_down(peer, Down.GONE if gone else Down.CLOSED)

    def went_down(self, peer: NodeId, down: Down) -> None:
        if peer in self._up or self._told.get(peer) in (down, Down.GONE):
            return
        self._told[peer] = down
        self._on_down(peer, down)
