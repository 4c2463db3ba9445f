"""Bytes for a client. Messages are spliced from the bytes that they came in, nothing is encoded
anew: of a run of equal ones only the delivery tag and the body differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from node.protocols.amqp.methods import encode_method as method
from node.protocols.amqp.reader import FRAME_OVERHEAD_BYTES

__all__ = [
    "HEARTBEAT",
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

    `where` is exchange and routing key as short strings, `properties` flags and list.
    """
    arguments = 4 + 1 + len(consumer_tag) + 8 + 1 + len(where)
    before = _METHOD.pack(1, channel, arguments, _DELIVER) + _short(consumer_tag)
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
    arguments = _short(consumer_tag) + _TAG.pack(tag) + bytes([redelivered]) + where
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
