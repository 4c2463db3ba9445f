"""The Raft part of a group's copy on this node, with PySyncObj as a part of its own.

PySyncObj keeps role, term, vote and leader and takes the step to leadership (`stock`). All else is
ours: what is sent, received, truncated, committed and applied. docs/raft.md says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from cluster.raft.configuration import Configuration, Configurations, encode, era_of
from cluster.raft.digests import DIGEST, Digests
from cluster.raft.drive_loop import FATAL
from cluster.raft.elections import Elections
from cluster.raft.following import Following
from cluster.raft.host import Host, Role
from cluster.raft.journal import RaftJournal
from cluster.raft.membership_view import MembershipView
from cluster.raft.options import RaftOptions
from cluster.raft.pysyncobj_core import NO_OP, REGULAR, Peer, PySyncObjCore
from cluster.raft.replication import Replication
from cluster.raft.transport import (
    APPEND,
    APPENDED,
    DIGESTED,
    INSTALL,
    INSTALLED,
    JUDGED,
    PRE_VOTE,
    PRE_VOTED,
    READMIT,
    REJECTED,
    TIMEOUT_NOW,
    VOTE,
    VOTED,
    GroupTransport,
    Message,
)
from cluster.seams import Clock, Links
from cluster.types import GroupId, NodeId

#: Entries applied in one go, so that a long catch-up lets other groups and sockets have their turn.
APPLY_BYTES_MAX = 4 << 20

__all__ = ["Host", "Member", "Role"]


class Member(MembershipView):
    """A member of one group.

    Driven from outside: `receive` messages, then `tick`, `apply` and `flush`, once a step.
    """

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
        self.role = Role.FOLLOWER
        self.leads = False
        self.campaigning = False
        self.connected: set[Peer] = set()
        self.applied_index = journal.base_index
        self.commit_index = min(max(journal.commit_index, journal.base_index), journal.last_index)
        snapshot = journal.load_snapshot()
        first = Configuration(tuple(sorted(members)))
        known = Configurations(first, journal, None if snapshot is None else snapshot.data)
        MembershipView.__init__(self, self_node, known)
        self.transport = GroupTransport(links)
        self.host = host
        self._clock = clock
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
            READMIT: self.following.on_readmit,
            DIGEST: self.digests.on_digest,
            DIGESTED: self.digests.on_digested,
            JUDGED: self.digests.on_judged,
            INSTALL: self.following.on_install,
            INSTALLED: self.replication.on_installed,
        }
        self.core = PySyncObjCore(
            self.me, journal, clock=clock, random=random, on_state=self._on_state_changed
        )
        self.configurations.committed(self.commit_index)
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
    def accepts(self) -> bool:
        """Leading, and not about to hand over."""
        return self.leads and self.replication.successor is None

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def voted_for(self) -> NodeId | None:
        return self.core.voted_for

    @property
    def leader(self) -> Peer | None:
        return self.core.leader

    @leader.setter
    def leader(self, peer: Peer | None) -> None:
        self.core.follow(peer)

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
        return self.core.noop_index if self.leads else None

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
        return self.votes and self.poisoned is None and sound and not self.votes_suspended

    def has_quorum(self) -> bool:
        """Leading, and a majority answered within an election timeout."""
        return self.replication.heard_by_majority(self.now)

    def heard_since(self) -> float | None:
        """Since when the leader is heard without a break, or it leads; None: neither is so now."""
        now, break_s = self._clock.monotonic_ns() / 1e9, self.elections.break_s
        if self.leads:
            heard = self.replication.answered_by_majority(now - break_s)
            return self.replication.heard_since if heard else None
        heard = self.leader is not None and now - self.elections.heard_at < break_s
        return self.elections.heard_since if heard else None

    # --- the step: receive, tick, flush

    def receive(self, sender: NodeId, message: Message) -> None:
        peer = self.peer(sender)
        kind, term = message[1], message[2]
        if sender in self.configuration.lost and not self.host.let_in(sender):
            return  # what it knows and promises is of before it was given up
        if kind == PRE_VOTE:
            self.elections.on_pre_vote(peer, *message[3:])
            return
        handler = self._handlers.get(kind)
        if handler is None:
            return  # of a later version
        if term > self.term:
            self.core.set_term(term, None)
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

    def tick(self, now: float) -> None:
        """Timers, commit."""
        self.now = now
        if self.leads:
            self.replication.tick(now)
        else:
            self.elections.tick(now)

    def take_ack(self, sender: NodeId, message: Message, now: float) -> None:
        """As the leader, at any time: what a follower acknowledged, and what that commits of what
        is on this disk already.
        """
        self.now = now
        self.receive(sender, message)
        self.advance(now)

    def advance(self, now: float) -> None:
        """As the leader, commit what a majority has, of what is on this disk; apply."""
        self.replication.advance_commit(now, self.journal.synced_index)
        self.apply()

    def is_plain_answer(self, message: Message) -> bool:
        """It says of a follower's log how far it is, in this term, and nothing else."""
        return message[1] == APPENDED and message[2] == self.term and len(message) == 4

    def flush(self, now: float) -> None:
        """Send what followers lack. After the step's proposals were appended."""
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
        self.journal.add(REGULAR + body, index, self.core.term)
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
        peer = self.peer(node)
        self.connected.add(peer)
        if self.leads:
            self.replication.connected(peer)
        else:
            self.elections.connected(self.now)

    def link_down(self, node: NodeId, *, closed: bool) -> None:
        """`closed`: reset or refused, so perhaps its process ended."""
        peer = self.peer(node)
        self.transport.forget(peer)
        self.connected.discard(peer)
        if self.leads:
            self.replication.disconnected(peer)
        leader = self.leader
        if closed and leader is not None and leader.id == node:
            self.leader = None
            self.elections.leader_lost(leader, self.now)

    def send(self, peer: Peer, kind: str, *fields: Any) -> bool:
        return self.transport.send(peer, [self.group, kind, self.term, *fields])

    # --- roles

    def become_candidate(self) -> None:
        self.leader = None
        self.core.set_term(self.term + 1, self.me.id)
        self.core.set_role(Role.CANDIDATE)

    def become_leader(self) -> None:
        self.replication.start(self.now)
        self.core.become_leader()
        forced = self.configurations.forced
        if forced is not None:
            voters = {*self.configurations.voters_before, self.me.id}
            self._write_members(forced.with_voters_only(voters, era=era_of(self.term)))

    def vote_for(self, peer: Peer) -> None:
        self.core.set_term(self.term, peer.id)

    def step_down(self, leader: Peer | None) -> None:
        self.leader = leader
        self.core.set_role(Role.FOLLOWER)

    def _on_state_changed(self, before: int, after: int) -> None:
        """Called by PySyncObj. Nothing else sets the role."""
        self.role = Role(after)
        self.leads = self.role is Role.LEADER
        self.campaigning = self.role is Role.CANDIDATE
        if Role(before) is Role.LEADER:
            self.replication.stop()
            self.elections.deadline = self.now + self.elections.timeout()
        self.host.role_changed(self.role, self.term)

    # --- the log

    def commit(self, index: int) -> None:
        """As far as this member knows, a majority has everything up to `index` on disk."""
        if index > self.commit_index:
            self.commit_index = index
            self.journal.set_commit(index)
            self.configurations.committed(index)

    def installed(self, *, done: bool) -> None:
        """The journal now starts at the snapshot (or, not done, is as before): go on from there."""
        incoming = self.following.installed(done=done)
        if done:
            self.commit_index = self.applied_index = incoming.index
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

    def apply(self) -> None:
        """Apply what is committed.

        What raises is a bug: it is not tried again, and nothing behind it is applied.
        """
        commit = self.commit_index
        applied = self.applied_index
        if applied >= commit or self.poisoned is not None:
            return
        entries = self.journal.entries(applied + 1, commit - applied, APPLY_BYTES_MAX)
        for command, index, term in entries:
            beyond = self.host.beyond(command)
            if beyond is not None:
                self.stop_before(index, beyond)
                return
            try:
                self.host.apply_entry(command, index, term)
            except FATAL:
                raise
            except Exception as error:  # noqa: BLE001 -- the machine is total, so anything is a bug
                self.poisoned = f"entry {index}: {type(error).__name__}: {error}"
                self.host.poison(index, error)
                if self.leads:
                    self.step_down(None)
                return
            self.applied_index = index
