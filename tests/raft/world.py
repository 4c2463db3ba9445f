"""Members of one group in one process: virtual time, links that promise what TCP promises,
journals that can crash.

Time moves in steps of a millisecond. A message takes `latency_ms`, order holds per direction; a
cut drops what is on its way and tells both ends. A node's fsync takes `sync_ms`, and until it is
over the node does nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import cbor2

from cluster.log import SnapshotRefused
from cluster.raft.member import Member, Role
from cluster.raft.options import RaftOptions
from cluster.types import GroupId, NodeId
from tests.testkit.clocks import FakeClock

GROUP = GroupId(7)
OPTIONS = RaftOptions(election_min_ms=1000, election_max_ms=2000, heartbeat_ms=200)


class MemorySnapshot:
    def __init__(self, index: int, term: int, data: bytes, live: Any) -> None:
        self.index, self.term, self.data = index, term, data
        self.hash = bytes(16)
        self.live = [tuple(each) for each in live]


class _Old:
    """Live entries at or below the base."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[bytes, int]] = {}

    def slot(self, index: int) -> int | None:
        found = sorted(self.entries)
        return found.index(index) if index in self.entries else None

    @property
    def terms(self) -> list[int]:
        return [self.entries[index][1] for index in sorted(self.entries)]


class MemoryJournal:
    """A journal that forgets in a crash what was not synced, as the real one does."""

    def __init__(self) -> None:
        self.base_index, self.base_term = 1, 0
        self.tail: list[tuple[bytes, int, int]] = []
        self.old = _Old()
        self.current_term = 0
        self.voted_for: str | None = None
        self.votes_suspended = False
        self.forced: bytes | None = None
        self.diverged: bool | None = None
        self.commit_index = 1
        self.snapshot: MemorySnapshot | None = None
        self.synced_index = 1
        self.truncations: list[int] = []
        self._installing: Any = None
        self._dirty = False
        self._safe: Any = None
        self.keep()

    # what a crash leaves
    def keep(self) -> None:
        self._safe = (
            self.base_index,
            self.base_term,
            list(self.tail),
            dict(self.old.entries),
            self.current_term,
            self.voted_for,
            self.votes_suspended,
            self.forced,
            self.diverged,
            self.commit_index,
            self.snapshot,
        )
        self.synced_index = self.last_index
        self._dirty = False

    def crash(self) -> MemoryJournal:
        after = MemoryJournal()
        (
            after.base_index,
            after.base_term,
            tail,
            old,
            after.current_term,
            after.voted_for,
            after.votes_suspended,
            after.forced,
            after.diverged,
            after.commit_index,
            after.snapshot,
        ) = self._safe
        after.tail, after.old.entries = list(tail), dict(old)
        after.commit_index = min(after.commit_index, after.last_index)
        after.keep()
        return after

    @property
    def dirty(self) -> bool:
        return self._dirty

    @property
    def last_index(self) -> int:
        return self.tail[-1][1] if self.tail else self.base_index

    @property
    def last_term(self) -> int:
        return self.tail[-1][2] if self.tail else self.base_term

    @property
    def memberships(self) -> list[tuple[int, bytes]]:
        return [(index, data) for data, index, _ in self.tail if data[:1] == b"\x02"]

    def add(self, data: bytes, index: int, term: int) -> None:
        assert index == self.last_index + 1
        self.tail.append((bytes(data), index, term))
        self._dirty = True

    def truncate_from(self, index: int) -> None:
        assert index > self.base_index
        self.truncations.append(index)
        del self.tail[index - self.base_index - 1 :]
        self.synced_index = min(self.synced_index, self.last_index)
        self._dirty = True

    def entries(
        self, first: int, count: int | None = None, max_bytes: int | None = None
    ) -> list[tuple[bytes, int, int]]:
        start = first - self.base_index - 1
        assert start >= 0
        found = self.tail[start:] if count is None else self.tail[start : start + count]
        if max_bytes is None:
            return found
        room, kept = max_bytes, []
        for entry in found:
            if kept and len(entry[0]) > room:
                break
            room = max(0, room - len(entry[0]))
            kept.append(entry)
        return kept

    def term_at(self, index: int) -> int | None:
        if index == self.base_index:
            return self.base_term
        if not self.base_index < index <= self.last_index:
            return None
        return self.tail[index - self.base_index - 1][2]

    def hash_at(self, index: int) -> bytes | None:
        return None

    def read(self, index: int) -> bytes | None:
        if self.base_index < index <= self.last_index:
            return self.tail[index - self.base_index - 1][0]
        found = self.old.entries.get(index)
        return None if found is None else found[0]

    def set_term(self, term: int, voted_for: str | None) -> None:
        if (term, voted_for) != (self.current_term, self.voted_for):
            self.current_term, self.voted_for = term, voted_for
            self._dirty = True

    def set_votes_suspended(self, votes_suspended: bool) -> None:
        self._dirty |= votes_suspended != self.votes_suspended
        self.votes_suspended = votes_suspended

    def force(self, members: bytes) -> None:
        self._dirty |= members != self.forced
        self.forced = members

    def force_from(self, term: int, members: bytes) -> None:
        self.set_term(term, None)
        self.set_votes_suspended(False)
        self.force(members)

    def diverge(self, diverged: bool) -> None:
        self._dirty |= diverged != self.diverged
        self.diverged = diverged

    def set_commit(self, index: int) -> None:
        self.commit_index = index

    async def save_snapshot(self, index: int, term: int, data: bytes, live: Any) -> None:
        assert self.term_at(index) == term
        kept: dict[int, tuple[bytes, int]] = {}
        present: list[tuple[int, int]] = []
        for first, last in live:
            for each in range(first, min(last, index) + 1):
                entry = self.read(each)
                if entry is not None:
                    each_term = self.term_at(each)
                    if each_term is None:
                        each_term = self.old.entries[each][1]
                    kept[each] = (entry, each_term)
                    present.append((each, each))
        self.tail = self.tail[index - self.base_index :]
        self.base_index, self.base_term = index, term
        self.old.entries = kept
        self.snapshot = MemorySnapshot(index, term, data, present)
        self.keep()

    def load_snapshot(self) -> MemorySnapshot | None:
        return self.snapshot

    def begin_install(self, index: int, term: int, chain: bytes, data: bytes, live: Any) -> None:
        self._installing = (MemorySnapshot(index, term, data, live), {})

    def add_live(self, index: int, term: int, data: bytes, chain: bytes) -> None:
        self._installing[1][index] = (data, term)

    def abort_install(self) -> None:
        self._installing = None

    async def finish_install(self) -> None:
        snapshot, live = self._installing
        wanted = {i for first, last in snapshot.live for i in range(first, last + 1)}
        if wanted != set(live):
            raise SnapshotRefused("live entries are missing")
        self.snapshot, self.old.entries = snapshot, live
        self.base_index, self.base_term = snapshot.index, snapshot.term
        self.tail = []
        self.commit_index = max(self.commit_index, snapshot.index)
        self._installing = None
        self.keep()


class Wires:
    """All links of the world."""

    def __init__(self, latency_ms: int = 1) -> None:
        self.after_syncncy_ms = latency_ms
        self.now_ms = 0
        self.cut: set[frozenset[str]] = set()
        self.dead: set[str] = set()
        self.queues: dict[tuple[str, str], deque[tuple[int, Any]]] = {}
        self.sent: list[tuple[str, str, Any]] = []  # everything that ever left
        self.drop: Callable[[str, str, Any], bool] = lambda _a, _b, _m: False
        self.hold: set[tuple[str, str]] = set()  # directions in which nothing arrives for now

    def connected(self, a: str, b: str) -> bool:
        return frozenset((a, b)) not in self.cut and not {a, b} & self.dead

    def send(self, a: str, b: str, message: Any) -> bool:
        if not self.connected(a, b):
            return False
        self.sent.append((a, b, message))
        if not self.drop(a, b, message):
            queue = self.queues.setdefault((a, b), deque())
            queue.append((self.now_ms + self.after_syncncy_ms, cbor2.loads(cbor2.dumps(message))))
        return True

    def arriving(self, b: str) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        for (source, target), queue in sorted(self.queues.items()):
            if target != b or (source, target) in self.hold:
                continue
            while queue and queue[0][0] <= self.now_ms:
                found.append((source, queue.popleft()[1]))
        return found


class WireLinks:
    """The Links seam of one node."""

    incarnation = 1

    def __init__(self, name: str, wires: Wires) -> None:
        self.name, self.wires = name, wires
        self.full: set[str] = set()

    def peers(self) -> list[NodeId]:
        return []

    async def start(self, on_message: Any, on_up: Any, on_down: Any) -> None: ...
    async def stop(self) -> None: ...

    def send(self, peer: NodeId, message: list[Any]) -> bool:
        return peer not in self.full and self.wires.send(self.name, peer, message)

    def flush(self) -> None: ...

    def connected(self, peer: NodeId) -> bool:
        return self.wires.connected(self.name, peer)

    def buffered(self, peer: NodeId) -> int:
        return 0


class Recorder:
    """A host that remembers what was applied."""

    def __init__(self) -> None:
        self.applied: list[tuple[bytes, int, int]] = []
        self.roles: list[tuple[Role, int]] = []
        self.poisons: list[int] = []
        self.attempts = 0
        self.raises_at: int | None = None
        self.after_syncr: bytes | None = None
        self.installing: Any = None
        self.base: bytes | None = None

    def apply_entry(self, data: bytes, index: int, term: int) -> None:
        self.attempts += 1
        if index == self.raises_at:
            raise ValueError("a bug")
        self.applied.append((data, index, term))

    def beyond(self, data: bytes) -> Exception | None:
        return ValueError("of a later release") if data == self.after_syncr else None

    def install(self, incoming: Any) -> None:
        self.installing = incoming

    def restore(self, data: bytes, index: int) -> None:
        self.base = data
        self.applied = [(cbor2.loads(data)[0], index, 0)] if data else []

    def let_in(self, node: NodeId) -> bool:
        return False

    def beat(self, peer: NodeId, beat: list[Any]) -> bool:
        return False

    def role_changed(self, role: Role, term: int) -> None:
        self.roles.append((role, term))

    def poison(self, index: int, error: Exception) -> None:
        self.poisons.append(index)


class Node:
    """One member with its journal, its host and its disk."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.journal = MemoryJournal()
        self.sync_ms = 0
        self.up = True
        self.paused = False
        self.start()

    def start(self) -> None:
        world = self.world
        self.links = WireLinks(self.name, world.wires)
        self.host = Recorder()
        self.busy_until = 0
        self.inbox: list[tuple[str, Any]] = []
        self.after_sync: list[tuple[NodeId, Any]] = []
        self.member = Member(
            GROUP,
            NodeId(self.name),
            [NodeId(n) for n in world.names],
            host=self.host,
            journal=self.journal,
            links=self.links,
            clock=world.clock,
            random=Random(f"{world.seed}{self.name}"),
            options=world.options,
        )

    def round(self) -> None:
        """One round, as `DriveLoop` does it."""
        if not self.up or self.paused:
            return
        self.inbox += self.world.wires.arriving(self.name)
        if self.busy_until > self.world.wires.now_ms:
            return
        if self.busy_until:
            self.busy_until = 0
            self.finish()
        now = self.world.now
        member = self.member
        member.now = now
        while self.inbox and self.host.installing is None:
            sender, message = self.inbox.pop(0)
            member.receive(NodeId(sender), message)
        if self.host.installing is not None:
            self.host.installing = None
            try:
                self.journal.finish_install().send(None)
            except StopIteration:
                member.installed(done=True)
            except SnapshotRefused:
                member.installed(done=False)
        member.tick(now)
        member.apply()
        if member.leads:
            member.replication.flush(now)
        self.after_sync += member.take_after_sync()
        if self.journal.dirty and self.sync_ms:
            self.busy_until = self.world.wires.now_ms + self.sync_ms
        else:
            self.finish()

    def finish(self) -> None:
        self.journal.keep()
        due, self.after_sync = self.after_sync + self.member.take_after_sync(), []
        for peer, message in due:
            self.links.send(peer, message)


class World:
    """N members of one group."""

    def __init__(
        self, count: int = 3, *, seed: int = 1, options: RaftOptions = OPTIONS, latency_ms: int = 1
    ) -> None:
        self.seed, self.options = seed, options
        self.clock = FakeClock()
        self.wires = Wires(latency_ms)
        self.names = [f"n{i + 1}" for i in range(count)]
        self.nodes = {name: Node(self, name) for name in self.names}
        self.leaders: dict[int, str] = {}
        for a in self.names:
            for b in self.names:
                if a != b:
                    self.nodes[a].member.link_up(NodeId(b))

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    @property
    def now(self) -> float:
        return self.clock.ns / 1e9

    def step(self) -> None:
        self.wires.now_ms += 1
        self.clock.ns += 1_000_000
        for node in self.nodes.values():
            node.round()
            if node.up and node.member.leads:
                term = node.member.term
                assert self.leaders.setdefault(term, node.name) == node.name, "two leaders"

    def run(self, ms: int) -> None:
        for _ in range(ms):
            self.step()

    def until(self, condition: Callable[[], Any], ms: int = 10_000) -> int:
        """Steps until it holds; how many ms that took."""
        for passed in range(ms):
            if condition():
                return passed
            self.step()
        raise AssertionError("it never happened")

    def leader(self, among: Sequence[str] | None = None) -> Node | None:
        found = [
            node
            for node in self.nodes.values()
            if node.up and node.member.leads and (among is None or node.name in among)
        ]
        return max(found, key=lambda node: node.member.term, default=None)

    def elect(self, name: str | None = None) -> Node:
        """Run until a leader's no-op is applied everywhere; `name`: make it that one."""
        self.until(lambda: self.leader() is not None)
        if name is not None and self.leader() is not self[name]:
            for _ in range(3):
                leader = self.leader()
                assert leader is not None
                if leader.name == name:
                    break
                peer = next(p for p in leader.member.voters if p.id == name)
                leader.member.replication.transfer(peer, self.now)
                self.run(50)
            assert self.leader() is self[name]
        leader = self.leader()
        assert leader is not None
        self.until(
            lambda: all(
                node.member.applied_index >= leader.journal.last_index
                for node in self.nodes.values()
                if node.up
            )
        )
        return leader

    def propose(self, body: bytes, node: Node | None = None) -> int:
        node = node or self.leader()
        assert node is not None
        return node.member.append(body)

    def commit(self, body: bytes) -> int:
        index = self.propose(body)
        leader = self.leader()
        assert leader is not None
        self.until(lambda: leader.member.commit_index >= index)
        return index

    # faults

    def cut(self, a: str, b: str, *, closed: bool = False) -> None:
        """The connection breaks: what is on its way is lost, both ends are told."""
        self.wires.cut.add(frozenset((a, b)))
        for pair in ((a, b), (b, a)):
            self.wires.queues.pop(pair, None)
            node = self[pair[0]]
            node.inbox = [each for each in node.inbox if each[0] != pair[1]]
            if node.up:
                node.member.now = self.now
                node.member.link_down(NodeId(pair[1]), closed=closed)

    def heal(self, a: str, b: str) -> None:
        if frozenset((a, b)) in self.wires.cut and self[a].up and self[b].up:
            self.wires.cut.discard(frozenset((a, b)))
            for pair in ((a, b), (b, a)):
                self[pair[0]].member.now = self.now
                self[pair[0]].member.link_up(NodeId(pair[1]))

    def isolate(self, *names: str) -> None:
        for a in names:
            for b in self.names:
                if b not in names:
                    self.cut(a, b)

    def heal_all(self) -> None:
        for a in self.names:
            for b in self.names:
                if a < b:
                    self.heal(a, b)

    def kill(self, name: str) -> None:
        """kill -9, or the power goes: what was not synced is lost."""
        for other in self.names:
            if other != name:
                self.cut(name, other, closed=True)
        self[name].up = False
        self[name].journal = self[name].journal.crash()

    def restart(self, name: str) -> None:
        node = self[name]
        node.up = True
        node.start()
        for other in self.names:
            if other != name and self[other].up:
                self.heal(name, other)

    # what must always hold

    def applied(self) -> dict[str, list[tuple[bytes, int, int]]]:
        return {name: node.host.applied for name, node in self.nodes.items()}

    def check_logs_match(self) -> None:
        """Raft, 5.3: same index and term, same log up to there; what is applied is the same
        everywhere.
        """
        logs = [
            {index: (data, term) for data, index, term in node.journal.tail}
            for node in self.nodes.values()
        ]
        for a in logs:
            for b in logs:
                common = [i for i in a.keys() & b.keys() if a[i][1] == b[i][1]]
                for index in range(
                    min(a.keys() & b.keys(), default=0), max(common, default=-1) + 1
                ):
                    if index in a and index in b:
                        assert a[index] == b[index], f"logs differ below {max(common)} at {index}"
