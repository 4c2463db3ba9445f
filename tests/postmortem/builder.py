"""Data folders of a small cluster, written by the real log and the real machine under a clock of
their own: each test says what happened, and gets files that a node could have left.

    with Built(tmp_path, groups=(1,)) as cluster:
        cluster.elect(1, "n1")
        index = cluster.propose(1, CreateQueue(...), Enqueue(...))
        cluster.wait(5)
    read(cluster.nodes["n1"].folder)

Everything happens one after the other: an entry is on the leader's disk, then on each follower's,
then committed, then the followers hear of it; that takes a millisecond or two. `wait` lets time
pass as idle nodes see it: they look at each other's clocks once a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Self

from cluster.codec.entries import AnyCommand, body_offsets, encode_entry
from cluster.groups.group import DIGEST_ENTRIES
from cluster.log import (
    KIND_CLOCK,
    KIND_DIGEST,
    KIND_LINK_DOWN,
    KIND_LINK_UP,
    KIND_ROLE,
    KIND_STOPPED,
    Log,
    LogIdentity,
    LogOptions,
)
from cluster.log import format as fmt
from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import Tick
from cluster.machine.effects import Effect
from cluster.machine.replies import Reply
from cluster.raft.configuration import Configuration, founded
from cluster.raft.pysyncobj_core import NO_OP, REGULAR
from cluster.types import NodeId, Stamp
from tests.postmortem.built_node import (
    MS_NS,
    SECOND_NS,
    SYNC_NS,
    BuiltDisk,
    BuiltNode,
    NodeClock,
    Time,
    Where,
    finished,
)

#: From one node to another.
HOP_NS = 200_000
#: Between two records.
RECORD_NS = 20_000


@dataclass
class BuiltGroup:
    """What a group has agreed on."""

    number: int
    machine: QueueMachine | CatalogMachine
    leader: NodeId | None = None
    term: int = 0
    commit: int = 1
    digests: dict[int, tuple[int, bytes]] = field(default_factory=dict[int, tuple[int, bytes]])
    commands: dict[int, tuple[int, Sequence[AnyCommand], int]] = field(
        default_factory=dict[int, tuple[int, Sequence[AnyCommand], int]]
    )  # not applied yet: term, commands, now_ms


class Built:
    """See the module."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int | Sequence[str] = 3,
        groups: Iterable[int] = (1,),
        cluster: str = "built",
        archive: bool = False,
        segment_bytes: int = 64 << 20,
        retain_bytes: int = 0,
        wrong_s: Mapping[str, float] | None = None,
    ) -> None:
        """`wrong_s`: by how much a node's wall clock is ahead."""
        self.folder = folder
        self.cluster = cluster
        self.time = Time()
        self.time.each_second = self._look_at_clocks
        self.archive_folder = folder / "archive"
        self._options = LogOptions(
            segment_bytes=segment_bytes,
            retain_bytes=retain_bytes,
            min_free_bytes=0,
            archive_dir=str(self.archive_folder) if archive else None,
        )
        names = nodes if not isinstance(nodes, int) else [f"n{n + 1}" for n in range(nodes)]
        #: Replies and effects of the entry that was applied last, in the order of its commands.
        self.replies: list[Reply] = []
        self.effects: list[Effect] = []
        self.groups = {
            number: BuiltGroup(number, QueueMachine() if number else CatalogMachine())
            for number in groups
        }
        self.nodes: dict[str, BuiltNode] = {}
        for number, name in enumerate(names, start=1):
            clock, disk = NodeClock(self.time, number), BuiltDisk(self.time)
            clock.wrong_ns = round((wrong_s or {}).get(name, 0) * SECOND_NS)
            data = folder / name
            log = self._open(name, data, disk, clock)
            node = BuiltNode(NodeId(name), data, clock, disk, log)
            self.nodes[name] = node
            node.started()
            for group in self.groups:
                node.journal(group)
            node.round()
        for node, peer in combinations(self.nodes.values(), 2):
            self._link(node, peer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The folders as they are now are what is given to read: nodes that are up stay up."""
        for node in self.nodes.values():
            if node.up:
                finished(node.log.close())

    def _open(self, name: str, data: Path, disk: BuiltDisk, clock: NodeClock) -> Log:
        identity = LogIdentity(name, self.cluster)
        opening = Log.open(
            str(data / "log"), disk=disk, clock=clock, identity=identity, options=self._options
        )
        return finished(opening)

    # --- where things are

    @property
    def logs(self) -> dict[NodeId, Path]:
        """The folder with the segments of each node."""
        return {node.name: node.folder / "log" for node in self.nodes.values()}

    @property
    def paths(self) -> list[str]:
        """What a post-mortem is given."""
        return [str(node.folder) for node in self.nodes.values()]

    def where(self, node: str, group: int, index: int) -> Where:
        """The entry that counts at this index on that node."""
        journal, log = self.nodes[node].journal(group), self.nodes[node].log
        slot = journal.tail.slot(index)
        assert slot is not None, f"{node} has no entry {index} above its snapshot"
        place = journal.tail.place(slot)
        return Where(log.wal.segments[place.segment].path, place.offset)

    def hash(self, node: str, group: int, index: int) -> bytes:
        found = self.nodes[node].journal(group).hash_at(index)
        assert found is not None
        return found

    # --- time

    def wait(self, seconds: float) -> None:
        """Nothing is asked of the cluster for so long."""
        stop = self.time.now_ns + round(seconds * SECOND_NS)
        while True:
            next_ns = self.time.now_ns // SECOND_NS * SECOND_NS + SECOND_NS
            if next_ns > stop:
                self.time.now_ns = max(stop, self.time.now_ns)
                return
            self.time.now_ns = next_ns
            self._second()

    def _look_at_clocks(self) -> None:
        for node in self._active():
            for peer in self._active():
                if peer is not node:
                    self.note_clock(node, peer)
            node.round()

    def _second(self) -> None:
        self._look_at_clocks()
        for group in self.groups.values():
            due_ms = group.machine.next_due_ms()
            leader = self.nodes[group.leader] if group.leader is not None else None
            if leader is None or not leader.active or due_ms is None:
                continue
            if due_ms <= leader.clock.wall_ms():
                self.propose(group.number, Tick())

    def note_clock(self, node: BuiltNode, peer: BuiltNode) -> None:
        """It asked for the time, and got it."""
        sent = node.clock.wall_ns()
        self.time.passes(HOP_NS)
        received = peer.clock.wall_ns()
        self.time.passes(RECORD_NS)
        answered = peer.clock.wall_ns()
        self.time.passes(HOP_NS)
        returned = node.clock.wall_ns()
        node.note(KIND_CLOCK, 0, 0, 0, [peer.name, sent, received, answered, returned])

    def jump_clock(self, node: str, seconds: float) -> None:
        """Its wall clock is set; its monotonic clock knows nothing of that."""
        self.nodes[node].clock.wrong_ns += round(seconds * SECOND_NS)

    def sync_slowly(self, node: str, seconds: float) -> None:
        """Its disk takes so long for each sync from now on; 0: as usual."""
        self.nodes[node].disk.syncs.takes_ns = round(seconds * SECOND_NS) or SYNC_NS

    # --- nodes

    def _active(self) -> list[BuiltNode]:
        return [node for node in self.nodes.values() if node.active]

    def _link(self, node: BuiltNode, peer: BuiltNode) -> None:
        """They hear each other from now on."""
        node.note(KIND_LINK_UP, 0, 0, 0, [peer.name, peer.incarnation])
        peer.note(KIND_LINK_UP, 0, 0, 0, [node.name, node.incarnation])
        self.time.passes(RECORD_NS)
        for each in (node, peer):
            each.round()

    def unlink(self, node: str, *, gone: bool) -> None:
        """The others hear it no more: its process ended (gone), or it is silent."""
        lost = self.nodes[node]
        for peer in self._active():
            if peer is not lost:
                fields = [lost.name, lost.incarnation, gone]
                peer.note(KIND_LINK_DOWN, 0, 0, 0, fields)
                peer.round()

    def relink(self, node: str) -> None:
        """It and the others hear each other again."""
        back = self.nodes[node]
        for peer in self._active():
            if peer is not back:
                self._link(back, peer)

    def kill(self, node: str, *, torn: int = 0) -> None:
        """Its process ends at once: what it has not written is lost, and `torn` bytes of a record
        more that it was writing may be seen.
        """
        dead = self.nodes[node]
        dead.log.wal.close()
        dead.up = dead.paused = dead.lagging = False
        if torn:
            with open(dead.log.wal.active.path, "ab") as file:
                file.write(b"\x60\0\0\0\1\2\3\4\1\xf5Qr"[:torn])
        self._lead_no_more(dead)
        self.time.passes(5 * MS_NS)
        self.unlink(node, gone=True)

    def stop(self, node: str) -> None:
        """In order: what it leads is handed over, all is written and synced."""
        leaving = self.nodes[node]
        others = [each for each in self._active() if each is not leaving]
        for group in self.groups.values():
            if group.leader == node and len(others) > len(self.nodes) // 2:
                self.elect(group.number, others[0].name)
        leaving.log.note(KIND_STOPPED, 0, 0, 0, b"")
        finished(leaving.log.close())
        leaving.up = leaving.paused = leaving.lagging = False
        self._lead_no_more(leaving)
        self.time.passes(5 * MS_NS)
        self.unlink(node, gone=True)

    def start(self, node: str) -> None:
        """A new process on the same folder; it catches up."""
        back = self.nodes[node]
        back.log = self._open(node, back.folder, back.disk, back.clock)
        back.incarnation += 1
        back.started()
        back.up = True
        for group in self.groups:
            back.applied[group] = back.journal(group).base_index
        self.relink(node)
        for group in self.groups:
            self.catch_up(node, group)

    def pause(self, node: str, seconds: float, *, heard_after: float = 3) -> None:
        """It stands still: it writes nothing, and the others miss it after a while."""
        still = self.nodes[node]
        still.paused = True
        self.wait(min(seconds, heard_after))
        if seconds > heard_after:
            self.unlink(node, gone=False)
            self.wait(seconds - heard_after)
        still.paused = False
        if seconds > heard_after:
            self.relink(node)
        for group in self.groups:
            self.catch_up(node, group)

    def _lead_no_more(self, node: BuiltNode) -> None:
        for group in self.groups.values():
            if group.leader == node.name:
                group.leader = None

    # --- leaders

    def elect(
        self, group: int, node: str, *, term: int | None = None, voters: Iterable[str] | None = None
    ) -> int:
        """It stands, the voters (all others that are there) vote for it, it leads and appends its
        no-op. Returns the term. With a leader alive this is how a hand-over looks.
        """
        state, winner = self.groups[group], self.nodes[node]
        term = state.term + 1 if term is None else term
        others = [each for each in self._active() if each is not winner]
        voting = others if voters is None else [self.nodes[v] for v in voters if v != node]
        journal = winner.journal(group)
        journal.set_term(term, node)
        asking = state.leader if state.leader in [each.name for each in others] else None
        asked = [] if asking is None else [asking]
        fields = ["candidate", None, *asked]  # with a leader alive it is a hand-over
        winner.note(KIND_ROLE, group, journal.last_index, term, fields)
        winner.round()
        self.time.passes(HOP_NS)
        for voter in voting:
            self._meet_term(voter, state, term)
            voter.journal(group).set_term(term, node)
            voter.round()
            self.time.passes(HOP_NS)
        self._role(winner, group, "leader", term, node)
        old, state.leader, state.term = state.leader, winner.name, max(term, state.term)
        self.append(group, None, nodes=[node], term=term)
        for follower in self._followers(winner):
            if follower not in voting:
                self._meet_term(follower, state, term, old)
                follower.round()
            self.catch_up(follower.name, group)
        self._commit(state)
        return term

    def _meet_term(
        self, node: BuiltNode, state: BuiltGroup, term: int, old: NodeId | None = None
    ) -> None:
        """It hears of a newer term than its own: a leader or a candidate is none any more."""
        journal = node.journal(state.number)
        if journal.current_term >= term:
            return
        journal.set_term(term, None)
        if node.name in (old, state.leader):
            self._role(node, state.number, "follower", term, None)

    def _role(self, node: BuiltNode, group: int, role: str, term: int, leader: str | None) -> None:
        node.note(KIND_ROLE, group, node.journal(group).last_index, term, [role, leader])
        self.time.passes(RECORD_NS)

    def say_role(self, node: str, group: int, role: str, term: int, leader: str | None) -> None:
        """It notes a role, whatever is true."""
        self._role(self.nodes[node], group, role, term, leader)
        self.nodes[node].round()

    # --- entries

    def propose(self, group: int, *commands: AnyCommand) -> int:
        """One entry with these commands: on the disks of all that are there, committed, applied.
        Returns its index. What the machine says is in `replies` and `effects`.
        """
        state = self.groups[group]
        leader = state.leader
        assert leader is not None, f"group {group} has no leader"
        index = self.append(group, *commands, nodes=[leader])
        for follower in self._followers(self.nodes[leader]):
            self._send(follower, state)
        self._commit(state)
        return index

    def append(
        self,
        group: int,
        *commands: AnyCommand | None,
        nodes: Iterable[str],
        term: int | None = None,
    ) -> int:
        """One entry on these nodes' disks alone, not committed. None: a no-op. Returns its index on
        the last of them.
        """
        state = self.groups[group]
        term = state.term if term is None else term
        index = 0
        now_ms = self._now_ms(state)
        real = [command for command in commands if command is not None]
        data = REGULAR + encode_entry(now_ms, real) if real else NO_OP
        for name in nodes:
            node = self.nodes[name]
            index = node.journal(group).last_index + 1
            node.journal(group).add(data, index, term)
            self.time.passes(RECORD_NS)
            node.round()
            if name == state.leader:
                state.commands[index] = (term, real, now_ms)
        return index

    def _now_ms(self, state: BuiltGroup) -> int:
        leader = self.nodes[state.leader] if state.leader is not None else None
        return (leader or next(iter(self.nodes.values()))).clock.wall_ms()

    def _followers(self, leader: BuiltNode) -> list[BuiltNode]:
        return [n for n in self._active() if n is not leader and not n.lagging]

    def _send(self, follower: BuiltNode, state: BuiltGroup) -> None:
        """All that it lacks of what the leader has; what it has otherwise goes."""
        assert state.leader is not None
        source, target = (
            self.nodes[state.leader].journal(state.number),
            follower.journal(state.number),
        )
        self.time.passes(HOP_NS)
        shared = min(source.last_index, target.last_index)
        while shared > target.base_index and source.hash_at(shared) != target.hash_at(shared):
            shared -= 1
        if shared < source.base_index:
            self._install(follower, state)
            shared = source.base_index
        if shared < target.last_index:
            target.truncate_from(shared + 1)
        for command, index, term in source.entries(shared + 1):
            target.add(command, index, term)
            self.time.passes(RECORD_NS)
        follower.round()

    def _install(self, follower: BuiltNode, state: BuiltGroup) -> None:
        """The leader has no entries that far back any more: its snapshot, and what that needs."""
        assert state.leader is not None
        source = self.nodes[state.leader].journal(state.number)
        target = follower.journal(state.number)
        snapshot = source.load_snapshot()
        assert snapshot is not None
        target.begin_install(
            snapshot.index, snapshot.term, snapshot.hash, snapshot.data, snapshot.live
        )
        for first, last in snapshot.live:
            for index in range(first, last + 1):
                slot, command = source.old.slot(index), source.read(index)
                assert slot is not None
                assert command is not None
                digest = source.hash_at(index) or fmt.NO_HASH
                target.add_live(index, source.old.terms[slot], command, digest)
        follower.round()
        finished(target.finish_install())
        follower.applied[state.number] = snapshot.index

    def _commit(self, state: BuiltGroup) -> None:
        """As far as a majority has it on disk: the leader says so, the others hear of it."""
        assert state.leader is not None
        leader = self.nodes[state.leader]
        counts = sorted(
            (self._matches(node, leader, state.number) for node in self.nodes.values()),
            reverse=True,
        )
        index = counts[len(self.nodes) // 2]
        if index <= state.commit or leader.journal(state.number).term_at(index) != state.term:
            return
        self.time.passes(HOP_NS)
        self.commit(state.number, index, [leader.name])
        self.time.passes(HOP_NS)
        self._hear_commit(state)

    def _hear_commit(self, state: BuiltGroup) -> None:
        assert state.leader is not None
        leader = self.nodes[state.leader]
        for follower in self._followers(leader):
            reached = min(state.commit, follower.journal(state.number).last_index)
            self.commit(state.number, reached, [follower.name])

    def _matches(self, node: BuiltNode, leader: BuiltNode, group: int) -> int:
        """Up to where its log is the leader's."""
        if not node.up:
            return 0
        ours, its = leader.journal(group), node.journal(group)
        shared = min(ours.last_index, its.last_index)
        while shared > its.base_index and ours.hash_at(shared) != its.hash_at(shared):
            shared -= 1
        return shared

    def commit(self, group: int, index: int, nodes: Iterable[str]) -> None:
        """These nodes take everything up to there for committed, whatever a majority has."""
        state = self.groups[group]
        for name in nodes:
            node = self.nodes[name]
            node.journal(group).set_commit(index)
            self._apply(state, index)
            self._note_digests(node, state, index)
            node.round()

    def _apply(self, state: BuiltGroup, commit: int) -> None:
        for index in range(state.commit + 1, commit + 1):
            term, commands, now_ms = state.commands.pop(index, (0, (), 0))
            if commands:
                self.replies, self.effects = [], []
            offsets = body_offsets(commands)
            for ordinal, (command, offset) in enumerate(zip(commands, offsets, strict=True)):
                stamp = Stamp(index, term, now_ms, ordinal, offset)
                reply, effects = state.machine.apply(stamp, command)
                self.replies.append(reply)
                self.effects.extend(effects)
            if index % DIGEST_ENTRIES == 0:
                held = self.nodes[state.leader or ""].journal(state.number).term_at(index)
                state.digests[index] = (held or state.term, state.machine.digest())
        state.commit = max(state.commit, commit)

    def _note_digests(self, node: BuiltNode, state: BuiltGroup, commit: int) -> None:
        applied = node.applied.get(state.number, 1)
        first = (applied // DIGEST_ENTRIES + 1) * DIGEST_ENTRIES
        for index in range(first, commit + 1, DIGEST_ENTRIES):
            if index in state.digests:
                term, digest = state.digests[index]
                told = node.wrong_digest or digest
                node.log.note(KIND_DIGEST, state.number, index, term, told)
        node.applied[state.number] = max(applied, commit)

    def catch_up(self, node: str, group: int) -> None:
        """It gets what it lacks from the leader, if there is one."""
        state, follower = self.groups[group], self.nodes[node]
        if state.leader is None or state.leader == node:
            return
        self._meet_term(follower, state, state.term)
        self._send(follower, state)
        self.commit(group, state.commit, [node])

    # --- the care of the log

    def snapshot(self, group: int, *nodes: str) -> int:
        """Of the state now, on these nodes (all), which have applied everything: its index."""
        state = self.groups[group]
        members = Configuration(tuple(sorted(node.name for node in self.nodes.values())))
        for node in [self.nodes[name] for name in nodes] or self._active():
            journal = node.journal(group)
            term = journal.term_at(state.commit)
            assert term is not None
            assert node.applied.get(group) == state.commit
            data = founded(members, state.machine.snapshot())
            live = state.machine.live_indexes()
            finished(journal.save_snapshot(state.commit, term, data, live))
        return state.commit

    def roll(self, *nodes: str) -> None:
        """A new segment begins on these nodes (all)."""
        for node in [self.nodes[name] for name in nodes] or self._active():
            finished(node.log.wal.roll())
            node.round()

    def maintain(self, *nodes: str) -> None:
        """Archive sealed segments, drop dead ones, copy what is live in sparse ones."""
        for node in [self.nodes[name] for name in nodes] or self._active():
            finished(node.log.maintain())


def flip(path: str | Path, offset: int, bit: int = 0) -> None:
    """One bit of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))
