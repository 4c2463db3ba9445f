"""What the schedules of streams of this node ask for, made when it is due."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from cluster.cluster_node import ClusterNode
from cluster.groups.group_like import GroupLike
from cluster.machine.catalog import QueueInfo
from cluster.machine.stream.errors import NO_SUCH_SCHEDULE, STORED
from cluster.machine.stream.retained import Found
from cluster.machine.stream.stream import Stream
from cluster.types import QueueId
from node.broker.publishing import QueuePublisher
from node.broker.stream_reads import led_stream
from node.protocols.nats.jetstream.batching import Member, columns_of
from node.protocols.nats.jetstream.errors import ApiError
from node.protocols.nats.jetstream.headers import fields_of
from node.protocols.nats.jetstream.reading import header_of, load
from node.protocols.nats.jetstream.schedules import made, schedule_of
from node.tasks import Tasks

log = structlog.get_logger(__name__)

#: Of one stream, made at once.
AT_ONCE: Final = 256
#: A clock may jump: after so long it is looked at again.
LOOK_S_MAX: Final = 30.0
#: What was due and is not stored is tried again; after longer if it was refused.
AGAIN_S: Final = 1.0
REFUSED_S: Final = 30.0


class Scheduler:
    """One per node."""

    def __init__(self, cluster: ClusterNode, publisher: QueuePublisher, tasks: Tasks) -> None:
        self._cluster = cluster
        self._publisher = publisher
        self._tasks = tasks
        self._timers: dict[QueueId, asyncio.TimerHandle] = {}
        self._busy: set[QueueId] = set()
        #: Schedules whose messages are refused, by sequence: when they are tried again.
        self._refused: dict[QueueId, dict[int, float]] = {}

    def look(self, info: QueueInfo, stream: Stream) -> None:
        """Its schedules may be others."""
        if info.queue not in self._busy:
            self._wait(info.queue, stream, 0.0)

    def _wait(self, queue: QueueId, stream: Stream, least_s: float) -> None:
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()
        due_ms = stream.scheduling.next_ms()
        if due_ms is not None:
            wait_s = min(LOOK_S_MAX, (due_ms - self._cluster.now_ms()) / 1000)
            call = asyncio.get_running_loop().call_later
            self._timers[queue] = call(max(least_s, wait_s), self._time, queue)

    def _time(self, queue: QueueId) -> None:
        del self._timers[queue]
        self._busy.add(queue)
        self._tasks.start(self._make(queue), name="jetstream_schedules")

    def _led(self, queue: QueueId) -> tuple[QueueInfo, GroupLike, Stream] | None:
        """None: another node leads it, or it is gone."""
        info = self._cluster.catalog_machine.queue_by_id(queue)
        led = None if info is None else led_stream(self._cluster, info)
        return None if info is None or led is None else (info, *led)

    async def _make(self, queue: QueueId) -> None:
        least_s = AGAIN_S
        try:
            led = self._led(queue)
            if led is not None and await self._make_due(*led):
                least_s = 0.0
        finally:
            self._busy.discard(queue)
            led = self._led(queue)
            if led is None:
                self._refused.pop(queue, None)
            else:
                self._wait(queue, led[2], least_s)

    async def _make_due(self, info: QueueInfo, group: GroupLike, stream: Stream) -> bool:
        """All that is due by now, at most so much at once. False: some of it is to be tried again,
        later.
        """
        now_ms, now_s = self._cluster.now_ms(), asyncio.get_running_loop().time()
        planned = stream.scheduling.due_ms
        refused = self._refused.pop(info.queue, {})
        refused = {each: until_s for each, until_s in refused.items() if each in planned}
        due = [row for row in stream.scheduling.due_by(now_ms) if refused.get(row[0], 0.0) <= now_s]
        sequences: list[int] = []
        members: list[Member] = []
        for sequence, due_ms in due[:AT_ONCE]:
            found = stream.find(sequence)
            member = found and await self._made(info, group, stream, found, due_ms, now_ms)
            if member:
                sequences.append(sequence)
                members.append(member)
            else:
                refused[sequence] = now_s + REFUSED_S
        stored = await self._publisher.store(info, *columns_of(members)) if members else None
        answers = () if stored is None else stored.each(len(members))
        for sequence, answer in zip(sequences, answers, strict=False):
            code = None if answer is None else answer[0]
            if code not in (STORED, NO_SUCH_SCHEDULE):
                log.warning("schedule_refused", queue=info.name, schedule=sequence, code=code)
                refused[sequence] = now_s + REFUSED_S
        if refused:
            self._refused[info.queue] = refused
        return not refused and all(each is not None and each[0] == STORED for each in answers)

    async def _made(
        self,
        info: QueueInfo,
        group: GroupLike,
        stream: Stream,
        found: Found,
        due_ms: int,
        now_ms: int,
    ) -> Member | None:
        """None: it cannot be made."""
        try:
            whole = await _whole(info, group, found)
            schedule = whole and schedule_of(fields_of(whole[1]))
        except ApiError as error:
            log.warning("schedule_unreadable", queue=info.name, reason=error.text)
            return None
        if not whole or not schedule:
            return None
        if schedule.source:
            source = stream.last_of(schedule.source)
            whole = (source and await _whole(info, group, source)) or whole
        met = found.sequence, due_ms, schedule.next_ms(due_ms, now_ms)
        return made(schedule, found.subject, met, *whole)


async def _whole(info: QueueInfo, group: GroupLike, found: Found) -> tuple[bytes, bytes] | None:
    """Body and header block; None: it is gone, or too large."""
    rows = await load(group, found.bodies)
    body, meta = rows[0] if rows else (None, None)
    return (body, header_of(meta, info)) if isinstance(body, bytes) else None
