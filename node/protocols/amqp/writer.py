"""What a channel writes: the bytes, and in which order they leave.

Messages are spliced from the bytes that they came in, nothing is encoded anew: of a run of equal
ones only the delivery tag and the body differ.

A large body leaves piece by piece, as fast as its client takes it, and nothing else of the channel
may come between its frames (AMQP 4.2.6; clients end the connection over it): that waits behind it,
the end of the channel too.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from node.broker.bodies import BodyGone
from node.dispatch.progress import WrittenPiece
from node.messages.amqp_errors import INTERNAL_ERROR, ConnectionError_
from node.protocols.amqp.channel_context import ChannelContext
from node.protocols.amqp.methods import encode_method as method
from node.protocols.amqp.reader import FRAME_OVERHEAD_BYTES

__all__ = [
    "BEHIND_BYTES_MAX",
    "HEARTBEAT",
    "Outlet",
    "Stream",
    "WritingChannel",
    "ack",
    "body_frames",
    "deliveries",
    "delivery_head",
    "get_ok_head",
    "method",
    "nack",
    "returned",
    "returned_head",
]

HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
END: Final = b"\xce"

_FRAME = struct.Struct(">BHI")
_METHOD = struct.Struct(">BHII")
_HEADER = struct.Struct(">BHIHHQ")
_TAG = struct.Struct(">Q")
_CODE = struct.Struct(">H")
_COUNT = struct.Struct(">I")
_CONFIRM = struct.Struct(">BHIIQBB")

_RETURN: Final = 0x003C0032
_DELIVER: Final = 0x003C003C
_GET_OK: Final = 0x003C0047
_ACK: Final = 0x003C0050
_NACK: Final = 0x003C0078


def ack(channel: int, tag: int, *, multiple: bool) -> bytes:
    return _CONFIRM.pack(1, channel, 13, _ACK, tag, multiple, 0xCE)


def nack(channel: int, tag: int, *, multiple: bool) -> bytes:
    """As the broker says it of a publish."""
    return _CONFIRM.pack(1, channel, 13, _NACK, tag, multiple, 0xCE)


def deliveries(
    channel: int,
    consumer_tag: bytes,
    first_tag: int,
    *,
    redelivered: bool,
    where: bytes,
    properties: bytes,
    bodies: Sequence[bytes],
    frame_bytes_max: int,
) -> bytes:
    """Messages that are equal but for their bodies, under delivery tags that count up.

    `where` is exchange and routing key, and they and `consumer_tag` are short strings;
    `properties` flags and list.
    """
    arguments = 4 + len(consumer_tag) + 8 + 1 + len(where)
    before = _METHOD.pack(1, channel, arguments, _DELIVER) + consumer_tag
    after = bytes([redelivered]) + where + END
    between = END + before
    payload_bytes_max = frame_bytes_max - FRAME_OVERHEAD_BYTES
    pack_tag = _TAG.pack
    parts = [before]
    tag = first_tag
    last_size = -1
    around = b""
    for body in bodies:
        size = len(body)
        if size != last_size:
            last_size = size
            around = after + _content_header(channel, properties, size)
            if 0 < size <= payload_bytes_max:
                around += _FRAME.pack(3, channel, size)
        if 0 < size <= payload_bytes_max:
            parts += (pack_tag(tag), around, body, between)
        else:
            frames = _body_frames(channel, body, payload_bytes_max)
            parts += (pack_tag(tag), around, frames, before)
        tag += 1
    parts[-1] = parts[-1][: -len(before)]  # there is no next one
    return b"".join(parts)


def returned(
    channel: int,
    code: int,
    text: str,
    *,
    where: bytes,
    properties: bytes,
    body: bytes,
    frame_bytes_max: int,
) -> bytes:
    head = returned_head(
        channel, code, text, where=where, properties=properties, size_bytes=len(body)
    )
    return head + _body_frames(channel, body, frame_bytes_max - FRAME_OVERHEAD_BYTES)


def _content_header(channel: int, properties: bytes, size: int) -> bytes:
    return _HEADER.pack(2, channel, 12 + len(properties), 60, 0, size) + properties + END


def _body_frames(channel: int, body: bytes, payload_bytes_max: int) -> bytes:
    """As many as it takes; none of an empty body."""
    parts: list[bytes | memoryview] = []
    view = memoryview(body)
    for at in range(0, len(body), payload_bytes_max):
        part = view[at : at + payload_bytes_max]
        parts += (_FRAME.pack(3, channel, len(part)), part, END)
    return b"".join(parts)


def body_frames(channel: int, data: bytes, frame_bytes_max: int) -> Iterator[bytes]:
    """A part of a body, in frames."""
    payload_bytes_max = frame_bytes_max - FRAME_OVERHEAD_BYTES
    for at in range(0, len(data), payload_bytes_max):
        part = data[at : at + payload_bytes_max]
        yield b"".join((_FRAME.pack(3, channel, len(part)), part, END))


def delivery_head(
    channel: int,
    consumer_tag: bytes,
    tag: int,
    *,
    redelivered: bool,
    where: bytes,
    properties: bytes,
    size_bytes: int,
) -> bytes:
    """Of a delivery whose body follows in frames of its own."""
    arguments = consumer_tag + _TAG.pack(tag) + bytes([redelivered]) + where
    return _head(channel, _DELIVER, arguments, properties, size_bytes)


def get_ok_head(
    channel: int,
    tag: int,
    *,
    redelivered: bool,
    where: bytes,
    message_count: int,
    properties: bytes,
    size_bytes: int,
) -> bytes:
    arguments = _TAG.pack(tag) + bytes([redelivered]) + where + _COUNT.pack(message_count)
    return _head(channel, _GET_OK, arguments, properties, size_bytes)


def returned_head(
    channel: int, code: int, text: str, *, where: bytes, properties: bytes, size_bytes: int
) -> bytes:
    arguments = _CODE.pack(code) + _short(text.encode()) + where
    return _head(channel, _RETURN, arguments, properties, size_bytes)


def _head(channel: int, index: int, arguments: bytes, properties: bytes, size_bytes: int) -> bytes:
    return b"".join(
        (
            _METHOD.pack(1, channel, 4 + len(arguments), index),
            arguments,
            END,
            _content_header(channel, properties, size_bytes),
        )
    )


def _short(raw: bytes) -> bytes:
    return bytes([len(raw)]) + raw


# --- in which order

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
        self.busy = False  # a large body is on its way
        self._task: asyncio.Task[None] | None = None
        self._begun: WrittenPiece | None = None  # the message with a large body that is on its way
        self._last: list[bytes] = []  # when the channel has closed
        self._ended: Callable[[], None] = _nothing
        self._room = asyncio.Event()
        self._held_bytes = 0

    def write(self, data: bytes, piece: WrittenPiece | None = None) -> None:
        if not self.busy:
            self._channel.host.write(data, piece)
        elif not self._channel.closed:
            self._behind.append((data, piece))
            self._hold(len(data))

    def stream(self, stream: Stream) -> None:
        self._behind.append(stream)
        self._hold(stream.held_bytes)
        if not self.busy:
            self.busy = True
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
        if not self.busy:
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
        self.busy = False
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
            for frame in body_frames(number, data, host.frame_max):
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
