"""The Raft part of a group's copy on this node, with PySyncObj as a part of its own.

PySyncObj keeps role, term, vote and leader and takes the step to leadership (`stock`). All else is
ours: what is sent, received, truncated, committed and applied. docs/raft.md says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from cluster.raft.configuration import Configuration
from cluster.raft.digests import DIGEST, Digests
from cluster.raft.drive_loop import FATAL
from cluster.raft.elections import Elections
from cluster.raft.following import Following
from cluster.raft.host import Host, Role
from cluster.raft.journal_protocol import RaftJournal
from cluster.raft.member_state import MemberState
from cluster.raft.messages import (
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
    Message,
)
from cluster.raft.options import RaftOptions
from cluster.raft.pysyncobj_core import REGULAR, PySyncObjCore
from cluster.raft.replication import Replication
from cluster.seams import Clock, Links
from cluster.types import GroupId, NodeId

#: Entries applied in one go, so that a long catch-up lets other groups and sockets have their turn.
APPLY_BYTES_MAX = 4 << 20

__all__ = ["Host", "Member", "Role"]


class Member(MemberState):
    """A member of one group.

    Driven from outside: `receive` messages, then `tick`, `apply` and, as the leader,
    `replication.flush`, once a step.
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
        super().__init__(
            group, self_node, members, host=host, journal=journal, links=links, clock=clock
        )
        self._clock = clock
        self.replication = Replication(self, options)
        self.elections = Elections(self, options, random, self.replication)
        self.following = Following(self, self.elections, self.replication)
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
        if self.configurations.override is not None:
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
        self.replication.write_members(configuration)

    # --- what it is

    @property
    def noop_index(self) -> int | None:
        """The first entry of our leadership: once it is applied, so is all that was committed
        before.
        """
        return self.core.noop_index if self.leads else None

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
        """Timers; as the leader, commit what acknowledgements in the inbox allow."""
        self.now = now
        if self.leads:
            self.replication.tick(now)
        else:
            self.elections.tick(now)

    def take_ack(self, sender: NodeId, message: Message, now: float) -> bool:
        """As the leader, at any time: what a follower acknowledged, and what that commits of what
        is on this disk already. False: it has nothing that it had not said before.
        """
        self.now = now
        progress = self.replication.followers.get(self.peer(sender))
        before = 0 if progress is None else progress.counted
        self.receive(sender, message)
        if progress is None or progress.counted == before:
            return False
        self.advance(now)
        return True

    def advance(self, now: float) -> None:
        """As the leader, commit what a majority has, of what is on this disk; apply."""
        self.replication.advance_commit(now, self.journal.synced_index)
        self.apply()

    def is_plain_answer(self, message: Message) -> bool:
        """It says of a follower's log how far it is, in this term, and nothing else."""
        return message[1] == APPENDED and message[2] == self.term and len(message) == 4

    def is_plain_heartbeat(self, sender: NodeId, message: Message) -> bool:
        """From the leader that is followed, which brings nothing: the logs are equal, all of this
        one is on disk, and what is committed is applied.
        """
        if message[1] != APPEND or message[2] != self.term or message[6] != []:
            return False
        _, _, _, prev, prev_term, commit, _ = message
        journal, leader = self.journal, self.leader
        return (
            leader is not None
            and leader.id == sender
            and prev == journal.last_index == journal.synced_index
            and prev_term == journal.last_term
            and commit <= self.commit_index == self.applied_index
            and not (self.stopped or journal.votes_suspended or self.following.receives_snapshot)
            and sender not in self.configuration.lost
        )

    def acknowledge_heartbeat(
        self, sender: NodeId, now: float, joined: list[list[Any]] | None
    ) -> None:
        """One that is plain, between two steps: it changes nothing that must be synced."""
        self.now = now
        self.elections.heard_leader(now)
        assert not self.after_sync, "it would overtake what waits for the disk"
        if joined is None:
            self._links.send(sender, [self.group, APPENDED, self.term, self.last_index])
        else:
            joined.append([self.group, self.term, self.last_index])

    def has_still(self, term: int, last: int) -> bool:
        """What was acknowledged of this term, all of it on disk. In one term a log that was equal
        to the leader's loses nothing, unless the copy begins anew.
        """
        journal = self.journal
        equal = self.term == term and last == journal.last_index == journal.synced_index
        return equal and not (self.leads or self.stopped or journal.votes_suspended)

    def due(self) -> float:
        """When it must be ticked next though nothing happens."""
        if self.applied_index < self.commit_index and self.poisoned is None:
            return self.now
        return self.replication.due() if self.leads else self.elections.deadline

    def append(self, entry: bytes) -> int:
        """Add an entry of commands as the leader; returns its index."""
        assert self.leads
        index = self.journal.last_index + 1
        self.journal.add(REGULAR + entry, index, self.core.term)
        return index

    def transfer(self, to: NodeId | None) -> bool:
        """Hand leadership to `to`, or to whoever is closest. False: there is nobody to take it."""
        peer = next((peer for peer in self.voters if peer.id == to), None)
        if not self.leads or (to is not None and peer is None):
            return False
        return self.replication.transfer(peer, self.now)

    def link_up(self, node: NodeId) -> None:
        peer = self.peer(node)
        self.connect(peer)
        if self.leads:
            self.replication.connected(peer)
        else:
            self.elections.connected(self.now)

    def link_down(self, node: NodeId, *, closed: bool) -> None:
        """`closed`: reset or refused, so perhaps its process ended."""
        peer = self.peer(node)
        self.disconnect(peer)
        if self.leads:
            self.replication.disconnected(peer)
        leader = self.leader
        if closed and leader is not None and leader.id == node:
            self.leader = None
            self.elections.leader_lost(leader, self.now)

    # --- roles

    def _on_state_changed(self, before: int, after: int) -> None:
        """Called by PySyncObj. Nothing else sets the role."""
        self.role = Role(after)
        self.leads = self.role is Role.LEADER
        self.campaigning = self.role is Role.CANDIDATE
        self.accepts = self.leads
        if Role(before) is Role.LEADER:
            self.replication.stop()
            self.elections.deadline = self.now + self.elections.timeout()
        self.host.role_changed(self.role, self.term)

    # --- the log

    def installed(self, *, done: bool) -> None:
        """The journal now starts at the snapshot (or, not done, is as before): go on from there."""
        incoming = self.following.installed(done=done)
        if done:
            self.commit_index = self.applied_index = incoming.index
            data = self.configurations.install(incoming.index, incoming.data)
            if self.configurations.override is not None:
                self.configurations.committed(incoming.index)
            self.follow_configuration()
            self.host.restore(data, incoming.index)

    def apply(self) -> None:
        """Apply what is committed.

        What raises is a bug: it is not tried again, and nothing behind it is applied.
        """
        commit = self.commit_index
        applied = self.applied_index
        if applied >= commit or self.poisoned is not None:
            return
        entries = self.journal.entries(applied + 1, commit - applied, APPLY_BYTES_MAX)
        for data, index, term in entries:
            try:
                self.host.apply_entry(data, index, term)
            except FATAL:
                raise
            except Exception as error:  # noqa: BLE001 -- the machine is total, so anything is a bug
                beyond = self.host.beyond(data)
                if beyond is not None:
                    self.following.stop_before(index, beyond)
                    return
                self.poisoned = f"entry {index}: {type(error).__name__}: {error}"
                self.host.poison(index, error)
                if self.leads:
                    self.step_down(None)
                return
            self.applied_index = index
