"""Streams that this node leads: their consumers' feeds, and what others must know of them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from cluster.cluster_node import ClusterNode
from cluster.groups.group import Group, Role
from cluster.groups.group_like import GroupLike
from cluster.machine.catalog import QueueInfo
from cluster.machine.effects import (
    Effect,
    StreamAcked,
    StreamAdvisory,
    StreamChanged,
    StreamStored,
)
from cluster.machine.stream.consumers import StreamConsumer
from cluster.machine.stream.settings import matches
from cluster.machine.stream.stream import Stream
from cluster.types import CATALOG_GROUP, NodeId, QueueId, Stamp
from node.messages.subjects import is_literal
from node.protocols.nats.jetstream import consumer_config, stream_config
from node.protocols.nats.jetstream.batching import Abandoned
from node.protocols.nats.jetstream.feeds import Feed
from node.protocols.nats.jetstream.following import Following
from node.protocols.nats.jetstream.post import Inbox, Post, json_of
from node.protocols.nats.jetstream.priorities import Pin, Pinned
from node.protocols.nats.jetstream.reading import stream_of
from node.protocols.nats.jetstream.republishing import Republishing
from node.protocols.nats.jetstream.times import NS_PER_MS
from node.tasks import Tasks

#: A stream that the catalog does not know yet is looked at again.
AGAIN_S: Final = 0.05
LEADERSHIP_CHANGE: Final = "Leadership Change"
CONSUMER_DELETED: Final = "Consumer Deleted"

_ADVISORIES: Final = {
    "max_deliver": ("CONSUMER.MAX_DELIVERIES", "max_deliver"),
    "nak": ("CONSUMER.MSG_NAKED", "nak"),
    "terminated": ("CONSUMER.MSG_TERMINATED", "terminated"),
}
#: Effects that are this module's.
OF_STREAMS: Final = frozenset({StreamChanged, StreamStored, StreamAcked, StreamAdvisory})


class _Led:
    """A stream."""

    __slots__ = ("ended", "feeds", "group", "info")

    def __init__(self, info: QueueInfo, group: GroupLike) -> None:
        self.info = info
        self.group = group
        self.feeds: dict[str, Feed] = {}
        self.ended: list[Feed] = []  # that may be busy yet

    @property
    def stream(self) -> Stream | None:
        """As the machine has it; None: it is gone."""
        return stream_of(self.group, self.info.queue)


class Leading:
    """One per node. Implements `Home` of feeds."""

    def __init__(
        self, cluster: ClusterNode, post: Post, following: Following, tasks: Tasks
    ) -> None:
        self.post = post
        self.tasks = tasks
        self.following = following
        self._cluster = cluster
        self._republishing = Republishing(cluster, post, tasks)
        self._led: dict[QueueId, _Led] = {}
        #: Push consumers by where they deliver to.
        self._pushing: dict[str, dict[bytes, dict[Feed, None]]] = {}
        #: Told of streams that are led here, and are not as they were.
        self.on_look: list[Callable[[QueueInfo, Stream], None]] = []
        cluster.on_effects.append((OF_STREAMS, self._effects))
        cluster.on_role.append(self._role)

    def now_ms(self) -> int:
        return self._cluster.now_ms()

    # --- what the cluster tells -------------------------------------------------------------------

    def _role(self, group: Group, role: Role, term: int) -> None:
        if group.id == CATALOG_GROUP or group.id not in self._cluster.groups:
            return
        if role is Role.LEADER:
            for info in self._cluster.catalog_machine.queues_of(group.id):
                if info.stream is not None:
                    led = self._found(info, group)
                    self._tell_elected(led)
                    self._look(led)
        else:
            is_alone = 2 * sum(map(self._is_up, group.members)) <= len(group.members)
            for led in [each for each in self._led.values() if each.info.group == group.id]:
                if is_alone:
                    self._tell_quorum_lost(led)
                self._forget(led, LEADERSHIP_CHANGE)

    def _effects(self, group: GroupLike, stamp: Stamp, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if type(effect) is StreamChanged:
                self._changed(group, effect.queue)
            elif type(effect) is StreamStored:
                self._republishing.stored(group, effect)
            elif type(effect) is StreamAcked:
                self._sample(effect)
            elif type(effect) is StreamAdvisory:
                self._advise(effect)

    def _changed(self, group: GroupLike, queue: QueueId) -> None:
        led = self._led.get(queue)
        if led is None:
            info = self._cluster.catalog_machine.queue_by_id(queue)
            if info is None:
                # Its group made it before the catalog's copy here knows of it; or it is deleted.
                if group.ready and stream_of(group, queue) is not None:
                    call = asyncio.get_running_loop().call_later
                    call(AGAIN_S, self._changed, group, queue)
                return
            led = self._found(info, group)
        self._look(led)

    def _found(self, info: QueueInfo, group: GroupLike) -> _Led:
        led = self._led.get(info.queue)
        if led is None or led.group is not group:
            led = self._led[info.queue] = _Led(info, group)
        return led

    def _look(self, led: _Led) -> None:
        """Consumers come and go, and have something to get."""
        stream = led.stream
        if stream is None:
            self._forget(led, CONSUMER_DELETED)
            return
        if stream_config.is_restored(stream.identity.config.stream):
            self._forget(led, CONSUMER_DELETED)  # nobody is served by what is not whole
            return
        self.following.look(led.info, led.group, stream)
        for look in self.on_look:
            look(led.info, stream)
        consumers = stream.consumers
        for name, feed in list(led.feeds.items()):
            consumer = consumers.get(name)
            if consumer is None or consumer.key != feed.key:
                self._end(led, feed, CONSUMER_DELETED)
            elif consumer is not feed.consumer:
                feed.changed(consumer)
            elif consumer.may_fetch:
                feed.wake()
        if len(consumers) > len(led.feeds):
            for name, consumer in consumers.items():
                if name not in led.feeds:
                    self._start(led, consumer)

    def _start(self, led: _Led, consumer: StreamConsumer) -> Feed:
        name = consumer.settings.name
        in_doubt = any(each.busy and each.name == name for each in led.ended)
        feed = Feed(self, led.group, led.info, consumer, in_doubt=in_doubt)
        led.feeds[name] = feed
        self._point(feed)
        feed.start()
        return feed

    def _point(self, feed: Feed) -> None:
        """Its deliveries go to where they go now."""
        deliver = feed.deliver
        if deliver is not None:
            by_subject = self._pushing.setdefault(deliver.vhost, {})
            by_subject.setdefault(deliver.subject, {})[feed] = None

    def _unpoint(self, feed: Feed) -> None:
        by_subject = self._pushing.get(feed.info.vhost, {})
        for subject, feeds in list(by_subject.items()):
            if feeds.pop(feed, 0) is None and not feeds:
                del by_subject[subject]

    def _end(self, led: _Led, feed: Feed, text: str) -> None:
        del led.feeds[feed.name]
        self._unpoint(feed)
        feed.end(text)
        led.ended = [each for each in (*led.ended, feed) if each.busy]
        if text == CONSUMER_DELETED:
            self.tell_consumer(led.info, feed.name, "delete")

    def _forget(self, led: _Led, text: str) -> None:
        for feed in list(led.feeds.values()):
            self._end(led, feed, text)
        self.following.forget(led.info.queue)
        del self._led[led.info.queue]

    # --- for requests -----------------------------------------------------------------------------

    def feed(self, info: QueueInfo, group: GroupLike, name: str) -> Feed | None:
        """Of a consumer that there is."""
        led = self._found(info, group)
        stream = led.stream
        consumer = None if stream is None else stream.consumers.get(name)
        if consumer is None:
            return None
        feed = led.feeds.get(name)
        if feed is not None and feed.key == consumer.key:
            return feed
        if feed is not None:
            self._end(led, feed, CONSUMER_DELETED)
        return self._start(led, consumer)

    def put(self, info: QueueInfo, group: GroupLike, name: str) -> None:
        """It was made, or is as somebody wants it now."""
        stream, feed = stream_of(group, info.queue), self.feed(info, group, name)
        if feed is not None and stream is not None:
            self._unpoint(feed)
            feed.changed(stream.consumers[name])
            self._point(feed)

    def waiting(self, info: QueueInfo, name: str) -> tuple[int, bool]:
        """How many requests wait, and does anybody take what is pushed?"""
        led = self._led.get(info.queue)
        feed = None if led is None else led.feeds.get(name)
        return (0, False) if feed is None else (feed.waiting, feed.bound)

    def interest(self, vhost: str, subject: bytes) -> None:
        """Somebody wants what is sent there, or no longer."""
        by_subject = self._pushing.get(vhost)
        if not by_subject:
            return
        if is_literal(subject):
            found = by_subject.get(subject, {})
        else:
            found = {
                feed: None
                for each, feeds in by_subject.items()
                if matches(subject, each)
                for feed in feeds
            }
        for feed in found:
            feed.wake()

    def flow(self, info: QueueInfo, name: str, subject: bytes) -> None:
        """The answer to a request for flow control."""
        led = self._led.get(info.queue)
        feed = None if led is None else led.feeds.get(name)
        if feed is not None:
            feed.heard(subject)

    def dropped(self, info: QueueInfo) -> None:
        """A consumer was."""
        led = self._led.get(info.queue)
        if led is not None:
            self._look(led)

    def gone(self, queue: QueueId) -> None:
        """The stream was deleted."""
        led = self._led.get(queue)
        if led is not None:
            self._forget(led, CONSUMER_DELETED)

    def all(self) -> Iterator[tuple[QueueInfo, Stream | None]]:
        for led in self._led.values():
            yield led.info, led.stream

    # --- advisories -------------------------------------------------------------------------------

    def _advise(self, effect: StreamAdvisory) -> None:
        info = self._cluster.catalog_machine.queue_by_id(effect.queue)
        if info is None or effect.kind not in _ADVISORIES:
            return
        subject, kind = _ADVISORIES[effect.kind]
        about: dict[str, Any] = {"stream": info.name, "consumer": effect.consumer}
        if effect.kind != "max_deliver":
            about["consumer_seq"] = effect.consumer_position
        about |= {"stream_seq": effect.position, "deliveries": effect.delivery_count}
        if effect.reason:
            about["reason"] = effect.reason
        name = f"{subject}.{info.name}.{effect.consumer}"
        self.post.advise(info.vhost, name, kind, self.now_ms(), **about)

    def _sample(self, acked: StreamAcked) -> None:
        """Of these acknowledgements, as large a share is told as the consumer says."""
        led = self._led.get(acked.queue)
        feed = None if led is None else led.feeds.get(acked.consumer)
        if led is None or feed is None:
            return
        share = consumer_config.share_of(feed.config) * 100
        subject = f"CONSUMER.ACK.{led.info.name}.{acked.consumer}"
        for sequence in range(acked.first, acked.last + 1):
            if secrets.randbelow(10_000) < share:
                about = {
                    "stream": led.info.name,
                    "consumer": acked.consumer,
                    "consumer_seq": sequence + acked.ahead,
                    "stream_seq": sequence,
                    "ack_time": acked.waited_ms * NS_PER_MS,
                    "deliveries": acked.delivery_count,
                }
                vhost, now_ms = led.info.vhost, self.now_ms()
                self.post.measure(vhost, subject, "consumer_ack", now_ms, **about)

    def tell_consumer(self, info: QueueInfo, name: str, action: str) -> None:
        verb = {"create": "CREATED", "delete": "DELETED"}[action]
        subject = f"CONSUMER.{verb}.{info.name}.{name}"
        about = {"stream": info.name, "consumer": name, "action": action}
        self.post.advise(info.vhost, subject, "consumer_action", self.now_ms(), **about)

    def tell_pinned(self, info: QueueInfo, consumer: str, pinned: Pinned) -> None:
        about = {"stream": info.name, "consumer": consumer, "group": pinned.group}
        verb, kind = "UNPINNED", "consumer_group_unpinned"
        if pinned.id:
            verb, kind, about["pinned_id"] = "PINNED", "consumer_group_pinned", pinned.id
        else:
            about["reason"] = pinned.reason
        subject = f"CONSUMER.{verb}.{info.name}.{consumer}"
        self.post.advise(info.vhost, subject, kind, self.now_ms(), **about)

    def pin(self, info: QueueInfo, name: str) -> Pin | None:
        led = self._led.get(info.queue)
        feed = None if led is None else led.feeds.get(name)
        return None if feed is None else feed.pulls.pin

    def _is_up(self, node: NodeId) -> bool:
        return node == self._cluster.node or self._cluster.peers.is_up(node)

    def _tell_elected(self, led: _Led) -> None:
        self._tell_of_all(led, "LEADER_ELECTED", "leader_elected", leader=self._cluster.node)

    def _tell_quorum_lost(self, led: _Led) -> None:
        """Nothing is stored or delivered until more nodes are back."""
        self._tell_of_all(led, "QUORUM_LOST", "quorum_lost")

    def _tell_of_all(self, led: _Led, verb: str, kind: str, **more: Any) -> None:
        """Of the stream and its consumers, all of which one group replicates."""
        stream, name = led.stream, led.info.name
        if stream is None:
            return
        replicas = [
            {"name": each, "current": self._is_up(each), "active": 0} for each in led.group.members
        ]
        about: dict[str, Any] = {"stream": name, **more, "replicas": replicas}
        tell, vhost, now_ms = self.post.advise, led.info.vhost, self.now_ms()
        tell(vhost, f"STREAM.{verb}.{name}", f"stream_{kind}", now_ms, **about)
        for each in stream.consumers:
            subject = f"CONSUMER.{verb}.{name}.{each}"
            tell(vhost, subject, f"consumer_{kind}", now_ms, consumer=each, **about)

    def tell_abandoned(self, batch: Abandoned) -> None:
        info = self._cluster.catalog_machine.queue_by_id(batch.queue)
        if info is not None:
            subject = f"STREAM.BATCH_ABANDONED.{info.name}"
            about = {"stream": info.name, "batch": batch.id, "reason": batch.reason}
            self.post.advise(info.vhost, subject, "stream_batch_abandoned", self.now_ms(), **about)

    def audited(self, vhost: str) -> bool:
        """Does anybody want to hear of requests?"""
        return self.post.heard(Inbox(vhost, b"$JS.EVENT.ADVISORY.API"))

    def tell_request(
        self,
        vhost: str,
        subject: str,
        request: bytes,
        answer: Mapping[str, Any],
        client: Mapping[str, Any] | None,
    ) -> None:
        if self.audited(vhost):
            about = {
                "server": self._cluster.node,
                "client": client or {},
                "subject": subject,
                "request": request.decode(errors="replace"),
                "response": json_of(answer).decode(),
            }
            self.post.advise(vhost, "API", "api_audit", self.now_ms(), **about)

    def tell_pause(self, info: QueueInfo, name: str, found: Mapping[str, Any]) -> None:
        about = {"stream": info.name, "consumer": name, **found}
        about.pop("pause_remaining", None)
        subject = f"CONSUMER.PAUSE.{info.name}.{name}"
        self.post.advise(info.vhost, subject, "consumer_pause", self.now_ms(), **about)

    def tell_stream(self, vhost: str, name: str, action: str) -> None:
        verb = {"create": "CREATED", "modify": "UPDATED", "delete": "DELETED"}[action]
        about = {"stream": name, "action": action}
        self.post.advise(vhost, f"STREAM.{verb}.{name}", "stream_action", self.now_ms(), **about)
