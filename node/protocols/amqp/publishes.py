"""The publishing half of a channel: from publishes to the queues that they go to, and back.

All that one read of the socket holds for a queue leaves as one batch. Routing is asked once for
each run of publishes with the same exchange and key.

Confirms: publishes are numbered from 1 after confirm.select (B24); each is confirmed or refused
exactly once (B27), several at once whenever no older one is open (`multiple`, B25). One that goes
to several queues is decided when all of them have answered (B30).
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from cluster.groups.proposals import WHOLE_BODY_BYTES_MAX
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Command, Enqueue
from cluster.types import GroupId, QueueId
from node.broker.bodies import NewBody, PartedBody, in_one_piece, pieces_of
from node.broker.ingress import Attrs, check_reply, shown
from node.broker.publishing import Uploaded
from node.dispatch.in_flight import MESSAGE_OVERHEAD_BYTES
from node.errors import Elsewhere
from node.messages import properties as props
from node.messages.message import exchange_and_key
from node.protocols.amqp import writer
from node.protocols.amqp.direct_reply import PREFIX
from node.protocols.amqp.errors import (
    NO_ROUTE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelError_,
    ConnectionError_,
)
from node.protocols.amqp.events import Publish
from node.protocols.amqp.outlet import Stream
from node.protocols.amqp.refusals import no_exchange
from node.routing import Route

if TYPE_CHECKING:
    from node.protocols.amqp.channel import Channel


class Outcome(NamedTuple):
    """One basic.ack, or basic.nack when `refused`."""

    tag: int
    multiple: bool
    refused: bool


class ConfirmTracker:
    """Consecutive publishes with the same targets: counts the queues that have answered."""

    __slots__ = ("first", "last", "open", "refused")

    def __init__(self, first: int, last: int, queues: int) -> None:
        self.first = first
        self.last = last
        self.open = queues
        self.refused: set[int] | None = None

    def extend(self, following: ConfirmTracker) -> bool:
        """Both have one queue, the same, and nothing came between: they are one from now on."""
        if self.open != 1 or following.open != 1 or self.last + 1 != following.first:
            return False
        self.last = following.last
        return True

    def answered(self, refused: Sequence[tuple[int, int]], start: int) -> bool:
        """One queue has answered for all of them; `refused` are ranges of offsets in its batch, in
        which this tracker begins at `start`. True: all queues have.
        """
        for low, high in refused:
            low, high = max(low - start, 0), min(high - start, self.last - self.first)
            if low <= high:
                self.refused = self.refused or set()
                self.refused.update(range(self.first + low, self.first + high + 1))
        self.open -= 1
        return self.open == 0


class Confirms:
    """Of one channel in confirm mode."""

    def __init__(self) -> None:
        self.last = 0  # number of the newest publish
        self._low = 0  # all up to here are decided and told
        self._ahead: list[tuple[int, int]] = []  # decided beyond, ascending
        self._fresh: list[tuple[int, int]] = []  # decided since the last `take`
        self._refused: list[int] = []

    @property
    def open(self) -> int:
        """Publishes without an outcome."""
        return self.last - self._low - sum(last - first + 1 for first, last in self._ahead)

    def number(self, count: int) -> int:
        """The number of the first of `count` new publishes."""
        first = self.last + 1
        self.last += count
        return first

    def decided(self, tracker: ConfirmTracker) -> None:
        self._fresh.append((tracker.first, tracker.last))
        if tracker.refused:
            self._refused.extend(sorted(tracker.refused))

    def take(self) -> list[Outcome]:
        """What to tell the publisher now: refusals, then confirms."""
        fresh, self._fresh = self._fresh, []
        refused, self._refused = self._refused, []
        if not fresh:
            return []
        nacked = set(refused)
        outcomes = list[Outcome]()
        for tag in refused:
            outcomes.append(Outcome(tag, multiple=False, refused=True))
        ahead = self._ahead
        for each in fresh:
            insort(ahead, each)
        passed = 0
        for first, last in ahead:
            if first != self._low + 1:
                break
            self._low = last
            passed += 1
        del ahead[:passed]
        # Only what is decided now is named, though `multiple` also covers what was told before.
        below: list[int] = []
        beyond: list[int] = []
        for first, last in sorted(fresh):
            tags = range(first, last + 1)
            into = below if last <= self._low else beyond
            into.extend(tags if not nacked else [tag for tag in tags if tag not in nacked])
        if below:
            outcomes.append(Outcome(below[-1], multiple=len(below) > 1, refused=False))
        for tag in beyond:
            outcomes.append(Outcome(tag, multiple=False, refused=False))
        return outcomes


class _Batch:
    """What this read publishes to one queue."""

    __slots__ = ("attrs", "bodies", "info", "metas", "parted", "size_bytes", "trackers", "upload")

    def __init__(self, info: QueueInfo) -> None:
        self.info = info
        self.bodies: list[NewBody] = []
        self.metas: list[tuple[bytes, int]] = []  # and of how many bodies
        self.attrs: list[tuple[Attrs | None, int]] = []
        self.trackers: list[tuple[ConfirmTracker, int]] = []  # and where each begins
        self.size_bytes = 0
        self.parted = False  # some body goes into the log in parts
        self.upload: asyncio.Task[Uploaded | str | None] | None = None  # of these parts

    def add(
        self,
        meta: bytes,
        attrs: Attrs | None,
        bodies: list[NewBody],
        tracker: ConfirmTracker | None,
    ) -> None:
        if tracker is not None and not (self.trackers and self.trackers[-1][0].extend(tracker)):
            self.trackers.append((tracker, len(self.bodies)))
        if type(bodies[0]) is PartedBody:
            self.parted = True
        if not self.metas:
            self.bodies = bodies
        elif len(self.metas) == 1:  # the first ones are not ours to change
            self.bodies = self.bodies + bodies
        else:
            self.bodies += bodies
        self.metas.append((meta, len(bodies)))
        self.attrs.append((attrs, len(bodies)))
        overhead = MESSAGE_OVERHEAD_BYTES + len(meta)
        self.size_bytes += sum(map(len, bodies)) + overhead * len(bodies)


class Publishes:
    """What one channel publishes: routed, batched by queue, and confirmed when all its queues have
    answered.
    """

    def __init__(self, channel: Channel) -> None:
        self.confirms: Confirms | None = None
        self.used = False  # it is a publisher
        self.transaction: list[_Batch] | None = None  # tx mode: published and not committed
        self._returns: list[bytes] = []  # of the transaction
        self._channel = channel
        self._services = channel.services
        self._counted = channel.services.counters.amqp091
        self._host = channel.host
        self._ingress = channel.services.broker.ingress
        self._batches: dict[QueueId, _Batch] = {}
        # To the default exchange, in this read: nothing can change before the next one.
        self._last_route: tuple[bytes, Route] | None = None
        # Large bodies on their way into the log and what is behind them; by queue, so that order is
        # kept.
        self._behind: dict[QueueId, deque[_Batch]] = {}
        self._placed = asyncio.Event()  # all of it has left for its queues
        self._placed.set()
        self._in_flight = channel.host.in_flight
        self._flush_due = False

    # --- in ---------------------------------------------------------------------------------------

    def receive(self, event: Publish) -> Coroutine[Any, Any, None] | None:
        """Done at once, unless this node's copy of the catalog must be brought up to date first."""
        if event.immediate:
            raise ConnectionError_(NOT_IMPLEMENTED, "immediate=true")
        properties = event.properties
        look = props.needs_look(properties)
        last = self._last_route
        if last is not None and last[0] == event.where and not look and b"CC" not in properties:
            self._routed(event, last[1], properties, None)
            return None
        exchange, key = exchange_and_key(event.where)
        self._host.access.check("write", "exchange", exchange)
        attrs: Attrs | None = None
        if look:
            reply_name = self._channel.deliveries.reply_name
            attrs, properties = self._ingress.interpret(self._host.access, properties, reply_name)
        if exchange == "" and key.startswith(PREFIX):
            check_reply(attrs)
            self._reply(event, key, properties)
            return None
        route = self._ingress.route(self._host.access, exchange, key, properties)
        careful = self.confirms is not None or self.transaction is not None or event.mandatory
        if self._ingress.in_doubt(exchange, route, careful=careful):
            return self._when_up_to_date(event, exchange, key, properties, attrs)
        assert route is not None, "then it is in doubt"
        if exchange == "" and len(route.queues) == 1 and b"CC" not in properties:
            self._last_route = event.where, route
        self._routed(event, route, properties, attrs)
        return None

    async def _when_up_to_date(
        self,
        event: Publish,
        exchange: str,
        key: str,
        properties: bytes,
        attrs: Attrs | None,
    ) -> None:
        """A copy that lags must not lose what is to be confirmed, nor miss an exchange."""
        await self._channel.patiently(self._catch_up)
        route = self._ingress.route(self._host.access, exchange, key, properties)
        if route is None:
            raise no_exchange(self._host.vhost, exchange)
        self._routed(event, route, properties, attrs)

    async def _catch_up(self) -> None:
        if not await self._services.broker.catch_up():
            raise Elsewhere(None)

    def _routed(self, event: Publish, route: Route, properties: bytes, attrs: Attrs | None) -> None:
        bodies = event.bodies
        count = len(bodies)
        if route.by_chance and count > 1:
            self._each(event, properties, attrs)
            return
        if self.transaction is not None:
            event = self._whole(event, "a message in a transaction")
            bodies = event.bodies
        self.used = True
        confirm = self.confirms is not None
        self._counted.published(bodies, queues=len(route.queues), confirm=confirm)
        tracker: ConfirmTracker | None = None
        if self.confirms is not None:
            first = self.confirms.number(count)
            tracker = ConfirmTracker(first, first + count - 1, len(route.queues))
        if b"BCC" in properties:
            properties = shown(properties)
        if not route.queues:
            self._unroutable(event, properties, tracker)
            return
        full = self._ingress.full_vhosts.get(self._host.vhost)
        if full is not None:
            self._refuse(tracker, full)
            return
        meta = event.where + properties
        each = [attrs] * len(route.queues)
        if props.may_have_id(properties):
            each = [self._ingress.own(info, attrs, properties) for info in route.queues]
        for info, own in zip(route.queues, each, strict=True):
            batch = self._batches.get(info.queue)
            if batch is None:
                batch = self._batches[info.queue] = _Batch(info)
            batch.add(meta, own, bodies, tracker)

    def _each(self, event: Publish, properties: bytes, attrs: Attrs | None) -> None:
        """One by one: where a message goes is chosen by chance."""
        exchange, key = exchange_and_key(event.where)
        for body in event.bodies:
            route = self._ingress.route(self._host.access, exchange, key, properties)
            assert route is not None, "nothing changes in between"
            self._routed(event._replace(bodies=[body]), route, properties, attrs)

    def _refuse(self, tracker: ConfirmTracker | None, reason: str) -> None:
        """None of them is taken. Who asked for no confirms would not learn of it otherwise."""
        if tracker is None:
            raise ChannelError_(PRECONDITION_FAILED, reason)
        tracker.open = 1
        tracker.answered([(0, tracker.last - tracker.first)], 0)
        self._decided(tracker)

    def _unroutable(
        self, event: Publish, properties: bytes, tracker: ConfirmTracker | None
    ) -> None:
        """Returned if mandatory (B29), before it is confirmed; confirmed in any case (B28)."""
        if not event.mandatory:
            self._counted.dropped += len(event.bodies)
        elif type(event.bodies[0]) is PartedBody:
            self._return_large(event, properties)
        else:
            self._counted.returned += len(event.bodies)
            returned = [
                writer.returned(
                    self._channel.number,
                    NO_ROUTE,
                    "NO_ROUTE",
                    where=event.where,
                    properties=properties,
                    body=cast("bytes", body),
                    frame_bytes_max=self._host.frame_max,
                )
                for body in event.bodies
            ]
            if self.transaction is not None:
                self._returns.extend(returned)
            else:
                self._channel.outlet.write(b"".join(returned))
        if tracker is not None:
            self._decided(tracker)

    def _return_large(self, event: Publish, properties: bytes) -> None:
        self._counted.returned += len(event.bodies)
        for body in event.bodies:
            head = writer.returned_head(
                self._channel.number,
                NO_ROUTE,
                "NO_ROUTE",
                where=event.where,
                properties=properties,
                size_bytes=len(body),
            )
            stream = Stream(head, pieces_of(body), None, lambda: None, len(body))
            self._channel.outlet.stream(stream)

    def _whole(self, event: Publish, what: str) -> Publish:
        """Some ways are for bodies only that travel in one piece."""
        size_bytes = max(map(len, event.bodies))
        if size_bytes > WHOLE_BODY_BYTES_MAX:
            raise ChannelError_(
                PRECONDITION_FAILED,
                f"message size {size_bytes} is larger than max size {WHOLE_BODY_BYTES_MAX}"
                f" of {what}",
            )
        return event._replace(bodies=[in_one_piece(body) for body in event.bodies])

    def _reply(self, event: Publish, name: str, properties: bytes) -> None:
        """An answer for a channel that consumes from the pseudo-queue."""
        event = self._whole(event, "direct replies")
        bodies = cast("list[bytes]", event.bodies)
        taken = self._services.direct_replies.deliver(name, event.where, properties, bodies)
        confirm = self.confirms is not None
        self._counted.published(event.bodies, queues=1 if taken else 0, confirm=confirm)
        tracker: ConfirmTracker | None = None
        if self.confirms is not None:
            first = self.confirms.number(len(event.bodies))
            tracker = ConfirmTracker(first, self.confirms.last, 0)
        if taken:
            if tracker is not None:
                self._decided(tracker)
        else:
            self._unroutable(event, properties, tracker)

    # --- out --------------------------------------------------------------------------------------

    def flush(self) -> None:
        """What has come so far leaves for its queues."""
        self._last_route = None
        if not self._batches:
            return
        batches, self._batches = self._batches, {}
        if self.transaction is not None:
            self.transaction.extend(batches.values())
            return
        for batch in batches.values():
            self._send(batch)

    def _send(self, batch: _Batch) -> None:
        self._in_flight.add(batch.size_bytes)
        if batch.parted:
            batch.upload = self._services.publisher.upload(batch.info, batch.bodies)
        behind = self._behind.get(batch.info.queue)
        if behind is not None:
            behind.append(batch)
        elif batch.parted:
            behind = self._behind[batch.info.queue] = deque([batch])
            self._placed.clear()
            self._services.tasks.start(self._send_in_order(behind), name="amqp_upload")
        else:
            self._publish(batch)

    async def _send_in_order(self, waiting: deque[_Batch]) -> None:
        """A large body first, and then what came behind it for the same queue. Parts of several
        are on their way at once.
        """
        queue, publisher = waiting[0].info.queue, self._services.publisher
        while waiting:
            batch = waiting.popleft()
            if batch.upload is None:
                self._publish(batch)
                continue
            uploaded = await batch.upload
            publisher.publish_large(
                batch.info,
                uploaded,
                _spread(batch.metas),
                _spread(batch.attrs),
                batch.size_bytes,
                partial(self._answered, batch),
                len(batch.bodies),
            )
        del self._behind[queue]
        if not self._behind:
            self._placed.set()

    @property
    def uploading(self) -> bool:
        """Some of what was published has not left for its queue yet."""
        return bool(self._behind)

    async def placed(self) -> None:
        """All that was published so far has left for its queues: what is asked of them now comes
        behind it.
        """
        await self._placed.wait()

    def _publish(self, batch: _Batch) -> None:
        self._services.publisher.publish(
            batch.info,
            cast("list[bytes]", batch.bodies),
            batch.metas[0][0] if len(batch.metas) == 1 else _spread(batch.metas),
            batch.attrs[0][0] if len(batch.attrs) == 1 else _spread(batch.attrs),
            batch.size_bytes,
            partial(self._answered, batch),
        )

    def _answered(self, batch: _Batch, refused: Sequence[tuple[int, int]]) -> None:
        self._in_flight.done(batch.size_bytes)
        for tracker, start in batch.trackers:
            if tracker.answered(refused, start):
                self._decided(tracker)

    def _decided(self, tracker: ConfirmTracker) -> None:
        assert self.confirms is not None
        self.confirms.decided(tracker)
        refused = 0 if tracker.refused is None else len(tracker.refused)
        self._counted.confirmed += tracker.last - tracker.first + 1 - refused
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_confirms)

    def _flush_confirms(self) -> None:
        """All that was decided in one iteration of the loop is told at once."""
        self._flush_due = False
        confirms = self.confirms
        if confirms is None or self._channel.closed:
            return
        number, said = self._channel.number, b""
        for tag, multiple, refused in confirms.take():
            said += (writer.nack if refused else writer.ack)(number, tag, multiple=multiple)
        if said:
            self._channel.outlet.write(said)

    # --- transactions -----------------------------------------------------------------------------

    def begin(self) -> None:
        self.transaction = []

    def take_transaction(self) -> tuple[dict[GroupId, list[Command]], list[bytes]]:
        """What was published since the last commit, by group; and the returns it owes."""
        assert self.transaction is not None
        batches, self.transaction = self.transaction, []
        returns, self._returns = self._returns, []
        steps: dict[GroupId, list[Command]] = {}
        for batch in batches:
            info = batch.info
            steps.setdefault(info.group, []).append(
                Enqueue(
                    info.queue,
                    None,
                    0,
                    cast("list[bytes]", batch.bodies),
                    _spread(batch.metas),
                    _spread(batch.attrs),
                )
            )
        return steps, returns

    @property
    def uncommitted(self) -> int:
        return sum(len(batch.bodies) for batch in self.transaction or ())


def _spread(runs: list[tuple[Any, int]]) -> Any:
    """One value for all bodies when they share it, else a list with one a body."""
    first = runs[0][0]
    if len(runs) == 1 or all(value == first for value, _ in runs):
        return first
    return [value for value, count in runs for _ in range(count)]
