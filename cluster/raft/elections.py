"""Who leads: pre-votes, votes, and when to ask for them.

A member asks for pre-votes before it stands (Raft thesis, 9.6), so one that was cut off comes back
without ending the term of a healthy leader. Times are seconds of the node's monotonic clock.

A disk that forgot what it promised votes like any other, and says that its vote is *suspended*
(`None` in place of `True`). Such a vote elects nobody. But the first leader after a lost majority
(`cluster/raft/configuration.py`) needs an answer of every survivor, to lack nothing that one of
them has, and for that a suspended vote will do. Else the survivors would wait for ever for a copy
that was being made when the majority was lost: its own log does not say yet that it is a member, so
a person's order does not reach it, and only the leader that they wait for brings it up to date.

Why that is safe:

- That leader does lack nothing. A suspended vote, too, is only given to a log that is as up to date
  as the voter's own (Raft, 5.4.1).
- All such leaders of one era have a survivor in common that forgot nothing. Each needs votes that
  are not suspended of a majority of the survivors that its log names as voters (`voters_before`),
  and by the entry that it writes first these are the voters, with itself. So whatever that entry's
  majority commits, one of those whose votes a later candidate needs has it, and refuses a log
  without it. This is Raft's own argument (5.4.3), and like that it holds though the logs of two
  candidates are one change of voters apart (thesis, 4.1). Learners may forget: no majority of
  theirs decides anything. If the log names no survivor as a voter, all survivors stand in for them.
- It is a vote all the same: one for each term, and on disk before it is told.
"""

from __future__ import annotations

import math
from random import Random

from cluster.raft.member_state import MemberState
from cluster.raft.messages import PRE_VOTE, PRE_VOTED, VOTE, VOTED
from cluster.raft.options import RaftOptions
from cluster.raft.pysyncobj_core import Peer
from cluster.raft.replication import Replication
from cluster.types import NodeId

#: A leader whose link was closed is replaced after this long, times one more for every rank...
LOST_DELAY_S = 0.010
#: ...plus this for every rank, so that two members do not stand at once, and up to this much at
#: random.
LOST_RANK_S = 0.040
LOST_JITTER_S = 0.008
#: How often that is tried before the usual timeout is waited for: the others may learn of it a
#: little later.
LOST_TRIES = 15
#: The first election after a start or a reconnection does not wait for the usual timeout either.
START_DELAY_S = 0.100
START_RANK_S = 0.060


class Elections:
    """One member's part in the elections of its group."""

    def __init__(
        self, member: MemberState, options: RaftOptions, random: Random, replication: Replication
    ) -> None:
        self._member = member
        self._replication = replication
        self._random = random
        self._min_s = options.election_min_ms / 1000
        self._max_s = options.election_max_ms / 1000
        self.break_s = options.break_s
        self._timeout = self.timeout()
        self._lost_tries = 0
        self._pre_votes: set[Peer] | None = None  # None: not asking
        self._votes: set[Peer] = set()
        self._suspended_votes: set[Peer] = (
            set()
        )  # who granted the one or the other with such a vote
        self.deadline = math.inf  # when to ask, unless a leader is heard
        self.heard_at = -math.inf  # when a live leader was last heard
        self.heard_since = -math.inf  # since when it was, without a break
        self.asked_by: NodeId | None = None  # the leader that handed over to us, when we stand
        self.stood = 0  # elections that this member started, since the process did
        self.leaders = 0  # leaders that it came to know since then, one per term
        self._led_term = 0  # of the last of them

    def timeout(self) -> float:
        """A new one, drawn so that members seldom stand at the same time."""
        return self._min_s + (self._max_s - self._min_s) * self._random.random()

    # --- when

    def start(self, now: float) -> None:
        rank = self._member.rank
        self.deadline = now + (START_DELAY_S + rank * START_RANK_S if self._member.peers else 0)

    def heard_leader(self, now: float) -> None:
        if now - self.heard_at >= self.break_s:
            self.heard_since = now
        self.heard_at = now
        if self._member.term != self._led_term:
            self._count_leader()
        self.deadline = now + self._timeout
        self._lost_tries = 0
        self._pre_votes = None

    def connected(self, now: float) -> None:
        """A peer is back: perhaps the one that was missing for a majority."""
        if self._member.leader is None:
            soon = now + START_DELAY_S + self._member.rank * START_RANK_S
            self.deadline = min(self.deadline, soon)

    def leader_lost(self, leader: Peer, now: float) -> None:
        """The link to the leader was closed: no reason to wait for a timeout. If it lives, the
        others hear it, and grant no pre-vote.
        """
        self.heard_at = -math.inf
        self._lost_tries = LOST_TRIES
        rank = self._member.rank
        rank -= self._member.rank_of(leader) < rank
        jitter = LOST_JITTER_S * self._random.random()
        self.deadline = now + LOST_DELAY_S + rank * LOST_RANK_S + jitter

    def tick(self, now: float) -> None:
        if now >= self.deadline:
            self._request_pre_votes(now)

    def _again(self, now: float) -> None:
        """When to ask next, should this attempt come to nothing."""
        if self._lost_tries > 0:
            self._lost_tries -= 1
            rank = self._member.rank
            self.deadline = now + (2 + rank) * LOST_RANK_S + LOST_JITTER_S * self._random.random()
        else:
            self._timeout = self.timeout()
            self.deadline = now + self._timeout

    # --- pre-votes

    def _request_pre_votes(self, now: float) -> None:
        member = self._member
        self._again(now)
        member.leader = None
        if not member.may_lead:
            return
        self._pre_votes, self._suspended_votes = {member.me}, set()
        if member.elects(self._pre_votes):
            self.campaign(now)
            return
        for peer in member.voters:
            member.send(peer, PRE_VOTE, member.term + 1, member.last_index, member.last_term)

    def on_pre_vote(self, peer: Peer, term: int, last_index: int, last_term: int) -> None:
        """Would we vote for it? Not while a leader is alive.

        Nothing is remembered, no term changes.
        """
        member = self._member
        leader_lives = (
            self._replication.heard_by_majority(member.now)
            if member.leads
            else member.now - self.heard_at < self._min_s and member.leader is not peer
        )
        granted = (
            term > member.term and not leader_lives and self._up_to_date(last_index, last_term)
        )
        member.send(peer, PRE_VOTED, term, self._answer(granted))

    def on_pre_voted(self, peer: Peer, term: int, granted: bool | None) -> None:
        member = self._member
        if self._pre_votes is None or term != member.term + 1 or granted is False:
            return
        if not member.may_lead:
            return  # not any more
        (self._pre_votes if granted else self._suspended_votes).add(peer)
        if member.elects(self._pre_votes, self._suspended_votes):
            self.campaign(member.now)

    def _answer(self, granted: bool) -> bool | None:
        """As the message has it. Versions before 0.3 take None for a refusal."""
        return None if granted and self._member.votes_suspended else granted

    # --- votes

    def campaign(self, now: float, asked_by: Peer | None = None) -> None:
        """A new term, with our own vote in it; both are on disk before the request leaves."""
        member = self._member
        self.asked_by = None if asked_by is None else asked_by.id
        self._pre_votes = None
        self._again(now)
        self.stood += 1
        member.become_candidate()
        self._votes, self._suspended_votes = {member.me}, set()
        if member.elects(self._votes):
            self._won()
            return
        for peer in member.voters:
            member.send(peer, VOTE, member.last_index, member.last_term)

    def on_vote(self, peer: Peer, last_index: int, last_term: int) -> None:
        member = self._member
        granted = (
            not member.leads
            and member.voted_for in (None, peer.id)
            and self._up_to_date(last_index, last_term)
        )
        if granted:
            if member.voted_for is None:
                member.vote_for(peer)
            self.deadline = member.now + self._timeout
        member.send(peer, VOTED, self._answer(granted))

    def on_voted(self, peer: Peer, granted: bool | None) -> None:
        """One voter, one vote: a repeated answer counts once, an observer's never."""
        member = self._member
        if granted is False or not member.campaigning or peer not in member.voters:
            return
        if not member.may_lead:
            return  # not any more
        (self._votes if granted else self._suspended_votes).add(peer)
        if member.elects(self._votes, self._suspended_votes):
            self._won()

    def _won(self) -> None:
        self._replication.lead(self._member.now)
        self._count_leader()

    def _count_leader(self) -> None:
        self._led_term = self._member.term
        self.leaders += 1

    def _up_to_date(self, last_index: int, last_term: int) -> bool:
        """Raft, 5.4.1: the candidate's log must not lack what ours has."""
        member = self._member
        return (last_term, last_index) >= (member.last_term, member.last_index)
