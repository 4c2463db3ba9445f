"""The state of one member of a group, which its parts share: who takes part, its role, its log.

`Member` puts the parts together. Each of them knows this state, and of the other parts only those
that are given to it.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Any

from cluster.raft.configuration import Configuration, Configurations
from cluster.raft.host import Host, Role
from cluster.raft.journal_protocol import RaftJournal
from cluster.raft.messages import AT_ONCE, Message
from cluster.raft.pysyncobj_core import NO_OP, Peer, PySyncObjCore
from cluster.raft.quorum import majority, votes_needed
from cluster.seams import Clock, Links
from cluster.types import GroupId, NodeId


class MemberState:
    """Quorums and elections ask the voters; learners only listen."""

    core: PySyncObjCore

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
    ) -> None:
        self.group = group
        self.host = host
        self.journal = journal
        self._links = links
        #: May leave once all that was written so far is on disk.
        self.after_sync: list[tuple[NodeId, Message]] = []
        self.poisoned: str | None = None
        self.stopped = False  # before what a later release wrote: it takes nothing any more
        self.now = clock.monotonic_ns() / 1e9
        self.role = Role.FOLLOWER
        self.leads = False
        self.accepts = False  # leads, and is not about to hand over
        self.campaigning = False
        self.connected: set[Peer] = set()
        self.applied_index = journal.base_index
        self.commit_index = min(max(journal.commit_index, journal.base_index), journal.last_index)
        snapshot = journal.load_snapshot()
        first = Configuration(tuple(sorted(members)))
        self._peers: dict[NodeId, Peer] = {}
        self.me = self.peer(self_node)
        self.configurations = Configurations(
            first, journal, None if snapshot is None else snapshot.data
        )
        self.follow_configuration()

    # --- who takes part

    def connect(self, peer: Peer) -> None:
        self.connected.add(peer)
        self._count_connected()

    def disconnect(self, peer: Peer) -> None:
        # What waited for it must not be the first thing on the next link.
        self.after_sync = [each for each in self.after_sync if each[0] != peer.id]
        self.connected.discard(peer)
        self._count_connected()

    def _count_connected(self) -> None:
        connected = sum(peer in self.connected for peer in self.voters)
        self.connected_to_majority = connected + self.votes >= self.quorum

    def follow_configuration(self) -> None:
        """By the newest configuration of the log."""
        self.configuration = configuration = self.configurations.current
        self.quorum = configuration.quorum
        others = [self.peer(node) for node in configuration.members if node != self.me.id]
        self.peers = tuple(others)  # learners too
        self.voters = tuple(peer for peer in others if peer.id in configuration.voters)
        self.votes = self.me.id in configuration.voters
        self._count_connected()

    @property
    def votes_suspended(self) -> bool:
        """What this disk promised is lost: no votes until a leader gave it again what is committed.
        A restart does not change that.
        """
        return self.journal.votes_suspended

    @votes_suspended.setter
    def votes_suspended(self, votes_suspended: bool) -> None:
        self.journal.set_votes_suspended(votes_suspended)

    def peer(self, node: NodeId) -> Peer:
        """Any node, also one that is no member as far as is known here: that it was made one may
        be news (Raft thesis, 4.1).
        """
        found = self._peers.get(node)
        if found is None:
            found = self._peers[node] = Peer(node, zlib.crc32(node.encode()))
        return found

    def elects(self, votes: Collection[Peer], suspended: Collection[Peer] = ()) -> bool:
        """Enough of the voters, this member among them if it is one. After a lost majority all of
        them must have answered, and a majority of those who were voters with a vote that counts.
        """
        voters = self.configuration.voters
        forced = self.configurations.forced is not None
        answers = {*votes, *suspended} if forced else votes
        if _among(answers, voters) < votes_needed(len(voters), forced=forced):
            return False
        before = self.configurations.voters_before
        return not forced or _among(votes, before) >= majority(len(before))

    @property
    def rank(self) -> int:
        """Its place among the members, from 1: so that two seldom stand at once."""
        return self.rank_of(self.me)

    def rank_of(self, peer: Peer) -> int:
        return bisect_left(self.configuration.members, peer.id) + 1

    # --- what it is

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

    # --- what changes

    def become_candidate(self) -> None:
        self.leader = None
        self.core.set_term(self.term + 1, self.me.id)
        self.core.set_role(Role.CANDIDATE)

    def vote_for(self, peer: Peer) -> None:
        self.core.set_term(self.term, peer.id)

    def step_down(self, leader: Peer | None) -> None:
        self.leader = leader
        self.core.set_role(Role.FOLLOWER)

    def commit(self, index: int) -> None:
        """As far as this member knows, a majority has everything up to `index` on disk."""
        if index > self.commit_index:
            self.commit_index = index
            self.journal.set_commit(index)
            if self.configurations.override is not None:
                self.configurations.committed(index)

    def append_no_op(self) -> None:
        self.journal.add(NO_OP, self.journal.last_index + 1, self.term)

    # --- what leaves

    def send(self, peer: Peer, kind: str, *fields: Any) -> bool:
        """False: dropped, because the peer is not connected or too far behind with reading."""
        return self.post(peer, [self.group, kind, self.term, *fields])

    def post(self, peer: Peer, message: Message) -> bool:
        """As `send`; what must wait for the disk is kept back."""
        if message[1] in AT_ONCE:
            return self._links.send(peer.id, message)
        self.after_sync.append((peer.id, message))
        return True

    def take_after_sync(self) -> list[tuple[NodeId, Message]]:
        """What waits until everything written before this call is on disk."""
        messages, self.after_sync = self.after_sync, []
        return messages


def _among(peers: Collection[Peer], nodes: Collection[NodeId]) -> int:
    return sum(peer.id in nodes for peer in peers)
