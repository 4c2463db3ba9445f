"""Frames as a client makes them, right or deliberately wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from node.messages.properties import NONE
from node.protocols.amqp.events import Event, Publish
from node.protocols.amqp.methods import encode_method, made
from node.protocols.amqp.reader import Reader

__all__ = ["ack", "body", "encode_method", "frame", "header", "made", "publish", "reader"]

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


def frame(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


def where(exchange: str = "", key: str = "orders") -> bytes:
    parts = [exchange.encode(), key.encode()]
    return b"".join(bytes([len(part)]) + part for part in parts)


def publish_method(channel: int = 1, route: bytes = where(), flags: int = 0) -> bytes:
    return frame(1, channel, struct.pack(">IH", 0x3C0028, 0) + route + bytes([flags]))


def header(channel: int, size: int, properties: bytes = NONE, class_id: int = 60) -> bytes:
    return frame(2, channel, struct.pack(">HHQ", class_id, 0, size) + properties)


def body(channel: int, part: bytes) -> bytes:
    return frame(3, channel, part)


def publish(
    content: bytes = b"a",
    *,
    channel: int = 1,
    route: bytes = where(),
    properties: bytes = NONE,
    flags: int = 0,
    part_bytes_max: int = 4088,
) -> bytes:
    parts = [content[at : at + part_bytes_max] for at in range(0, len(content), part_bytes_max)]
    return b"".join(
        [
            publish_method(channel, route, flags),
            header(channel, len(content), properties),
            *(body(channel, part) for part in parts),
        ]
    )


def ack(tag: int, *, channel: int = 1, multiple: bool = False) -> bytes:
    return frame(1, channel, struct.pack(">IQB", 0x3C0050, tag, multiple))


def reader(**limits: int) -> Reader:
    return Reader(
        frame_bytes_max=limits.get("frame_bytes_max", 4096),
        channel_max=limits.get("channel_max", 10),
        message_bytes_max=limits.get("message_bytes_max", 100_000),
    )


def flattened(events: Sequence[Event]) -> list[object]:
    """One line an observable fact: how messages and tags are grouped depends on the chunks."""
    found: list[object] = []
    for event in events:
        if isinstance(event, Publish):
            found += [(*event[:4], *each) for each in zip(*event[4:], strict=True)]
        elif hasattr(event, "ranges"):
            for first, last in event.ranges:
                if first == 0:
                    found.append((event.channel, "up to", last))
                else:
                    found += [(event.channel, tag) for tag in range(first, last + 1)]
        elif hasattr(event, "method"):
            method = event.method
            values = [(name, getattr(method, name)) for name in method.attributes()]
            found.append((event.channel, method.name, values))
        else:
            found.append(event)
    return found
