"""Who takes part in a group, as one member of it sees that."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Collection

from cluster.raft.configuration import Configurations
from cluster.raft.journal import RaftJournal
from cluster.raft.pysyncobj_core import Peer
from cluster.raft.quorum import majority, votes_needed
from cluster.types import NodeId


class MembershipView:
    """The part of a member that knows the others. Quorums and elections ask the voters; learners
    only listen.
    """

    journal: RaftJournal

    def __init__(self, node: NodeId, configurations: Configurations) -> None:
        self._peers: dict[NodeId, Peer] = {}
        self.me = self.peer(node)
        self.configurations = configurations
        self.follow_configuration()

    def follow_configuration(self) -> None:
        """By the newest configuration of the log."""
        self.configuration = configuration = self.configurations.current
        self.quorum = configuration.quorum
        others = [self.peer(node) for node in configuration.members if node != self.me.id]
        self.peers = tuple(others)  # learners too
        self.voters = tuple(peer for peer in others if peer.id in configuration.voters)
        self.votes = self.me.id in configuration.voters

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


def _among(peers: Collection[Peer], nodes: Collection[NodeId]) -> int:
    return sum(peer.id in nodes for peer in peers)
