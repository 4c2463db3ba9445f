"""Counters: messages that each add to the sum of their subject.

What is stored has the sum as its body, so whoever reads a counter reads its last message. The node
that leads the stream makes the sums; it numbers what comes from all nodes, and so nothing contends.
The machine stores a sum only behind the message from which it was made (`ASKED_COUNTED`); else it
is made again. So no increment is lost or counted twice, whoever leads meanwhile.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from cluster.cluster_node import ClusterNode
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import ATTR_ASKED, ATTR_SUBJECT
from cluster.machine.stream.errors import STORED, WRONG_LAST_SEQUENCE
from cluster.machine.stream.settings import ASKED_COUNTED, stream_settings
from cluster.machine.stream.stream import Stream
from cluster.types import NodeId, QueueId
from node.broker.publishing import BODIES_AT_ONCE, QueuePublisher
from node.broker.stream_reads import led_stream
from node.errors import Elsewhere
from node.messages.plain_values import loads
from node.peer_rpc import PeerRpc
from node.protocols.nats.jetstream.batching import Member, columns_of
from node.protocols.nats.jetstream.errors import ApiError, known
from node.protocols.nats.jetstream.post import json_of
from node.protocols.nats.jetstream.reading import load
from node.tasks import Tasks

KIND: Final = "jetstream_count"
#: Of a sum; an increment is a header, which is bounded.
DIGITS_MAX: Final = 4_000
#: Whose last sum a node remembers.
SUBJECTS_MAX: Final = 10_000
#: A request waits so long for a leader.
PATIENCE_S: Final = 4.0
AGAIN_S: Final = 0.02
#: Sums are made again so often while others, who led or lead, make some too.
ROUNDS_MAX: Final = 100
UNAVAILABLE: Final = 10008
TOO_LARGE: Final = 10054
INVALID: Final = 10171
BROKEN: Final = 10172

_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,%d}" % DIGITS_MAX)
_BOUND: Final = 10**DIGITS_MAX


class Counted(NamedTuple):
    """What became of an increment: a code of `cluster.machine.stream.errors` with its number, and
    the sum if it is stored.
    """

    code: int
    number: int
    sum: int = 0


class _Work(NamedTuple):
    """What came at once."""

    members: Sequence[Member]
    atomic: bool
    done: asyncio.Future[list[Counted] | None]  # None: surely not stored, and led elsewhere


class _Unread(Exception):
    """There is no sum to go on with; the message is of no counter."""


class _Counter:
    """Of a stream: what waits for its sums. There is one while something does."""

    def __init__(self, info: QueueInfo) -> None:
        self.info = info
        self.waiting: deque[_Work] = deque()


def increment_of(text: bytes) -> int:
    """ApiError: it is none."""
    if _INTEGER.fullmatch(text) is None:
        raise known(INVALID)
    return int(text)


def sum_of(body: bytes) -> int:
    """ValueError: the message is none of a counter."""
    match loads(body):
        case {"val": str(text)} if _INTEGER.fullmatch(text.encode()):
            return int(text)
        case _:
            raise ValueError("no sum")


class Counting:
    """One per node."""

    def __init__(
        self, cluster: ClusterNode, peer_rpc: PeerRpc, publisher: QueuePublisher, tasks: Tasks
    ) -> None:
        self._cluster = cluster
        self._peer_rpc = peer_rpc
        self._publisher = publisher
        self._tasks = tasks
        self._counters: dict[QueueId, _Counter] = {}
        #: Sequence and sum of the last message of a subject, as far as is known.
        self._sums: dict[tuple[QueueId, bytes], tuple[int, int]] = {}
        peer_rpc.on(KIND, self._from_peer)

    async def add(
        self, info: QueueInfo, members: Sequence[Member], *, atomic: bool = False
    ) -> list[Counted] | None:
        """None: the stream is gone. BrokerError: nobody knows."""
        rows = [[each.header, each.attrs, str(each.increment), each.size_bytes] for each in members]
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        while loop.time() < until_s:
            if self._cluster.catalog_machine.queue_by_id(info.queue) is None:
                return None
            leader = self._cluster.leader_of(info.group)
            if leader is not None:
                try:
                    found = await self._peer_rpc.request(leader, KIND, info.queue, rows, atomic)
                except Elsewhere:  # surely not done
                    found = None
                if found is not None:
                    return [Counted(code, number, int(text)) for code, number, text in found]
            await asyncio.sleep(AGAIN_S)
        return [Counted(UNAVAILABLE, 0)] * len(members)

    # --- at the node that leads the stream --------------------------------------------------------

    async def _from_peer(self, _peer: NodeId, fields: list[Any]) -> list[Any] | None:
        queue, rows, atomic = fields
        info = self._cluster.catalog_machine.queue_by_id(queue)
        if info is None:
            return None
        members = [
            Member(b"", header, attrs, size_bytes, int(text))
            for header, attrs, text, size_bytes in rows
        ]
        work = _Work(members, atomic, asyncio.get_running_loop().create_future())
        counter = self._counters.get(queue)
        if counter is None:
            counter = self._counters[queue] = _Counter(info)
            self._tasks.start(self._run(counter), name="jetstream_count")
        counter.waiting.append(work)
        found = await work.done
        return found and [[code, number, str(sum_)] for code, number, sum_ in found]

    async def _run(self, counter: _Counter) -> None:
        works: list[_Work] = []
        try:
            while counter.waiting:
                works = _some(counter.waiting)
                await self._count(counter, works)
        finally:
            del self._counters[counter.info.queue]
            for work in works:  # if they have no outcome, nobody knows it
                work.done.cancel()
            for work in counter.waiting:
                if not work.done.done():
                    work.done.set_result(None)

    async def _count(self, counter: _Counter, works: list[_Work]) -> None:
        """Until each has its outcome."""
        members = [member for work in works for member in work.members]
        outcomes: dict[int, Counted] = {}
        atomic = works[0].atomic
        left = range(len(members))
        for _ in range(ROUNDS_MAX):
            found = self._stream(counter)
            if found is None:
                break
            await self._round(counter.info, found, members, left, outcomes, atomic=atomic)
            left = [place for place in left if place not in outcomes]
            if not left:
                break
        at = 0
        for work in works:
            places = range(at, at + len(work.members))
            at += len(work.members)
            if work.done.done():  # who asked has gone
                continue
            if not any(place in outcomes for place in places):
                work.done.set_result(None)
                continue
            missing = Counted(UNAVAILABLE, 0)
            work.done.set_result([outcomes.get(place, missing) for place in places])

    def _stream(self, counter: _Counter) -> Stream | None:
        """None: this node does not lead it."""
        cluster = self._cluster
        info = cluster.catalog_machine.queue_by_id(counter.info.queue)
        if info is None:
            return None
        counter.info = info
        led = led_stream(cluster, info)
        return None if led is None else led[1]

    async def _round(
        self,
        info: QueueInfo,
        stream: Stream,
        members: Sequence[Member],
        left: Sequence[int],
        outcomes: dict[int, Counted],
        *,
        atomic: bool,
    ) -> None:
        """Sums for these, stored if nobody else stored some meanwhile. What has an outcome then is
        in `outcomes`.
        """
        transform = stream_settings(info.stream or {}).transform
        sums: dict[bytes, tuple[int, int]] = {}  # with the place of the last message, from 1 on
        new: list[tuple[int, bytes, Member, int]] = []
        for place in left:
            member = members[place]
            subject: bytes = member.attrs[ATTR_SUBJECT]
            subject = (transform and transform(subject)) or subject
            at, total = sums.get(subject, (0, 0))
            behind = at - len(new) - 1
            try:
                if not at:
                    behind, total = await self._last(info, stream, subject)
                total += member.increment or 0
                if abs(total) >= _BOUND:
                    raise known(TOO_LARGE)
            except (ApiError, _Unread) as error:
                number = error.number if isinstance(error, ApiError) else BROKEN
                for each in left if atomic else (place,):
                    outcomes[each] = Counted(number, 0)
                if atomic:
                    return
                continue
            asked = {**member.attrs.get(ATTR_ASKED, {}), ASKED_COUNTED: behind}
            attrs = {**member.attrs, ATTR_ASKED: asked}
            body = json_of({"val": str(total)})
            new.append((place, subject, member._replace(body=body, attrs=attrs), total))
            sums[subject] = len(new), total
        if not new:
            return
        some = [member for _, _, member, _ in new]
        stored = await self._publisher.store(info, *columns_of(some), atomic=atomic)
        if stored is None:
            return
        answers = stored.each(len(new))
        for (place, subject, _, total), answer in zip(new, answers, strict=True):
            code, number = answer or (UNAVAILABLE, 0)
            if code == WRONG_LAST_SEQUENCE:
                self._sums.pop((info.queue, subject), None)
                continue
            outcomes[place] = Counted(code, number, total)
            if code == STORED:
                self._remember(info, subject, number, total)

    async def _last(self, info: QueueInfo, stream: Stream, subject: bytes) -> tuple[int, int]:
        """The last message of the subject, and its sum; 0 and 0: there is none."""
        found = stream.last_of(subject)
        if found is None:
            return 0, 0
        remembered = self._sums.get((info.queue, subject))
        if remembered is not None and remembered[0] == found.sequence:
            return remembered
        group = self._cluster.group(info.group)
        rows = await load(group, found.bodies) if group is not None else ()
        try:
            total = sum_of(rows[0][0]) if rows and isinstance(rows[0][0], bytes) else None
        except ValueError:
            total = None
        if total is None:
            raise _Unread
        self._remember(info, subject, found.sequence, total)
        return found.sequence, total

    def _remember(self, info: QueueInfo, subject: bytes, sequence: int, total: int) -> None:
        key = info.queue, subject
        self._sums.pop(key, None)
        self._sums[key] = sequence, total
        if len(self._sums) > SUBJECTS_MAX:
            del self._sums[next(iter(self._sums))]


def _some(waiting: deque[_Work]) -> list[_Work]:
    """That can be stored at once; an atomic batch is alone."""
    works = [waiting.popleft()]
    count = len(works[0].members)
    while not works[0].atomic and waiting and not waiting[0].atomic:
        count += len(waiting[0].members)
        if count > BODIES_AT_ONCE:
            break
        works.append(waiting.popleft())
    return works
