"""Large bodies: into the log part by part, and out of it again.

A part is an entry like any other, so a large body holds up nobody: a few parts are on their way at
a time, and who delivers it holds one. Parts are kept by number, so after a change of leader an
upload goes on where it was.

Two limits: a body over PARTED_OVER_BYTES is published in parts where that is possible, and one up
to WHOLE_BODY_BYTES_MAX may travel whole where it is not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

from cluster.cluster_node import ClusterNode
from cluster.codec.entries import LARGE_SINCE
from cluster.groups.group_like import GroupLike
from cluster.groups.outcome import FINAL, UPGRADE_NEEDED, Outcome
from cluster.groups.proposals import WHOLE_BODY_BYTES_MAX
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import BodyPart
from cluster.machine.replies import NO_QUEUE, OUT_OF_SEQUENCE, PartKept
from cluster.types import Body, GroupId, LargeBody, NodeId
from node.dispatch.outgoing import MessageBatch
from node.errors import BrokerError
from node.peer_rpc import PeerRpc

#: A larger body is published in parts: whole, it would hold up what others do in its group.
PARTED_OVER_BYTES = 1 << 20
#: So much of it in one entry...
PART_BYTES = 512 * 1024
#: ...so many of them on their way at once, of one body...
PARTS_AT_ONCE = 4
#: ...and of all that this node publishes to one group, in turn...
PARTS_OF_GROUP_AT_ONCE = 8
#: ...which are so many bodies at most.
UPLOADS_AT_ONCE = 16
#: What an `Enqueue` says of how a large body begins: enough for readers that only look.
HEAD_BYTES = 4 * 1024
#: Between two tries.
RETRY_S = 0.05
#: No node gave the next part of a body for so long: what is half delivered is given up.
PATIENCE_S = 60.0


class NotTaken(Exception):
    """The group surely does not take the body; why, in words."""


class WholeOnly(Exception):
    """The group takes no parts yet, and the body may travel whole."""


class BodyGone(Exception):
    """Its message was settled or deleted, or nobody who has it can be reached."""


def may_be_whole(body: Body) -> bool:
    return len(body) <= WHOLE_BODY_BYTES_MAX


async def whole(group: GroupLike, body: LargeBody) -> bytes | None:
    """In one piece, from a copy that has it all; None: it is gone."""
    pieces = [body.head]
    for index, offset, size in body.parts:
        data = await group.load_part(index, offset)
        if data is None or len(data) != size:
            return None
        pieces.append(data)
    return b"".join(pieces)


class Source(Protocol):
    """A body that is to go into the log in parts."""

    head: bytes

    @property
    def sizes(self) -> Sequence[int]:
        """Of the parts behind the head."""
        ...

    async def part(self, number: int) -> bytes: ...


class PartedBody:
    """One that came from a client in pieces, or is cut into them; held until it is safe."""

    __slots__ = ("_size_bytes", "head", "pieces", "sizes")

    def __init__(self, pieces: Sequence[bytes]) -> None:
        first = pieces[0]
        self.head = first[:HEAD_BYTES]
        rest = first[HEAD_BYTES:]
        self.pieces = [*([rest] if rest else ()), *pieces[1:]]
        self.sizes = [len(piece) for piece in self.pieces]
        self._size_bytes = len(self.head) + sum(self.sizes)

    def __len__(self) -> int:
        return self._size_bytes

    @classmethod
    def cut(cls, body: bytes) -> PartedBody:
        return cls([body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)])

    @property
    def whole(self) -> bytes:
        return b"".join([self.head, *self.pieces])

    async def part(self, number: int) -> bytes:
        return self.pieces[number]


#: As a client published it.
NewBody = bytes | PartedBody


def head_of(body: Body | PartedBody) -> bytes:
    """How it begins, or all of it."""
    return body if isinstance(body, bytes) else body.head


async def pieces_of(body: NewBody) -> AsyncIterator[bytes]:
    if isinstance(body, PartedBody):
        yield body.head
        for piece in body.pieces:
            yield piece
    else:
        yield body


def in_one_piece(body: NewBody) -> bytes:
    return body.whole if isinstance(body, PartedBody) else body


def message_bytes_max(configured: int, machine_version: int) -> int:
    """The largest body that may be published now: without machine version 3 there are no parts."""
    return configured if machine_version >= LARGE_SINCE else min(configured, WHOLE_BODY_BYTES_MAX)


class Bodies:
    """One per node."""

    def __init__(self, cluster: ClusterNode, peer_rpc: PeerRpc) -> None:
        self._cluster = cluster
        self._peer_rpc = peer_rpc
        self._names = count(1)
        self._rooms: dict[GroupId, _Room] = {}
        peer_rpc.on("body_part", self._answer_part)

    # --- in ---------------------------------------------------------------------------------------

    async def upload(
        self, info: QueueInfo, source: Source, name: str | None = None
    ) -> tuple[str, list[list[int]]] | None:
        """What `Enqueue.large` says of it, once all parts are safe. None: the queue was deleted.
        NotTaken, WholeOnly. `name`: that of an upload which a former leader may have begun.
        """
        name = name or f"{self._cluster.node}:{self._cluster.links.incarnation}:{next(self._names)}"
        room = self._rooms.get(info.group)
        if room is None:
            room = self._rooms[info.group] = _Room()
        kept: list[PartKept] = []
        sizes = source.sizes
        async with room.uploads:
            while True:
                trouble = await self._send(info, source, name, kept, room.parts)
                if trouble is None:
                    break
                if trouble.code in UPGRADE_NEEDED:
                    if _may_be_whole(source):
                        raise WholeOnly
                elif trouble.code in FINAL:
                    raise NotTaken(trouble.reason)
                if trouble.code == NO_QUEUE and self._is_gone(info):
                    return None
                await asyncio.sleep(RETRY_S)
                if self._is_gone(info):
                    return None
        return name, [[each.index, each.offset, sizes[n]] for n, each in enumerate(kept)]

    async def _send(
        self,
        info: QueueInfo,
        source: Source,
        name: str,
        kept: list[PartKept],
        parts: asyncio.Semaphore,
    ) -> Outcome | None:
        """The parts that are not kept yet, a few on their way at a time; the first outcome of one
        that is not going to be.
        """
        loop = asyncio.get_running_loop()
        total = len(source.sizes)
        flying: deque[asyncio.Future[Outcome]] = deque()
        trouble: Outcome | None = None
        number = len(kept)
        while flying or (number < total and trouble is None):
            if number < total and len(flying) < PARTS_AT_ONCE and trouble is None:
                part = BodyPart(info.queue, name, number, await source.part(number))
                await parts.acquire()
                future: asyncio.Future[Outcome] = loop.create_future()
                self._cluster.propose(info.group, part, partial(_answered, parts, future))
                flying.append(future)
                number += 1
                continue
            outcome = await flying.popleft()
            if trouble is None:
                trouble = _take(kept, outcome)
        return trouble

    def _is_gone(self, info: QueueInfo) -> bool:
        return self._cluster.catalog_machine.queue_by_id(info.queue) is None

    # --- out --------------------------------------------------------------------------------------

    async def stream(self, group: GroupId, body: LargeBody) -> AsyncIterator[bytes]:
        """Piece by piece, one at a time in memory. BodyGone."""
        yield body.head
        for part in body.parts:
            yield await self.part(group, part)

    async def part(self, group: GroupId, part: tuple[int, int, int]) -> bytes:
        """From this node's copy if it has it, else from the leader's. BodyGone."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            leader = self._cluster.leader_of(group)
            data = await self._here(group, part)
            if data is None and leader is not None and leader != self._cluster.node:
                data = await self._from(leader, group, part)
            if data is not None:
                return data
            copy = self._cluster.group(group)
            leads = leader == self._cluster.node and copy is not None and copy.ready
            if leads or loop.time() >= deadline:
                raise BodyGone(f"entry {part[0]} of group {group} is not in the log any more")
            await asyncio.sleep(RETRY_S)

    async def _here(self, group: GroupId, part: tuple[int, int, int]) -> bytes | None:
        copy = self._cluster.group(group)
        index, offset, size = part
        data = None if copy is None else await copy.load_part(index, offset)
        return data if data is not None and len(data) == size else None

    async def _from(self, node: NodeId, group: GroupId, part: tuple[int, int, int]) -> bytes | None:
        try:
            there, data = await self._peer_rpc.request(node, "body_part", group, *part)
        except BrokerError:
            return None
        if there and data is None:
            raise BodyGone(f"entry {part[0]} of group {group} is not in the log any more")
        return data

    async def _answer_part(self, _: NodeId, fields: list[Any]) -> list[Any]:
        """[whether this node would know, the part]."""
        group = GroupId(fields[0])
        data = await self._here(group, (int(fields[1]), int(fields[2]), int(fields[3])))
        copy = self._cluster.group(group)
        leads = self._cluster.leader_of(group) == self._cluster.node
        return [leads and copy is not None and copy.ready, data]


class Stored:
    """A large body of another queue, on its way into this one."""

    def __init__(self, bodies: Bodies, group: GroupId, body: LargeBody) -> None:
        self.head = body.head
        self.sizes = [size for _, _, size in body.parts]
        self._bodies = bodies
        self._group = group
        self._body = body

    async def part(self, number: int) -> bytes:
        return await self._bodies.part(self._group, self._body.parts[number])


class _Room:
    """Of one group, for what this node publishes there."""

    def __init__(self) -> None:
        self.uploads = asyncio.Semaphore(UPLOADS_AT_ONCE)
        self.parts = asyncio.Semaphore(PARTS_OF_GROUP_AT_ONCE)


def _may_be_whole(source: Source) -> bool:
    return isinstance(source, PartedBody) and len(source) <= WHOLE_BODY_BYTES_MAX


def _answered(parts: asyncio.Semaphore, future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    parts.release()
    if not future.done():  # who waited for it may have been cancelled
        future.set_result(outcome)


def _take(kept: list[PartKept], outcome: Outcome) -> Outcome | None:
    """One more part is safe; or why it is not."""
    if outcome.kind == "ok" and isinstance(outcome.reply, PartKept):
        kept.append(outcome.reply)
        return None
    expected = getattr(outcome.reply, "detail", None)
    if outcome.code == OUT_OF_SEQUENCE and type(expected) is int:
        del kept[expected:]  # it was forgotten: idle for too long
    return outcome


# --- between nodes --------------------------------------------------------------------------------


def packed(batch: MessageBatch) -> list[Any]:
    """As CBOR can hold it."""
    row = list(batch)
    body = batch.bodies[0]
    if type(body) is LargeBody:
        row[4] = [[body.head, body.parts]]
    return row


def unpacked(row: list[Any]) -> MessageBatch:
    first = row[4][0]
    if type(first) is bytes:
        return MessageBatch(*row)
    head, parts = first
    body = LargeBody(head, tuple([(index, offset, size) for index, offset, size in parts]))
    return MessageBatch(*row)._replace(bodies=[body])
