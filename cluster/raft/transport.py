"""One group's messages over the links that all groups share, and which of them must wait for the
disk.

A message is `[group, kind, term, ...]`, plain data that CBOR can hold. The kinds in `AT_ONCE`
promise nothing about the disk and leave before the iteration's fsync. All others (acknowledgements,
rejections, votes and requests for them, READMIT) must be true after a power cut: they wait for it.
"""

from __future__ import annotations

from typing import Any

from cluster.raft.pysyncobj_core import Peer
from cluster.seams import Links
from cluster.types import NodeId

# term, prev_index, prev_term, commit, [[command, term], ...] | None: commit only, no answer wanted
APPEND = "ae"
APPENDED = (
    "ao"  # term, match[, False]: my log is yours up to here, and on disk; False: do not count it
)
REJECTED = "an"  # term, prev_index, hint_index, hint_term (0: my log is too short)
PRE_VOTE = "pv"  # term asked for, last_index, last_term
PRE_VOTED = "pr"  # own term, term asked for, granted (None: yes, by a disk that does not count)
VOTE = "rv"  # term, last_index, last_term
VOTED = "vr"  # term, granted (None: as above)
TIMEOUT_NOW = "tn"  # term
INSTALL = "si"  # term, snapshot index, number, part
DIGEST = "dg"  # term, index, digest of the leader's state after it
DIGESTED = "dd"  # term, index, digest of the follower's state after it
JUDGED = "dj"  # term, index, the digest that holds: yours, or the leader's, is another
READMIT = "tr"  # term, index: with the entry there, you vote again
INSTALLED = "sa"  # term, snapshot index, number of the part received; -1: start again

#: Kinds that promise nothing about the disk.
AT_ONCE = frozenset(
    {APPEND, DIGEST, DIGESTED, JUDGED, INSTALL, INSTALLED, PRE_VOTE, PRE_VOTED, TIMEOUT_NOW}
)

Message = list[Any]


class GroupTransport:
    """Sends what one member says, and keeps back what must wait for the disk."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._late: list[tuple[NodeId, Message]] = []

    def send(self, peer: Peer, message: Message) -> bool:
        """False: dropped, because the peer is not connected or too far behind with reading."""
        if message[1] in AT_ONCE:
            return self._links.send(peer.id, message)
        self._late.append((peer.id, message))
        return True

    def take_late(self) -> list[tuple[NodeId, Message]]:
        """What waits until everything written before this call is on disk."""
        late, self._late = self._late, []
        return late

    def forget(self, peer: Peer) -> None:
        """The link broke: what waited for it must not be the first thing on the next one."""
        self._late = [each for each in self._late if each[0] != peer.id]
