"""The socket of a connection: writes collected for one iteration of the loop, reading that may be
paused for several reasons at once, and heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from node.protocols.amqp.writer import HEARTBEAT

#: Over this, what was written leaves at once.
FLUSH_BYTES: Final = 64 * 1024
CONGESTED: Final = "congested"
#: A client that was silent for this many of its heartbeats is gone.
MISSED_MAX: Final = 2
#: Looks a heartbeat: at each of them a heartbeat is sent if nothing else was since the last.
LOOKS_A_HEARTBEAT: Final = 2


class Wire:
    """One connection's transport."""

    def __init__(self, transport: asyncio.Transport, *, buffer_bytes_max: int) -> None:
        self.congested = False
        self.sent_bytes = 0
        self.received_bytes = 0
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._buffers: list[bytes] = []
        self._buffered_bytes = 0
        self._flush_soon = False
        self._paused: set[str] = set()
        self._looks: asyncio.TimerHandle | None = None
        self._look_s = 0.0
        self._seen = (0, 0)
        self._silent_looks = 0
        self._on_silence: Callable[[], None] | None = None
        self._buffer_bytes_max = buffer_bytes_max
        transport.set_write_buffer_limits(high=buffer_bytes_max)

    # --- out --------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._buffers.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes >= FLUSH_BYTES:
            self.flush()
        elif not self._flush_soon:
            self._flush_soon = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_soon = False
        self.flush()

    def flush(self) -> None:
        buffers = self._buffers
        if not buffers:
            return
        self.sent_bytes += self._buffered_bytes
        self._buffers = []
        self._buffered_bytes = 0
        if self._transport.is_closing():
            return
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

        if self.congested and self._transport.get_write_buffer_size() > 2 * self._buffer_bytes_max:
            self.pause(CONGESTED)  # a client that asks and asks must take the answers

    def relieved(self) -> None:
        """The transport has room again."""
        self.congested = False
        self.resume(CONGESTED)

    # --- in ---------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        return bool(self._paused)

    def pause(self, why: str) -> None:
        if not self._paused and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused.add(why)

    def resume(self, why: str) -> None:
        """Once no reason is left."""
        if why not in self._paused:
            return
        self._paused.discard(why)
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def resume_all(self) -> None:
        for why in list(self._paused):
            self.resume(why)

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
        if self.received_bytes != received or self._paused:
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
        self.flush()
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
