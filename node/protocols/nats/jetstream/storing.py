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
    NO_COUNTER,
    NO_INCREMENT,
    NO_ROLLUP,
    NO_ROOM,
    NOT_IN_A_BATCH,
    STORED,
    WRONG_LAST_ID,
    WRONG_LAST_SEQUENCE,
)
from cluster.machine.stream.settings import (
    ASKED_DUE_MS,
    ASKED_LAST,
    ASKED_LAST_ID,
    ASKED_LAST_SUBJECT,
    ASKED_ROLLUP,
    ASKED_STREAM,
)
from node.broker.ingress import Ingress
from node.broker.publishing import QueuePublisher, Stored
from node.dispatch.in_flight import MESSAGE_OVERHEAD_BYTES, InFlight
from node.errors import Refused
from node.protocols.nats.jetstream.batching import Abandoned, Batches, Member, Part, columns_of
from node.protocols.nats.jetstream.counting import (
    INVALID,
    UNAVAILABLE,
    Counted,
    Counting,
    increment_of,
)
from node.protocols.nats.jetstream.errors import ApiError, known
from node.protocols.nats.jetstream.headers import (
    BLOCK_BYTES_MAX,
    FIRST_LINE,
    Asked,
    asked_by_client,
    with_fields,
)
from node.protocols.nats.jetstream.post import Inbox, Post, json_of
from node.protocols.nats.jetstream.schedules import asked_by
from node.protocols.nats.reader import Publish, Requests
from node.tasks import Tasks

#: How a reply subject ends by which flow is controlled of a kind of batch that is not there yet.
FAST_BATCH: Final = b".$FI"

#: What an increment cannot ask for.
_NOT_OF_COUNTERS: Final = frozenset(
    {ASKED_STREAM, ASKED_LAST, ASKED_LAST_SUBJECT, ASKED_LAST_ID, ASKED_ROLLUP}
)
#: By the number that comes with it.
_NO_ROOM_TEXTS: Final = (
    "maximum messages exceeded",
    "maximum bytes exceeded",
    "maximum messages per subject exceeded",
)


class _Batch:
    """For one stream, of one connection."""

    __slots__ = (
        "attrs",
        "bodies",
        "in_flight",
        "increments",
        "info",
        "metas",
        "replies",
        "size_bytes",
    )

    def __init__(self, info: QueueInfo, in_flight: InFlight) -> None:
        self.info = info
        self.in_flight = in_flight
        self.bodies: list[bytes] = []
        self.metas: list[bytes | None] = []
        self.attrs: list[dict[int, Any]] = []
        self.replies: list[bytes] = []
        self.size_bytes = 0
        self.increments: list[tuple[Member, bytes]] = []  # each with its reply

    def add_plain(self, subject: bytes, count: int, size: int) -> None:
        """What goes with bodies that have no headers."""
        self.metas += [None] * count
        self.attrs += [{ATTR_SUBJECT: subject}] * count
        self.size_bytes += count * (size + len(subject) + MESSAGE_OVERHEAD_BYTES)


class Storing:
    """One per node."""

    def __init__(
        self,
        publisher: QueuePublisher,
        counting: Counting,
        ingress: Ingress,
        post: Post,
        tasks: Tasks,
        now_ms: Callable[[], int],
    ) -> None:
        self._now_ms = now_ms
        self._publisher = publisher
        self._counting = counting
        self._ingress = ingress
        self._post = post
        self._tasks = tasks
        self._batches: dict[tuple[Any, InFlight], _Batch] = {}
        self._atomic = Batches()
        self._timer: asyncio.TimerHandle | None = None
        #: Told of atomic batches that were given up.
        self.on_abandoned: Callable[[Abandoned], None] | None = None

    def take(self, info: QueueInfo, message: Publish, in_flight: InFlight) -> None:
        """What is taken leaves with `flush`. `in_flight`: what its connection has under way."""
        if message.reply.endswith(FAST_BATCH):
            self._refuse(info, message.reply, known(10205))
            return
        subject, reply, header_bytes, size, payloads = message
        count = len(payloads)
        batch = self._batch(info, in_flight, [reply] * count)
        if batch is None:
            return
        if header_bytes:
            for payload in payloads:
                self._add_with_header(self._batches[info.queue, in_flight], message, payload)
            return
        batch.bodies += [payload[:-2] for payload in payloads]
        batch.replies += [reply] * count
        batch.add_plain(subject, count, size)

    def take_each(self, info: QueueInfo, messages: Requests, in_flight: InFlight) -> None:
        """The same."""
        batch = self._batch(info, in_flight, messages.replies)
        if batch is not None:
            batch.bodies += messages.payloads
            batch.replies += messages.replies
            batch.add_plain(messages.subject, len(messages.payloads), messages.size)

    def _batch(
        self, info: QueueInfo, in_flight: InFlight, replies: Sequence[bytes]
    ) -> _Batch | None:
        """None: nothing can be stored, and whoever wants an answer is told."""
        batch = self._batches.get((info.queue, in_flight))
        if batch is None:
            refusal = self._refusal(info)
            if refusal is not None:
                for reply in replies:
                    self._refuse(info, reply, refusal)
                return None
            if not self._batches:
                asyncio.get_running_loop().call_soon(self.flush)
            batch = self._batches[info.queue, in_flight] = _Batch(info, in_flight)
        return batch

    def _add_with_header(self, batch: _Batch, message: Publish, payload: bytes) -> None:
        subject, reply, header_bytes, size, _ = message
        header = payload[:header_bytes]
        attrs: dict[int, Any] = {ATTR_SUBJECT: subject}
        try:
            if header_bytes > BLOCK_BYTES_MAX:
                raise known(10097)
            found = asked_by_client(header)
            body = payload[header_bytes:-2]
            increment = _increment(batch.info, found, body)
            wanted = found.attrs or {}
            if found.schedule is not None:
                config = batch.info.stream or {}
                wanted = wanted | asked_by(found.schedule, subject, config, self._now_ms())
        except ApiError as error:
            self._refuse(batch.info, reply, error)
            return
        if wanted:
            attrs[ATTR_ASKED] = wanted
        if ASKED_DUE_MS in wanted and ASKED_ROLLUP not in (found.attrs or {}):
            header = with_fields(header, [("Nats-Rollup", "sub")])
        # What is no block would be taken for AMQP's properties, and is shown to nobody.
        meta = header if header.startswith(FIRST_LINE) else None
        size_bytes = size + len(subject) + MESSAGE_OVERHEAD_BYTES
        member = Member(body, meta, attrs, size_bytes, increment)
        if found.part is not None:
            self._add_to_atomic(batch, found.part, member, reply)
            return
        if increment is not None:
            batch.increments.append((member, reply))
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
            if member.increment is None and (info.stream or {}).get("allow_msg_counter"):
                raise known(NO_INCREMENT)
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
        info, in_flight = batch.info, batch.in_flight
        self._batches[info.queue, in_flight] = _Batch(info, in_flight)
        columns = columns_of(members)
        size_bytes = columns.size_bytes
        in_flight.add(size_bytes)
        if (info.stream or {}).get("allow_msg_counter"):
            work = self._count_whole(batch, part.id, members, size_bytes, reply)
            self._tasks.start(work, name="jetstream_counted")
            return

        def stored(what: Stored | None) -> None:
            in_flight.done(size_bytes)
            if what is not None and reply and not (info.stream or {}).get("no_ack"):
                body = _answered_whole(json_of(info.name), part.id, len(members), what)
                self._post.send(Inbox(info.vhost, reply), body)

        self._publisher.publish(info, *columns, _unused, stored=stored, atomic=True)

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
        if batch.increments:
            self._tasks.start(self._count(batch, batch.increments), name="jetstream_counted")
        if not batch.bodies:
            return
        first, firm = batch.metas[0], batch.attrs[0]
        same_meta = first is None and not any(batch.metas)
        same_attrs = all(each is firm or each == firm for each in batch.attrs)
        batch.in_flight.add(batch.size_bytes)
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
        batch.in_flight.done(batch.size_bytes)
        if stored is None or not any(batch.replies):
            return  # deleted meanwhile: nothing was stored, and nobody is told that it was
        stream = batch.info.stream or {}
        if stream.get("no_ack"):
            return
        name = json_of(batch.info.name)
        bodies = _answers(name, len(batch.replies), stored)
        self._post.answer_each(batch.info.vhost, batch.replies, bodies)

    async def _count(self, batch: _Batch, increments: list[tuple[Member, bytes]]) -> None:
        members = [member for member, _ in increments]
        size_bytes = sum(each.size_bytes for each in members)
        counted = await self._counted(batch, members, size_bytes)
        if counted is None:
            return
        name = json_of(batch.info.name)
        for (_, reply), (code, number, total) in zip(increments, counted, strict=True):
            body = _answered(name, code, number)
            if code == STORED:
                body = b'%b,"val":"%d"}' % (body[:-1], total)
            self._post.send(Inbox(batch.info.vhost, reply), body)

    async def _count_whole(
        self, batch: _Batch, id_: str, members: list[Member], size_bytes: int, reply: bytes
    ) -> None:
        counted = await self._counted(batch, members, size_bytes, atomic=True)
        if counted is None:
            return
        code, number, _ = counted[0]
        stored = Stored(number, (), {} if code == STORED else {0: (code, number)})
        body = _answered_whole(json_of(batch.info.name), id_, len(members), stored)
        self._post.send(Inbox(batch.info.vhost, reply), body)

    async def _counted(
        self, batch: _Batch, members: list[Member], size_bytes: int, *, atomic: bool = False
    ) -> list[Counted] | None:
        """None: nobody is told."""
        info, in_flight = batch.info, batch.in_flight
        if not atomic:  # else they were counted
            in_flight.add(size_bytes)
        try:
            counted = await self._counting.add(info, members, atomic=atomic)
        finally:
            in_flight.done(size_bytes)
        return None if (info.stream or {}).get("no_ack") else counted

    def _refuse(self, info: QueueInfo, reply: bytes, error: ApiError) -> None:
        if reply:
            self._post.send(Inbox(info.vhost, reply), _refused(json_of(info.name), error))


def _answers(name: bytes, count: int, stored: Stored) -> list[bytes]:
    if not stored.answers and not stored.refused:
        form = b'{"stream":%b,"seq":%%d}' % name.replace(b"%", b"%%")
        return [form % sequence for sequence in range(stored.first, stored.first + count)]
    return [
        _refused(name, known(UNAVAILABLE)) if answer is None else _answered(name, *answer)
        for answer in stored.each(count)
    ]


def _increment(info: QueueInfo, found: Asked, body: bytes) -> int | None:
    """ApiError: there is one, and it cannot be."""
    if found.increment is None:
        return None
    increment = increment_of(found.increment)
    if not (info.stream or {}).get("allow_msg_counter"):
        raise known(NO_COUNTER)
    if body:
        raise known(10170)
    if not _NOT_OF_COUNTERS.isdisjoint(found.attrs or ()):
        raise known(INVALID)
    return increment


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
        return _refused(name, _error(code, number) if code > 0 else known(UNAVAILABLE))
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
