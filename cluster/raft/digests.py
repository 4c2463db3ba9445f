"""Digests of the machine's state, compared between the leader and each follower.

Every replica notes one at the same indexes. The leader tells its own; a follower compares it with
what it has noted, or will note, at that index, and tells its own in turn. Who differs is decided by
the leader: the state that a majority of the voters has is the right one, also against the leader
itself; when no majority agrees, the leader's. A copy that is told so has diverged: it does not lead
until it agrees again. A message that is lost is made up for by the next index. Members of other
versions that do not know the messages ignore them; when digests are made in another way, they need
other kinds of messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from cluster.raft.member_state import MemberState
from cluster.raft.messages import DIGEST, DIGESTED, JUDGED
from cluster.raft.pysyncobj_core import Peer
from cluster.raft.quorum import agreed

T = TypeVar("T")

__all__ = ["DIGEST", "Digests"]

#: Newest indexes remembered: how far a follower may be behind, or its leader, in digests.
REMEMBERED_MAX = 16


class Digests:
    """Of one member."""

    def __init__(self, member: MemberState) -> None:
        self._member = member
        self._own: dict[int, bytes] = {}
        self._leaders: dict[int, bytes] = {}
        self._answers: dict[int, dict[Peer, bytes]] = {}  # as the leader
        #: Told the index, the own digest and the leader's.
        self.on_compared: Callable[[int, bytes, bytes], None] | None = None

    def noted(self, index: int, digest: bytes) -> None:
        """The state after this entry."""
        _remember(self._own, index, digest)
        if self._member.leads:
            for peer in self._member.peers:
                self._member.send(peer, DIGEST, index, digest)
            # Those that have not answered by now are of a release that does not.
            for waiting in [each for each in self._answers if each < index]:
                self._judge(waiting, final=True)
        elif index in self._leaders:
            self._compare(index)

    def on_digest(self, peer: Peer, index: int, digest: bytes) -> None:
        if self._member.leader is peer:
            _remember(self._leaders, index, digest)
            if index in self._own:
                self._compare(index)

    def _compare(self, index: int) -> None:
        own, leaders = self._own[index], self._leaders.pop(index)
        leader = self._member.leader
        if leader is not None:
            self._member.send(leader, DIGESTED, index, own)
        self._found(index, own, leaders)

    def _found(self, index: int, own: bytes, right: bytes) -> None:
        if own == right:
            self._member.diverged = False
        if self.on_compared is not None:
            self.on_compared(index, own, right)

    # --- who is right

    def on_digested(self, peer: Peer, index: int, digest: bytes) -> None:
        """As the leader: a follower says what it has."""
        if index in self._own:
            _remember(self._answers, index, self._answers.get(index, {}) | {peer: digest})
            self._judge(index, final=False)

    def _judge(self, index: int, *, final: bool) -> None:
        member = self._member
        own = self._own.get(index)
        answers = self._answers.get(index, {})
        if own is None or not member.leads:
            self._answers.pop(index, None)
            return
        voices = Counter(answers[peer] for peer in member.voters if peer in answers)
        voices[own] += member.votes
        right = agreed(voices, member.quorum)
        asked = [peer for peer in member.peers if peer in member.connected]
        if any(peer not in answers for peer in asked) and not final:
            return
        del self._answers[index]
        right = own if right is None else right
        for peer, digest in answers.items():
            if digest != own or digest != right:
                member.send(peer, JUDGED, index, right)
        if right != own:
            self._diverged(index, own, right)

    def on_judged(self, peer: Peer, index: int, right: bytes) -> None:
        own = self._own.get(index)
        if self._member.leader is not peer or own is None:
            return
        if own == right:
            self._found(index, own, right)  # it was the leader that was wrong
        else:
            self._diverged(index, own, right)

    def _diverged(self, index: int, own: bytes, right: bytes) -> None:
        member = self._member
        if not member.diverged:
            member.diverged = True
            self._found(index, own, right)
        if member.leads:
            member.step_down(None)


def _remember(known: dict[int, T], index: int, what: T) -> None:
    known[index] = what
    if len(known) > REMEMBERED_MAX:
        del known[min(known)]
