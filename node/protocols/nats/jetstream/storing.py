"""Publishing into streams: what one read of a socket brings to a stream is published at once.

An answer leaves when its message is safe, or surely refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import ATTR_ASKED, ATTR_SUBJECT
from cluster.machine.stream.errors import (
    DUPLICATE,
    NO_BATCHES,
    NO_ROLLUP,
    NO_ROOM,
    NOT_IN_A_BATCH,
    STORED,
    WRONG_LAST_ID,
    WRONG_LAST_SEQUENCE,
)
from cluster.machine.stream.settings import ASKED_LAST_ID
from node.broker.ingress import Ingress
from node.broker.publishing import Publisher, Stored
from node.dispatch.in_flight import MESSAGE_OVERHEAD_BYTES, InFlight
from node.errors import Refused
from node.protocols.nats.jetstream.batching import Abandoned, Batches, Member, Part
from node.protocols.nats.jetstream.errors import ApiError, known
from node.protocols.nats.jetstream.headers import BLOCK_BYTES_MAX, FIRST_LINE, asked
from node.protocols.nats.jetstream.post import Inbox, Post, json_of
from node.protocols.nats.reader import Publish, Requests

#: How a reply subject ends by which flow is controlled of a kind of batch that is not there yet.
FAST_BATCH: Final = b".$FI"

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
        self._atomic = Batches()
        self._timer: asyncio.TimerHandle | None = None
        #: Told of atomic batches that were given up.
        self.on_abandoned: Callable[[Abandoned], None] | None = None

    def take(self, info: QueueInfo, message: Publish, publisher: InFlight | None) -> None:
        """What is taken leaves with `flush`. `publisher`: what its connection has under way."""
        if message.reply.endswith(FAST_BATCH):
            self._refuse(info, message.reply, known(10205))
            return
        subject, reply, header_bytes, size, payloads = message
        count = len(payloads)
        batch = self._batch(info, publisher, [reply] * count)
        if batch is None:
            return
        if header_bytes:
            for payload in payloads:
                self._add_with_header(self._batches[info.queue, publisher], message, payload)
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
        if found.attrs is not None:
            attrs[ATTR_ASKED] = found.attrs
        # What is no block would be taken for AMQP's properties, and is shown to nobody.
        meta = header if header.startswith(FIRST_LINE) else None
        member = Member(
            payload[header_bytes:-2], meta, attrs, size + len(subject) + MESSAGE_OVERHEAD_BYTES
        )
        if found.part is not None:
            self._add_to_atomic(batch, found.part, member, reply)
            return
        batch.bodies.append(member.body)
        batch.metas.append(meta)
        batch.attrs.append(attrs)
        batch.replies.append(reply)
        batch.size_bytes += member.size_bytes

    # --- atomic batches ---------------------------------------------------------------------------

    def _add_to_atomic(self, batch: _Batch, part: Part, member: Member, reply: bytes) -> None:
        info = batch.info
        try:
            if not (info.stream or {}).get("allow_atomic"):
                raise known(NO_BATCHES)
            now_s = asyncio.get_running_loop().time()
            members = self._atomic.add(info.queue, part, member, now_s)
            for each in members or ():
                if ASKED_LAST_ID in each.attrs.get(ATTR_ASKED, ()):
                    raise _unsupported("Nats-Expected-Last-Msg-Id")
        except ApiError as error:
            self._refuse(info, reply, error)
        else:
            if members is not None:
                self._commit(batch, part, members, reply)
            elif reply and not (info.stream or {}).get("no_ack"):
                self._post.send(Inbox(info.vhost, reply), b"")
        self._look()

    def _commit(self, batch: _Batch, part: Part, members: list[Member], reply: bytes) -> None:
        """Behind what came before it."""
        self._publish(batch)
        info, publisher = batch.info, batch.publisher
        self._batches[info.queue, publisher] = _Batch(info, publisher)
        size_bytes = sum(each.size_bytes for each in members)
        if publisher is not None:
            publisher.add(size_bytes)

        def stored(what: Stored | None) -> None:
            if publisher is not None:
                publisher.done(size_bytes)
            if what is not None and reply and not (info.stream or {}).get("no_ack"):
                body = _answered_whole(json_of(info.name), part.id, len(members), what)
                self._post.send(Inbox(info.vhost, reply), body)

        self._publisher.publish(
            info,
            [each.body for each in members],
            [each.header for each in members],
            [each.attrs for each in members],
            size_bytes,
            _unused,
            stored=stored,
            atomic=True,
        )

    def _look(self) -> None:
        """What is given up is told, and when nothing comes any more, time is."""
        loop = asyncio.get_running_loop()
        abandoned, self._atomic.abandoned = self._atomic.abandoned, []
        for each in abandoned:
            if self.on_abandoned is not None:
                self.on_abandoned(each)
        due_s = self._atomic.due_s
        if self._timer is None and due_s is not None:
            self._timer = loop.call_at(due_s, self._time)

    def _time(self) -> None:
        self._timer = None
        self._atomic.look(asyncio.get_running_loop().time())
        self._look()

    # --- sending ----------------------------------------------------------------------------------

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
            self._publish(batch)

    def _publish(self, batch: _Batch) -> None:
        if not batch.bodies:
            return
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


def _answered_whole(name: bytes, batch: str, count: int, stored: Stored) -> bytes:
    """Of an atomic batch."""
    code, number = stored.answers.get(0, (STORED, stored.first))
    if code > 0 or stored.refused:
        return _refused(name, _error(code, number) if code > 0 else known(10008))
    last = number + count - 1 if number else 0
    return b'{"stream":%b,"seq":%d,"batch":%b,"count":%d}' % (name, last, json_of(batch), count)


def _unsupported(header: str) -> ApiError:
    return ApiError(400, NOT_IN_A_BATCH, f"atomic publish unsupported header used: {header}")


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
