"""Messages that a stream of this node has just stored, for those who subscribe to where it
publishes them again. They leave in order, at most once, and only from the leader: who must miss
none reads the stream.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from cluster.cluster_node import ClusterNode
from cluster.groups.group_like import GroupLike
from cluster.machine.effects import StreamStored
from cluster.types import LargeBody, QueueId
from node.protocols.nats.jetstream.headers import block, with_fields
from node.protocols.nats.jetstream.post import Inbox, Post
from node.protocols.nats.jetstream.reading import Bodies, header_of, load, read
from node.protocols.nats.jetstream.times import text_of_ms
from node.tasks import Tasks

#: Of one stream, while bodies are loaded: of more, the oldest are not published again.
WAITING_MAX: Final = 10_000


class Republishing:
    """One per node."""

    def __init__(self, cluster: ClusterNode, post: Post, tasks: Tasks) -> None:
        self._cluster = cluster
        self._post = post
        self._tasks = tasks
        self._waiting: dict[QueueId, deque[tuple[GroupLike, StreamStored]]] = {}

    def stored(self, group: GroupLike, message: StreamStored) -> None:
        waiting = self._waiting.get(message.queue)
        if waiting is not None:
            waiting.append((group, message))
            return
        bodies = read(group, message.bodies)
        if bodies is None or type(bodies[0][0]) is LargeBody:
            self._waiting[message.queue] = deque([(group, message)], WAITING_MAX)
            self._tasks.start(self._catch_up(message.queue), name="stream_republish")
        else:
            self._publish(message, bodies)

    async def _catch_up(self, queue: QueueId) -> None:
        waiting = self._waiting[queue]
        try:
            while waiting:
                group, message = waiting.popleft()
                self._publish(message, await load(group, message.bodies))
        finally:
            del self._waiting[queue]

    def _publish(self, message: StreamStored, bodies: Bodies) -> None:
        info = self._cluster.catalog_machine.queue_by_id(message.queue)
        if info is None or not bodies:
            return
        ((body, meta),) = bodies
        assert isinstance(body, bytes)
        about: list[tuple[str, object]] = [
            ("Nats-Stream", info.name),
            ("Nats-Subject", message.subject.decode(errors="replace")),
            ("Nats-Sequence", message.position),
            ("Nats-Time-Stamp", text_of_ms(message.stored_ms)),
            ("Nats-Last-Sequence", message.previous),
        ]
        republish: dict[str, Any] = (info.stream or {}).get("republish") or {}
        if republish.get("headers_only"):
            about.append(("Nats-Msg-Size", len(body)))
            body = b""
        header = header_of(meta, info)
        whole = with_fields(header, about) if header else block(about)
        self._post.send(Inbox(info.vhost, message.destination), body, whole)
