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
_RETURN, _DELIVER, _ACK, _NACK = 0x003C0032, 0x003C003C, 0x003C0050, 0x003C0078
_CHANNEL_CLOSE, _CHANNEL_CLOSE_OK = 0x00140028, 0x00140029


class Delivered(NamedTuple):
    channel: int
    consumer: str
    tag: int
    redelivered: bool
    body: bytes
    header: bytes


class Returned(NamedTuple):
    """A publish that was routed nowhere."""

    channel: int
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


Frame = Delivered | Returned | Confirmed | Said


class _Content(NamedTuple):
    """A message of which not all frames have come."""

    consumer: str
    tag: int
    redelivered: bool
    returned: bool
    header: list[bytes]
    parts: list[bytes]
    left: list[int]  # bytes of the body that have yet to come, once the header has said so


class Reader:
    """Of one connection. Frames come whole; a large body may come in several writes, and nothing
    else of its channel in between.
    """

    def __init__(self) -> None:
        self._contents: dict[int, _Content] = {}

    def read(self, data: bytes) -> Iterator[Frame]:
        at = 0
        while at < len(data):
            kind, channel, size = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            end = at + size
            assert data[end] == 0xCE, data[at : end + 1]
            content = self._contents.get(channel)
            if kind == _METHOD:
                assert content is None or _ends_channel(data, at), "a method within a content"
                found = self._method(channel, data, at, end)
                if found is not None:
                    yield found
            else:
                assert content is not None, "content without a method"
                if kind == _HEADER:
                    assert not content.left
                    content.header.append(data[at:end])
                    content.left.append(_SIZE.unpack_from(data, at + 4)[0])
                else:
                    assert kind == _BODY
                    assert 0 < size <= content.left[0]
                    content.parts.append(data[at:end])
                    content.left[0] -= size
                if content.left == [0]:
                    del self._contents[channel]
                    body = b"".join(content.parts)
                    if content.returned:
                        yield Returned(channel, body)
                    else:
                        yield Delivered(channel, *content[:3], body, content.header[0])
            at = end + 1

    def _method(self, channel: int, data: bytes, at: int, end: int) -> Confirmed | Said | None:
        (index,) = _INDEX.unpack_from(data, at)
        at += _INDEX.size
        self._contents.pop(channel, None)
        if index == _DELIVER:
            stop = at + 1 + data[at]
            consumer = data[at + 1 : stop].decode()
            (tag,) = _SIZE.unpack_from(data, stop)
            redelivered = bool(data[stop + 8])
            self._contents[channel] = _Content(consumer, tag, redelivered, False, [], [], [])
            return None
        if index == _RETURN:
            self._contents[channel] = _Content("", 0, False, True, [], [], [])
            return None
        if index in (_ACK, _NACK):
            tag, bits = _CONFIRM.unpack_from(data, at)
            return Confirmed(channel, tag, bool(bits & 1), index == _NACK)
        return Said(channel, decode_method(index, data, at, end))


def _ends_channel(data: bytes, at: int) -> bool:
    """Only that cuts a content off."""
    return _INDEX.unpack_from(data, at)[0] in (_CHANNEL_CLOSE, _CHANNEL_CLOSE_OK)
