"""What a channel writes, read back: enough of AMQP for a client under simulation."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pamqp import base

from node.protocols.amqp.methods import decode_method

_HEAD = struct.Struct(">BHI")
_INDEX = struct.Struct(">I")
_SIZE = struct.Struct(">Q")
_CONFIRM = struct.Struct(">QB")
_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER, _ACK, _NACK = 0x003C003C, 0x003C0050, 0x003C0078


class Delivered(NamedTuple):
    channel: int
    consumer: str
    tag: int
    redelivered: bool
    body: bytes


class Confirmed(NamedTuple):
    channel: int
    tag: int
    multiple: bool
    refused: bool


class Said(NamedTuple):
    """Any other method."""

    channel: int
    method: base.Frame


def read(data: bytes) -> Iterator[Delivered | Confirmed | Said]:
    """Of whole frames and whole messages."""
    at = 0
    while at < len(data):
        kind, channel, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        end = at + size
        assert (kind, data[end]) == (_METHOD, 0xCE), data[at : end + 1]
        (index,) = _INDEX.unpack_from(data, at)
        at += _INDEX.size
        if index == _DELIVER:
            stop = at + 1 + data[at]
            consumer = data[at + 1 : stop].decode()
            (tag,) = _SIZE.unpack_from(data, stop)
            redelivered = bool(data[stop + 8])
            body, end = _content(data, end + 1, channel)
            yield Delivered(channel, consumer, tag, redelivered, body)
        elif index in (_ACK, _NACK):
            tag, bits = _CONFIRM.unpack_from(data, at)
            yield Confirmed(channel, tag, bool(bits & 1), index == _NACK)
        else:
            yield Said(channel, decode_method(index, data, at, end))
        at = end + 1


def _content(data: bytes, at: int, channel: int) -> tuple[bytes, int]:
    """The body, and where its last frame's end mark is."""
    kind, number, size = _HEAD.unpack_from(data, at)
    at += _HEAD.size
    assert (kind, number) == (_HEADER, channel)
    (left,) = _SIZE.unpack_from(data, at + 4)
    end = at + size
    parts: list[bytes] = []
    while left > 0:
        assert data[end] == 0xCE
        kind, number, size = _HEAD.unpack_from(data, end + 1)
        assert (kind, number) == (_BODY, channel)
        assert 0 < size <= left
        at = end + 1 + _HEAD.size
        end = at + size
        parts.append(data[at:end])
        left -= size
    assert data[end] == 0xCE
    return b"".join(parts), end
