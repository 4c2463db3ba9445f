"""Digests of the machine's state, compared between the leader and each follower.

Every replica notes one at the same indexes. The leader tells its own; a follower compares it with
what it has noted, or will note, at that index. A message that is lost is made up for by the next
one. Members of other versions that do not know the message ignore it; when digests are made in
another way, they need another kind of message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.raft.stock import Peer
from cluster.raft.transport import DIGEST

if TYPE_CHECKING:
    from cluster.raft.member import Member

__all__ = ["DIGEST", "Digests"]

#: Newest indexes remembered: how far a follower may be behind, or its leader, in digests.
REMEMBERED_MAX = 16


class Digests:
    """Of one member."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._own: dict[int, bytes] = {}
        self._leaders: dict[int, bytes] = {}
        #: Told the index, the own digest and the leader's.
        self.on_compared: Callable[[int, bytes, bytes], None] | None = None

    def noted(self, index: int, digest: bytes) -> None:
        """The state after this entry."""
        _remember(self._own, index, digest)
        if self._member.leads:
            for peer in self._member.peers:
                self._member.send(peer, DIGEST, index, digest)
        elif index in self._leaders:
            self._compare(index)

    def on_digest(self, peer: Peer, index: int, digest: bytes) -> None:
        if self._member.leader is peer:
            _remember(self._leaders, index, digest)
            if index in self._own:
                self._compare(index)

    def _compare(self, index: int) -> None:
        own, leaders = self._own.pop(index), self._leaders.pop(index)
        if self.on_compared is not None:
            self.on_compared(index, own, leaders)


def _remember(digests: dict[int, bytes], index: int, digest: bytes) -> None:
    digests[index] = digest
    if len(digests) > REMEMBERED_MAX:
        del digests[min(digests)]
