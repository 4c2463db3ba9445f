"""One group's copy on this node: PySyncObj's SyncObj, made safe.

docs/raft.md has the table of what and why. Kept of the stock class: its state, terms, votes and
the step to leadership. Replaced: everything that sends, receives, truncates, commits, applies,
compacts or serialises. The private names of SyncObj that this rests on are STATE, REPLACED and
KEPT; importing this module fails when the installed version lacks one.
"""
# ruff: noqa: N802 -- the names of the base class, which are not ours to choose
# The base class has no types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from pysyncobj.config import SyncObjConf
from pysyncobj.syncobj import SyncObj

from cluster.raft.configuration import Configuration, Configurations, encode, era_of
from cluster.raft.digests import DIGEST, Digests
from cluster.raft.elections import Elections
from cluster.raft.following import Following
from cluster.raft.host import Host, Role
from cluster.raft.journal import RaftJournal
from cluster.raft.membership_view import MembershipView
from cluster.raft.options import RaftOptions
from cluster.raft.replication import Replication
from cluster.raft.stock import NO_OP, REGULAR, Peer, injected
from cluster.raft.transport import (
    APPEND,
    APPENDED,
    DIGESTED,
    INSTALL,
    INSTALLED,
    JUDGED,
    PRE_VOTE,
    PRE_VOTED,
    REJECTED,
    TIMEOUT_NOW,
    TRUST,
    VOTE,
    VOTED,
    GroupTransport,
    Message,
)
from cluster.seams import Clock, Links
from cluster.types import GroupId, NodeId

#: What its constructor sets and we read or write.
STATE = (
    "raftState",
    "raftCurrentTerm",
    "votedForNodeId",
    "raftLeader",
    "raftCommitIndex",
    "raftLastApplied",
    "connectedNodes",
    "noopIDx",
)
#: What we replace.
REPLACED = (
    "onMessageReceived",
    "onNodeConnected",
    "onNodeDisconnected",
    "getCurrentLogIndex",
    "getCurrentLogTerm",
    "sendAppendEntries",
    "applyLogEntries",
    "tryLogCompaction",
    "loadDumpFile",
    "parseChangeClusterRequest",
    "doApplyCommand",
    "generateRaftTimeout",
)
#: What we call.
KEPT = ("setState", "setCurrentTerm", "onBecomeLeader")

for _name in STATE:
    assert f"_SyncObj__{_name}" in vars(SyncObj)["__init__"].__code__.co_names, (
        f"SyncObj has no __{_name}"
    )
for _name in REPLACED + KEPT:
    assert f"_SyncObj__{_name}" in vars(SyncObj), f"SyncObj has no method __{_name}"

#: Never reached, so that the stock class never splits a command (and never joins it wrongly).
BATCH_BYTES_NEVER = 1 << 40
#: Entries applied in one go, so that a long catch-up lets other groups and sockets have their turn.
APPLY_BYTES_MAX = 4 << 20

__all__ = ["Host", "Member", "Role"]


class Member(MembershipView, SyncObj):
    """A member of one group.

    Driven from outside: `receive` messages, then `tick`, then `flush`, once a round.
    """

    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: NodeId | None
    _SyncObj__raftLeader: Peer | None
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__connectedNodes: set[Peer]
    _SyncObj__noopIDx: int | None
    _SyncObj__setState: Callable[[int], None]
    _SyncObj__setCurrentTerm: Callable[[int, NodeId | None], None]
    _SyncObj__onBecomeLeader: Callable[[], None]

    def __init__(
        self,
        group: GroupId,
        self_node: NodeId,
        members: Sequence[NodeId],
        *,
        host: Host,
        journal: RaftJournal,
        links: Links,
        clock: Clock,
        random: Random,
        options: RaftOptions,
    ) -> None:
        self.group = group
        self.journal = journal
        self.poisoned: str | None = None
        self.stopped = False  # before what a later release wrote: it takes nothing any more
        self.now = clock.monotonic_ns() / 1e9
        snapshot = journal.load_snapshot()
        first = Configuration(tuple(sorted(members)))
        known = Configurations(first, journal, None if snapshot is None else snapshot.data)
        MembershipView.__init__(self, self_node, known)
        self.transport = GroupTransport(group, self.peer, links)
        self.host = host
        self._clock = clock
        self._random = random
        self.elections = Elections(self, options, random)
        self.replication = Replication(self, options)
        self.following = Following(self)
        self.digests = Digests(self)
        self._handlers: dict[str, Callable[..., None]] = {
            APPEND: self.following.on_append,
            APPENDED: self.replication.on_appended,
            REJECTED: self.replication.on_rejected,
            PRE_VOTED: self.elections.on_pre_voted,
            VOTE: self.elections.on_vote,
            VOTED: self.elections.on_voted,
            TIMEOUT_NOW: self.following.on_timeout_now,
            TRUST: self.following.on_trust,
            DIGEST: self.digests.on_digest,
            DIGESTED: self.digests.on_digested,
            JUDGED: self.digests.on_judged,
            INSTALL: self.following.on_install,
            INSTALLED: self.replication.on_installed,
        }
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=False,
            appendEntriesBatchSizeBytes=BATCH_BYTES_NEVER,
            raftMinTimeout=options.election_min_ms / 1000,
            raftMaxTimeout=options.election_max_ms / 1000,
            appendEntriesPeriod=options.heartbeat_ms / 1000,
            leaderFallbackTimeout=options.election_max_ms / 1000,
            connectionTimeout=2 * options.election_max_ms / 1000,
            onStateChanged=self._on_state_changed,
        )
        with injected(journal=journal, clock=clock, random=random):
            SyncObj.__init__(self, self.me, self.peers, conf, transport=self.transport)
        self._SyncObj__raftLastApplied = journal.base_index
        committed = min(max(journal.commit_index, journal.base_index), journal.last_index)
        self._SyncObj__raftCommitIndex = committed
        self.configurations.committed(committed)
        self.elections.start(self.now)

    # --- who takes part

    def may_change(self) -> bool:
        """One change at a time, and none before this leadership has committed an entry: the flaw
        of the rule as it was first published.
        """
        noop, committed = self.noop_index, self.commit_index
        return noop is not None and max(noop, self.configurations.index) <= committed

    def change(self, configuration: Configuration) -> None:
        """As the leader: write it, and go by it from now on."""
        assert self.may_change()
        assert configuration.follows(self.configuration)
        assert self.me.id in configuration.voters, "a leader hands over before it goes"
        self._write_members(configuration)

    def _write_members(self, configuration: Configuration) -> None:
        index = self.journal.last_index + 1
        command = encode(configuration)
        self.journal.add(command, index, self.term)
        self.configurations.add(index, command)
        self.reconfigure()

    def reconfigure(self) -> None:
        """The newest configuration of the log is another one than before."""
        self.follow_configuration()
        if self.leads:
            self.replication.reconfigure(self.now)

    # --- what it is

    @property
    def role(self) -> Role:
        return Role(self._SyncObj__raftState)

    @property
    def leads(self) -> bool:
        return self._SyncObj__raftState == 2

    @property
    def stands(self) -> bool:
        return self._SyncObj__raftState == 1

    @property
    def accepts(self) -> bool:
        """Leading, and not about to hand over."""
        return self.leads and not self.replication.transferring

    @property
    def term(self) -> int:
        return self._SyncObj__raftCurrentTerm

    @property
    def voted_for(self) -> NodeId | None:
        return self._SyncObj__votedForNodeId

    @property
    def leader(self) -> Peer | None:
        return self._SyncObj__raftLeader

    @leader.setter
    def leader(self, peer: Peer | None) -> None:
        self._SyncObj__raftLeader = peer

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    @property
    def applied_index(self) -> int:
        return self._SyncObj__raftLastApplied

    @property
    def last_index(self) -> int:
        return self.journal.last_index

    @property
    def last_term(self) -> int:
        return self.journal.last_term

    @property
    def noop_index(self) -> int | None:
        """The first entry of our leadership: once it is applied, so is all that was committed
        before.
        """
        return self._SyncObj__noopIDx if self.leads else None

    @property
    def connected(self) -> set[Peer]:
        return self._SyncObj__connectedNodes

    @property
    def diverged(self) -> bool:
        """Its state is not that of the others."""
        return bool(self.journal.diverged)

    @diverged.setter
    def diverged(self, diverged: bool) -> None:
        self.journal.diverge(diverged)

    @property
    def may_lead(self) -> bool:
        """Not when it could not apply what it would commit, does not have all of it, or made
        something else of it than the others, unless those were given up: it may be the only one
        that has all of the log.
        """
        sound = not self.diverged or self.configurations.forced is not None
        return self.votes and self.poisoned is None and sound and not self.withholds_votes

    def has_quorum(self) -> bool:
        """Leading, and a majority answered within an election timeout."""
        return self.replication.heard_by_majority(self.now)

    def heard_since(self) -> float | None:
        """Since when the leader is heard without a break, or it leads; None: neither is so now."""
        now, break_s = self._clock.monotonic_ns() / 1e9, self.elections.break_s
        if self.leads:
            heard = self.replication.heard_by_majority(now, break_s)
            return self.replication.heard_since if heard else None
        heard = self.leader is not None and now - self.elections.heard_at < break_s
        return self.elections.heard_since if heard else None

    # --- the round: receive, tick, flush

    def receive(self, sender: NodeId, message: Message) -> None:
        self.transport.receive(sender, message)

    def tick(self, now: float) -> None:
        """Timers, commit, apply."""
        self.now = now
        if self.leads:
            self.replication.tick(now)
        else:
            self.elections.tick(now)
        self._SyncObj__applyLogEntries()

    def hear(self, messages: Sequence[tuple[NodeId, Message]], now: float) -> None:
        """As the leader, while the disk syncs: what followers acknowledged, and what that
        commits of what is on this disk already.
        """
        self.now = now
        for sender, message in messages:
            self.receive(sender, message)
        self.replication.advance_commit(now, self.journal.synced_index)
        self._SyncObj__applyLogEntries()

    def is_plain_answer(self, message: Message) -> bool:
        """It says of a follower's log how far it is, in this term, and nothing else."""
        return message[1] == APPENDED and message[2] == self.term and len(message) == 4

    def flush(self, now: float) -> None:
        """Send what followers lack. After the round's proposals were appended."""
        if self.leads:
            self.replication.flush(now)

    def due(self) -> float:
        """When it must be ticked next though nothing happens."""
        if self.applied_index < self.commit_index and self.poisoned is None:
            return self.now
        return self.replication.due() if self.leads else self.elections.deadline

    def append(self, body: bytes) -> int:
        """Add a command as the leader; returns its index."""
        assert self.leads
        index = self.journal.last_index + 1
        self.journal.add(REGULAR + body, index, self.term)
        return index

    def append_no_op(self) -> None:
        self.journal.add(NO_OP, self.journal.last_index + 1, self.term)

    def transfer(self, to: NodeId | None) -> bool:
        """Hand leadership to `to`, or to whoever is closest. False: there is nobody to take it."""
        peer = next((peer for peer in self.voters if peer.id == to), None)
        if not self.leads or (to is not None and peer is None):
            return False
        return self.replication.transfer(peer, self.now)

    def link_up(self, node: NodeId) -> None:
        self.transport.up(node)

    def link_down(self, node: NodeId, *, closed: bool) -> None:
        """`closed`: reset or refused, so perhaps its process ended."""
        self.transport.forget(node)
        self.transport.down(node)
        leader = self.leader
        if closed and leader is not None and leader.id == node:
            self.leader = None
            self.elections.leader_lost(leader, self.now)

    def send(self, peer: Peer, kind: str, *fields: Any) -> bool:
        return self.transport.send(peer, [self.group, kind, self.term, *fields])

    # --- roles

    def become_candidate(self) -> None:
        self.leader = None
        self._SyncObj__setCurrentTerm(self.term + 1, self.me.id)
        self._SyncObj__setState(1)

    def become_leader(self) -> None:
        self.replication.start(self.now)
        with injected(journal=self.journal, clock=self._clock, random=self._random):
            self._SyncObj__onBecomeLeader()
        forced = self.configurations.forced
        if forced is not None:
            self._write_members(replace(forced, era=era_of(self.term)))

    def vote_for(self, peer: Peer) -> None:
        self._SyncObj__setCurrentTerm(self.term, peer.id)

    def step_down(self, leader: Peer | None) -> None:
        self.leader = leader
        self._SyncObj__setState(0)

    def _on_state_changed(self, before: int, after: int) -> None:
        if before == 2:
            self.replication.stop()
            self.elections.deadline = self.now + self.elections.timeout()
        self.host.role_changed(Role(after), self.term)

    # --- messages

    def _SyncObj__onMessageReceived(self, peer: Peer, message: Message) -> None:
        kind, term = message[1], message[2]
        if peer.id in self.configuration.lost and not self.host.let_in(peer.id):
            return  # what it knows and promises is of before it was given up
        if kind == PRE_VOTE:
            self.elections.on_pre_vote(peer, *message[3:])
            return
        handler = self._handlers.get(kind)
        if handler is None:
            return  # of a later version
        if term > self.term:
            self._SyncObj__setCurrentTerm(term, None)
            self.following.forget()
            self.step_down(None)
        elif term < self.term and kind != PRE_VOTED:
            # Answers of another term are not for us; who asks learns the term from ours.
            if kind == VOTE:
                self.send(peer, VOTED, False)
            elif kind in (APPEND, INSTALL):
                self.send(peer, REJECTED, 0, 0, 0)
            return
        handler(peer, *message[3:])

    def commit(self, index: int) -> None:
        """As far as this member knows, a majority has everything up to `index` on disk."""
        if index > self.commit_index:
            self._SyncObj__raftCommitIndex = index
            self.journal.set_commit(index)
            self.configurations.committed(index)

    def installed(self, *, done: bool) -> None:
        """The journal now starts at the snapshot (or, not done, is as before): go on from there."""
        incoming = self.following.installed(done=done)
        if done:
            self._SyncObj__raftCommitIndex = self._SyncObj__raftLastApplied = incoming.index
            data = self.configurations.install(incoming.index, incoming.data)
            self.configurations.committed(incoming.index)
            self.reconfigure()
            self.host.restore(data, incoming.index)

    def stop_before(self, index: int, beyond: Exception) -> None:
        """What comes at `index` is of a later release: it is neither applied nor acknowledged, nor
        is anything behind it. Another release goes on from here.
        """
        self.stopped = True
        self.poisoned = f"entry {index}: {beyond}"
        self.following.forget()
        self.host.poison(index, beyond)
        if self.leads:
            self.step_down(None)

    # --- SyncObj's own steps, replaced

    def _SyncObj__applyLogEntries(self) -> bool:
        """Apply what is committed.

        What raises is a bug: it is not tried again, and nothing behind it is applied.
        """
        commit = self.commit_index
        applied = self.applied_index
        if applied >= commit or self.poisoned is not None:
            return False
        entries = self.journal.entries(applied + 1, commit - applied, APPLY_BYTES_MAX)
        for command, index, term in entries:
            beyond = self.host.beyond(command)
            if beyond is not None:
                self.stop_before(index, beyond)
                return False
            try:
                self.host.apply_entry(command, index, term)
            except Exception as error:  # noqa: BLE001 -- the machine is total, so anything is a bug
                self.poisoned = f"entry {index}: {type(error).__name__}: {error}"
                self.host.poison(index, error)
                if self.leads:
                    self.step_down(None)
                return False
            self._SyncObj__raftLastApplied = index
        return False

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N803 -- as the base class has it
        now = self._clock.monotonic_ns() / 1e9
        self.tick(now)
        self.flush(now)

    def _SyncObj__onNodeConnected(self, peer: Peer) -> None:
        self.connected.add(peer)
        if self.leads:
            self.replication.connected(peer)
        else:
            self.elections.connected(self.now)

    def _SyncObj__onNodeDisconnected(self, peer: Peer) -> None:
        self.connected.discard(peer)
        if self.leads:
            self.replication.disconnected(peer)

    def _SyncObj__getCurrentLogIndex(self) -> int:
        return self.journal.last_index

    def _SyncObj__getCurrentLogTerm(self) -> int:
        return self.journal.last_term

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self.elections.timeout()

    def _SyncObj__sendAppendEntries(self) -> None:
        """Followers are sent to in `flush`, once a round."""

    def _SyncObj__tryLogCompaction(self) -> None:
        """Snapshots are the group's business: positions only, in the journal."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N803
        """There is no dump: the group restores its machine from the journal's snapshot."""

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        raise AssertionError("entries are applied by the group, never unpickled")

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:
        """None of its own: see `configuration`."""
