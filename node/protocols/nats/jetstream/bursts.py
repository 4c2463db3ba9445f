"""Deliveries of one chunk of a stream, as those who take them are sent them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from cluster.machine.replies import StreamChunk
from cluster.types import Body, LargeBody
from node.protocols.nats.jetstream.headers import with_fields
from node.protocols.nats.jetstream.times import NS_PER_MS
from node.protocols.nats.reader import Burst

#: As `alike` begins: no message is like it.
_NONE: Final = (0, b"", 0)


def bursts_of(
    chunk: StreamChunk,
    bodies: Sequence[tuple[Body, Any]],
    ids: Sequence[int],
    name_of: Callable[[int], bytes],
    reply: bytes,
    header_of: Callable[[Any], bytes],
    *,
    headers_only: bool,
    more: Sequence[tuple[str, object]] = (),
) -> list[Burst]:
    """Of some bodies at least. `ids`: of their subjects; 0: deleted since. `reply`: see
    `acks.reply_subject`. `more`: header fields of all.
    """
    stored_ns = chunk.stored_ms * NS_PER_MS
    form = b"%b%d.%%d.%%d.%d.%%d" % (
        reply.replace(b"%", b"%%"),
        chunk.delivery_count,
        stored_ns,
    )
    count, first, own, pending = len(bodies), chunk.first, chunk.consumer_first, chunk.pending
    texts, metas = zip(*bodies, strict=True)
    if (
        not (headers_only or more)
        and len({*ids}) == 1
        and metas.count(metas[0]) == count
        and LargeBody not in map(type, texts)
        and len({*map(len, texts)}) == 1
    ):
        if not ids[0]:
            return []
        header = header_of(metas[0])
        payloads = [header + text for text in texts] if header else texts
        behind = range(pending, pending - count, -1)
        numbers = (
            range(first, first + count),
            range(own, own + count),
            behind if pending >= count - 1 else [max(0, each) for each in behind],
        )
        size = len(header) + len(texts[0])
        return [Burst(name_of(ids[0]), form, numbers, len(header), size, payloads)]
    found: list[Burst] = []
    known = _NONE
    header_meta, own_header = None, header_of(None)
    sequences: list[int] = []
    owns: list[int] = []
    behinds: list[int] = []
    payloads = list[bytes]()
    for at, (subject_id, body, meta) in enumerate(zip(ids, texts, metas, strict=True)):
        if not subject_id:
            continue
        if isinstance(body, LargeBody):
            body = body.head
        if meta is not header_meta:
            header_meta, own_header = meta, header_of(meta)
        header = own_header
        if headers_only:
            header, body = with_fields(header, [("Nats-Msg-Size", len(body))]), b""
        if more:
            header = with_fields(header, more)
        alike = subject_id, header, len(body)
        if alike != known:
            known, sequences, owns, behinds, payloads = alike, [], [], [], []
            numbers = sequences, owns, behinds
            size = len(header) + len(body)
            found.append(Burst(name_of(subject_id), form, numbers, len(header), size, payloads))
        sequences.append(first + at)
        owns.append(own + at)
        behinds.append(max(0, pending - at))
        payloads.append(header + body if header else body)
    return found
