"""The follower's side of the log: what a leader's messages may change here, and what not."""

from __future__ import annotations

from typing import Any

from cluster.log import MEMBERSHIP
from cluster.raft.elections import Elections
from cluster.raft.member_state import MemberState
from cluster.raft.messages import APPENDED, INSTALLED, REJECTED
from cluster.raft.pysyncobj_core import Peer
from cluster.raft.replication import Replication
from cluster.raft.snapshot_transfer import Incoming


class Diverged(AssertionError):
    """A leader's entry contradicts one that is committed here: one of the two members is broken."""


class Following:
    """Appends and snapshots as they arrive."""

    def __init__(self, member: MemberState, elections: Elections, replication: Replication) -> None:
        self._member = member
        self._elections = elections
        self._replication = replication
        self._incoming: Incoming | None = None

    @property
    def receives_snapshot(self) -> bool:
        return self._incoming is not None

    def forget(self) -> None:
        """What was received of a snapshot is of no use any more; its entries are let go."""
        if self._incoming is not None:
            self._incoming = None
            self._member.journal.abort_install()

    def stop_before(self, index: int, beyond: Exception) -> None:
        """What comes at `index` is of a later release: it is neither applied nor acknowledged, nor
        is anything behind it. Another release goes on from here.
        """
        member = self._member
        member.stopped = True
        member.poisoned = f"entry {index}: {beyond}"
        self.forget()
        member.host.poison(index, beyond)
        if member.leads:
            member.step_down(None)

    def _follow(self, leader: Peer) -> None:
        member = self._member
        assert not member.leads, f"{leader.id} leads term {member.term}, and so do we"
        if member.leader is not leader or member.campaigning:
            self.forget()
            member.step_down(leader)
        self._elections.heard_leader(member.now)
        if member.votes_suspended and member.voted_for is None:
            member.vote_for(leader)  # whatever it forgot: in this term it helps nobody else

    def _matched(self, peer: Peer, match: int) -> None:
        counts = [] if not self._member.votes_suspended else [False]
        self._member.send(peer, APPENDED, match, *counts)

    def on_append(
        self, peer: Peer, prev: int, prev_term: int, commit: int, entries: list[Any] | None
    ) -> None:
        """Raft, 5.3: only a real conflict truncates, and only what this message matched commits."""
        self._follow(peer)
        member = self._member
        if member.stopped:
            return
        journal = member.journal
        base = journal.base_index
        last = journal.last_index
        if prev > last or (prev >= base and journal.term_at(prev) != prev_term):
            hint = self._replication.hint(min(prev, last), prev_term)
            member.send(peer, REJECTED, prev, *hint)
            return
        index = prev
        configurations = member.configurations
        before = configurations.current
        for data, term in entries or ():
            index += 1
            if index <= last and (index <= base or journal.term_at(index) == term):
                continue
            beyond = member.host.beyond(data)
            if beyond is not None:
                self.stop_before(index, beyond)
                index -= 1
                break
            if index <= last:
                if index <= member.commit_index:
                    raise Diverged(f"{peer.id} sent term {term} for committed entry {index}")
                journal.truncate_from(index)
                configurations.truncate(index)
                last = index - 1
            journal.add(data, index, term)
            if data[:1] == MEMBERSHIP:
                configurations.add(index, data)
        if configurations.current is not before:
            member.follow_configuration()
        match = max(index, base)  # what a snapshot covers is committed, so every leader has it
        member.commit(min(commit, match))
        if self._incoming is not None and member.commit_index >= self._incoming.index:
            self.forget()
        if entries is not None:
            self._matched(peer, match)

    def on_readmit(self, peer: Peer, barrier: int) -> None:
        """All that was ever committed is here again, and no old vote of ours can matter any more:
        unless that was said to a copy before this one.
        """
        if self._member.leader is peer and self._member.last_index >= barrier:
            self._member.votes_suspended = False

    def on_timeout_now(self, peer: Peer) -> None:
        """The leader hands over: no pre-vote, which its own life would refuse."""
        member = self._member
        if member.leader is peer and member.may_lead:
            self._elections.campaign(member.now, peer)

    def on_install(self, peer: Peer, index: int, number: int, part: list[Any]) -> None:
        """One part of a snapshot. Nothing is acknowledged but that it arrived, until all did."""
        self._follow(peer)
        member = self._member
        if member.stopped:
            return
        if member.commit_index >= index:
            self.forget()
            self._matched(peer, member.commit_index)
            return
        if number == 0:
            if member.journal.term_at(index) == part[1]:  # Raft, 7: the log agrees, keep all of it
                member.commit(index)
                self._matched(peer, index)
                return
            self._incoming = Incoming(index, member.journal)
        incoming = self._incoming
        complete = None
        if incoming is not None and incoming.index == index:
            complete = incoming.take(number, part)
        if incoming is None or complete is None:
            self.forget()
            member.send(peer, INSTALLED, index, -1)
            return
        member.send(peer, INSTALLED, index, number)
        if complete:
            member.host.install(incoming)

    def installed(self, *, done: bool) -> Incoming:
        """What was received is in the journal (or, not done, the journal is as it was)."""
        incoming, self._incoming = self._incoming, None
        assert incoming is not None
        if not done:
            self._member.journal.abort_install()
        leader = self._member.leader
        if leader is not None:
            if done:
                self._matched(leader, incoming.index)
            else:
                self._member.send(leader, INSTALLED, incoming.index, -1)
        return incoming
