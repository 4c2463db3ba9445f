"""Messages of streams, as NATS's clients are given them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from cluster.groups.group_like import GroupLike
from cluster.machine.catalog import QueueInfo
from cluster.types import Body, BodyRef, LargeBody
from node.broker.bodies import may_be_whole, whole
from node.broker.stream_reads import MARKER, read, stream_of
from node.messages.message import nats_fields_of
from node.messages.nats_headers import block_of, is_block
from node.messages.properties import CACHED_BYTES_MAX
from node.protocols.nats.jetstream.headers import with_fields
from node.protocols.nats.jetstream.times import span_of_ns

__all__ = ["Bodies", "has_large", "header_of", "load", "read", "stream_of"]

#: Bodies, each with its header block, or with AMQP's properties.
Bodies = Sequence[tuple[Body, Any]]


def has_large(bodies: Bodies) -> bool:
    """Some are not here, only their beginning."""
    return LargeBody in map(type, map(itemgetter(0), bodies))


async def load(group: GroupLike, ref: BodyRef) -> Bodies:
    """Bodies that may be whole are."""
    found = read(group, ref)
    if found is None:
        found = await group.load_bodies(ref)
    if has_large(found):
        return [(await _joined(group, body), meta) for body, meta in found]
    return found


async def _joined(group: GroupLike, body: Body) -> Body:
    if not isinstance(body, LargeBody) or not may_be_whole(body):
        return body
    joined = await whole(group, body)
    return body if joined is None else joined


def header_of(meta: Any, info: QueueInfo) -> bytes:
    """NATS's; of what AMQP's clients publish, headers and properties that are text or numbers."""
    if meta is MARKER:
        ttl = span_of_ns((info.stream or {}).get("subject_delete_marker_ttl", 0))
        return with_fields(MARKER, [("Nats-TTL", ttl)])
    if not isinstance(meta, bytes):
        return block_of(nats_fields_of(meta))
    if is_block(meta):
        return meta
    return _block_of(meta) if len(meta) <= CACHED_BYTES_MAX else block_of(nats_fields_of(meta))


@lru_cache(1024)
def _block_of(meta: bytes) -> bytes:
    return block_of(nats_fields_of(meta))
