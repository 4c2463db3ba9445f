"""The socket of a client's connection.

Writes are collected for one iteration of the loop; reading may be paused for several reasons at
once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from cluster.read_slices import FULL_READ_BYTES, ReadPauses, ReadSlices
from node.dispatch.progress import WrittenPiece, WrittenPieces, keep_unsent_small
from node.protocols.amqp.writer import HEARTBEAT

#: Over this, what was written leaves at once; and no more than about as much waits in the
#: transport, which does not say how much of it was sent.
FLUSH_BYTES: Final = 64 * 1024
CONGESTED: Final = "congested"
NEXT_TURN: Final = "next turn"  # others on the loop come first
#: A client that was silent for this many of its heartbeats is gone.
MISSED_MAX: Final = 2
#: Looks a heartbeat: at each of them a heartbeat is sent if nothing else was since the last.
LOOKS_A_HEARTBEAT: Final = 2


class Wire:
    """The socket of a connection: writes, reads, heartbeats."""

    def __init__(self, transport: asyncio.Transport, *, buffer_bytes_max: int) -> None:
        self.congested = False  # the transport takes no more: set by its protocol
        self.handed = WrittenPieces()
        self.written_bytes = 0
        self.sent_bytes = 0  # of these, given to the transport
        self.received_bytes = 0
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._buffers: deque[bytes] = deque()
        self._flush_soon = False
        self._pauses = ReadPauses()
        self._pauses.transport = transport
        self.pause, self.resume = self._pauses.pause, self._pauses.resume
        self.resume_all = self._pauses.resume_all
        self._slices = ReadSlices(partial(self.pause, NEXT_TURN), partial(self.resume, NEXT_TURN))
        self._looks: asyncio.TimerHandle | None = None
        self._look_s = 0.0
        self._seen = (0, 0)
        self._silent_looks = 0
        self._on_silence: Callable[[], None] | None = None
        self._buffer_bytes_max = buffer_bytes_max
        transport.set_write_buffer_limits(high=FLUSH_BYTES)
        keep_unsent_small(transport)

    # --- out --------------------------------------------------------------------------------------

    def write(self, data: bytes, piece: WrittenPiece | None = None) -> None:
        """`piece`: the messages that are delivered by it."""
        start = self.written_bytes
        self._buffers.append(data)
        self.written_bytes = start + len(data)
        if piece is not None:
            self.handed.wrote(start, self.written_bytes, piece)
        waiting = self.written_bytes - self.sent_bytes
        if self.congested:
            if waiting > 2 * self._buffer_bytes_max:
                self.pause(CONGESTED)  # a client that asks and asks must take the answers
        elif waiting >= FLUSH_BYTES:
            self.flush()
        elif not self._flush_soon:
            self._flush_soon = True
            self._loop.call_soon(self.flush)

    def flush(self, *, all_of_it: bool = False) -> None:
        """As much as the transport takes; what it cannot send now waits here."""
        self._flush_soon = False
        buffers = self._buffers
        if self._transport.is_closing():
            buffers.clear()
            return
        while buffers and (all_of_it or not self.congested):
            slice_: list[bytes] = []
            room = FLUSH_BYTES
            while buffers and room > 0:
                data = buffers.popleft()
                if len(data) > room:
                    buffers.appendleft(data[room:])
                    data = data[:room]
                room -= len(data)
                slice_.append(data)
            self.sent_bytes += FLUSH_BYTES - room
            if len(slice_) == 1:
                self._transport.write(slice_[0])
            else:
                self._transport.writelines(slice_)
        if self.handed.pieces:
            self.handed.given(self.sent_bytes)

    def relieved(self) -> None:
        """The transport has room again."""
        self.congested = False
        self.flush()
        if not self.congested:
            self.resume(CONGESTED)

    # --- in ---------------------------------------------------------------------------------------

    def received(self, size_bytes: int) -> None:
        """By one read."""
        self.received_bytes += size_bytes
        if size_bytes >= FULL_READ_BYTES:
            self._slices.full_read(size_bytes)

    @property
    def paused(self) -> bool:
        return bool(self._pauses)

    # --- heartbeats -------------------------------------------------------------------------------

    def start_heartbeats(self, heartbeat_s: int, on_silence: Callable[[], None]) -> None:
        if heartbeat_s:
            self._look_s = heartbeat_s / LOOKS_A_HEARTBEAT
            self._on_silence = on_silence
            self._looks = self._loop.call_later(self._look_s, self._look)

    def _look(self) -> None:
        assert self._on_silence is not None
        sent, received = self._seen
        if self.sent_bytes == sent:
            self.write(HEARTBEAT)
            self.flush()  # before the next look, for which a heartbeat is no traffic
        # Who is not listened to is not silent.
        if self.received_bytes != received or self._pauses:
            self._silent_looks = 0
        else:
            self._silent_looks += 1
        self._seen = (self.sent_bytes, self.received_bytes)
        if self._silent_looks >= MISSED_MAX * LOOKS_A_HEARTBEAT:
            self._on_silence()
            return
        self._looks = self._loop.call_later(self._look_s, self._look)

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """After what was written."""
        self.flush(all_of_it=True)
        self._stop()
        self._transport.close()

    def finish(self) -> None:
        """Nothing more is written. What still comes is read and dropped until the client closes:
        to close before that would answer it with a reset, and the client might never see what was
        written last.
        """
        self.flush()
        self._stop()
        self.resume_all()

    def abort(self) -> None:
        self._stop()
        self._transport.abort()

    def _stop(self) -> None:
        if self._looks is not None:
            self._looks.cancel()
            self._looks = None
