"""What one channel writes, in order. A large body leaves piece by piece, as fast as its client
takes it, and nothing else of the channel may come between its frames (AMQP 4.2.6; clients end the
connection over it): that waits behind it, the end of the channel too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable
from typing import NamedTuple, Protocol

from node.broker.bodies import BodyGone
from node.dispatch.written import WrittenPiece
from node.messages.amqp_errors import INTERNAL_ERROR, ConnectionError_
from node.protocols.amqp import writer
from node.protocols.amqp.channel_context import ChannelContext

#: Bytes in memory behind a large body: over it the client is not read, so it must take what it
#: asked for.
BEHIND_BYTES_MAX = 16 << 20


class Stream(NamedTuple):
    """A message with a large body."""

    head: bytes  # the frames before those of the body
    pieces: AsyncIterable[bytes]
    piece: WrittenPiece | None
    sent: Callable[[], None]  # called when all of it is written
    held_bytes: int = 0  # of the body, when it is in memory as a whole


class Outlet:
    """Of one channel."""

    def __init__(self, channel: ChannelContext) -> None:
        self._channel = channel
        self._behind: deque[tuple[bytes, WrittenPiece | None] | Stream] = deque()
        self._task: asyncio.Task[None] | None = None
        self._begun: WrittenPiece | None = None  # the message with a large body that is on its way
        self._last: list[bytes] = []  # when the channel has closed
        self._ended: Callable[[], None] = _nothing
        self._room = asyncio.Event()
        self._held_bytes = 0

    @property
    def busy(self) -> bool:
        """A large body is on its way."""
        return self._task is not None

    def write(self, data: bytes, piece: WrittenPiece | None = None) -> None:
        if self._task is None:
            self._channel.host.write(data, piece)
        elif not self._channel.closed:
            self._behind.append((data, piece))
            self._hold(len(data))

    def stream(self, stream: Stream) -> None:
        self._behind.append(stream)
        self._hold(stream.held_bytes)
        if self._task is None:
            self._task = self._channel.services.tasks.start(self._run(), name="amqp_stream")

    def writable(self) -> None:
        """The network takes more again."""
        self._room.set()

    def close(self, *, lost: bool = False) -> None:
        """What is half said is said to its end, and nothing else. So its client has it, unless the
        connection is `lost`.
        """
        if not lost:
            self._count_begun()
        self._behind.clear()
        self._hold(-self._held_bytes)

    def last(self, data: bytes, ended: Callable[[], None]) -> None:
        """Of the closed channel; called back when it has left. The connection sees to `abort`."""
        self._last.append(data)
        self._ended = ended
        if self._task is None:
            self._finish()

    def abort(self) -> None:
        """The connection ends: nothing is said any more."""
        if self._task is not None:
            self._task.cancel()

    def _finish(self) -> None:
        for data in self._last:
            self._channel.host.write(data)
        self._last.clear()
        self._ended()

    def _hold(self, count: int) -> None:
        """So many bytes more; or less."""
        self._held_bytes = max(0, self._held_bytes + count)  # a closed channel holds none
        if self._held_bytes > BEHIND_BYTES_MAX:
            self._channel.host.pause_reading(self._why_paused)
        elif self._held_bytes * 2 <= BEHIND_BYTES_MAX:
            self._channel.host.resume_reading(self._why_paused)

    @property
    def _why_paused(self) -> str:
        return f"outlet {self._channel.number}"

    async def _run(self) -> None:
        behind, host = self._behind, self._channel.host
        try:
            while behind:
                item = behind.popleft()
                if isinstance(item, Stream):
                    await self._send(item)
                    self._hold(-item.held_bytes)
                else:
                    host.write(*item)
                    self._hold(-len(item[0]))
        except BodyGone as error:
            # The client waits for the rest of it: no other method can be said on this channel.
            reason = f"a body was cut off in the middle: {error}"
            host.connection_error(ConnectionError_(INTERNAL_ERROR, reason))
            return
        self._task = None
        if self._channel.closed:
            self._finish()
        else:
            self._channel.writable()

    async def _send(self, stream: Stream) -> None:
        host, number = self._channel.host, self._channel.number
        self._begun = stream.piece
        host.write(stream.head)
        async for data in stream.pieces:
            await self._until_taken()
            for frame in writer.body_frames(number, data, host.frame_max):
                host.write(frame)
        # At once: a client that has the last frame may close the channel.
        self._count_begun()
        if not self._channel.closed:  # else it was given back
            stream.sent()
        await self._until_taken()

    def _count_begun(self) -> None:
        """What was written up to here is that message."""
        piece, self._begun = self._begun, None
        if piece is not None:
            self._channel.host.write(b"", piece)

    async def _until_taken(self) -> None:
        await asyncio.sleep(0)  # what was written leaves at the end of this turn of the loop
        while self._channel.host.congested:
            self._room.clear()
            await self._room.wait()


class WritingChannel(ChannelContext, Protocol):
    outlet: Outlet


def _nothing() -> None: ...
