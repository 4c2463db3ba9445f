"""Messages of streams, from a place on and in order: what a reader needs, whatever its protocol.

A reader is a cursor at its client's node. Nothing of it is state of the cluster, and reading writes
nothing to a log. What every copy has applied is the same, so the node reads its own copy if that
follows a leader, else it asks the leader's node. A reader knows the next sequence that it wants;
when a leader changes or a node dies, it asks for that again, at another node if need be.

Requests between nodes: `stream_start` where a reader begins, `stream_read` for what comes next; who
answers the second waits a while until there is something.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, cast

from cluster.cluster_node import ClusterNode
from cluster.groups.group import Group
from cluster.groups.group_like import GroupLike
from cluster.machine import QueueMachine
from cluster.machine import replies as codes
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Barrier
from cluster.machine.store import Piece
from cluster.machine.stream.finding import Finder
from cluster.machine.stream.leaving import is_marker
from cluster.machine.stream.stream import Stream
from cluster.machine.stream.subjects import Filter, Patterns
from cluster.types import Body, BodyRef, GroupId, LargeBody, NodeId, QueueId
from node.broker.broker import Broker
from node.broker.waiters import Waiters, Waiting
from node.errors import Elsewhere, OutcomeUnknown, Refused, reply_of
from node.messages.message import headers_of
from node.peer_rpc import ANSWER_S_MAX, PeerRpc

#: The header by which publishers say to which filter of readers a message belongs.
FILTER_VALUE: Final = "x-stream-filter-value"
#: Of what a stream stores itself when the last message of a subject is too old.
MARKER: Final = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n"
#: Messages that are looked at for one page, however few of them are wanted.
LOOKED_AT_MAX: Final = 1_000
#: Bodies that are loaded at once, for readers that want only some of them.
SKIMMED_BYTES: Final = 1 << 20
#: After so long without news a reader looks again where its messages are: its node may have got a
#: copy, or lost it.
LOOK_S: Final = 30.0
#: The same at another node, which answers then.
HOLD_S: Final = 10.0
#: Until somebody can be asked again.
RETRY_S: Final = 0.1


class StreamGone(Exception):
    """The stream was deleted."""


class Start(NamedTuple):
    """Where a reader begins."""

    kind: Literal["first", "last", "next", "sequence", "time"]
    number: int = 0  # the sequence, or ms since the epoch


class Wanted(NamedTuple):
    """Which messages a reader wants, by their header `FILTER_VALUE`."""

    values: frozenset[str]
    unfiltered: bool = False  # those without the header, too

    def means(self, meta: Any) -> bool:
        value = _filter_value(meta) if isinstance(meta, bytes) else _value_of(meta)
        return self.unfiltered if value is None else value in self.values


class StreamMessage(NamedTuple):
    sequence: int
    body: Body
    meta: Any
    subject: bytes
    stored_ms: int


class Page(NamedTuple):
    messages: list[StreamMessage]
    next: int  # the first sequence that was not looked at


class _Meant:
    """Messages under the subjects that are wanted, up to what is the last one now."""

    def __init__(self, stream: Stream, patterns: Patterns) -> None:
        self.end = stream.retained.next
        self.filter = Filter(patterns)
        self.filter.ids.update(stream.retained.subjects.matching(patterns))
        self.finder = Finder()


class StreamReads:
    """One per node."""

    def __init__(self, broker: Broker, peer_rpc: PeerRpc) -> None:
        self.cluster = broker.cluster
        self.peer_rpc = peer_rpc
        self._broker = broker
        self._waiters = Waiters(self.cluster, _reached)
        peer_rpc.on("stream_start", self._answer_start)
        peer_rpc.on("stream_read", self._answer_read)

    # --- where readers begin ----------------------------------------------------------------------

    async def start(self, info: QueueInfo, at: Start) -> int:
        """The first sequence that a reader gets which begins there now, as the leader knows it.
        Elsewhere, OutcomeUnknown: ask again. Refused: its group has no such stream, or not yet.
        """
        leader = self.cluster.leader_of(info.group)
        if leader is None:
            raise Elsewhere(None)
        return await self.peer_rpc.request(leader, "stream_start", info.group, info.queue, *at)

    async def _answer_start(self, _: NodeId, fields: list[Any]) -> int:
        group_id, queue, kind, number = fields
        group = self._broker.led(GroupId(group_id))
        reply_of(await group.ask(Barrier()))
        stream = stream_of(group, QueueId(queue))
        if stream is None:
            raise _no_stream()
        retained = stream.retained
        match kind:
            case "first":
                return retained.first
            case "last":
                return retained.last_live(retained.next) or retained.next
            case "next":
                return retained.next
            case "time":
                return retained.since(number)
            case _:
                return max(number, retained.first)

    # --- reading ----------------------------------------------------------------------------------

    def copy(self, group_id: GroupId, queue: QueueId) -> tuple[Group, Stream] | None:
        """This node's copy of the stream, if it goes on with its leader."""
        group = self.cluster.groups.get(group_id)
        if group is None or group.poisoned or group.diverged or group.leader is None:
            return None
        stream = stream_of(group, queue)
        return None if stream is None else (group, stream)

    async def page(
        self,
        group: Group,
        stream: Stream,
        sequence: int,
        count: int,
        size: int,
        wanted: Wanted | None,
        patterns: Patterns = (),
    ) -> Page:
        """So many messages from this copy, of so many bytes; one, however large it is. It waits for
        nothing but the disk. Refused: it is about to take a newer snapshot, and lacks bodies.
        """
        found: list[StreamMessage] = []
        looked_at = 0
        room = size
        meant = _Meant(stream, patterns) if patterns else None
        while looked_at < LOOKED_AT_MAX and len(found) < count and room > 0:
            most = LOOKED_AT_MAX - looked_at if wanted else count - len(found)
            pieces, sequence = _next_pieces(
                stream, sequence, most, room if not wanted else SKIMMED_BYTES, meant
            )
            if not pieces:
                break
            start = pieces[0].first
            looked_at += pieces[-1].last - start + 1
            # Messages may go while others are loaded.
            subjects = list(map(stream.subject_of, range(start, pieces[-1].last + 1)))
            for piece in pieces:
                bodies = read(group, piece.bodies)
                if bodies is None:
                    bodies = await group.load_bodies(piece.bodies)
                if not bodies and _lives(group, stream.id, piece):
                    if found:
                        return Page(found, piece.first)
                    raise Refused("no_body", f"message {piece.first} cannot be read here now")
                for at, (body, meta) in enumerate(bodies, piece.first):
                    if wanted is not None and not wanted.means(meta):
                        continue
                    if len(found) == count or (found and room <= 0):
                        return Page(found, at)
                    subject = subjects[at - start]
                    found.append(StreamMessage(at, body, meta, subject, piece.enqueued_ms))
                    room -= len(body.head) if isinstance(body, LargeBody) else len(body)
        return Page(found, sequence)

    async def news(self, group: Group, queue: QueueId, sequence: int, within_s: float) -> None:
        """Returns when the copy has this sequence, the stream is gone, or time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._waiters.wait(group, queue, sequence)

    async def _answer_read(self, _: NodeId, fields: list[Any]) -> list[Any]:
        """[next sequence, messages as rows, how many more are wanted]."""
        group_id, queue, sequence, count, size, values, unfiltered, patterns = fields
        patterns = tuple(patterns)
        wanted = None if values is None else Wanted(frozenset(values), unfiltered)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + HOLD_S
        while True:
            copy = self.copy(GroupId(group_id), QueueId(queue))
            if copy is None:
                self._broker.led(GroupId(group_id))
                raise _no_stream()
            group, stream = copy
            page = await self.page(group, stream, sequence, count, size, wanted, patterns)
            sequence = page.next
            left_s = until_s - loop.time()
            if page.messages or left_s <= 0:
                rows = [packed(each) for each in page.messages]
                return [sequence, rows, _count_of(stream, patterns, sequence)]
            await asyncio.sleep(0)
            if stream.retained.next <= sequence:
                await self.news(group, QueueId(queue), sequence, left_s)


class StreamReader:
    """A cursor over one stream."""

    def __init__(
        self,
        reads: StreamReads,
        info: QueueInfo,
        sequence: int,
        wanted: Wanted | None = None,
        patterns: Patterns = (),
    ) -> None:
        """`patterns`: of the subjects that it wants; none: all."""
        self.info = info
        self.sequence = sequence  # the next one that it wants
        self.heard_s: float | None = None  # when the stream's state was known last
        self._behind = 0  # of what is wanted, as the leader said
        self._patterns = patterns
        self._reads = reads
        self._cluster, self._peer_rpc = reads.cluster, reads.peer_rpc
        self._wanted = wanted

    @property
    def behind(self) -> int:
        """How many messages it has yet to read, as far as is known here: also by a copy that has no
        leader now.
        """
        group = self._cluster.groups.get(self.info.group)
        stream = None if group is None else stream_of(group, self.info.queue)
        return self._behind if stream is None else _count_of(stream, self._patterns, self.sequence)

    async def next(self, count: int, size: int) -> list[StreamMessage]:
        """What comes next: at least one message, when there is one. At most so many, and so many
        bytes, but for a single message that is larger. StreamGone.
        """
        while True:
            page = await self._page(count, size)
            if page is not None:
                self.sequence = page.next
                if page.messages:
                    return page.messages
                await asyncio.sleep(0)  # others have their turn, though few are wanted of many

    async def _page(self, count: int, size: int) -> Page | None:
        """None: there was nothing yet."""
        info, reads, sequence = self.info, self._reads, self.sequence
        copy = reads.copy(info.group, info.queue)
        if copy is None:
            return await self._from_leader(count, size)
        group, stream = copy
        self._heard()
        if stream.retained.next > sequence:
            try:
                return await reads.page(
                    group, stream, sequence, count, size, self._wanted, self._patterns
                )
            except Refused:
                return await self._from_leader(count, size)
        await reads.news(group, info.queue, sequence, LOOK_S)
        return None

    async def _from_leader(self, count: int, size: int) -> Page | None:
        info, wanted = self.info, self._wanted
        if self._cluster.catalog_machine.queue_by_id(info.queue) is None:
            raise StreamGone
        leader = self._cluster.leader_of(info.group)
        values = None if wanted is None else sorted(wanted.values)
        unfiltered = wanted is not None and wanted.unfiltered
        where = (info.group, info.queue, self.sequence, count, size)
        try:
            if leader is None:
                raise Elsewhere(None)
            sequence, rows, self._behind = await self._peer_rpc.request(
                leader,
                "stream_read",
                *where,
                values,
                unfiltered,
                self._patterns,
                wait_s=HOLD_S + ANSWER_S_MAX,
            )
        except (Elsewhere, OutcomeUnknown, Refused):  # it changes, or is not there yet, or is gone
            await asyncio.sleep(RETRY_S)
            return None
        self._heard()
        return Page([unpacked(row) for row in rows], sequence)

    def _heard(self) -> None:
        self.heard_s = asyncio.get_running_loop().time()


def _reached(group: Group, queue: QueueId, waiting: Waiting) -> list[asyncio.Future[None]]:
    """Those whose sequence is there."""
    stream = stream_of(group, queue)
    end = math.inf if stream is None else stream.retained.next
    return [future for future, sequence in waiting.items() if sequence < end]


# --- looking at the machine -----------------------------------------------------------------------


def stream_of(group: GroupLike, queue: QueueId) -> Stream | None:
    """None: its group has no such stream, or not yet."""
    return cast(QueueMachine, group.machine).stream(queue)


def led_stream(cluster: ClusterNode, info: QueueInfo) -> tuple[GroupLike, Stream] | None:
    """None: this node does not lead it, or not yet."""
    if cluster.leader_of(info.group) != cluster.node:
        return None
    group = cluster.group(info.group)
    stream = None if group is None or not group.ready else stream_of(group, info.queue)
    return None if group is None or stream is None else (group, stream)


def read(group: GroupLike, ref: BodyRef) -> Sequence[tuple[Body, Any]] | None:
    """None: they have to be loaded."""
    return [(b"", MARKER)] * ref.count if is_marker(ref) else group.read_bodies(ref)


def _next_pieces(
    stream: Stream, sequence: int, count: int, size: int, meant: _Meant | None
) -> tuple[list[Piece], int]:
    """Where the next living messages lie, neighbours of each other; and the sequence behind them.
    At most so many, and of so many bytes unless it is one.
    """
    retained = stream.retained
    if meant is None:
        first = retained.next_live(sequence)
        if not first:
            return [], max(sequence, retained.next)
        last = retained.live_end(first, first + count - 1)
    else:
        first = meant.finder.next_of(retained, meant.filter, sequence)
        if not 0 < first < meant.end:
            return [], max(sequence, meant.end)
        last = retained.run_of(meant.filter, first, min(first + count, meant.end) - 1)
    room, end = size, first
    for number, each in enumerate(retained.sizes_of(first, last), first):
        end = number
        room -= each
        if room <= 0:
            break
    return list(retained.pieces(first, end)), end + 1


def _count_of(stream: Stream, patterns: Patterns, sequence: int) -> int:
    """Of patterns that do not overlap: how many messages they mean from there on."""
    return sum(stream.count_of(each, sequence) for each in patterns or (b">",))


def _lives(group: GroupLike, queue: QueueId, piece: Piece) -> bool:
    """Is any of these messages there, as far as the copy is by now?"""
    stream = stream_of(group, queue)
    return stream is not None and 0 < stream.retained.next_live(piece.first) <= piece.last


def _no_stream() -> Refused:
    return Refused(codes.NO_QUEUE, "there is no such stream")


# --- filters --------------------------------------------------------------------------------------


def _value_of(meta: Any) -> str | None:
    value = headers_of(meta).get(FILTER_VALUE)
    return value if isinstance(value, str) else None


@lru_cache(1024)
def _filter_value(meta: bytes) -> str | None:
    return _value_of(meta) if FILTER_VALUE.encode() in meta else None


# --- between nodes --------------------------------------------------------------------------------


def packed(message: StreamMessage) -> list[Any]:
    """As CBOR can hold it."""
    sequence, body, meta, subject, stored_ms = message
    return [
        sequence,
        [body.head, body.parts] if isinstance(body, LargeBody) else body,
        meta,
        subject,
        stored_ms,
    ]


def unpacked(row: list[Any]) -> StreamMessage:
    sequence, body, meta, subject, stored_ms = row
    if type(body) is not bytes:
        head, parts = body
        body = LargeBody(head, tuple([(index, offset, size) for index, offset, size in parts]))
    return StreamMessage(sequence, body, meta, subject, stored_ms)
