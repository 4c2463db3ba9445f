"""The leader's side of the log: what each follower has, what it is sent, and what is committed.

Appends are pipelined: they follow each other without waiting, up to a window of bytes. Times are
seconds of the node's monotonic clock.
"""

from __future__ import annotations

import math
from typing import Any

from cluster.raft.configuration import Configuration, encode
from cluster.raft.member_state import MemberState
from cluster.raft.messages import APPEND, INSTALL, READMIT, TIMEOUT_NOW, Message
from cluster.raft.options import RaftOptions
from cluster.raft.progress import Progress
from cluster.raft.pysyncobj_core import Peer
from cluster.raft.quorum import reached
from cluster.raft.snapshot_transfer import Outgoing
from cluster.types import NodeId, era_of

#: Entries in one message; a single entry may be larger.
APPEND_BYTES_MAX = 1 << 20
#: The first index that can be missing anywhere: entry 1 is in every journal from birth.
FIRST_INDEX = 2
#: So much before a majority may be lost it is counted in each step, and a heartbeat counts as sent
#: at its time: sums of times are rounded.
EDGE_S = 0.000_001


class Replication:
    """All followers of one leader. Empty while the member does not lead."""

    def __init__(self, member: MemberState, options: RaftOptions) -> None:
        self._member = member
        self._heartbeat_s = options.heartbeat_ms / 1000
        self._commit_lazy_s = options.commit_lazy_s
        self._break_s = options.break_s
        self._quorum_s = options.election_max_ms / 1000
        self._transfer_s = options.election_min_ms / 1000
        self._commit_unsent_since = (
            math.inf
        )  # when the first commit that some follower was not told of happened
        self._successor: Peer | None = None
        self._transfer_until = 0.0
        self._transfer_sent = False
        self._built: dict[int, tuple[Message, int, int]] = {}  # in this flush, by first index
        self.followers: dict[Peer, Progress] = {}
        self.heard_at = -math.inf  # when any follower last answered
        self.heard_since = -math.inf  # since when they do, without a break
        self._quorum_until = -math.inf  # a majority was heard lately enough at least until then

    def lead(self, now: float) -> None:
        """From now on: the first entry is a no-op, whose commit commits all before it."""
        member = self._member
        self._start(now)
        member.core.become_leader()
        forced = member.configurations.forced
        if forced is not None:
            voters = {*member.configurations.voters_before, member.me.id}
            self.write_members(forced.with_voters_only(voters, era=era_of(member.term)))

    def _start(self, now: float) -> None:
        self.heard_at = self.heard_since = now
        self._quorum_until = -math.inf
        next_index = self._member.last_index + 1
        self.followers = {
            peer: Progress(peer, next_index=next_index, now=now) for peer in self._member.peers
        }
        for peer, progress in self.followers.items():
            if peer not in self._member.connected:
                progress.disconnected()

    def write_members(self, configuration: Configuration) -> None:
        """It holds from now on. Members came or went: those that stay are where they were."""
        member = self._member
        index = member.last_index + 1
        data = encode(configuration)
        member.journal.add(data, index, member.term)
        member.configurations.add(index, data)
        member.follow_configuration()
        known = self.followers
        self.followers = {
            peer: known.get(peer) or Progress(peer, next_index=index + 1, now=member.now)
            for peer in member.peers
        }
        self._quorum_until = -math.inf
        if self._successor not in member.voters:
            self._hand_over_to(None)

    def stop(self) -> None:
        self.followers = {}
        self._successor = None
        self._commit_unsent_since = math.inf

    def match_of(self, peer: Peer) -> int:
        progress = self.followers.get(peer)
        return 0 if progress is None else progress.match

    def lag(self) -> dict[NodeId, int]:
        """Entries that each follower lacks, as far as it told."""
        last = self._member.last_index
        return {peer.id: last - each.match for peer, each in self.followers.items()}

    def heard_s(self, now: float) -> dict[NodeId, float]:
        """Seconds since each follower last answered, or became one."""
        return {peer.id: max(0.0, now - each.heard) for peer, each in self.followers.items()}

    def lacks(self, node: NodeId) -> int:
        """Entries that a follower lacks; endless while it is not there, or does not count."""
        peer = self._member.peer(node)
        progress = self.followers.get(peer)
        there = progress is not None and progress.match and peer in self._member.connected
        if progress is None or not there or not progress.counts:
            return 1 << 62
        return self._member.last_index - progress.match

    # --- the step

    def tick(self, now: float) -> None:
        member = self._member
        heard = now < self._quorum_until or self.heard_by_majority(now)
        if not heard or member.journal.votes_suspended:
            member.step_down(None)  # also when it was its own lost promises that elected it
        elif member.journal.last_index > member.commit_index:
            self.advance_commit(now)

    def heard_by_majority(self, now: float) -> bool:
        """Check-quorum (Raft thesis, 6.2): a leader that is cut off must not go on as if it led."""
        heard_at = self._reached([self.followers[peer].heard for peer in self._member.voters])
        self._quorum_until = heard_at + self._quorum_s - EDGE_S
        return heard_at > now - self._quorum_s

    def answered_by_majority(self, since: float) -> bool:
        """On the connections that there are now. When they are reset the followers need not wait
        for a timeout to elect another leader, so what was heard before says nothing any more.
        """
        answered = [self.followers[peer].answered for peer in self._member.voters]
        return self._reached(answered) > since

    def _reached(self, times: list[float]) -> float:
        if self._member.votes:
            times.append(math.inf)
        return reached(times, self._member.quorum)

    def advance_commit(self, now: float, upto: int | None = None) -> None:
        """The highest index on a majority of disks, if it is of this term (Raft, 5.4.2).

        `upto`: no further, while this disk may lack entries that followers have. In a step it lacks
        none: what the step before wrote is synced.
        """
        member = self._member
        followers = self.followers
        indexes = [followers[peer].counted for peer in member.voters]
        if member.votes:
            indexes.append(member.journal.synced_index)
        index = reached(indexes, member.quorum)
        if upto is not None:
            index = min(index, upto)
        noop = member.core.noop_index  # since then all entries are of this term
        if index > member.commit_index and noop is not None and index >= noop:
            member.commit(index)
            if followers:
                self._commit_unsent_since = min(self._commit_unsent_since, now)

    def due(self) -> float:
        due = self._commit_unsent_since + self._commit_lazy_s
        for progress in self.followers.values():
            due = min(due, self._beat_at(progress))
        return due

    def _beat_at(self, progress: Progress) -> float:
        """All groups of a node beat at the same times of its clock: so a frame carries them all,
        and the loop turns once.
        """
        beats = (progress.sent_at + EDGE_S) // self._heartbeat_s
        return (beats + 1) * self._heartbeat_s

    def has_more_for(self, node: NodeId) -> bool:
        """Its answer may have made room for what it lacks, or is what something waits for."""
        progress = self.followers.get(self._member.peer(node))
        if progress is None:
            return True
        waits = self._successor is not None or progress.outgoing is not None
        return waits or progress.next <= self._member.last_index

    def flush(self, now: float) -> None:
        member = self._member
        commit = member.commit_index
        # Without a majority others may have elected a leader: who follows this one must come to
        # doubt that it leads.
        speaks = member.connected_to_majority
        all_sent = True
        for progress in self.followers.values():
            if speaks and progress.peer in member.connected:
                self._replicate(progress, now)
                all_sent = all_sent and progress.commit_sent >= commit
            else:
                progress.sent_at = now  # nothing can be sent, so nothing is due
        self._built.clear()
        if (
            all_sent or now >= self._commit_unsent_since + self._commit_lazy_s
        ):  # the heartbeat tells the others
            self._commit_unsent_since = math.inf
        # Not before what was accepted earlier is in the log: a successor without it is not elected.
        if self._successor is not None:
            self._go_on_with_transfer(now)

    def _replicate(self, progress: Progress, now: float) -> None:
        member = self._member
        if progress.outgoing is not None:
            self._push_snapshot(progress, progress.outgoing, now)
        else:
            last = member.last_index
            while progress.next <= last and progress.may_send():
                if progress.next - 1 < member.journal.base_index:
                    self._start_snapshot(progress, now)
                    break
                message, upto, size = self._append_message(progress.next)
                if not member.post(progress.peer, message):
                    break
                progress.sent(upto, size)
                self._note_sent(progress, now)
        if now >= self._beat_at(progress):
            self._send_heartbeat(progress, now, entries=[])
            return
        lazy = now >= self._commit_unsent_since + self._commit_lazy_s and not progress.probing
        if lazy and progress.commit_sent < member.commit_index:
            self._send_heartbeat(progress, now, entries=None)

    def _note_sent(self, progress: Progress, now: float) -> None:
        progress.sent_at = now
        progress.commit_sent = self._member.commit_index

    def _append_message(self, first: int) -> tuple[Message, int, int]:
        """Entries from `first`, their last index and their bytes.

        Followers in step share one message.
        """
        member = self._member
        built = self._built.get(first)
        if built is not None:
            return built
        journal = member.journal
        found = journal.entries(first, None, APPEND_BYTES_MAX)
        entries: list[Any] = []
        size = 0
        for data, _index, term in found:
            entries.append([data, term])
            size += len(data)
        prev = first - 1
        message: Message = [
            member.group,
            APPEND,
            member.term,
            prev,
            journal.term_at(prev),
            member.commit_index,
            entries,
        ]
        upto = prev + len(entries)
        built = self._built[first] = (message, upto, size)
        return built

    def _send_heartbeat(self, progress: Progress, now: float, *, entries: list[Any] | None) -> None:
        """A heartbeat (answered), or a commit index (not answered)."""
        member = self._member
        if entries is not None and self._beats_with_others(progress):
            progress.sent_at = now
            return
        prev = progress.next - 1
        term = member.journal.term_at(prev)
        if term is None:  # it needs a snapshot; what every log has in common is its start
            prev = term = 0
        if member.send(progress.peer, APPEND, prev, term, member.commit_index, entries):
            self._note_sent(progress, now)
        else:
            progress.sent_at = now
        progress.waiting = False  # a probe that was not answered by now is lost

    def _beats_with_others(self, progress: Progress) -> bool:
        """Only while a follower has everything and knows it: should it be lost, nothing is."""
        member = self._member
        last, commit = member.last_index, member.commit_index
        if progress.probing or progress.counted != last or progress.commit_sent != commit:
            return False
        if self._successor is not None:
            return False  # nothing may come behind what tells it to stand
        beat = [member.group, member.term, last, member.last_term, commit]
        return member.host.beat(progress.peer.id, beat)

    # --- answers

    def _note_answer(self, progress: Progress) -> None:
        """After a time without any, an answer may be of before it: this process stood still."""
        now = self._member.now
        if now - self.heard_at >= self._break_s:
            self.heard_since = now
        self.heard_at = progress.heard = progress.answered = now

    def on_appended(self, peer: Peer, match: int, counts: bool = True) -> None:
        """`counts` is false of a disk that forgot what it promised: it may have helped a later
        leader, so it is no part of a majority until it was brought up to date.
        """
        progress = self.followers.get(peer)
        if progress is None:
            return
        assert match <= self._member.last_index, f"{peer.id} matched more than there is"
        self._note_answer(progress)
        progress.counts = counts
        progress.matched(match)
        if counts:
            progress.barrier = 0  # it may forget again
        else:
            self._readmit(progress)
        outgoing = progress.outgoing
        if outgoing is not None and match >= outgoing.index:
            progress.outgoing = None
        elif outgoing is not None and outgoing.ignored():
            progress.outgoing = None
            progress.probe_from(FIRST_INDEX)

    def _readmit(self, progress: Progress) -> None:
        """A follower forgot what it promised, perhaps a vote for a later term. Once an entry that
        was written after it came back is on a majority without it, no such term can win: whoever
        stands for it lacks that entry.
        """
        member = self._member
        if progress.barrier == 0:
            member.append_no_op()
            progress.barrier = member.last_index
        elif min(member.commit_index, progress.match) >= progress.barrier:
            member.send(progress.peer, READMIT, progress.barrier)

    def on_rejected(self, peer: Peer, prev: int, hint_index: int, hint_term: int) -> None:
        """Its log differs at `prev`: go back to where the two can agree, in one step per term."""
        progress = self.followers.get(peer)
        if progress is None:
            return
        self._note_answer(progress)
        if progress.outgoing is not None:
            return
        if prev <= progress.match:
            # It had that: what it dropped to begin anew must be sent again, and counts no more.
            progress.match = progress.barrier = 0
            progress.probing = False
        if progress.probing and prev != progress.next - 1:
            return
        index, _ = self.hint(min(hint_index, prev - 1), hint_term)
        progress.probe_from(max(index + 1, FIRST_INDEX))

    def hint(self, index: int, term: int) -> tuple[int, int]:
        """The highest index up to `index` whose term is at most `term`: above it the logs cannot
        agree.
        """
        journal = self._member.journal
        floor = max(journal.base_index, 0)
        found = journal.term_at(index) if index >= floor else None
        while found is not None and found > term and index > floor:
            index -= 1
            found = journal.term_at(index)
        return index, found or 0

    def on_installed(self, peer: Peer, index: int, number: int) -> None:
        progress = self.followers.get(peer)
        if progress is None:
            return
        self._note_answer(progress)
        outgoing = progress.outgoing
        if outgoing is None or outgoing.index != index:
            return
        if number < 0:
            progress.outgoing = None
            progress.probe_from(FIRST_INDEX)
        else:
            outgoing.answered(number, self._member.now)

    # --- snapshots

    def _start_snapshot(self, progress: Progress, now: float) -> None:
        snapshot = self._member.journal.load_snapshot()
        assert snapshot is not None, "a log that does not reach back has a snapshot"
        progress.outgoing = Outgoing(snapshot, self._member.journal, now)
        self._push_snapshot(progress, progress.outgoing, now)

    def _push_snapshot(self, progress: Progress, outgoing: Outgoing, now: float) -> None:
        member = self._member

        def send(number: int, part: list[Any]) -> bool:
            return member.send(progress.peer, INSTALL, outgoing.index, number, part)

        if outgoing.pump(send):
            progress.sent_at = now
        if outgoing.outdated or outgoing.stalled(now):
            progress.outgoing = None
            progress.probe_from(FIRST_INDEX)

    @property
    def installing(self) -> bool:
        """A follower is being sent a snapshot: taking a newer one now would only make it start
        again.
        """
        return any(progress.outgoing is not None for progress in self.followers.values())

    def connected(self, peer: Peer) -> None:
        progress = self.followers.get(peer)
        if progress is not None:
            progress.connected()
            progress.sent_at = 0.0

    def disconnected(self, peer: Peer) -> None:
        progress = self.followers.get(peer)
        if progress is not None:
            progress.disconnected()

    # --- handing over

    @property
    def transferring(self) -> bool:
        return self._successor is not None

    def transfer(self, to: Peer | None, now: float) -> bool:
        """Make `to` (or the follower that has most) the leader.

        False: there is nobody to hand over to.
        """
        able = [peer for peer in self._member.voters if peer in self._member.connected]
        if to is None:
            to = max(able, key=self.match_of, default=None)  # of equals the first
        if to is None or to not in able:
            return False
        if self._successor is not to:
            self._hand_over_to(to)
            self._transfer_until = now + self._transfer_s
            self._transfer_sent = False
        return True

    def _hand_over_to(self, successor: Peer | None) -> None:
        self._successor = successor
        self._member.accepts = successor is None

    def _go_on_with_transfer(self, now: float) -> None:
        """Once it has the whole log it is told to stand; nothing new is accepted until then."""
        to = self._successor
        assert to is not None
        if now >= self._transfer_until:
            self._hand_over_to(None)  # it did not take over: go on leading
        elif not self._transfer_sent and self.followers[to].match == self._member.last_index:
            self._transfer_sent = self._member.send(to, TIMEOUT_NOW)
