"""What a leader knows of one follower: how far its log agrees, and what is on its way to it."""

from __future__ import annotations

import math
from collections import deque

from cluster.raft.pysyncobj_core import Peer
from cluster.raft.snapshot_transfer import Outgoing

#: Bytes of entries on their way to one follower and not yet acknowledged.
WINDOW_BYTES_MAX = 8 << 20
#: The same in messages, so that a stream of tiny entries is bounded too.
WINDOW_MESSAGES_MAX = 256


class Progress:
    """One follower as its leader sees it.

    Probing: where the logs part is not known, so one message is on its way at most. Else messages
    follow each other without waiting, up to the window.
    """

    __slots__ = (
        "answered",
        "barrier",
        "commit_sent",
        "counts",
        "heard",
        "in_flight",
        "in_flight_bytes",
        "match",
        "next",
        "outgoing",
        "peer",
        "probing",
        "sent_at",
        "waiting",
    )

    def __init__(self, peer: Peer, *, next_index: int, now: float) -> None:
        self.peer = peer
        self.match = 0  # highest index known to be in its log, on its disk
        self.counts = True  # what it has is a part of a majority
        self.barrier = 0  # an entry from after it said that it does not count; 0: none
        self.next = next_index  # first index not sent yet; > match
        self.heard = now  # when it last answered
        self.answered = now  # the same, on the connection that there is now
        self.sent_at = 0.0  # when something was last sent
        self.commit_sent = 0  # commit index it was last told
        self.probing = True
        self.waiting = False  # a probe is on its way
        self.in_flight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each message
        self.in_flight_bytes = 0
        self.outgoing: Outgoing | None = (
            None  # a snapshot on its way: entries wait until it is there
        )

    @property
    def counted(self) -> int:
        return self.match if self.counts else 0

    def may_send(self) -> bool:
        if self.probing:
            return not self.waiting
        return self.in_flight_bytes < WINDOW_BYTES_MAX and len(self.in_flight) < WINDOW_MESSAGES_MAX

    def sent(self, last: int, size: int) -> None:
        """Entries from `next` to `last` left. A probe does not move `next`: its answer does."""
        if self.probing:
            self.waiting = True
        else:
            self.next = last + 1
            self.in_flight.append((last, size))
            self.in_flight_bytes += size

    def matched(self, index: int) -> None:
        """It has everything up to `index` on its disk."""
        if index > self.match:
            self.match = index
        if self.next <= self.match:
            self.next = self.match + 1
        in_flight = self.in_flight
        while in_flight and in_flight[0][0] <= index:
            self.in_flight_bytes -= in_flight.popleft()[1]
        self.probing = self.waiting = False

    def probe_from(self, index: int) -> None:
        """Start over with the entry at `index`: what was on its way did not fit, or was lost."""
        self.next = max(index, self.match + 1)
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.probing = True
        self.waiting = False

    def disconnected(self) -> None:
        """All that was on its way is lost."""
        self.outgoing = None
        self.answered = -math.inf
        self.probe_from(self.match + 1 if self.match else self.next)

    def connected(self) -> None:
        """It may have lost its disk, or have an older copy of it: it must say again what it has."""
        self.disconnected()
        self.match = self.barrier = 0
