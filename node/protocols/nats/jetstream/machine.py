"""Where the machine of a stream is looked at, and messages of streams are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from cluster.groups.group_like import GroupLike
from cluster.machine import QueueMachine
from cluster.machine.stream.leaving import is_marker
from cluster.machine.stream.stream import Stream
from cluster.types import Body, BodyRef, LargeBody, QueueId
from node.broker.bodies import may_be_whole, whole

#: Of what a stream stores itself when the last message of a subject is too old.
MARKER: Final = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n"

#: Bodies, each with its header block, or with AMQP's properties.
Bodies = Sequence[tuple[Body, Any]]


def stream_of(group: GroupLike, queue: QueueId) -> Stream | None:
    """None: its group has no such stream, or not yet."""
    return cast(QueueMachine, group.machine).stream(queue)


def read(group: GroupLike, ref: BodyRef) -> Bodies | None:
    """None: they have to be loaded."""
    return [(b"", MARKER)] * ref.count if is_marker(ref) else group.read_bodies(ref)


async def load(group: GroupLike, ref: BodyRef) -> Bodies:
    """Those with a body that is too large to travel whole have only how it begins."""
    if is_marker(ref):
        return [(b"", MARKER)] * ref.count
    found = await group.load_bodies(ref)
    if any(type(body) is LargeBody for body, _ in found):
        return [(await _joined(group, body), meta) for body, meta in found]
    return found


async def _joined(group: GroupLike, body: Body) -> bytes:
    if not isinstance(body, LargeBody):
        return body
    joined = await whole(group, body) if may_be_whole(body) else None
    return body.head if joined is None else joined


def header_of(meta: Any) -> bytes:
    """NATS's; what AMQP's clients publish has none."""
    return meta if isinstance(meta, bytes) and meta.startswith(b"NATS/1.0") else b""
