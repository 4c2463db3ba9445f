"""Frames as a client makes them, right or deliberately wrong."""

from __future__ import annotations

from typing import Any

import cbor2

from node.protocols.native.frames import NativeProtocol


def frame(*fields: Any) -> bytes:
    return cbor2.dumps(list(fields))


def hello(version: int = 1, **options: Any) -> bytes:
    return frame(1, version, options)


def publish(request: int = 1, queue: str = "orders", **changes: Any) -> bytes:
    fields = {
        "publisher": None,
        "seqno": 0,
        "bodies": [b"a"],
        "meta": None,
        "attrs": None,
        **changes,
    }
    return frame(10, request, queue, *fields.values())


def opened(**limits: int) -> NativeProtocol:
    """A connection that has said HELLO."""
    protocol = NativeProtocol(frame_bytes_max=limits.get("frame_bytes_max", 1_000_000))
    protocol.receive(hello())
    return protocol
