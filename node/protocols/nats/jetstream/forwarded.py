"""Pull requests that this node sent on, and that wait at other nodes. When such a node is lost,
nobody there tells them that it is over: who sent it there does, a client's node or another one.
"""

from __future__ import annotations

from typing import Final

from cluster.types import NodeId
from node.protocols.nats.jetstream.errors import ApiError
from node.protocols.nats.jetstream.headers import status
from node.protocols.nats.jetstream.leading import LEADERSHIP_CHANGE
from node.protocols.nats.jetstream.post import Inbox, Post
from node.protocols.nats.jetstream.pulls import ask_of
from node.protocols.nats.jetstream.times import NS_PER_S

#: At one node. Of more, the oldest are not told.
FORWARDED_MAX: Final = 10_000
#: One that does not say how long it waits is told within this time.
WAIT_S: Final = 600.0


class Forwarded:
    """One per node. Most of these have been answered long since: an inbox where nothing is wanted
    any more is told nothing.
    """

    def __init__(self, post: Post) -> None:
        self._post = post
        self._at: dict[NodeId, dict[Inbox, float]] = {}  # and until when

    def add(self, node: NodeId, inbox: Inbox, body: bytes, now_s: float) -> None:
        try:
            wait_s = ask_of(body).expires_ns / NS_PER_S or WAIT_S
        except ApiError:
            return
        waiting = self._at.setdefault(node, {})
        waiting.pop(inbox, None)
        waiting[inbox] = now_s + wait_s
        if len(waiting) > FORWARDED_MAX:
            del waiting[next(iter(waiting))]

    def lost(self, node: NodeId, now_s: float) -> None:
        for inbox, until_s in self._at.pop(node, {}).items():
            if until_s > now_s:
                self._post.send(inbox, b"", status(409, LEADERSHIP_CHANGE))
