"""Publishing into streams: what one read of a socket brings to a stream is published at once.

An answer leaves when its message is safe, or surely refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import ATTR_ASKED, ATTR_SUBJECT
from cluster.machine.stream.errors import (
    DUPLICATE,
    NO_ROLLUP,
    NO_ROOM,
    STORED,
    WRONG_LAST_ID,
    WRONG_LAST_SEQUENCE,
)
from node.broker.ingress import Ingress
from node.broker.publishing import Publisher, Stored
from node.dispatch.in_flight import MESSAGE_OVERHEAD_BYTES, InFlight
from node.errors import Refused
from node.protocols.nats.jetstream.errors import ApiError, known
from node.protocols.nats.jetstream.headers import BLOCK_BYTES_MAX, asked
from node.protocols.nats.jetstream.post import Inbox, Post, json_of
from node.protocols.nats.reader import Publish, Requests

#: By the number that comes with it.
_NO_ROOM_TEXTS: Final = (
    "maximum messages exceeded",
    "maximum bytes exceeded",
    "maximum messages per subject exceeded",
)


class _Batch:
    """For one stream, of one connection."""

    __slots__ = ("attrs", "bodies", "info", "metas", "publisher", "replies", "same", "size_bytes")

    def __init__(self, info: QueueInfo, publisher: InFlight | None) -> None:
        self.info = info
        self.publisher = publisher
        self.bodies: list[bytes] = []
        self.metas: list[bytes | None] = []
        self.attrs: list[dict[int, Any]] = []
        self.replies: list[bytes] = []
        self.size_bytes = 0

    def add_plain(self, subject: bytes, count: int, size: int) -> None:
        """What goes with bodies that have no headers."""
        self.metas += [None] * count
        self.attrs += [{ATTR_SUBJECT: subject}] * count
        self.size_bytes += count * (size + len(subject) + MESSAGE_OVERHEAD_BYTES)


class Storing:
    """One a node."""

    def __init__(self, publisher: Publisher, ingress: Ingress, post: Post) -> None:
        self._publisher = publisher
        self._ingress = ingress
        self._post = post
        self._batches: dict[tuple[Any, InFlight | None], _Batch] = {}

    def take(self, info: QueueInfo, message: Publish, publisher: InFlight | None) -> None:
        """What is taken leaves with `flush`. `publisher`: what its connection has under way."""
        subject, reply, header_bytes, size, payloads = message
        count = len(payloads)
        batch = self._batch(info, publisher, [reply] * count)
        if batch is None:
            return
        if header_bytes:
            for payload in payloads:
                self._add_with_header(batch, message, payload)
            return
        batch.bodies += [payload[:-2] for payload in payloads]
        batch.replies += [reply] * count
        batch.add_plain(subject, count, size)

    def take_each(self, info: QueueInfo, messages: Requests, publisher: InFlight | None) -> None:
        """The same."""
        batch = self._batch(info, publisher, messages.replies)
        if batch is not None:
            batch.bodies += messages.payloads
            batch.replies += messages.replies
            batch.add_plain(messages.subject, len(messages.payloads), messages.size)

    def _batch(
        self, info: QueueInfo, publisher: InFlight | None, replies: Sequence[bytes]
    ) -> _Batch | None:
        """None: nothing can be stored, and whoever wants an answer is told."""
        batch = self._batches.get((info.queue, publisher))
        if batch is None:
            refusal = self._refusal(info)
            if refusal is not None:
                for reply in replies:
                    self._refuse(info, reply, refusal)
                return None
            if not self._batches:
                asyncio.get_running_loop().call_soon(self.flush)
            batch = self._batches[info.queue, publisher] = _Batch(info, publisher)
        return batch

    def _add_with_header(self, batch: _Batch, message: Publish, payload: bytes) -> None:
        subject, reply, header_bytes, size, _ = message
        header = payload[:header_bytes]
        attrs: dict[int, Any] = {ATTR_SUBJECT: subject}
        try:
            if header_bytes > BLOCK_BYTES_MAX:
                raise known(10097)
            found = asked(header)
        except ApiError as error:
            self._refuse(batch.info, reply, error)
            return
        if found is not None:
            attrs[ATTR_ASKED] = found
        batch.bodies.append(payload[header_bytes:-2])
        batch.metas.append(header)
        batch.attrs.append(attrs)
        batch.replies.append(reply)
        batch.size_bytes += size + len(subject) + MESSAGE_OVERHEAD_BYTES

    def _refusal(self, info: QueueInfo) -> ApiError | None:
        """Nobody here can be made to wait."""
        try:
            self._ingress.check_alarms()
            self._ingress.check_vhost(info.vhost)
        except Refused as refused:
            return ApiError(503, 10023, refused.reason)
        return None

    def flush(self) -> None:
        """Idempotent."""
        if not self._batches:
            return
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            if not batch.bodies:
                continue
            first, firm = batch.metas[0], batch.attrs[0]
            same_meta = first is None and not any(batch.metas)
            same_attrs = all(each is firm or each == firm for each in batch.attrs)
            if batch.publisher is not None:
                batch.publisher.add(batch.size_bytes)
            self._publisher.publish(
                batch.info,
                batch.bodies,
                None if same_meta else batch.metas,
                firm if same_attrs else batch.attrs,
                batch.size_bytes,
                _unused,
                stored=partial(self._stored, batch),
            )

    def _stored(self, batch: _Batch, stored: Stored | None) -> None:
        if batch.publisher is not None:
            batch.publisher.done(batch.size_bytes)
        if stored is None or not any(batch.replies):
            return  # deleted meanwhile: nothing was stored, and nobody is told that it was
        stream = batch.info.stream or {}
        if stream.get("no_ack"):
            return
        name = json_of(batch.info.name)
        bodies = _answers(name, len(batch.replies), stored)
        self._post.answer_each(batch.info.vhost, batch.replies, bodies)

    def _refuse(self, info: QueueInfo, reply: bytes, error: ApiError) -> None:
        if reply:
            self._post.send(Inbox(info.vhost, reply), _refused(json_of(info.name), error))


def _answers(name: bytes, count: int, stored: Stored) -> list[bytes]:
    if not stored.answers and not stored.refused:
        form = b'{"stream":%b,"seq":%%d}' % name.replace(b"%", b"%%")
        return [form % sequence for sequence in range(stored.first, stored.first + count)]
    refused = {place for first, last in stored.refused for place in range(first, last + 1)}
    sequence = stored.first
    bodies: list[bytes] = []
    for place in range(count):
        answer = stored.answers.get(place)
        if answer is not None:
            bodies.append(_answered(name, *answer))
        elif place in refused:
            bodies.append(_refused(name, known(10008)))
        else:
            bodies.append(_answered(name, STORED, sequence))
            sequence += 1
    return bodies


def _answered(name: bytes, code: int, number: int) -> bytes:
    if code == STORED:
        return b'{"stream":%b,"seq":%d}' % (name, number)
    if code == DUPLICATE:
        return b'{"stream":%b,"seq":%d,"duplicate":true}' % (name, number)
    return _refused(name, _error(code, number))


def _refused(name: bytes, error: ApiError) -> bytes:
    return b'{"error":%b,"stream":%b,"seq":0}' % (json_of(error.map), name)


def _error(code: int, number: int) -> ApiError:
    if code == WRONG_LAST_SEQUENCE:
        return ApiError(400, code, f"wrong last sequence: {number}")
    if code == WRONG_LAST_ID:
        return ApiError(400, code, "wrong last msg ID: another one came last")
    if code == NO_ROOM:
        return ApiError(503, code, _NO_ROOM_TEXTS[number if number < len(_NO_ROOM_TEXTS) else 0])
    if code == NO_ROLLUP:
        return ApiError(500, code, "rollup not permitted")
    return known(code)


def _unused(refused: object) -> None:
    """`stored` is called instead."""
