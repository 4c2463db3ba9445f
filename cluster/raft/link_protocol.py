"""One connection between two nodes: bytes to frames and back, the handshake, pings, the end of it.

A frame is a 4-byte length and CBOR: either a list of messages (each a list) or a control frame
`[kind, field, ...]`. Many messages share a frame: encoding is per message, writing per flush.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from cluster.codec.cbor import pack, unpack
from cluster.codec.errors import CodecError
from cluster.raft.link_auth import GOODBYE, PING, PONG, REFUSAL, LinkHandshake, LinkRefused
from cluster.read_slices import FULL_READ_BYTES, ReadSlices
from cluster.seams import Clock, Down
from cluster.types import NodeId

#: Must hold the largest entry (17 MiB) and what surrounds it.
LINK_FRAME_BYTES_MAX = 20 << 20
#: Messages of one flush are cut into frames of about this size, so that a ping need not wait long.
FRAME_BYTES_TARGET = 1 << 20
#: From here on joining what is written at once costs more than a vectored write.
VECTORED_BYTES_MIN = 64 << 10
#: What may be sent by somebody who has proven nothing yet.
HANDSHAKE_BYTES_MAX = 4 << 10
#: How long what was sent last may take to leave when a connection is closed on purpose.
CLOSE_S_MAX = 1.0

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class ClockSample:
    """Four wall clock readings of one ping, in ns: how far two nodes' clocks differ."""

    peer: NodeId
    sent_ns: int  # here
    received_ns: int  # there
    answered_ns: int  # there
    returned_ns: int  # here

    @property
    def offset_ns(self) -> int:
        """What must be added to our clock to get theirs."""
        return (self.received_ns - self.sent_ns + self.answered_ns - self.returned_ns) // 2

    @property
    def delay_ns(self) -> int:
        """Both ways on the wire; the offset is wrong by half of this at most."""
        return (self.returned_ns - self.sent_ns) - (self.answered_ns - self.received_ns)


class LinkOwner(Protocol):
    """Who is told. Each connection ends with exactly one `lost`, unless its owner ended it."""

    def proven(self, connection: LinkConnection) -> None: ...
    def messages(self, connection: LinkConnection, messages: Sequence[list[Any]]) -> None: ...
    def sampled(self, connection: LinkConnection, sample: ClockSample) -> None: ...
    def refused(self, connection: LinkConnection, error: LinkRefused) -> None: ...
    def lost(self, connection: LinkConnection, down: Down) -> None: ...
    def accepted(self, connection: LinkConnection, transport: asyncio.Transport) -> None: ...


class LinkConnection(asyncio.Protocol):
    """One TCP or TLS connection, from its first byte to its end."""

    def __init__(self, owner: LinkOwner, clock: Clock, *, accepted: bool) -> None:
        self._owner = owner
        self._clock = clock
        self.accepted = accepted
        self.unknown = False  # it may stay, though it is no peer, once it has proven who it is
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._handshake: LinkHandshake | None = None
        self._rest = bytearray()  # of a frame that has not fully arrived
        self._slices = ReadSlices(self._pause_reading, self._resume_reading)
        self._down: Down | None = None  # what the peer said of itself when it left
        self.address = "?"
        self.closed = False
        self.refusal_code = ""  # the code of the refusal that ended it
        self.settled = asyncio.Event()  # the handshake has ended, one way or the other
        self.finished = asyncio.Event()  # the transport is gone
        self.heard_s = self._loop.time()
        self.spoke = False  # anything was received
        self.peer: NodeId | None = None  # the node at the other end, once it is proven
        self.transport_plain: asyncio.Transport | None = None

    @property
    def incarnation(self) -> int:
        assert self._handshake is not None
        assert self._handshake.peer is not None
        return self._handshake.peer.incarnation

    @property
    def version(self) -> int:
        assert self._handshake is not None
        return self._handshake.version

    def begin(self, transport: asyncio.Transport, handshake: LinkHandshake) -> None:
        """The transport is ready (TLS done, where there is TLS): speak."""
        if self.closed:
            transport.abort()
            return
        self._transport = transport
        self._handshake = handshake
        for frame in handshake.start():
            self._write_control(frame)
        if self._rest:  # with TLS, bytes may be here before the transport is
            early, self._rest = bytes(self._rest), bytearray()
            self.data_received(early)

    # --- asyncio calls these ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport_plain = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        self.address = f"{name[0]}:{name[1]}" if name else "?"
        if self.accepted:
            self._owner.accepted(self, self.transport_plain)

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self.heard_s = self._loop.time()
        self.spoke = True
        if len(data) >= FULL_READ_BYTES:
            self._slices.full_read(len(data))
        try:
            self._receive(data)
        except LinkRefused as error:
            self.refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.finished.set()
        if self.closed:
            return
        self.closed = True
        self._owner.lost(self, why_down(exc) if self._down is None else self._down)

    # --- in ---------------------------------------------------------------------------------------

    def _receive(self, data: bytes | bytearray) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < 4 or len(self._rest) < 4 + self._length(self._rest, 0):
                return  # a large frame is looked at once it is here, not once a chunk
            data, self._rest = self._rest, bytearray()
        if self._handshake is None:
            self._rest += data
            if len(self._rest) > HANDSHAKE_BYTES_MAX:
                raise LinkRefused("oversize", "it sent too much before the handshake")
            return
        self._parse(data)

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _length(self, data: bytes | bytearray, at: int) -> int:
        (size,) = _LENGTH.unpack_from(data, at)
        limit = LINK_FRAME_BYTES_MAX if self.peer is not None else HANDSHAKE_BYTES_MAX
        if size > limit:
            # Also what a stray HTTP request or a TLS hello looks like here.
            raise LinkRefused("oversize", f"it announced a frame of {size} bytes, over {limit}")
        return size

    def _parse(self, data: bytes | bytearray) -> None:
        view = memoryview(data)  # frames are copied out of it once
        at, end = 0, len(data)
        while end - at >= 4:
            size = self._length(data, at)
            if end - at - 4 < size:
                break
            try:
                frame = unpack(bytes(view[at + 4 : at + 4 + size]))
            except CodecError as error:
                raise LinkRefused("garbage", "it sent bytes that are no CBOR") from error
            at += 4 + size
            self._frame(frame)
            if self.closed:
                return
        if at < end:
            self._rest += view[at:]

    def _frame(self, frame: Any) -> None:
        if self.peer is None:
            self._shake(frame)
            return
        if not isinstance(frame, list) or not frame:
            raise LinkRefused("garbage", "it sent a frame that is no list")
        items = cast("list[Any]", frame)
        if type(items[0]) is not list:
            self._control(items)
        else:
            for item in items:
                if type(item) is not list or not item:
                    raise LinkRefused("garbage", "it sent a message that is no list")
            self._owner.messages(self, items)

    def _shake(self, frame: Any) -> None:
        assert self._handshake is not None
        for answer in self._handshake.receive(frame):
            self._write_control(answer)
        if self._handshake.done:
            peer = self._handshake.peer
            self.peer = None if peer is None else peer.node
            self._owner.proven(self)

    def _control(self, frame: list[Any]) -> None:
        match frame:
            case [3, int(sent_ns)]:
                now = self._clock.wall_ns()
                self._write_control([PONG, sent_ns, now, self._clock.wall_ns()])
            case [4, int(sent), int(received), int(answered)]:
                peer = self.peer
                assert peer is not None
                sample = ClockSample(peer, sent, received, answered, self._clock.wall_ns())
                self._owner.sampled(self, sample)
            case [5, bool(gone)]:
                self._down = Down.GONE if gone else Down.SILENT
            case [6, str(code), str(reason)]:
                self._down = Down.SILENT
                raise LinkRefused(f"peer_says_{code[:40]}", f"it refused this node: {reason[:200]}")
            case [int(), *_]:
                pass  # of a later version that knows more than we do
            case _:
                raise LinkRefused("garbage", "it sent a frame of no known kind")

    # --- out --------------------------------------------------------------------------------------

    def buffered(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write_messages(self, parts: Sequence[bytes]) -> None:
        """Encoded messages, in order, as few frames."""
        assert self._transport is not None
        out: list[bytes] = []
        batch: list[bytes] = []
        size = 0
        for part in parts:
            if batch and size + len(part) > FRAME_BYTES_TARGET:
                out += _frame_of(batch, size)
                batch, size = [], 0
            batch.append(part)
            size += len(part)
        out += _frame_of(batch, size)
        if sum(map(len, out)) < VECTORED_BYTES_MIN:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def ping(self) -> None:
        self._write_control([PING, self._clock.wall_ns()])

    def _write_control(self, frame: list[Any]) -> None:
        if self._transport is not None and not self.closed:
            data = pack(frame)
            self._transport.write(_LENGTH.pack(len(data)) + data)

    # --- the end ----------------------------------------------------------------------------------

    def refuse(self, error: LinkRefused) -> None:
        """It is not one of ours, or does not behave: tell both sides why and hang up."""
        if self.closed:
            return
        self.refusal_code = error.code
        if not error.code.startswith("peer_says"):
            self._write_control([REFUSAL, error.code, error.reason])
        self.hang_up()
        self._owner.refused(self, error)

    def close(self, *, gone: bool) -> None:
        """Leave on purpose. `gone`: our process ends, or else the peer must not think so."""
        if not self.closed:
            self._write_control([GOODBYE, gone])
            self.hang_up()

    def hang_up(self) -> None:
        self.closed = True
        self._rest = bytearray()
        transport = self._transport or self.transport_plain
        if transport is not None:
            transport.close()
            self._loop.call_later(CLOSE_S_MAX, self.abort)

    def abort(self) -> None:
        """Now, whatever was still to be sent."""
        self.closed = True
        if self.transport_plain is not None:
            self.transport_plain.abort()


def _frame_of(parts: Sequence[bytes], size: int) -> list[bytes]:
    """Length, the head of a CBOR list, and its elements."""
    count = len(parts)
    if count < 24:
        head = bytes((0x80 | count,))
    elif count < 1 << 16:
        head = struct.pack(">BH", 0x99, count)
    else:
        head = struct.pack(">BI", 0x9A, count)
    return [_LENGTH.pack(len(head) + size), head, *parts]


def why_down(error: BaseException | None) -> Down:
    """What a connection that ended so says of the peer.

    End of stream, reset and refused come from a kernel that no longer has the socket, or from a
    firewall. A timeout or an unreachable network says nothing about the process.
    """
    closed = error is None or isinstance(error, ConnectionError)
    return Down.CLOSED if closed and not isinstance(error, ssl.SSLError) else Down.SILENT
