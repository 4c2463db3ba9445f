"""Acknowledgements of streams' deliveries, from any node: what is said in one turn of the event
loop of a consumer's deliveries is one command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from cluster.cluster_node import ClusterNode
from cluster.codec.entries import REASONS_SINCE
from cluster.groups.outcome import Outcome
from cluster.machine.catalog import QueueInfo
from cluster.types import QueueId
from node.protocols.nats.jetstream.acks import Acked, Said, acked_by, word_of
from node.protocols.nats.jetstream.post import Inbox, Post
from node.protocols.nats.reader import ACK, ACKED, Acks, Publish

#: After that whoever waits for a double ack has given up, and what was delivered comes again.
PATIENCE_S: Final = 30.0

#: Said most of all.
PLAIN: Final = (b"", ACKED)

#: A request for more: vhost, stream, consumer, inbox, body.
Pull = Callable[[str, str, str, bytes, bytes], None]


class _Open:
    """What was said of the deliveries of one consumer."""

    __slots__ = ("info", "replies", "said")

    def __init__(self, info: QueueInfo) -> None:
        self.info = info
        self.said = Said()
        self.replies: list[bytes] = []


class Settling:
    """One per node."""

    def __init__(self, cluster: ClusterNode, post: Post, pull: Pull) -> None:
        self._cluster = cluster
        self._retries = cluster.forwarder.new_retries()
        self._post = post
        self._pull = pull
        self._open: dict[tuple[QueueId, str], _Open] = {}

    def take(self, vhost: str, message: Publish) -> bool:
        """False: it is of no delivery of a stream that there is."""
        acked = acked_by(message.subject)
        info = None if acked is None else self._cluster.queue_info(vhost, acked.stream)
        if acked is None or info is None or info.stream is None:
            return False
        for payload in message.payloads:
            self._say(info, acked, message.reply, payload[message.header_bytes : -2])
        return True

    def take_all(self, vhost: str, acks: Acks) -> bool:
        """False: they are of no consumer of a stream that there is."""
        try:
            stream, consumer = acks.start[len(ACK) : -1].decode().split(".")
        except UnicodeDecodeError:
            return False
        info = self._cluster.queue_info(vhost, stream)
        if info is None or info.stream is None:
            return False
        self._opened(info, consumer).said.add_done(acks.sequences)
        return True

    def _opened(self, info: QueueInfo, consumer: str) -> _Open:
        key = info.queue, consumer
        opened = self._open.get(key)
        if opened is None:
            if not self._open:
                asyncio.get_running_loop().call_soon(self._flush)
            opened = self._open[key] = _Open(info)
        return opened

    def _say(self, info: QueueInfo, acked: Acked, reply: bytes, body: bytes) -> None:
        word, rest = (b"", b"") if body in PLAIN else word_of(body)
        opened = self._opened(info, acked.consumer)
        if not opened.said.add(acked.sequence, word, rest):
            return
        if word == b"+NXT":
            self._pull(info.vhost, acked.stream, acked.consumer, reply, rest)
        elif reply:
            opened.replies.append(reply)

    def _flush(self) -> None:
        opened, self._open = self._open, {}
        for (queue, consumer), each in opened.items():
            reasons = self._cluster.catalog_machine.version >= REASONS_SINCE
            command = each.said.command(queue, consumer, reasons=reasons)
            done = partial(self._decided, each)
            self._retries.propose(each.info.group, command, done, within_s=PATIENCE_S)

    def _decided(self, opened: _Open, outcome: Outcome) -> None:
        """Who asked is answered only when it is safe."""
        if outcome.kind == "ok":
            for reply in opened.replies:
                self._post.send(Inbox(opened.info.vhost, reply), b"")
