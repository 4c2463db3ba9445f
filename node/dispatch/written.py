"""How far the network took what a connection was sent.

When a connection is lost, deliveries that never left are no failed deliveries: what the network did
not take waits here, and only what it took counts in the progress of its consumer.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from cluster.types import Body
from node.dispatch.chunks import DeliveryProgress

#: Bytes that the kernel keeps unsent for one client: beyond, they wait in the node, which then
#: knows that they never left.
UNSENT_BYTES_MAX = 128 * 1024


class WrittenPiece(NamedTuple):
    """Neighbouring messages of one delivery, as they are written to a connection."""

    progress: DeliveryProgress
    first: int
    token: int
    bodies: Sequence[Body]

    @property
    def last(self) -> int:
        return self.first + len(self.bodies) - 1


class WrittenPieces:
    """Of one connection; bytes are counted from its start."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, int, WrittenPiece]] = deque()  # from, up to, what

    def wrote(self, start: int, end: int, piece: WrittenPiece) -> None:
        """It is the bytes from `start` to `end` of what was written so far."""
        self._pieces.append((start, end, piece))

    def took(self, count: int) -> None:
        """The network has so many bytes, or more."""
        pieces = self._pieces
        while pieces and pieces[0][1] <= count:
            piece = pieces.popleft()[2]
            piece.progress.advance(piece.first, piece.last, piece.token)

    def ends_at(self, count: int) -> None:
        """It has no more than these, and never will."""
        self.took(count)
        if self._pieces and self._pieces[0][0] < count:
            start, end, piece = self._pieces[0]
            # What frames a message takes no bytes off this: rather one too many.
            framing = max(0, end - start - sum(map(len, piece.bodies))) // (2 * len(piece.bodies))
            last = piece.first - 1
            while start < count and last < piece.last:
                last += 1
                start += framing + len(piece.bodies[last - piece.first])
            piece.progress.advance(piece.first, last, piece.token)
        self._pieces.clear()


def keep_unsent_small(transport: asyncio.BaseTransport | None) -> None:
    """See UNSENT_BYTES_MAX. Where the system cannot, more counts as delivered."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    connection = None if transport is None else transport.get_extra_info("socket")
    if option is None or connection is None:
        return
    if connection.family != socket.AF_UNIX:  # which is this process's own
        connection.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES_MAX)
