"""Consumers of streams: a cursor each, and credit that acknowledgements give back.

As RabbitMQ has it: a consumer needs a prefetch, and however it settles a delivery, that only makes
room for another one. An offset counts from 0, a sequence of the stream from 1.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from pamqp import commands

from cluster.machine.arguments import misplacement
from cluster.machine.catalog import QueueInfo
from cluster.machine.catalog_queues import queue_text
from cluster.machine.checks import shown
from node.broker.stream_reads import Start, StreamMessage, StreamReader, Wanted
from node.messages import properties as props
from node.messages.amqp_errors import (
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    AmqpError,
    ChannelError_,
    ConnectionError_,
)
from node.messages.message import on_wire
from node.protocols.amqp.stream_arguments import seconds_of
from node.tasks import Tasks

OFFSET: Final = "x-stream-offset"
FILTER: Final = "x-stream-filter"
MATCH_UNFILTERED: Final = "x-stream-match-unfiltered"
#: What only consumers of queues may say.
_OF_QUEUES: Final = ("x-priority", "x-cancel-on-ha-failover", "x-credit")
#: The sequence of offset 0.
FIRST_SEQUENCE: Final = 1
OFFSET_MAX: Final = 2**62
#: Read at once for one consumer, and so in memory beside what the socket has not taken.
MESSAGES_AT_ONCE: Final = 256
BYTES_AT_ONCE: Final = 128 * 1024


def check(info: QueueInfo, method: commands.Basic.Consume, prefetch: int) -> None:
    """Whether a stream can be consumed so."""
    thing = queue_text(info.vhost, info.name)
    _refuse(_OF_QUEUES, info, method.arguments or {})
    if not prefetch:
        reason = f"consumer prefetch count is not set for stream {thing}"
        raise ChannelError_(PRECONDITION_FAILED, reason)
    if method.no_ack:
        reason = f"automatic acknowledgement not supported by stream {thing}"
        raise ConnectionError_(NOT_IMPLEMENTED, reason)


def check_queue(info: QueueInfo, arguments: Mapping[str, Any]) -> None:
    """Whether a queue that is no stream can be consumed so."""
    _refuse((OFFSET, FILTER, MATCH_UNFILTERED), info, arguments)


def _refuse(names: Iterable[str], info: QueueInfo, arguments: Mapping[str, Any]) -> None:
    for name in names:
        if name in arguments:
            reason = misplacement(name, queue_text(info.vhost, info.name), info.arguments)
            raise ChannelError_(PRECONDITION_FAILED, reason)


def start_of(info: QueueInfo, arguments: Mapping[str, Any], now_ms: int) -> Start:
    """`arguments` as the client sent them: a time is no number. Without one: what comes next."""
    value = arguments.get(OFFSET, "next")
    if value in ("first", "last", "next"):
        return Start(value)
    if isinstance(value, dt.datetime):
        return Start("time", int(value.timestamp() * 1000))
    if type(value) is int and 0 <= value <= OFFSET_MAX:
        return Start("sequence", value + FIRST_SEQUENCE)
    seconds = seconds_of(value) if isinstance(value, str) else None
    if seconds is None:
        allowed = "first, last, next, an offset, a timestamp, or a length of time such as 1h"
        raise _invalid(info, OFFSET, value, allowed)
    return Start("time", max(0, now_ms - seconds * 1000))


def wanted_of(info: QueueInfo, arguments: Mapping[str, Any]) -> Wanted | None:
    """None: all messages."""
    unfiltered = arguments.get(MATCH_UNFILTERED, False)
    if type(unfiltered) is not bool:
        raise _invalid(info, MATCH_UNFILTERED, unfiltered, "true or false")
    value = arguments.get(FILTER)
    if value is None:
        return None
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, str) for each in values):
        raise _invalid(info, FILTER, value, "a string, or an array of some")
    return Wanted(frozenset(values), unfiltered)


def _invalid(info: QueueInfo, name: str, value: Any, allowed: str) -> ChannelError_:
    thing = queue_text(info.vhost, info.name)
    reason = f"invalid arg '{name}' for {thing}: {shown(value)}, and it must be {allowed}"
    return ChannelError_(PRECONDITION_FAILED, reason)


class StreamFeed:
    """Reads for one consumer, from `start` to `stop`, as far as that has credit."""

    def __init__(
        self,
        reader: StreamReader,
        credit: int,
        *,
        takes: Callable[[], bool],
        deliver: Callable[[Sequence[StreamMessage]], None],
        ended: Callable[[Exception], None],
    ) -> None:
        """`takes`: whether the connection takes more now. `ended` is told why it cannot go on."""
        self._reader = reader
        self._credit = credit
        self._takes = takes
        self._deliver = deliver
        self._ended = ended
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: Tasks) -> None:
        self._task = tasks.start(self._run(), name="amqp_stream_reader")

    def stop(self) -> None:
        """No delivery leaves any more."""
        if self._task is not None:
            self._task.cancel()

    def settled(self, count: int) -> None:
        self._credit += count
        self._wake.set()

    def writable(self) -> None:
        self._wake.set()

    async def _run(self) -> None:
        try:
            while True:
                await self._room()
                most = min(self._credit, MESSAGES_AT_ONCE)
                messages = await self._reader.next(most, BYTES_AT_ONCE)
                self._credit -= len(messages)
                self._deliver(messages)
                await asyncio.sleep(0)  # others have their turn, though all of it is in memory
        except Exception as error:  # noqa: BLE001 -- told to the client, whatever it is
            self._ended(error)

    async def _room(self) -> None:
        """Until the client wants more, and its connection takes it."""
        while self._credit <= 0 or not self._takes():
            self._wake.clear()
            await self._wake.wait()


def stream_on_wire(message: StreamMessage, queue: str) -> tuple[bytes, bytes]:
    """`where` and properties, with the offset among the headers."""
    key = message.subject.decode(errors="replace")
    where, properties = on_wire(message.meta, key if 0 < len(key.encode()) <= 255 else queue)
    offset = message.sequence - FIRST_SEQUENCE
    try:
        if len(properties) <= props.CACHED_BYTES_MAX:
            before, behind = _around_offset(properties)
            return where, b"%b%b%b" % (before, offset.to_bytes(8), behind)
        return where, props.with_headers(properties, {OFFSET: offset})
    except AmqpError:  # headers that nobody could read until now: they stay as they are
        return where, properties


@lru_cache(1024)
def _around_offset(properties: bytes) -> tuple[bytes, bytes]:
    return props.around_number(properties, OFFSET)
