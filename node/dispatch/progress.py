"""How far a client is with its deliveries, and what of them was handed to the transport.

When a connection is lost, deliveries that never left are no failed deliveries: what the transport
was not given waits here, and only what it was given counts in the progress of its consumer.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from cluster.types import Body
from node.dispatch.outgoing import MessageBatch

#: Bytes that the kernel keeps unsent for one client: beyond, they wait in the node, which then
#: knows that they never left.
UNSENT_BYTES_MAX = 128 * 1024

Held = Sequence[tuple[int, int, int]]  # first, last, token


class DeliveryProgress:
    """How far a consumer is: it has every chunk up to the token `mark`, and `held` beyond. To have
    is the owner's word: the dispatcher queued it, the transport was given it, the client said so.
    """

    __slots__ = ("_token", "held", "mark")

    def __init__(self, mark: int = 0, held: Held = ()) -> None:
        self.mark = mark
        self.held = list(held)
        self._token = 0

    def add(self, batch: MessageBatch) -> None:
        self.advance(batch.first, batch.first + len(batch.bodies) - 1, batch.token)

    def advance(self, first: int, last: int, token: int) -> None:
        """Tokens come in ascending order; the chunks of one token may leave in several frames."""
        if token > self._token:
            self._token = token
            self.mark = max(self.mark, token - 1)
            if self.held:
                self.held = [each for each in self.held if each[2] >= token]
        held = self.held
        if held and held[-1][2] == token and held[-1][1] == first - 1:
            held[-1] = (held[-1][0], last, token)
        else:
            held.append((first, last, token))


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

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        #: From which byte, up to which, what; the transport was not given them yet.
        self.pieces: deque[tuple[int, int, WrittenPiece]] = deque()

    def wrote(self, start: int, end: int, piece: WrittenPiece) -> None:
        """It is the bytes from `start` to `end` of what was written so far."""
        self.pieces.append((start, end, piece))

    def given(self, count: int) -> None:
        """To the transport: so many bytes, or more."""
        pieces = self.pieces
        while pieces and pieces[0][1] <= count:
            piece = pieces.popleft()[2]
            piece.progress.advance(piece.first, piece.last, piece.token)

    def ends_at(self, count: int) -> None:
        """It has no more than these, and never will."""
        self.given(count)
        if self.pieces and self.pieces[0][0] < count:
            start, end, piece = self.pieces[0]
            # What frames a message takes no bytes off this: rather one too many.
            framing = max(0, end - start - sum(map(len, piece.bodies))) // (2 * len(piece.bodies))
            last = piece.first - 1
            while start < count and last < piece.last:
                last += 1
                start += framing + len(piece.bodies[last - piece.first])
            piece.progress.advance(piece.first, last, piece.token)
        self.pieces.clear()


def keep_unsent_small(transport: asyncio.BaseTransport | None) -> None:
    """See UNSENT_BYTES_MAX. Where the system cannot, more counts as delivered."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    connection = None if transport is None else transport.get_extra_info("socket")
    if option is None or connection is None:
        return
    if connection.family != socket.AF_UNIX:  # which is this process's own
        connection.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES_MAX)
