"""Consumers of streams, for doors that do not speak NATS: messages are fetched and acknowledged
from any node.

Who leads the stream hands out, as to NATS's clients, and in one line with them. Requests between
nodes: `["fetch", number, queue, consumer, count, ms, have]`, and `["drop", number]`, with which the
node that asked ends one for which nobody waits any more.

An acknowledgement of all up to a message must not mean one that its reader never got, since the
answer was lost. So where they are of this kind a consumer has one reader, which says what it has:
what was handed out behind that comes again first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from cluster.cluster_node import ClusterNode
from cluster.groups.group_like import GroupLike
from cluster.machine import replies as codes
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Acknowledge, Barrier
from cluster.types import NodeId, QueueId
from node.broker.stream_reads import StreamMessage, led_stream, packed, unpacked
from node.errors import Elsewhere, OutcomeUnknown, Refused, reply_of
from node.peer_rpc import ANSWER_S_MAX, PeerRpc
from node.protocols.nats.jetstream.feeds import Feed, Fetching
from node.protocols.nats.jetstream.leading import CONSUMER_DELETED, Leading
from node.protocols.nats.jetstream.pulls import Ask
from node.protocols.nats.jetstream.times import NS_PER_MS

KIND: Final = "cursor"
#: A request waits so long for a leader, and an acknowledgement for its outcome.
PATIENCE_S: Final = 4.0
ACKNOWLEDGED_S: Final = 15.0
AGAIN_S: Final = 0.02

_MISSING: Final = "missing"
_TAKEN: Final = b"taken over"


class Taken(NamedTuple):
    message: StreamMessage
    delivery_count: int  # this one included


class Cursors:
    """One per node."""

    def __init__(self, cluster: ClusterNode, peer_rpc: PeerRpc, leading: Leading) -> None:
        self._cluster = cluster
        self._peer_rpc = peer_rpc
        self._leading = leading
        self._retries = cluster.forwarder.new_retries()
        self._numbers = count(1)
        self._asked: dict[int, NodeId] = {}  # which node each request of ours waits at
        self._waiting: dict[tuple[NodeId, int], Fetching] = {}  # here, whoever asked
        peer_rpc.on(KIND, self._from_peer)
        cluster.on_link_lost.append(self._link_lost)

    # --- at any node ------------------------------------------------------------------------------

    def next_number(self) -> int:
        """Names a request."""
        return next(self._numbers)

    async def fetch(
        self,
        number: int,
        info: QueueInfo,
        consumer: str,
        *,
        count: int,
        wait_ms: int,
        have: int,
    ) -> list[Taken]:
        """What the consumer has now, or else what comes first within that time: at most so many, of
        about 1 MiB. `have`: the last one that its reader got. Refused: there is no such consumer.
        Elsewhere: the stream has no leader.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        wait_s = wait_ms / 1000 + ANSWER_S_MAX
        while True:
            leader = self._cluster.leader_of(info.group)
            if leader is not None:
                self._asked[number] = leader
                ask = ("fetch", number, info.queue, consumer, count, wait_ms, have)
                try:
                    found = await self._peer_rpc.request(leader, KIND, *ask, wait_s=wait_s)
                except Elsewhere:  # surely not asked
                    found = None
                except OutcomeUnknown:  # what it handed out comes again
                    return []
                finally:
                    self._asked.pop(number, None)
                if found == _MISSING:
                    raise no_cursor(info, consumer)
                if found is not None:
                    return [Taken(unpacked(row), deliveries) for row, deliveries in found]
            if loop.time() >= until_s:
                raise Elsewhere(None)
            await asyncio.sleep(AGAIN_S)

    def drop(self, number: int) -> None:
        """Nobody waits for it any more: it ends with nothing."""
        node = self._asked.get(number)
        if node is not None:
            self._peer_rpc.notify(node, KIND, "drop", number)

    async def acknowledge(self, info: QueueInfo, command: Acknowledge) -> int:
        """How many it was that are done with. What its consumer does not hold is passed over."""
        outcome = await self._retries.ask(info.group, command, within_s=ACKNOWLEDGED_S)
        if outcome.code == codes.NO_CONSUMER:
            raise no_cursor(info, command.name)
        reply = reply_of(outcome)
        return reply.count if isinstance(reply, codes.Ok) else 0

    # --- at the leader ----------------------------------------------------------------------------

    def _from_peer(self, peer: NodeId, fields: list[Any]) -> Any:
        match fields:
            case ["fetch", number, queue, consumer, count, wait_ms, have]:
                return self._fetch((peer, number), QueueId(queue), consumer, count, wait_ms, have)
            case ["drop", number]:
                fetching = self._waiting.get((peer, number))
                if fetching is not None:
                    fetching.end(b"")
            case _:
                pass
        return None

    async def _fetch(
        self,
        who: tuple[NodeId, int],
        queue: QueueId,
        consumer: str,
        count: int,
        wait_ms: int,
        have: int,
    ) -> list[Any] | str | None:
        """None: this node does not lead it."""
        info = self._cluster.catalog_machine.queue_by_id(queue)
        led = None if info is None else led_stream(self._cluster, info)
        if info is None or led is None:
            return None
        group, _ = led
        feed = self._leading.feed(info, group, consumer)
        if feed is None:
            return _MISSING
        if feed.deliver is not None:
            raise Refused(codes.BAD_ARGUMENT, f"{consumer} is pushed to a subject of NATS")
        most, longest = feed.config.get("max_batch") or count, feed.config.get("max_expires")
        wait_ns = min(wait_ms * NS_PER_MS, longest or wait_ms * NS_PER_MS)
        ask = Ask(min(count, most), 0, wait_ns, no_wait=True, in_turn=True)
        if feed.config["ack_policy"] == "all":
            async with feed.turn:
                await self._take_over(info, group, feed, have)
                fetching = feed.fetch(ask)
        else:
            fetching = feed.fetch(ask)
        self._waiting[who] = fetching
        try:
            why = await fetching.done
        finally:
            del self._waiting[who]
        if why is _TAKEN:
            raise Refused("cursor_taken", f"another one reads by {consumer}")
        if CONSUMER_DELETED.encode() in why:
            return _MISSING
        if b"Exceeded" in why:
            raise Refused("overloaded", f"too many wait for messages of {consumer}")
        return list(_rows(feed, fetching))

    async def _take_over(self, info: QueueInfo, group: GroupLike, feed: Feed, have: int) -> None:
        """By a reader that has all up to there: no other one gets anything from now on."""
        feed.end_fetches(_TAKEN)
        if feed.busy:  # what was asked before is done behind a barrier
            reply_of(await group.ask(Barrier()))
        held = [
            (sequence, 0)
            for first, last, each in feed.consumer.held.ranges_from(have + 1)
            for sequence in range(first, last + 1)
            if each.due_ms
        ]
        if held:
            await self.acknowledge(info, Acknowledge(info.queue, feed.name, [], held))

    def _link_lost(self, node: NodeId) -> None:
        for (peer, _), fetching in list(self._waiting.items()):
            if peer == node:
                fetching.end(b"")


def _rows(feed: Feed, fetching: Fetching) -> Iterable[Sequence[Any]]:
    headers_only = feed.config.get("headers_only")
    for chunk, bodies, subjects in fetching.chunks:
        named = zip(bodies, subjects, strict=False)
        for sequence, ((body, meta), subject) in enumerate(named, chunk.first):
            if subject is not None:  # else it was deleted since
                body = b"" if headers_only else body
                message = StreamMessage(sequence, body, meta, subject, chunk.stored_ms)
                yield packed(message), chunk.delivery_count


def no_cursor(info: QueueInfo, consumer: str) -> Refused:
    return Refused("no_cursor", f"stream {info.name!r} has no cursor {consumer!r}: make it first")
