"""Streams through the native protocol: declared, read from a place or by a cursor, acknowledged.

A read is a request that waits a while for something to read. Nothing of it is known here once it is
answered: the client says where it goes on, or a cursor of the cluster's knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, cast

from cluster.machine import replies as codes
from cluster.machine.arguments import QUEUE_TYPE, STREAM
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Acknowledge
from cluster.types import LargeBody
from node.broker.broker import Broker
from node.broker.stream_reads import Start, StreamGone, StreamMessage, StreamReader, StreamReads
from node.clients.client_session import ClientSession
from node.dispatch.outgoing import MessageBatch, StreamMessages
from node.errors import BrokerError, Elsewhere, Refused
from node.messages.message import as_map
from node.protocols.native import requests
from node.protocols.nats.jetstream import given
from node.protocols.nats.jetstream.acks import NO_DELAY
from node.protocols.nats.jetstream.api import Api
from node.protocols.nats.jetstream.cursors import Cursors
from node.protocols.nats.jetstream.errors import ApiError
from node.protocols.nats.jetstream.requests import Call
from node.tasks import Tasks

#: Reads of one connection that wait.
READS_OPEN_MAX: Final = 1_000
#: Of one answer, unless a single message is larger.
BYTES_AT_ONCE: Final = 1 << 20
#: Deliveries that one request may give back, refuse or extend.
MESSAGES_SAID_MAX: Final = 65_536

CursorSettle = requests.Settle | requests.Return | requests.Discard | requests.Extend


class _Open(NamedTuple):
    """A read that waits."""

    stream: str
    cursor: str | None
    number: int  # for `Cursors.drop`
    task: asyncio.Task[None]


class Streams:
    """One per node."""

    def __init__(
        self, broker: Broker, reads: StreamReads, api: Api, cursors: Cursors, tasks: Tasks
    ) -> None:
        self._broker = broker
        self._reads = reads
        self._api = api
        self._cursors = cursors
        self._tasks = tasks
        self._open: dict[ClientSession, dict[int, _Open]] = {}

    # --- declared ---------------------------------------------------------------------------------

    async def declare(self, connection: ClientSession, frame: requests.Declare) -> None:
        """With JetStream's settings beside the type."""
        vhost, name = connection.vhost, frame.queue
        settings = {key: value for key, value in frame.arguments.items() if key != QUEUE_TYPE}
        access = connection.access
        subjects = settings.get("subjects")
        if access is not None and isinstance(subjects, list):
            for subject in cast("list[Any]", subjects):  # what it collects, its owner may read
                access.check("read", "queue", str(subject))
        known = self._broker.locate(vhost, name) is not None
        found = await self._ask(
            vhost, Call("STREAM.CREATE", name), {"name": name}, given.of_stream, settings
        )
        info = self._broker.locate(vhost, name)
        group = None if info is None else self._broker.cluster.group(info.group)
        about = {
            "created": not known,
            "leader": found["cluster"].get("leader"),
            "group": "" if group is None else group.name,
        }
        connection.answer(frame.request, about)

    async def put_cursor(self, connection: ClientSession, frame: requests.PutCursor) -> None:
        """It stays until it is deleted."""
        name, vhost = frame.cursor, connection.vhost
        call = Call("CONSUMER.CREATE", frame.queue, name)
        try:
            await self._call(vhost, call._replace(verb="CONSUMER.INFO"), {})
            known = True
        except Refused as refused:
            if refused.code != "no_cursor":
                raise
            known = False
        more = {"name": name, "durable_name": name, "ack_policy": "explicit"}
        await self._ask(vhost, call, more, given.of_consumer, frame.settings)
        connection.answer(frame.request, {"created": not known})

    async def delete_cursor(self, connection: ClientSession, frame: requests.DeleteCursor) -> None:
        call = Call("CONSUMER.DELETE", frame.queue, frame.cursor)
        await self._call(connection.vhost, call, {})
        connection.answer(frame.request)

    async def _ask(
        self,
        vhost: str,
        call: Call,
        more: Mapping[str, Any],
        read: Any,
        settings: Mapping[str, Any],
    ) -> dict[str, Any]:
        try:
            config = {**more, **read(settings)}
        except ApiError as error:
            raise _refused(error) from None
        if call.verb == "CONSUMER.CREATE":
            config = {"stream_name": call.stream, "action": "create", "config": config}
        return await self._call(vhost, call, config)

    async def _call(self, vhost: str, call: Call, asked: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self._api.request(vhost, call, asked)
        except ApiError as error:
            raise _refused(error) from None

    # --- read -------------------------------------------------------------------------------------

    def read(self, connection: ClientSession, info: QueueInfo, frame: requests.Read) -> None:
        """It is answered when there is something, or its time is up."""
        if info.stream is None:
            raise Refused(codes.WRONG_KIND, f"{info.name} is a queue: subscribe to it")
        if connection.closed:
            return
        known = self._open.setdefault(connection, {})
        if len(known) >= READS_OPEN_MAX:
            raise Refused("overloaded", f"a connection has at most {READS_OPEN_MAX} reads open")
        number = self._cursors.next_number()
        work = self._answer(connection, info, frame, number)
        task = self._tasks.start(work, name="stream_read")
        known[number] = _Open(info.name, frame.cursor, number, task)
        task.add_done_callback(lambda _: self._done(connection, number))

    def _done(self, connection: ClientSession, number: int) -> None:
        known = self._open.get(connection)
        if known is not None:
            known.pop(number, None)
            if not known:
                del self._open[connection]

    def cancel(self, connection: ClientSession, stream: str, cursor: str) -> None:
        """Reads by this cursor are answered now."""
        for each in list(self._open.get(connection, {}).values()):
            if (each.stream, each.cursor) == (stream, cursor):
                self._cursors.drop(each.number)

    def closed(self, connection: ClientSession) -> None:
        """Its client is gone."""
        for each in list(self._open.get(connection, {}).values()):
            if each.cursor is None:
                each.task.cancel()
            else:
                self._cursors.drop(each.number)

    async def _answer(
        self, connection: ClientSession, info: QueueInfo, frame: requests.Read, number: int
    ) -> None:
        try:
            if frame.cursor is None:
                following, batches = await self._from_place(info, frame)
            else:
                following = 0
                batches = await self._by_cursor(connection, info, frame, frame.cursor, number)
        except BrokerError as error:
            if not connection.closed:
                connection.fail(frame.request, frame.queue, error)
            return
        if connection.closed:
            return
        if connection.counted is not None:
            served = connection.counted.of(info)
            for batch in batches:
                again = batch.acquired_count > 0
                served.consumed(len(batch.bodies), auto=frame.cursor is None, redelivered=again)
        connection.peer.send(StreamMessages(frame.request, info.name, following, batches))

    async def _from_place(
        self, info: QueueInfo, frame: requests.Read
    ) -> tuple[int, list[MessageBatch]]:
        """The next sequence, and what there is. A place that is no sequence is only found: else
        what comes while the answer is lost would be passed over.
        """
        start = frame.start
        if not isinstance(start, int):
            return await self._reads.start(info, _place(start)), []
        reader = StreamReader(self._reads, info, start)
        found: list[StreamMessage] = []
        with suppress(TimeoutError):
            try:
                async with asyncio.timeout(frame.wait_ms / 1000):
                    found = await reader.next(frame.messages, BYTES_AT_ONCE)
            except StreamGone:
                raise Refused(codes.NO_QUEUE, f"stream {info.name!r} was deleted") from None
        return reader.sequence, list(_batches((each, 1) for each in found))

    async def _by_cursor(
        self,
        connection: ClientSession,
        info: QueueInfo,
        frame: requests.Read,
        cursor: str,
        number: int,
    ) -> list[MessageBatch]:
        taken = await self._cursors.fetch(
            number, info, cursor, count=frame.messages, wait_ms=frame.wait_ms, have=frame.have
        )
        if taken and connection.closed:
            back = [(each.message.sequence, 0) for each in taken]
            await self._cursors.acknowledge(info, Acknowledge(info.queue, cursor, [], back))
        return list(_batches(taken))

    # --- acknowledged -----------------------------------------------------------------------------

    async def settle(
        self, connection: ClientSession, info: QueueInfo, frame: CursorSettle, cursor: str
    ) -> None:
        if info.stream is None:
            raise Refused(codes.WRONG_KIND, f"{info.name} is a queue, and has no cursors")
        count = await self._cursors.acknowledge(info, _acknowledge(info, frame, cursor))
        if connection.counted is not None and isinstance(frame, requests.Settle):
            connection.counted.of(info).acknowledged += count
        if frame.request:
            connection.answer(frame.request, count)


def is_stream(arguments: Mapping[str, Any]) -> bool:
    return arguments.get(QUEUE_TYPE) == STREAM


def _place(start: Literal["first", "last", "next"] | dict[str, int]) -> Start:
    return Start("time", start["time"]) if isinstance(start, dict) else Start(start)


def _acknowledge(info: QueueInfo, frame: CursorSettle, cursor: str) -> Acknowledge:
    match frame:
        case requests.Settle():
            return Acknowledge(info.queue, cursor, frame.ranges)
        case requests.Return():
            delay = frame.delay_ms or (NO_DELAY if frame.failed else 0)
            back = [(each, delay) for each in _each(frame.ranges)]
            return Acknowledge(info.queue, cursor, [], back)
        case requests.Discard():
            return Acknowledge(info.queue, cursor, [], never=list(_each(frame.ranges)))
        case requests.Extend():
            if frame.timeout_ms is not None:
                reason = "a delivery of a stream is extended by the ack_wait of its cursor"
                raise Refused(codes.BAD_ARGUMENT, reason)
            return Acknowledge(info.queue, cursor, [], working=list(_each(frame.ranges)))


def _each(ranges: Sequence[tuple[int, int]]) -> Iterator[int]:
    if sum(last - first + 1 for first, last in ranges) > MESSAGES_SAID_MAX:
        reason = f"one request says this of at most {MESSAGES_SAID_MAX} messages"
        raise Refused(codes.BAD_ARGUMENT, reason)
    return (each for first, last in ranges for each in range(first, last + 1))


def _batches(rows: Iterable[tuple[StreamMessage, int]]) -> Iterator[MessageBatch]:
    """Neighbours that were delivered equally often together; a large body alone."""
    first, deliveries = 0, 0
    bodies: list[Any] = []
    metas: list[Any] = []
    for message, count in rows:
        large = isinstance(message.body, LargeBody)
        if bodies and (large or first + len(bodies) != message.sequence or deliveries != count):
            yield MessageBatch(first, 0, deliveries - 1, deliveries - 1, bodies, metas, None)
            bodies, metas = [], []
        if not bodies:
            first, deliveries = message.sequence, count
        bodies.append(message.body)
        metas.append(_meta(message))
        if large:
            yield MessageBatch(first, 0, deliveries - 1, deliveries - 1, bodies, metas, None)
            bodies, metas = [], []
    if bodies:
        yield MessageBatch(first, 0, deliveries - 1, deliveries - 1, bodies, metas, None)


def _meta(message: StreamMessage) -> Any:
    """With the subject as key."""
    meta = as_map(message.meta)
    if not message.subject:
        return meta
    if isinstance(meta, dict) or meta is None:
        known = cast("dict[str, Any]", meta or {})
        return {**known, "key": message.subject.decode(errors="replace")}
    return meta


_CODES: Final = {
    10014: "no_cursor",
    10058: codes.INEQUIVALENT,
    10059: codes.NO_QUEUE,
    10148: codes.INEQUIVALENT,
}


def _refused(error: ApiError) -> BrokerError:
    if error.code == 503:
        return Elsewhere(None)
    return Refused(_CODES.get(error.number, codes.BAD_ARGUMENT), error.text)
