"""Bytes of a client to events.

Publishes and acks are read by hand, since a busy connection sends little else. Of a publish the
method frame is mostly one of those that were seen before, and is known by its bytes; the rest has
the same few fields in the same places. What differs from the message before in its body alone is
known by comparing bytes.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from node.broker.bodies import PART_BYTES, PARTED_OVER_BYTES, NewBody, PartedBody
from node.messages.amqp_errors import (
    CHANNEL_ERROR,
    FRAME_ERROR,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    AmqpError,
    ConnectionError_,
)
from node.messages.properties import ASKS, asks, check
from node.protocols.amqp.events import Acks, ContentTooLarge, Event, Heartbeat, Method, Publish
from node.protocols.amqp.methods import decode_method

FRAME_OVERHEAD_BYTES: Final = 8
FRAME_END: Final = 0xCE

ACK: Final = 0x003C0050
#: Payload of the frame: the method, the tag, and a bit.
ACK_BYTES: Final = 13

_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_PUBLISH: Final = 0x003C0028
_CHANNEL_CLOSE_OK: Final = 0x00140029
_BASIC: Final = 60
_BASIC_CONTENT: Final = _BASIC << 16  # with weight 0
_PUBLISH_BYTES: Final = _PUBLISH.to_bytes(4)
#: What may be remembered of one.
_PUBLISH_FRAME = re.compile(rb"\x01..\0\0\0.\0\x3c\0\x28.*\xce", re.DOTALL)
METHODS_MAX: Final = 4096

_FRAME = struct.Struct(">BHI")
_LONG = struct.Struct(">I")
_CONTENT = struct.Struct(">HHQ")
#: Kind and channel together, and class and weight; with the flags of the properties.
_HEADER_FRAME = struct.Struct(">3sIIQH")
_BODY_FRAME = struct.Struct(">4sI")  # kind and channel with the end of the frame before it
_HEADER_AND_BODY_BYTES_MIN: Final = _HEADER_FRAME.size + _BODY_FRAME.size + 1 + 1
_ACK_FRAME = struct.Struct(">11sQBB")
_ACK_HEAD = struct.Struct(">BHII")


@dataclass(slots=True)
class _Content:
    """A publish of which the header, or a part of the body, has yet to come."""

    where: bytes
    flags: int  # as of a `_PublishMethod`
    size_bytes: int = -1  # unknown until the header is there
    missing_bytes: int = 0
    properties: bytes = b""
    parts: list[bytes] = field(default_factory=list[bytes])
    skip: bool = False
    pieces: list[bytes] = field(default_factory=list[bytes])  # of a large body, joined already
    parts_bytes: int = 0

    def join_parts(self, part: bytes) -> None:
        """As they come: a large body is never joined as a whole."""
        self.parts_bytes += len(part)
        if self.parts_bytes >= PART_BYTES:
            joined = b"".join(self.parts)
            self.pieces += [
                joined[at : at + PART_BYTES] for at in range(0, len(joined), PART_BYTES)
            ]
            self.parts, self.parts_bytes = [], 0


class Reader:
    """One connection's bytes, in order, however they are cut.

    `error` is set once a frame cannot be read. The events before it are given, and nothing after.
    """

    def __init__(self, *, frame_bytes_max: int, channel_max: int, message_bytes_max: int) -> None:
        # Of the whole frame, says AMQP; some clients count the payload alone, and RabbitMQ takes
        # both. Raised when it is tuned.
        self.frame_bytes_max = frame_bytes_max
        self.channel_max = channel_max
        self.message_bytes_max = message_bytes_max
        self.error: AmqpError | None = None
        self._kept: list[bytes] = []
        self._missing_bytes = 0  # until the first incomplete frame may be complete
        self._contents: dict[int, _Content] = {}

    def feed(self, data: bytes) -> list[Event]:
        """What became complete."""
        if self.error is not None:
            return []
        if self._kept:
            self._kept.append(data)
            self._missing_bytes -= len(data)
            if self._missing_bytes > 0:
                return []
            data = b"".join(self._kept)
            self._kept = []
        events: list[Event] = []
        try:
            at = self._read(data, events)
        except AmqpError as error:
            self.error = error
            self._contents.clear()
            return events
        if at < len(data):
            self._keep(data, at)
        return events

    def _keep(self, data: bytes, at: int) -> None:
        have = len(data) - at
        need = 7
        if have >= 7:
            need = _LONG.unpack_from(data, at + 3)[0] + FRAME_OVERHEAD_BYTES
        self._kept = [data[at:]]
        self._missing_bytes = max(1, need - have)

    def _read(self, data: bytes, events: list[Event]) -> int:
        """Reads whole frames. Returns where the first incomplete one begins."""
        at = 0
        end = len(data)
        contents = self._contents
        while end - at >= _FRAME.size:
            if data.startswith(_PUBLISH_BYTES, at + 7):
                at = self._read_messages(data, at, events)
                if end - at < _FRAME.size:
                    break
            kind, channel, size = _FRAME.unpack_from(data, at)
            if size > self.frame_bytes_max:
                raise ConnectionError_(
                    FRAME_ERROR,
                    f"type {kind}, frame of {size} bytes of payload is too large, "
                    f"at most {self.frame_bytes_max} are allowed",
                )
            stop = at + 7 + size
            if stop >= end:
                return at
            if data[stop] != FRAME_END:
                raise ConnectionError_(FRAME_ERROR, f"frame ends with {data[stop]}, not with 206")
            if kind == _METHOD:
                if size < 4:
                    raise ConnectionError_(SYNTAX_ERROR, "a method frame without a method")
                index = _LONG.unpack_from(data, at + 7)[0]
                if channel in contents:
                    if index != _CHANNEL_CLOSE_OK:
                        raise _unexpected(channel, contents[channel], "a method")
                    del contents[channel]  # the end of the channel ends what was half said
                if index == ACK and size == ACK_BYTES:
                    at = read_acks(channel, data, at, events)
                    continue
                if index == _PUBLISH:
                    self._begin(channel, data[at : stop + 1])
                else:
                    events.append(Method(channel, decode_method(index, data, at + 11, stop)))
            elif kind == _HEADER:
                self._read_header(channel, data, at + 7, stop, events)
            elif kind == _BODY:
                self._read_body(channel, data[at + 7 : stop], events)
            elif kind == _HEARTBEAT and size == 0:
                events.append(Heartbeat())
            else:
                raise ConnectionError_(FRAME_ERROR, f"there is no frame type {kind} of size {size}")
            at = stop + 1
        return at

    def _read_messages(self, data: bytes, at: int, events: list[Event]) -> int:
        """As many messages as follow each other with header and body in one frame each. Returns
        where the first frame begins that is not of such a message: it is read by itself.
        """
        contents = self._contents
        frame_bytes_max = self.frame_bytes_max
        body_bytes_max = min(frame_bytes_max, self.message_bytes_max, PARTED_OVER_BYTES)
        header_max = len(data) - _HEADER_AND_BODY_BYTES_MIN
        end = len(data)
        last_flags = last_size = -1
        last_where = meta = last_properties = b""
        wheres, metas, bodies = list[bytes](), list[bytes](), list[NewBody]()
        while at < header_max:
            header_at = at + FRAME_OVERHEAD_BYTES + data[at + 6]  # longer ones match no method
            if header_at > header_max:
                break
            method = _METHODS.get(data[at:header_at]) or _method_of(data[at:header_at])
            if method is None:
                break
            flags, where, header_head, body_head = method
            head, size, content, size_bytes, found = _HEADER_FRAME.unpack_from(data, header_at)
            body_at = header_at + 15 + size
            stop = body_at + size_bytes
            if (
                head != header_head
                or content != _BASIC_CONTENT
                or not 14 <= size <= frame_bytes_max
                or not 0 < size_bytes <= body_bytes_max
                or stop >= end
                or _BODY_FRAME.unpack_from(data, body_at - 8) != (body_head, size_bytes)
                or data[stop] != FRAME_END
                or (contents and flags >> 16 in contents)
            ):
                break
            properties = data[header_at + 19 : body_at - 8]
            alike = False
            if properties != last_properties:
                check(properties)
                last_properties = properties
                meta = where + properties
            elif where is not last_where:
                meta = where + properties
            else:
                alike = size_bytes == last_size
            last_where, last_size = where, size_bytes
            flags |= found & ASKS
            if flags != last_flags:
                wheres, metas, bodies = _columns(events, flags)
                last_flags = flags
            wheres.append(where)
            metas.append(meta)
            bodies.append(data[body_at:stop])
            following = stop + 1
            if alike:
                more = _alike(data[at:body_at], size_bytes, data, following)
                wheres += [where] * len(more)
                metas += [meta] * len(more)
                bodies += more
                following += len(more) * (following - at)
            at = following
        return at

    def _begin(self, channel: int, frame: bytes) -> None:
        """A message of which header and body are read frame by frame."""
        flags, where, _, _ = _read_publish(frame)
        if len(self._contents) >= self.channel_max:
            # Open channels are counted elsewhere; this bounds what channels that are not open hold.
            raise ConnectionError_(
                CHANNEL_ERROR,
                f"{self.channel_max} channels are in the middle of a message, and no more can be",
            )
        self._contents[channel] = _Content(where, flags)

    def _content_header(self, data: bytes, at: int, stop: int) -> tuple[bytes, int]:
        if stop - at < 14:
            raise ConnectionError_(FRAME_ERROR, "a content header that ends too early")
        class_id, weight, size_bytes = _CONTENT.unpack_from(data, at)
        if class_id != _BASIC or weight != 0:
            raise ConnectionError_(
                UNEXPECTED_FRAME,
                f"expected content header for class 60, got one for class {class_id} "
                f"with weight {weight} instead",
                60,
                40,
            )
        properties = data[at + 12 : stop]
        check(properties)
        return properties, size_bytes

    def _read_header(
        self, channel: int, data: bytes, at: int, stop: int, events: list[Event]
    ) -> None:
        content = self._contents.get(channel)
        if content is None or content.size_bytes >= 0:
            raise _unexpected(channel, content, "a content header")
        content.properties, size_bytes = self._content_header(data, at, stop)
        content.size_bytes = content.missing_bytes = size_bytes
        if size_bytes > self.message_bytes_max:
            content.skip = True
            events.append(ContentTooLarge(channel, size_bytes, self.message_bytes_max))
        if size_bytes == 0:
            self._complete(channel, content, events)

    def _read_body(self, channel: int, part: bytes, events: list[Event]) -> None:
        content = self._contents.get(channel)
        if content is None or content.size_bytes < 0:
            raise _unexpected(channel, content, "a content body")
        content.missing_bytes -= len(part)
        if content.missing_bytes < 0:
            raise ConnectionError_(
                UNEXPECTED_FRAME,
                f"{-content.missing_bytes} bytes of content more than its header said",
                60,
                40,
            )
        if part and not content.skip:
            content.parts.append(part)
            if content.size_bytes > PARTED_OVER_BYTES:
                content.join_parts(part)
        if content.missing_bytes == 0:
            self._complete(channel, content, events)

    def _complete(self, channel: int, content: _Content, events: list[Event]) -> None:
        del self._contents[channel]
        if content.skip:
            return
        parts, properties = content.parts, content.properties
        flags = content.flags | asks(properties)
        wheres, metas, bodies = _columns(
            events, flags, alone=content.size_bytes > PARTED_OVER_BYTES
        )
        wheres.append(content.where)
        metas.append(content.where + properties)
        if content.size_bytes > PARTED_OVER_BYTES:
            pieces = [*content.pieces, b"".join(parts)] if parts else content.pieces
            bodies.append(PartedBody(pieces))
        else:
            bodies.append(parts[0] if len(parts) == 1 else b"".join(parts))


#: Of a basic.publish: flags (channel << 16 and its two bits), exchange and key, and how its content
#: goes on: kind and channel of the header frame; the end of that, kind and channel of the body
#: frame.
_PublishMethod = tuple[int, bytes, bytes, bytes]
#: By the whole frame: most messages of a node go the same few ways.
_METHODS: Final[dict[bytes, _PublishMethod]] = {}


def _method_of(frame: bytes) -> _PublishMethod | None:
    """None: it is no basic.publish, or not all of it, or a long one."""
    if _PUBLISH_FRAME.fullmatch(frame) is None:
        return None
    method = _read_publish(frame)
    if len(_METHODS) >= METHODS_MAX:
        _METHODS.clear()
    _METHODS[frame] = method
    return method


def _read_publish(frame: bytes) -> _PublishMethod:
    channel = int.from_bytes(frame[1:3])
    if channel == 0:
        raise ConnectionError_(CHANNEL_ERROR, "basic.publish on channel 0", 60, 40)
    stop = len(frame) - 1
    key_at = 14 + frame[13] if stop > 13 else stop
    if key_at >= stop or key_at + 2 + frame[key_at] != stop:
        raise ConnectionError_(SYNTAX_ERROR, "arguments of Basic.Publish cannot be read", 60, 40)
    where = frame[13 : stop - 1]
    if not where.isascii():
        _check_text(frame[14:key_at], frame[key_at + 1 : stop - 1])
    header_head = bytes([_HEADER]) + frame[1:3]
    body_head = bytes([FRAME_END, _BODY]) + frame[1:3]
    return channel << 16 | frame[stop - 1] & 3, where, header_head, body_head


def _columns(
    events: list[Event], flags: int, *, alone: bool = False
) -> tuple[list[bytes], list[bytes], list[NewBody]]:
    """Where the next message goes: into the last event if that has the same channel and flags."""
    same = (flags >> 16, flags & 1 == 1, flags & 2 == 2, flags & ASKS)
    if events and not alone:
        last = events[-1]
        if type(last) is Publish and last[:4] == same and type(last.bodies[0]) is not PartedBody:
            return last.wheres, last.metas, last.bodies
    event = Publish(*same, [], [], [])
    events.append(event)
    return event.wheres, event.metas, event.bodies


def _alike(around: bytes, body_bytes: int, data: bytes, at: int) -> list[bytes]:
    """The bodies of the messages from there on that differ from one in their bodies alone."""
    bodies: list[bytes] = []
    if data.startswith(around, at):
        message = _equal_messages(len(around), body_bytes)
        whole = (len(data) - at) // message.size * message.size
        for found, body, mark in message.iter_unpack(memoryview(data)[at : at + whole]):
            if found != around or mark != FRAME_END:
                break
            bodies.append(body)
    return bodies


@lru_cache(maxsize=256)
def _equal_messages(around_bytes: int, body_bytes: int) -> struct.Struct:
    return struct.Struct(f">{around_bytes}s{body_bytes}sB")


def _check_text(exchange: bytes, key: bytes) -> None:
    try:
        exchange.decode()
        key.decode()
    except UnicodeDecodeError as error:
        raise ConnectionError_(
            SYNTAX_ERROR, f"arguments of Basic.Publish cannot be read: {error}", 60, 40
        ) from error


def _unexpected(channel: int, content: _Content | None, got: str) -> ConnectionError_:
    if content is None:
        expected = "a method"
    elif content.size_bytes < 0:
        expected = "content header for class 60"
    else:
        expected = "content body"
    return ConnectionError_(
        UNEXPECTED_FRAME, f"expected {expected}, got {got} on channel {channel} instead", 60, 40
    )


def read_acks(channel: int, data: bytes, at: int, events: list[Event]) -> int:
    """As many acks of the channel as follow each other: consumers that ack one by one send many,
    in ascending order.
    """
    last = events[-1] if events else None
    if type(last) is Acks and last.channel == channel:
        ranges = last.ranges
        low, high = ranges.pop()
    else:
        ranges = []
        low, high = 0, -1  # none yet: no single tag is next to it
    size = _ACK_FRAME.size
    wanted = _ACK_HEAD.pack(_METHOD, channel, ACK_BYTES, ACK)
    whole = (len(data) - at) // size * size
    single_zero = False
    for head, tag, bits, end in _ACK_FRAME.iter_unpack(memoryview(data)[at : at + whole]):
        if head != wanted or end != FRAME_END:
            break
        if bits & 1:
            if high >= 0:
                ranges.append((low, high))
            low, high = 0, tag
        elif tag == high + 1 and low:
            high = tag
        elif tag:
            if high >= 0:
                ranges.append((low, high))
            low = high = tag
        else:
            single_zero = True
            break
        at += size
    if high >= 0:
        ranges.append((low, high))
        if not (type(last) is Acks and ranges is last.ranges):
            events.append(Acks(channel, ranges))
    if single_zero:
        events.append(Method(channel, decode_method(ACK, data, at + 11, at + 20)))
        at += size
    return at
