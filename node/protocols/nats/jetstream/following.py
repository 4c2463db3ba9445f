"""Streams that this node leads and that follow others, as mirrors or from sources: the others are
read here, wherever they are led, and what was read is proposed to the own group.

How far each was taken is state of the stream (`cluster.machine.stream.following`), so nothing here
has to be remembered: whoever leads goes on from there, and what comes twice is refused. One batch
of a source is under way at a time. A follower that has all waits for the other stream's next entry
or, where that has no copy here, for the answer of its leader's node.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from cluster.cluster_node import ClusterNode
from cluster.groups.group_like import GroupLike
from cluster.machine import replies as codes
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import ATTR_ASKED, ATTR_SUBJECT, Enqueue, Origin
from cluster.machine.stream.settings import StreamSettings, origin_key, pairs_of
from cluster.machine.stream.stream import Stream
from cluster.machine.stream.transforms import BadTransform, Transform, transform_of
from cluster.types import LargeBody, QueueId
from node.broker.bodies import Bodies, NotTaken, Stored
from node.broker.ingress import Ingress
from node.broker.stream_reads import (
    MARKER,
    Start,
    StreamGone,
    StreamMessage,
    StreamReader,
    StreamReads,
    stream_of,
)
from node.errors import BrokerError, Refused, reply_of
from node.messages.nats_headers import is_block
from node.protocols.nats.jetstream.errors import ApiError, known
from node.protocols.nats.jetstream.headers import copied, with_fields, without
from node.protocols.nats.jetstream.origins import followed
from node.protocols.nats.jetstream.reading import header_of
from node.protocols.nats.jetstream.stream_config import is_restored
from node.protocols.nats.jetstream.times import NS_PER_S, ms_of_text
from node.tasks import Tasks

log = structlog.get_logger(__name__)

#: Read and stored at once, of one source.
MESSAGES_AT_ONCE: Final = 2_048
BYTES_AT_ONCE: Final = 512 * 1024
#: What does not go on is tried again after so long, each time after twice as long.
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
#: Where a message comes from: the stream, its sequence there, what is wanted of the stream, what
#: that becomes, the subject there.
SOURCE: Final = "Nats-Stream-Source"
_NOT_COPIED: Final = (SOURCE.encode(), b"Nats-Expected-")

Json = dict[str, Any]


class Following:
    """One per node."""

    def __init__(
        self,
        cluster: ClusterNode,
        reads: StreamReads,
        bodies: Bodies,
        ingress: Ingress,
        tasks: Tasks,
    ) -> None:
        self.cluster = cluster
        self.reads = reads
        self.bodies = bodies
        self.ingress = ingress
        self._tasks = tasks
        self._by_queue: dict[QueueId, tuple[StreamSettings, dict[str, Follower]]] = {}

    def look(self, info: QueueInfo, group: GroupLike, stream: Stream) -> None:
        """The stream is led here; others may be followed now than before."""
        known = self._by_queue.get(info.queue)
        if known is None:
            if not stream.settings.origins:
                return
            known = self._by_queue[info.queue] = stream.settings, {}
        elif known[0] is stream.settings:
            return
        followers = known[1]
        wanted = {origin_key(each): each for each in followed(stream.identity.config.stream)}
        since = stream.following.since
        for key, follower in list(followers.items()):
            # One that was put back is taken from its beginning, though it reads as if it had gone
            # on: both changes may have come before anybody looked.
            if key not in wanted or follower.since != since.get(key, 0):
                followers.pop(key).stop()
        for key, source in wanted.items():
            if key not in followers:
                began = since.get(key, 0)
                follower = followers[key] = Follower(self, info, group, key, source, began)
                follower.task = self._tasks.start(follower.run(), name="stream_follower")
        self._by_queue[info.queue] = stream.settings, followers

    def forget(self, queue: QueueId) -> None:
        """The stream is not led here any more."""
        known = self._by_queue.pop(queue, None)
        for follower in known[1].values() if known else ():
            follower.stop()

    def shown(self, info: QueueInfo) -> Json:
        """What clients are told of those that it follows, if it is led here."""
        found = self._by_queue.get(info.queue)
        if found is None:
            return {}
        settings, followers = found
        rows = [followers[key].shown() for key in settings.origins if key in followers]
        if not rows:
            return {}
        return {"sources": rows} if settings.mirror is None else {"mirror": rows[0]}


class Follower:
    """Of one other stream."""

    def __init__(
        self,
        home: Following,
        info: QueueInfo,
        group: GroupLike,
        key: str,
        source: Mapping[str, Any],
        since: int,
    ) -> None:
        self.task: asyncio.Task[None]
        self.since = since  # see `Origin`
        self._home = home
        self._info = info
        self._group = group
        self._key = key
        self._source = source
        self._name: str = source["name"]
        self._transforms = _transforms_of(source)
        wanted = [each for each, _ in pairs_of(source)]
        self._patterns = () if wanted == [">"] else tuple(each.encode() for each in wanted)
        self._reader: StreamReader | None = None
        self._under_way = 0  # messages that were read and are not stored yet
        self._error: ApiError | None = None
        self._pause_s = RETRY_S

    def stop(self) -> None:
        self.task.cancel()

    def shown(self) -> Json:
        found: Json = {"name": self._name, "lag": 0, "active": -1}
        if (reader := self._reader) is not None:
            stream = stream_of(self._group, self._info.queue)
            taken = stream and stream.following.taken.get(self._key)
            has_all = taken is not None and taken.last + 1 >= reader.sequence
            found["lag"] = reader.behind + (0 if has_all else self._under_way)
            if reader.heard_s is not None:
                silent_s = asyncio.get_running_loop().time() - reader.heard_s
                found["active"] = int(silent_s * NS_PER_S)
        if self._error is not None:
            found["error"] = self._error.map
        for field in ("filter_subject", "subject_transforms"):
            if field in self._source:
                found[field] = self._source[field]
        return found

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except StreamGone:
                self._error = known(10059)
            except BrokerError as error:
                self._error = ApiError(503, 10008, error.reason)
            except Exception as error:  # a bug: seen, and tried again
                log.error("following_failed", stream=self._info.name, of=self._name, exc_info=error)
                self._error = ApiError(500, 10051, "an error of this node: its log says more")
            self._reader, self._under_way = None, 0
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, RETRY_S_MAX)

    async def _follow(self) -> None:
        other = self._home.cluster.queue_info(self._info.vhost, self._name)
        if other is None or other.stream is None or is_restored(other.stream):
            raise StreamGone  # what is being restored is not there before it is whole
        stream = self._stream()
        taken = stream.following.taken.get(self._key)
        if taken is not None and taken.queue == other.queue:
            after = taken.last
        else:
            after = await self._start(other, again=taken is not None) - 1
        note: ApiError | None = None
        if stream.settings.mirror is not None:
            held = stream.retained.next - 1
            if after < held:
                text = f"{self._name} was made again: what it has up to {held} is not taken"
                note, after = ApiError(500, 10051, text), held
        self._error = note
        reader = StreamReader(self._home.reads, other, after + 1, patterns=self._patterns)
        self._reader = reader
        while True:
            messages = await reader.next(MESSAGES_AT_ONCE, BYTES_AT_ONCE)
            self._under_way = len(messages)
            after = await self._store(other, messages, after, reader.sequence - 1)
            self._under_way, self._error, self._pause_s = 0, None, RETRY_S

    def _stream(self) -> Stream:
        stream = stream_of(self._group, self._info.queue)
        if stream is None:
            raise Refused(codes.NO_QUEUE, "the stream itself is gone")
        return stream

    async def _start(self, other: QueueInfo, *, again: bool) -> int:
        """Of a stream that was made again all is wanted."""
        start, at = self._source.get("opt_start_seq"), self._source.get("opt_start_time")
        if again or not (start or at):
            where = Start("first")
        elif start:
            where = Start("sequence", start)
        else:
            where = Start("time", ms_of_text(at) or 0)
        return await self._home.reads.start(other, where)

    # --- storing ----------------------------------------------------------------------------------

    async def _store(
        self, other: QueueInfo, messages: Sequence[StreamMessage], after: int, last: int
    ) -> int:
        """All of these, which are what is wanted up to `last`. Refused: some are not taken now."""
        self._home.ingress.check_alarms()
        self._home.ingress.check_vhost(self._info.vhost)
        start = 0
        for place, message in enumerate(messages):
            if not isinstance(message.body, LargeBody):
                continue
            if start < place:
                some = messages[start:place]
                after = await self._propose(other, some, after, some[-1].sequence)
            large = {0: await self._upload(other, message, message.body)}
            after = await self._propose(other, [message], after, message.sequence, large)
            start = place + 1
        if start < len(messages) or after < last:
            after = await self._propose(other, messages[start:], after, last)
        return after

    async def _upload(
        self, other: QueueInfo, message: StreamMessage, body: LargeBody
    ) -> tuple[str, list[list[int]]]:
        bodies, key = self._home.bodies, zlib.crc32(self._key.encode())
        name = f"{other.queue}:{message.sequence}:{key}"
        try:
            kept = await bodies.upload(self._info, Stored(bodies, other.group, body), name)
        except NotTaken as error:
            raise Refused(codes.BAD_ARGUMENT, str(error)) from None
        if kept is None:
            raise Refused(codes.NO_QUEUE, "the stream itself is gone")
        return kept

    async def _propose(
        self,
        other: QueueInfo,
        messages: Sequence[StreamMessage],
        after: int,
        last: int,
        large: dict[int, Any] | None = None,
    ) -> int:
        stream = self._stream()
        mirrors = stream.settings.mirror is not None
        metas = [self._meta(other, each, mirrors=mirrors) for each in messages]
        attrs: list[dict[int, Any]] = []
        for message, meta in zip(messages, metas, strict=True):
            attrs.append({ATTR_SUBJECT: self._subject(message.subject)})
            if isinstance(meta, bytes) and is_block(meta) and (asked := copied(meta)):
                attrs[-1][ATTR_ASKED] = asked
        bodies = [
            each.body.head if isinstance(each.body, LargeBody) else each.body for each in messages
        ]
        origin = Origin(
            self._key,
            other.queue,
            after,
            last,
            [(each.sequence, each.sequence) for each in messages],
            [each.stored_ms for each in messages] if mirrors else (),
            self.since,
        )
        command = Enqueue(self._info.queue, None, 0, bodies, metas, attrs, large, origin=origin)
        reply_of(await self._group.ask(command))
        taken = stream.following.taken.get(self._key)
        if taken is None or taken.last < last:
            raise Refused(codes.OVERLOADED, f"stream {self._info.name} is full, or sealed")
        return taken.last

    def _subject(self, subject: bytes) -> bytes:
        for transform in self._transforms:
            if (found := transform(subject)) is not None:
                return found
        return subject

    def _meta(self, other: QueueInfo, message: StreamMessage, *, mirrors: bool) -> Any:
        """A mirror has the headers as they are. Who publishes by AMQP has others, which stay."""
        meta = header_of(MARKER, other) if message.meta == MARKER else message.meta
        if mirrors or not (meta is None or (isinstance(meta, bytes) and is_block(meta))):
            return meta
        name, wanted, becomes = self._key.split(" ")
        subject = message.subject.decode(errors="replace")
        if subject.split() != [subject]:
            subject = ">"
        where = f"{name} {message.sequence} {wanted} {becomes} {subject}"
        return with_fields(meta and without(meta, *_NOT_COPIED), [(SOURCE, where)])


def _transforms_of(source: Mapping[str, Any]) -> list[Transform]:
    found: list[Transform] = []
    for each in source.get("subject_transforms") or ():
        try:
            found += [transform_of(each["src"], each["dest"])] if each["dest"] else []
        except BadTransform:  # of the catalog, by a later release
            continue
    return found
