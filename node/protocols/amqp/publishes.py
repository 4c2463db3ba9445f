"""The publishing half of a channel: from publishes to the queues that they go to, and back.

All that one read of the socket holds for a queue leaves as one batch. Most messages ask nothing of
the broker but to be routed, by exchange and key: those of one read are taken together, and routing
is asked once for each key. All others are taken one after the other.

Confirms: publishes are numbered from 1 after confirm.select (B24); each is confirmed or refused
exactly once (B27), several at once whenever no older one is open (`multiple`, B25). One that goes
to several queues is decided when all of them have answered (B30).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, cast

from cluster.groups.proposals import WHOLE_BODY_BYTES_MAX
from cluster.machine.arguments import STREAM_CONFIG
from cluster.machine.catalog import QueueInfo
from cluster.machine.checkout import SPAN_MS_MAX
from cluster.machine.commands import Command, Enqueue
from cluster.types import GroupId, QueueId
from node.broker.bodies import NewBody, PartedBody, in_one_piece, pieces_of
from node.broker.ingress import Attrs, check_reply, shown
from node.broker.publishing import Uploaded
from node.broker.stream_attrs import with_subjects
from node.dispatch.in_flight import MESSAGE_OVERHEAD_BYTES
from node.errors import BrokerError, Elsewhere
from node.messages import properties as props
from node.messages.amqp_errors import (
    NO_ROUTE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelError_,
    ConnectionError_,
)
from node.messages.group_keys import with_group_keys
from node.messages.message import exchange_and_key, routing_key_of
from node.protocols.amqp import writer
from node.protocols.amqp.deliveries import Deliveries
from node.protocols.amqp.direct_reply import PREFIX
from node.protocols.amqp.events import Publish
from node.protocols.amqp.refusals import no_exchange
from node.protocols.amqp.writer import Stream, WritingChannel
from node.routing import Route
from node.routing.shards import SHARD_OF

#: Of exchanges and keys it is remembered to which queues they lead.
QUEUES_KNOWN_MAX = 1_000


class ConfirmOutcome(NamedTuple):
    """One basic.ack, or basic.nack when `refused`."""

    tag: int
    multiple: bool
    refused: bool


class Confirms:
    """Of one channel in confirm mode: the outcomes of its publishes, by their tags."""

    def __init__(self) -> None:
        self.last = 0  # tag of the newest publish
        self._low = 0  # all up to here are decided and told
        self._told = bytearray()  # of each beyond: 1 when it is, too
        self._fresh: list[int] = []  # decided since the last `take`
        self._refused: set[int] = set()  # by some queue, and not told yet
        self._shared: dict[int, int] = {}  # of publishes to several queues: those yet to answer

    @property
    def open(self) -> int:
        """Publishes without an outcome."""
        return self._told.count(0)

    def number(self, count: int) -> Sequence[int]:
        """The tags of so many new publishes."""
        first = self.last + 1
        self.last += count
        self._told += bytes(count)
        return range(first, first + count)

    def share(self, tags: Iterable[int], queues: int) -> None:
        """Each of these waits for the answers of so many queues."""
        self._shared.update(dict.fromkeys(tags, queues))

    def answered(self, tags: Sequence[int], refused: Sequence[tuple[int, int]] = ()) -> int:
        """One queue has answered for all of these tags, or they wait for no queue; `refused` are
        ranges of places among them. Returns how many are confirmed by this.
        """
        for first, last in refused:
            self._refused.update(tags[first : last + 1])
        if self._shared:
            tags = [tag for tag in tags if self._is_decided(tag)]
        self._fresh += tags
        return len(tags) - len(self._refused.intersection(tags))

    def _is_decided(self, tag: int) -> bool:
        left = self._shared.pop(tag, 1) - 1
        if left:
            self._shared[tag] = left
        return not left

    def take(self) -> list[ConfirmOutcome]:
        """What to tell the publisher now: refusals, then confirms."""
        fresh, self._fresh = sorted(self._fresh), []
        if not fresh:
            return []
        told, place = self._told, fresh[0] - self._low - 1
        if fresh[-1] - fresh[0] == len(fresh) - 1:  # all that lie between
            told[place : place + len(fresh)] = b"\1" * len(fresh)
        else:
            for tag in fresh:
                told[tag - self._low - 1] = 1
        passed = told.find(0)
        if passed < 0:
            passed = len(told)
        del told[:passed]
        self._low += passed
        outcomes = list[ConfirmOutcome]()
        if self._refused:
            refused = [tag for tag in fresh if tag in self._refused]
            outcomes = [ConfirmOutcome(tag, multiple=False, refused=True) for tag in refused]
            fresh = [tag for tag in fresh if tag not in self._refused]
            self._refused.difference_update(refused)
        # Only what is decided now is named, though `multiple` also covers what was told before.
        below = bisect_right(fresh, self._low)
        if below:
            outcomes.append(ConfirmOutcome(fresh[below - 1], multiple=below > 1, refused=False))
        for tag in fresh[below:]:
            outcomes.append(ConfirmOutcome(tag, multiple=False, refused=False))
        return outcomes


def weigh(metas: Sequence[bytes], bodies: Sequence[NewBody]) -> int:
    """What messages take of the room for those under way, in bytes."""
    if len(bodies) == 1:
        return MESSAGE_OVERHEAD_BYTES + len(metas[0]) + len(bodies[0])
    return MESSAGE_OVERHEAD_BYTES * len(bodies) + sum(map(len, metas)) + sum(map(len, bodies))


class _QueueBatch:
    """What this read publishes to one queue: of each message an item in all lists."""

    __slots__ = ("attrs", "bodies", "info", "metas", "parted", "size_bytes", "tags", "upload")

    def __init__(self, info: QueueInfo) -> None:
        self.info = info
        self.bodies: list[NewBody] = []
        self.metas: list[bytes] = []
        self.attrs: list[Attrs | None] = []  # none if none has any
        self.tags: list[int] = []  # in confirm mode
        self.parted = False  # some body goes into the log in parts
        self.upload: asyncio.Task[Uploaded | str | None] | None = None  # of these parts
        self.size_bytes = 0  # known when it is sent

    def add(
        self,
        metas: Sequence[bytes],
        bodies: Sequence[NewBody],
        tags: Sequence[int],
        attrs: Attrs | None = None,
    ) -> None:
        """`attrs` of each of them."""
        if attrs is not None or self.attrs:
            unset = len(self.bodies) - len(self.attrs)
            self.attrs += [None] * unset + [attrs] * len(bodies)
        self.metas += metas
        self.bodies += bodies
        self.tags += tags


class _Alike(NamedTuple):
    """Messages that differ in their bodies alone."""

    where: bytes
    mandatory: bool
    properties: bytes
    bodies: list[NewBody]


def _alike_in(event: Publish) -> Iterator[_Alike]:
    each = zip(event.metas, event.wheres, event.bodies, strict=True)
    for meta, group in groupby(each, key=itemgetter(0)):
        alike = list(group)
        where = alike[0][1]
        bodies = [body for _, _, body in alike]
        yield _Alike(where, event.mandatory, meta[len(where) :], bodies)


#: The batches that get a message.
_Way = tuple[_QueueBatch, ...]

#: Up to so many messages a queue, of one read, each is put into its batch by itself.
FEW_MAX = 4

#: What is published here is no message: it asks for more time for deliveries of its channel.
EXTEND_EXCHANGE = "amq.quorate.extend"


class PublishingChannel(WritingChannel, Protocol):
    deliveries: Deliveries


class Publishes:
    """What one channel publishes: routed, batched by queue, and confirmed when all its queues have
    answered.
    """

    def __init__(self, channel: PublishingChannel) -> None:
        self.confirms: Confirms | None = None
        self.used = False  # something was published here
        self.transaction: list[_QueueBatch] | None = None  # tx mode: published and not committed
        self._returns: list[bytes] = []  # of the transaction
        self._channel = channel
        self._services = channel.services
        self._counted = channel.services.counters.amqp091
        self._host = channel.host
        self._ingress = channel.services.broker.ingress
        self._batches: dict[QueueId, _QueueBatch] = {}
        # By exchange and key, in this read: nothing can change before the next one.
        self._ways: dict[bytes, _Way] = {}
        # Likewise, until what the catalog says of the virtual host or the user is something else.
        self._queues: dict[bytes, tuple[QueueInfo, ...]] = {}
        self._queues_of: object = None
        self._catalog = channel.services.broker.ingress.catalog
        self._looked_at = -1  # how much the catalog had applied then
        # Large bodies on their way into the log and what is behind them; by queue, so that order is
        # kept.
        self._behind: dict[QueueId, deque[_QueueBatch]] = {}
        self._placed = asyncio.Event()  # all of it has left for its queues
        self._placed.set()
        self._in_flight = channel.host.in_flight
        self._confirms_due = False

    # --- in ---------------------------------------------------------------------------------------

    def receive(self, event: Publish) -> Coroutine[Any, Any, None] | None:
        """Done at once, unless this node's copy of the catalog or its clock must be right first."""
        if event.immediate:
            raise ConnectionError_(NOT_IMPLEMENTED, "immediate=true")
        # Does anything beside the bodies concern the broker but where they go?
        asks = (
            event.asks & ~props.HEADERS != 0
            or (event.asks != 0 and self._ingress.headers_ask(event.metas))
            or type(event.bodies[0]) is PartedBody
            or self._host.vhost in self._ingress.full_vhosts
        )
        ways = None if asks else self._find_ways(event)
        if ways is not None:
            self._take_all(event, ways)
            return None
        runs = _alike_in(event)
        for run in runs:
            if not self._take(run):
                return self._when_up_to_date(chain([run], runs))
        return None

    # --- those that ask nothing, all at once ------------------------------------------------------

    def _find_ways(self, event: Publish) -> dict[bytes, _Way] | None:
        """None: some must be looked at one by one, or are refused."""
        ways = self._ways  # of this read
        if not ways and (
            self._catalog.applied != self._looked_at or len(self._queues) > QUEUES_KNOWN_MAX
        ):
            self._looked_at = self._catalog.applied
            version = self._ingress.version(self._host.access)
            if version != self._queues_of or len(self._queues) > QUEUES_KNOWN_MAX:
                self._queues.clear()
                self._queues_of = version
        for where in dict.fromkeys(event.wheres):
            if where in ways:
                continue
            queues = self._queues.get(where)
            if queues is None or (where[0] and self._ingress.cut_off()):
                queues = self._find_queues(where)
                if queues is None:
                    return None
            ways[where] = tuple(map(self._batch, queues))
        return ways

    def _find_queues(self, where: bytes) -> tuple[QueueInfo, ...] | None:
        exchange, key = exchange_and_key(where)
        access, ingress = self._host.access, self._ingress
        if exchange == "" and key.startswith(PREFIX):
            return None
        try:
            access.check("write", "exchange", exchange)
            route = ingress.route(access, exchange, key, props.NONE)
        except BrokerError:
            return None  # said when it is the message's turn
        if route is None or route.beyond_key or ingress.in_doubt(exchange, route):
            return None
        if any(map(ingress.keeps_duplicates_out, route.queues)):
            return None
        if not route.by_topic:  # else permissions on keys count, too
            self._queues[where] = route.queues
        return route.queues

    def _take_all(self, event: Publish, ways: Mapping[bytes, _Way]) -> None:
        _, _, _, _, wheres, metas, bodies = event
        self.used = True
        confirms = self.confirms
        tags = () if confirms is None else confirms.number(len(bodies))
        each = set(ways.values())
        if len(each) == 1:
            [way] = each
            for batch in way:
                batch.add(metas, bodies, tags)
            routed = len(bodies) * len(way)
            if confirms is not None and len(way) > 1:
                confirms.share(tags, len(way))
        elif len(each) * FEW_MAX > len(bodies) and max(map(len, each)) == 1:
            routed = len(bodies)
            for where, meta, body in zip(wheres, metas, bodies, strict=True):
                [batch] = ways[where]
                batch.metas.append(meta)
                batch.bodies.append(body)
                if batch.attrs:
                    batch.attrs.append(None)
            if tags:
                for where, tag in zip(wheres, tags, strict=True):
                    ways[where][0].tags.append(tag)
        else:
            routed = 0
            chosen: dict[_Way, list[int]] = {way: [] for way in ways.values()}
            choose = {where: chosen[way].append for where, way in ways.items()}
            for place, where in enumerate(wheres):
                choose[where](place)
            places_of: dict[_QueueBatch, list[int]] = {}
            for way, places in chosen.items():
                for batch in way:
                    places_of[batch] = sorted(places_of.get(batch, []) + places)
            for batch, places in places_of.items():
                batch.add(
                    [metas[place] for place in places],
                    [bodies[place] for place in places],
                    [tags[place] for place in places] if tags else (),
                )
            for way, places in chosen.items():
                routed += len(places) * len(way)
                if confirms is not None and len(way) > 1:
                    confirms.share([tags[place] for place in places], len(way))
        self._counted.published(bodies, routed=routed, confirm=confirms is not None)

    # --- the others, one after the other ----------------------------------------------------------

    async def _when_up_to_date(self, runs: Iterable[_Alike]) -> None:
        """A copy that lags must not lose what is to be confirmed, nor miss an exchange."""
        up_to_date = False
        for run in runs:
            if not self._take(run, up_to_date=up_to_date):
                self.flush()  # what came before must not wait for this
                await self._channel.patiently(self._catch_up)
                up_to_date = True  # for all: they were here when it began
                self._take(run, up_to_date=True)

    async def _catch_up(self) -> None:
        await self._ingress.know_time()
        if not await self._services.broker.catch_up():
            raise Elsewhere(None)

    def _take(self, run: _Alike, *, up_to_date: bool = False) -> bool:
        """False: this node's copy of the catalog, or its clock, must be right first."""
        exchange, key = exchange_and_key(run.where)
        access, properties = self._host.access, run.properties
        if exchange == EXTEND_EXCHANGE:
            self._extend(run, key)
            return True
        access.check("write", "exchange", exchange)
        attrs: Attrs | None = None
        if props.asks(properties):
            if not up_to_date and self._ingress.time_in_doubt(properties):
                return False
            reply_name = self._channel.deliveries.reply_name
            attrs, properties = self._ingress.interpret(access, properties, reply_name)
            run = run._replace(properties=properties)
        if exchange == "" and key.startswith(PREFIX):
            check_reply(attrs)
            self._reply(run, key)
            return True
        route = self._ingress.route(access, exchange, key, properties, attrs)
        careful = self.confirms is not None or self.transaction is not None or run.mandatory
        if not up_to_date and self._ingress.in_doubt(exchange, route, careful=careful):
            return False
        if route is None:
            raise no_exchange(self._host.vhost, exchange)
        self._routed(run, route, attrs)
        return True

    def _routed(self, run: _Alike, route: Route, attrs: Attrs | None) -> None:
        count = len(run.bodies)
        if route.by_chance and count > 1:
            self._each(run, attrs)
            return
        if self.transaction is not None:
            run = self._whole(run, "a message in a transaction")
        self.used = True
        tags = self._number(run, queues=len(route.queues))
        if b"BCC" in run.properties:
            run = run._replace(properties=shown(run.properties))
        if not route.queues:
            self._unroutable(run, tags)
            return
        full = self._ingress.full_vhosts.get(self._host.vhost)
        if full is not None:
            self._refuse(tags, full)
            return
        if self.confirms is not None and len(route.queues) > 1:
            self.confirms.share(tags, len(route.queues))
        each = [attrs] * len(route.queues)
        if props.may_have_id(run.properties):
            each = [
                self._ingress.attrs_for_queue(info, attrs, run.properties) for info in route.queues
            ]
        metas = [run.where + run.properties] * count
        for info, own in zip(route.queues, each, strict=True):
            batch = self._batch(info)
            batch.add(metas, run.bodies, tags, own)
            batch.parted = batch.parted or type(run.bodies[0]) is PartedBody

    def _each(self, run: _Alike, attrs: Attrs | None) -> None:
        """One by one: where a message goes is chosen by chance."""
        exchange, key = exchange_and_key(run.where)
        for body in run.bodies:
            route = self._ingress.route(self._host.access, exchange, key, run.properties, attrs)
            assert route is not None, "nothing changes in between"
            self._routed(run._replace(bodies=[body]), route, attrs)

    def _number(self, run: _Alike, *, queues: int) -> Sequence[int]:
        """Counts them; in confirm mode numbers them, and returns their tags."""
        confirms, count = self.confirms, len(run.bodies)
        self._counted.published(run.bodies, routed=queues * count, confirm=confirms is not None)
        return () if confirms is None else confirms.number(count)

    def _batch(self, info: QueueInfo) -> _QueueBatch:
        batch = self._batches.get(info.queue)
        if batch is None:
            batch = self._batches[info.queue] = _QueueBatch(info)
        return batch

    def _refuse(self, tags: Sequence[int], reason: str) -> None:
        """None of them is taken. Who asked for no confirms would not learn of it otherwise."""
        if self.confirms is None:
            raise ChannelError_(PRECONDITION_FAILED, reason)
        self._decide(tags, [(0, len(tags) - 1)])

    def _unroutable(self, run: _Alike, tags: Sequence[int]) -> None:
        """Returned if mandatory (B29), before it is confirmed; confirmed in any case (B28)."""
        if not run.mandatory:
            self._counted.dropped += len(run.bodies)
        elif type(run.bodies[0]) is PartedBody:
            self._return_large(run)
        else:
            self._counted.returned += len(run.bodies)
            returned = [
                writer.returned(
                    self._channel.number,
                    NO_ROUTE,
                    "NO_ROUTE",
                    where=run.where,
                    properties=run.properties,
                    body=cast("bytes", body),
                    frame_bytes_max=self._host.frame_max,
                )
                for body in run.bodies
            ]
            if self.transaction is not None:
                self._returns.extend(returned)
            else:
                self._channel.outlet.write(b"".join(returned))
        self._decide(tags)

    def _return_large(self, run: _Alike) -> None:
        self._counted.returned += len(run.bodies)
        for body in run.bodies:
            head = writer.returned_head(
                self._channel.number,
                NO_ROUTE,
                "NO_ROUTE",
                where=run.where,
                properties=run.properties,
                size_bytes=len(body),
            )
            stream = Stream(head, pieces_of(body), None, lambda: None, len(body))
            self._channel.outlet.stream(stream)

    def _whole(self, run: _Alike, what: str) -> _Alike:
        """Some ways are for bodies only that travel in one piece."""
        size_bytes = max(map(len, run.bodies))
        if size_bytes > WHOLE_BODY_BYTES_MAX:
            raise ChannelError_(
                PRECONDITION_FAILED,
                f"message size {size_bytes} is larger than max size {WHOLE_BODY_BYTES_MAX}"
                f" of {what}",
            )
        return run._replace(bodies=[in_one_piece(body) for body in run.bodies])

    def _reply(self, run: _Alike, name: str) -> None:
        """An answer for a channel that consumes from the pseudo-queue."""
        run = self._whole(run, "direct replies")
        bodies = cast("list[bytes]", run.bodies)
        taken = self._services.direct_replies.deliver(name, run.where, run.properties, bodies)
        tags = self._number(run, queues=1 if taken else 0)
        if taken:
            self._decide(tags)
        else:
            self._unroutable(run, tags)

    def _extend(self, run: _Alike, key: str) -> None:
        """Each message of it asks for more time, for a delivery of this channel or for all. It is
        refused in confirm mode alone: to ask for a delivery that was just acked is no harm.
        """
        tags = self._number(run, queues=0)
        expiration = props.parse(run.properties).expiration
        tag = int(key) if key.isascii() and key.isdecimal() else None
        if (key and tag is None) or (expiration is not None and not _is_span(expiration)):
            raise ChannelError_(
                PRECONDITION_FAILED,
                f"a publish to {EXTEND_EXCHANGE} has a delivery tag as its routing key, or none for"
                " all, and as its expiration how many ms from now, or none for the consumer's"
                f" timeout: not {key[:40]!r}, {(expiration or '')[:40]!r}",
            )

        def done(extended: bool) -> None:
            if not self._channel.closed:
                self._decide(tags, () if extended else [(0, len(tags) - 1)])

        timeout_ms = None if expiration is None else int(expiration)
        self._channel.deliveries.settles.extend(tag, timeout_ms, done)

    # --- out --------------------------------------------------------------------------------------

    def flush(self) -> None:
        """What has come so far leaves for its queues."""
        self._ways.clear()
        if not self._batches:
            return
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            if not batch.bodies:
                continue
            if STREAM_CONFIG in batch.info.arguments:
                keys = map(routing_key_of, batch.metas)
                batch.attrs = with_subjects(batch.info, keys, batch.attrs)
            if self.transaction is None:
                self._send(batch)
            else:
                self.transaction.append(batch)

    def _send(self, batch: _QueueBatch) -> None:
        batch.size_bytes = weigh(batch.metas, batch.bodies)
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

    async def _send_in_order(self, waiting: deque[_QueueBatch]) -> None:
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
                _one_or_each(batch.metas),
                _one_or_each(batch.attrs),
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

    def _publish(self, batch: _QueueBatch) -> None:
        self._services.publisher.publish(
            batch.info,
            cast("list[bytes]", batch.bodies),
            _one_or_each(batch.metas),
            _one_or_each(batch.attrs) if batch.attrs else None,
            batch.size_bytes,
            partial(self._answered, batch),
        )

    def _answered(self, batch: _QueueBatch, refused: Sequence[tuple[int, int]]) -> None:
        self._in_flight.done(batch.size_bytes)
        self._decide(batch.tags, refused)

    def _decide(self, tags: Sequence[int], refused: Sequence[tuple[int, int]] = ()) -> None:
        if self.confirms is None:
            return
        self._counted.confirmed += self.confirms.answered(tags, refused)
        if not self._confirms_due:
            self._confirms_due = True
            asyncio.get_running_loop().call_soon(self._flush_confirms)

    def _flush_confirms(self) -> None:
        """All that was decided in one iteration of the loop is told at once."""
        self._confirms_due = False
        confirms = self.confirms
        if confirms is None or self._channel.closed:
            return
        number = self._channel.number
        said = b""
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
            info, bodies = batch.info, cast("list[bytes]", batch.bodies)
            metas, attrs = _one_or_each(batch.metas), _one_or_each(batch.attrs)
            attrs = with_group_keys(info.arguments, metas, attrs, len(bodies))
            steps.setdefault(info.group, []).append(
                Enqueue(info.queue, None, 0, bodies, metas, attrs)
            )
        return steps, returns

    async def removed_shard(self) -> QueueInfo | None:
        """One to which the transaction has published, and that is removed since: as the part of
        another group than the one that decides, this would be lost.
        """
        shards = [b.info for b in self.transaction or () if SHARD_OF in b.info.arguments]
        if shards:
            await self._channel.patiently(self._catch_up)
        catalog = self._services.broker.cluster.catalog_machine
        for each in shards:
            found = catalog.queue(each.vhost, each.name)
            if found is None or found.queue != each.queue:
                return each
        return None

    @property
    def uncommitted(self) -> int:
        return sum(len(batch.bodies) for batch in self.transaction or ())


def _is_span(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) <= SPAN_MS_MAX


def _one_or_each(values: list[Any]) -> Any:
    """One value for all bodies when they share it, else the list; None if there is none."""
    if not values:
        return None
    first = values[0]
    if len(values) == 1:
        return first
    return first if first == values[-1] and values.count(first) == len(values) else values
