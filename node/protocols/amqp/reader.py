"""Bytes of a client to events.

Publishes and acks are read by hand, since a busy connection sends little else. Messages that
differ only in their bodies come in streaks: what is around the body is remembered from the last
one, and the next is recognised by comparing bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from node.broker.bodies import PART_BYTES, PARTED_OVER_BYTES, NewBody, PartedBody
from node.messages.properties import NONE, check
from node.protocols.amqp.errors import (
    CHANNEL_ERROR,
    FRAME_ERROR,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    AmqpError,
    ConnectionError_,
)
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

_FRAME = struct.Struct(">BHI")
_LONG = struct.Struct(">I")
_CONTENT = struct.Struct(">HHQ")
_HEADER_FRAME = struct.Struct(">BHIHHQ")
_BODY_FRAME = struct.Struct(">BBHI")  # with the end of the frame before it
_ACK_FRAME = struct.Struct(">11sQBB")
_ACK_HEAD = struct.Struct(">BHII")


@dataclass(slots=True)
class _Content:
    """A publish of which the header, or a part of the body, has yet to come."""

    where: bytes
    flags: int
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


class _Streak(NamedTuple):
    """Two equal publishes: what is before the low half of the body's size, and from there to the
    size of the body frame.
    """

    head: bytes
    tail: bytes
    channel: int
    where: bytes
    flags: int
    properties: bytes


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
        self._streak: _Streak | None = None
        # The last basic.publish: most messages of a connection go the same way.
        self._route: tuple[bytes, int, bytes, int] | None = None
        self._properties = NONE  # the last ones that were found well formed

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
        """Reads whole frames; where the first incomplete one begins."""
        at = 0
        end = len(data)
        contents = self._contents
        while end - at >= _FRAME.size:
            streak = self._streak
            if streak is not None and not contents and data.startswith(streak.head, at):
                after = self._read_streak(streak, data, at, events)
                if after > at:
                    at = after
                    continue
                self._streak = None
            route = self._route
            if route is not None and not contents and data.startswith(route[0], at):
                frame, channel, where, flags = route
                at = self._read_content(channel, where, flags, data, at, at + len(frame), events)
                continue
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
                if index == _PUBLISH:
                    at = self._read_publish(channel, data, at, stop, events)
                    continue
                if index == ACK and size == ACK_BYTES:
                    at = read_acks(channel, data, at, events)
                    continue
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

    def _read_streak(self, streak: _Streak, data: bytes, at: int, events: list[Event]) -> int:
        """Messages that begin as the last one did; `at` if the first is different after all."""
        head, tail, channel, where, flags, properties = streak
        startswith = data.startswith
        size_bytes_max = min(self.frame_bytes_max, self.message_bytes_max, PARTED_OVER_BYTES)
        size_at = len(head)
        tail_at = size_at + 4
        again_at = tail_at + len(tail)  # the body frame names the body's size again
        body_at = again_at + 4
        end = len(data)
        last_size = b""
        bodies: list[NewBody] | None = None
        while startswith(head, at):
            raw_size = data[at + size_at : at + tail_at]
            size = int.from_bytes(raw_size)
            stop = at + body_at + size
            if (
                stop >= end
                or not 0 < size <= size_bytes_max
                or not startswith(tail, at + tail_at)
                or not startswith(raw_size, at + again_at)
                or data[stop] != FRAME_END
            ):
                break
            if bodies is None:
                bodies = _bodies_of(events, channel, where, flags, properties)
            if raw_size == last_size:  # then the next ones may have this size too
                before = len(bodies)
                around = data[at : at + body_at]
                whole = (end - at) // (body_at + size + 1) * (body_at + size + 1)
                equal = _equal_messages(body_at, size).iter_unpack(
                    memoryview(data)[at : at + whole]
                )
                for found, body, mark in equal:
                    if found != around or mark != FRAME_END:
                        break
                    bodies.append(body)
                at += (len(bodies) - before) * (body_at + size + 1)
            else:
                last_size = raw_size
                bodies.append(data[at + body_at : stop])
                at = stop + 1
        return at

    def _read_publish(
        self, channel: int, data: bytes, at: int, stop: int, events: list[Event]
    ) -> int:
        """The method frame, and header and body with it if they are here in one piece each."""
        if channel == 0:
            raise ConnectionError_(CHANNEL_ERROR, "basic.publish on channel 0", 60, 40)
        key_at = at + 14 + data[at + 13] if stop - at > 13 else stop
        if key_at >= stop or key_at + 2 + data[key_at] != stop:
            raise ConnectionError_(
                SYNTAX_ERROR, "arguments of Basic.Publish cannot be read", 60, 40
            )
        where = data[at + 13 : stop - 1]
        flags = data[stop - 1]
        if not where.isascii():
            _check_text(data[at + 14 : key_at], data[key_at + 1 : stop - 1])
        self._route = (data[at : stop + 1], channel, where, flags)
        return self._read_content(channel, where, flags, data, at, stop + 1, events)

    def _read_content(
        self,
        channel: int,
        where: bytes,
        flags: int,
        data: bytes,
        at: int,
        header_at: int,
        events: list[Event],
    ) -> int:
        """Header and body of the publish at `at`, if each is here in one frame; `header_at` if
        not: then they are read frame by frame.
        """
        end = len(data)
        frame_bytes_max = self.frame_bytes_max
        if end - header_at >= _HEADER_FRAME.size + _BODY_FRAME.size:
            kind, other, size, class_id, weight, size_bytes = _HEADER_FRAME.unpack_from(
                data, header_at
            )
            header_stop = header_at + 7 + size
            if (
                kind == _HEADER
                and other == channel
                and class_id == _BASIC
                and weight == 0
                and 14 <= size <= frame_bytes_max
                and 0 < size_bytes <= PARTED_OVER_BYTES
                and size_bytes <= self.message_bytes_max
                and end - header_stop >= _BODY_FRAME.size
            ):
                mark, kind, other, size = _BODY_FRAME.unpack_from(data, header_stop)
                body_at = header_stop + 8
                body_stop = body_at + size
                if (
                    mark == FRAME_END
                    and kind == _BODY
                    and other == channel
                    and size == size_bytes
                    and size <= frame_bytes_max
                    and body_stop < end
                    and data[body_stop] == FRAME_END
                ):
                    properties = self._checked(data[header_at + 19 : header_stop])
                    bodies = _bodies_of(events, channel, where, flags, properties)
                    bodies.append(data[body_at:body_stop])
                    if len(bodies) > 1:
                        self._streak = _Streak(
                            data[at : header_at + 15],  # the high half of the size is 0
                            data[header_at + 19 : body_at - 4],
                            channel,
                            where,
                            flags,
                            properties,
                        )
                    return body_stop + 1
        if len(self._contents) >= self.channel_max:
            # Open channels are counted elsewhere; this bounds what channels that are not open hold.
            raise ConnectionError_(
                CHANNEL_ERROR,
                f"{self.channel_max} channels are in the middle of a message, and no more can be",
            )
        self._contents[channel] = _Content(where, flags)
        return header_at

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
        return self._checked(data[at + 12 : stop]), size_bytes

    def _checked(self, properties: bytes) -> bytes:
        if properties != self._properties:
            check(properties)
            self._properties = properties
        return self._properties

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
        if not content.skip:
            content.parts.append(part)
            if content.size_bytes > PARTED_OVER_BYTES:
                content.join_parts(part)
        if content.missing_bytes == 0:
            self._complete(channel, content, events)

    def _complete(self, channel: int, content: _Content, events: list[Event]) -> None:
        del self._contents[channel]
        if not content.skip:
            parts, flags = content.parts, content.flags
            if content.size_bytes > PARTED_OVER_BYTES:  # an event of its own
                body = PartedBody([*content.pieces, b"".join(parts)] if parts else content.pieces)
                same = (channel, content.where, flags & 1 == 1, flags & 2 == 2)
                events.append(Publish(*same, content.properties, [body]))
                return
            _bodies_of(events, channel, content.where, flags, content.properties).append(
                parts[0] if len(parts) == 1 else b"".join(parts)
            )


@lru_cache(maxsize=256)
def _equal_messages(around_bytes: int, body_bytes: int) -> struct.Struct:
    return struct.Struct(f">{around_bytes}s{body_bytes}sB")


def _bodies_of(
    events: list[Event], channel: int, where: bytes, flags: int, properties: bytes
) -> list[NewBody]:
    """Where the next body goes: into the last event if that is about the same."""
    same = (channel, where, flags & 1 == 1, flags & 2 == 2, properties)
    if events:
        last = events[-1]
        if (
            type(last) is Publish
            and last[4] == properties
            and last[:5] == same
            and type(last.bodies[0]) is not PartedBody
        ):
            return last.bodies
    bodies: list[NewBody] = []
    events.append(Publish(*same, bodies))
    return bodies


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
