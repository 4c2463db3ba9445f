"""The consuming half of a channel: consumers, deliveries and their tags, settles, gets.

It is the transport of a `ClientSession`: what the broker tells about consumers comes in here, and
leaves as frames. Tags grow by one from 1 and are the channel's own (B01). Deliveries come in runs
of consecutive positions of one queue, so what is unacked is one entry per run, however many
messages it has.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import structlog
from pamqp import commands

from cluster.groups.outcome import Outcome
from cluster.machine import replies as codes
from cluster.machine.arguments import GROUP_KEY
from cluster.machine.catalog import QueueInfo
from cluster.machine.checks import NAME_BYTES_MAX
from cluster.machine.commands import Command, Discard, Extend, Return, SetCredit, Settle
from cluster.machine.runs import joined
from cluster.types import ConsumerKey, GroupId, LargeBody, QueueId
from node.broker.broker import Broker
from node.broker.stream_reads import Start, StreamGone, StreamMessage, StreamReader, Wanted
from node.clients.client_session import ClientSession, Subscription
from node.dispatch import outgoing
from node.dispatch.outgoing import Delivery, MessageBatch, Outgoing
from node.dispatch.progress import WrittenPiece
from node.errors import OutcomeUnknown, Refused
from node.messages.amqp_errors import (
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    PRECONDITION_FAILED,
    ChannelError_,
    ConnectionError_,
)
from node.messages.attributes import POSITION
from node.messages.message import on_wire, short
from node.metrics.client_counters import ProtocolCounters
from node.protocols.amqp import writer
from node.protocols.amqp.deaths import marked, placed
from node.protocols.amqp.stream_consumers import StreamFeed, stream_on_wire
from node.protocols.amqp.writer import Stream, WritingChannel
from node.routing.shards import shards_of

Verdict = Literal["ack", "requeue", "discard"]

#: The credit of a consumer without a limit, when it is asked whether its acks may wait.
LATE_CREDIT = 512

NO_KEY = ConsumerKey(0)
SINGLE_ACTIVE = "x-single-active-consumer"


@dataclass(slots=True, eq=False)
class ChannelConsumer:
    """One that consumes, or a get (no tag): where its deliveries are settled."""

    tag: str
    info: QueueInfo
    key: ConsumerKey = NO_KEY  # until the broker has registered it
    no_ack: bool = False
    exclusive: bool = False
    priority: int = 0
    prefetch: int = 0
    credit: int = 0  # what it may hold; 0: no limit
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cancelled: bool = False
    timeout_ms: int | None = None
    cancel_on_failover: bool = False
    silent: bool = False  # the client wants no consume-ok
    feed: StreamFeed | None = None  # of a stream
    family: Family | None = None  # its queue is split
    name: str = ""  # of the queue, as the client knows it
    fenced: bool = field(init=False)  # its deliveries carry their tokens
    placed: bool = field(init=False)  # they say which message of its queue each is
    wire_tag: bytes = field(init=False)  # as a short string

    def __post_init__(self) -> None:
        self.fenced = self.info.arguments.get(SINGLE_ACTIVE) is True
        self.placed = self.arguments.get(POSITION) is True
        self.wire_tag = short(self.tag)
        self.name = self.name or self.info.name

    @property
    def may_ack_late(self) -> bool:
        """While it has room. In a split queue its members share a prefetch, and the next message of
        a group waits for the ack of the one before.
        """
        return self.family is None and GROUP_KEY not in self.info.arguments

    @property
    def is_member(self) -> bool:
        """It serves a shard for the consumer that the client knows."""
        return self.name != self.info.name


@dataclass(slots=True, eq=False)
class Family:
    """The consumer of a split queue: under one tag, and with one prefetch, one of each shard."""

    prefetch: int  # of all of them; 0: no limit
    open: int  # delivered to the client, and not settled
    members: dict[QueueId, ChannelConsumer] = field(default_factory=dict[QueueId, ChannelConsumer])
    held: deque[_Held] = field(default_factory=deque["_Held"])
    following: bool = False  # members come or go


def wire_runs_for(
    consumer: ChannelConsumer, batch: MessageBatch
) -> list[tuple[int, int, bytes, bytes]]:
    """As `wire_runs`, as this consumer is to see them."""
    info = consumer.info
    found = wire_runs(batch, consumer.name, fenced=consumer.fenced)
    if not consumer.placed:
        return found
    each: list[tuple[int, int, bytes, bytes]] = []
    for start, end, where, properties in found:
        for at in range(start, end):
            shown = placed(properties, f"{info.queue}.{batch.first + at}")
            each.append((at, at + 1, where, shown))
    return each


def wire_runs(
    batch: MessageBatch, queue: str, *, fenced: bool = False
) -> list[tuple[int, int, bytes, bytes]]:
    """(start, end, where, properties) of neighbours that look the same to a client."""
    count = len(batch.bodies)
    metas = _metas(batch)
    plain = not batch.deaths and not batch.delivery_count and not fenced
    token = batch.token if fenced else None
    found: list[tuple[int, int, bytes, bytes]] = []
    start = 0
    while start < count:
        end = start + 1 if metas is not None else count
        if metas is not None:
            while end < count and metas[end] == metas[start]:
                end += 1
        where, properties = on_wire(batch.meta if metas is None else metas[start], queue)
        if not plain:
            where, properties = marked(where, properties, batch.deaths, batch.delivery_count, token)
        found.append((start, end, where, properties))
        start = end
    return found


def cut(batch: MessageBatch, count: int) -> tuple[MessageBatch, MessageBatch]:
    metas = _metas(batch)
    first = batch._replace(
        bodies=batch.bodies[:count], meta=batch.meta if metas is None else metas[:count]
    )
    rest = batch._replace(
        first=batch.first + count,
        bodies=batch.bodies[count:],
        meta=batch.meta if metas is None else metas[count:],
    )
    return first, rest


def _metas(batch: MessageBatch) -> list[Any] | None:
    """One per body, or None: all have the same."""
    meta: Any = batch.meta
    return cast("list[Any]", meta) if type(meta) is list else None


SettleStep = Settle | Return | Discard
C = TypeVar("C")


class UnknownTag(Exception):
    """No such delivery is open on this channel (B02)."""

    def __init__(self, tag: int) -> None:
        super().__init__(f"unknown delivery tag {tag}")
        self.tag = tag


@dataclass(slots=True)
class _TagRun(Generic[C]):
    """Deliveries `first` to `last`, which are the positions from `position` on of one consumer."""

    first: int
    last: int
    consumer: C
    position: int
    token: int  # of the decision that delivered them
    at_s: float = 0.0  # when they were sent


class Taken(NamedTuple, Generic[C]):
    """Positions of one consumer, both ends included, and the tag that the first had."""

    consumer: C
    first: int
    last: int
    tag: int
    token: int
    at_s: float = 0.0


class Unacked(Generic[C]):
    """What a channel was sent and has not settled."""

    def __init__(self) -> None:
        self.count = 0
        self._runs: list[_TagRun[C]] = []  # ascending, not overlapping
        self._next_tag = 1

    def number(self, count: int) -> int:
        """Tags for deliveries that need no ack: the first of them."""
        first = self._next_tag
        self._next_tag += count
        return first

    def add(self, consumer: C, position: int, count: int, token: int, at_s: float = 0.0) -> int:
        """Deliveries that wait for an ack; the first one's tag."""
        first = self._next_tag
        self._next_tag += count
        self._runs.append(_TagRun(first, first + count - 1, consumer, position, token, at_s))
        self.count += count
        return first

    def count_of(self, consumer: C) -> int:
        return sum(run.last - run.first + 1 for run in self._runs if run.consumer is consumer)

    def take_up_to(self, tag: int) -> list[Taken[C]]:
        """`multiple`: all open ones up to and including `tag`; 0: all (B06).

        A tag that was never given, or under which nothing is open, is unknown.
        """
        if tag == 0:
            tag = self._next_tag - 1
        elif tag >= self._next_tag or not self._runs or self._runs[0].first > tag:
            raise UnknownTag(tag)
        taken: list[Taken[C]] = []
        passed = 0
        for run in self._runs:
            if run.first > tag:
                break
            last = min(run.last, tag)
            taken.append(_part(run, run.first, last))
            self.count -= last - run.first + 1
            if last < run.last:
                run.position += last + 1 - run.first
                run.first = last + 1
                break
            passed += 1
        del self._runs[:passed]
        return taken

    def take(self, first: int, last: int) -> tuple[list[Taken[C]], int | None]:
        """These very tags, up to the first that is not open: that one comes second, or None."""
        taken: list[Taken[C]] = []
        unknown: int | None = None
        tag = first
        while tag <= last:
            part = self._take_from(tag, last)
            if part is None:
                unknown = tag
                break
            taken.append(part)
            count = part.last - part.first + 1
            self.count -= count
            tag += count
        return taken, unknown

    def _take_from(self, tag: int, last: int) -> Taken[C] | None:
        """The open ones from `tag` on, of one run."""
        runs = self._runs
        at = 0
        if not runs or not runs[0].first <= tag <= runs[0].last:
            at = bisect_right(runs, tag, key=_first) - 1
            if at < 0 or tag > runs[at].last:
                return None
        run = runs[at]
        last = min(last, run.last)
        part = _part(run, tag, last)
        if last < run.last:
            position = run.position + last + 1 - run.first
            rest = _TagRun(last + 1, run.last, run.consumer, position, run.token, run.at_s)
            if tag == run.first:
                runs[at] = rest
            else:
                runs.insert(at + 1, rest)
                run.last = tag - 1
        elif tag == run.first:
            del runs[at]
        else:
            run.last = tag - 1
        return part

    def look(self, tag: int | None) -> list[Taken[C]]:
        """The open one under this tag, which stays open, or none; None: all."""
        if tag is None:
            return [_part(run, run.first, run.last) for run in self._runs]
        at = bisect_right(self._runs, tag, key=_first) - 1
        if at < 0 or tag > self._runs[at].last:
            return []
        return [_part(self._runs[at], tag, tag)]

    def put_back(self, taken: list[Taken[C]]) -> None:
        """A transaction was rolled back: these are open again, under their tags."""
        for part in taken:
            count = part.last - part.first + 1
            last = part.tag + count - 1
            self._runs.append(
                _TagRun(part.tag, last, part.consumer, part.first, part.token, part.at_s)
            )
            self.count += count
        self._runs.sort(key=_first)


class ChannelSettles:
    """What one channel acks, requeues or discards: tags become ranges of positions, one command a
    consumer.
    """

    def __init__(self, broker: Broker, counted: ProtocolCounters) -> None:
        self.unacked: Unacked[ChannelConsumer] = Unacked()
        self.open = 0  # told to a leader, not decided
        self._settle_retry = broker.settle_retry
        self._acked = broker.counts.latencies.acked
        self._counted = counted
        self._transaction: list[tuple[Verdict, list[Taken[ChannelConsumer]]]] | None = None
        self._all_decided: asyncio.Event | None = None
        self._late: list[Taken[ChannelConsumer]] = []  # acked, not proposed yet
        self._late_count = 0

    def up_to(self, verdict: Verdict, tag: int) -> None:
        """All open ones up to the tag; 0: all."""
        try:
            taken = self.unacked.take_up_to(tag)
        except UnknownTag as error:
            raise ChannelError_(PRECONDITION_FAILED, str(error)) from error
        self._settle(verdict, taken)

    def each(self, verdict: Verdict, first: int, last: int) -> None:
        """These very tags; those before the first unknown one are settled (B02)."""
        taken, unknown = self.unacked.take(first, last)
        self._settle(verdict, taken)
        if unknown is not None:
            raise ChannelError_(PRECONDITION_FAILED, str(UnknownTag(unknown)))

    def recover(self) -> None:
        taken = self.unacked.take_up_to(0)
        _count_open(taken, -1)
        for group, step in steps_of("requeue", _settle_streams(taken), failed=False):
            self.propose(group, step)

    def extend(self, tag: int | None, timeout_ms: int | None, done: Callable[[bool], None]) -> None:
        """The time of the open one under this tag, None: of all, begins anew. `done`: was it so?"""
        taken = self.unacked.look(tag)
        by_consumer: dict[ChannelConsumer, list[tuple[int, int]]] = {}
        for part in taken:
            if part.consumer.feed is None:  # a stream waits for as long as one likes
                by_consumer.setdefault(part.consumer, []).append((part.first, part.last))
        if not by_consumer:
            done(bool(taken) or tag is None)
            return
        outcomes: list[bool] = []

        def decided(outcome: Outcome) -> None:
            self._decided(outcome)
            outcomes.append(outcome.kind == "ok")
            if len(outcomes) == len(by_consumer):
                done(all(outcomes))

        for consumer, ranges in by_consumer.items():
            info = consumer.info
            command = Extend(info.queue, consumer.key, joined(sorted(ranges)), timeout_ms)
            self.open += 1
            self._settle_retry.settle(info.group, command, decided, by_client=False)

    def _settle(self, verdict: Verdict, taken: list[Taken[ChannelConsumer]]) -> None:
        _count_open(taken, -1)
        if self._transaction is not None:
            self._transaction.append((verdict, taken))
            return
        self._count(verdict, taken)
        settled = _settle_streams(taken)
        if not settled or (verdict == "ack" and self._may_wait(settled)):
            return
        self.flush()
        for group, step in steps_of(verdict, settled):
            self.propose(group, step)

    def _may_wait(self, acked: Sequence[Taken[ChannelConsumer]]) -> bool:
        """Keeps them for a moment, to propose them with others, if the channel holds at most half
        of what each of their consumers may: then no message that is ready waits for them.
        """
        count = self._late_count + sum(part.last - part.first + 1 for part in acked)
        open_max = 2 * (self.unacked.count + count)
        for part in acked:
            consumer = part.consumer
            if not consumer.may_ack_late or open_max > (consumer.credit or LATE_CREDIT):
                return False
        if not self._late:
            self._settle_retry.soon(self.flush)
        self._late += acked
        self._late_count = count
        return True

    def flush(self) -> None:
        """Propose what was kept."""
        late, self._late, self._late_count = self._late, [], 0
        for group, step in steps_of("ack", late):
            self.propose(group, step)

    def _count(self, verdict: Verdict, taken: list[Taken[ChannelConsumer]]) -> None:
        if verdict == "ack":
            now_s = asyncio.get_running_loop().time()
            for part in taken:
                count = part.last - part.first + 1
                self._counted.of(part.consumer.info).acknowledged += count
                self._acked.add(now_s - part.at_s, count)

    # --- to the leaders ---------------------------------------------------------------------------

    def propose(
        self, group: GroupId, command: SettleStep | SetCredit | Extend, *, by_client: bool = True
    ) -> None:
        self.open += 1
        self._settle_retry.settle(group, command, self._decided, by_client=by_client)

    def _decided(self, _: Outcome) -> None:
        self.open -= 1
        if not self.open and self._all_decided is not None:
            self._all_decided.set()

    async def all_decided(self) -> None:
        self._all_decided = asyncio.Event()
        if self.open:
            await self._all_decided.wait()

    # --- transactions -----------------------------------------------------------------------------

    def begin(self) -> None:
        self._transaction = []

    @property
    def uncommitted(self) -> int:
        return sum(len(taken) for _, taken in self._transaction or ())

    def take_transaction(self) -> dict[GroupId, list[Command]]:
        """What was settled since the last commit, by group."""
        settled, self._transaction = self._transaction or [], []
        steps: dict[GroupId, list[Command]] = {}
        for verdict, taken in settled:
            self._count(verdict, taken)
            for group, step in steps_of(verdict, _settle_streams(taken)):
                steps.setdefault(group, []).append(step)
        return steps

    def roll_back(self) -> None:
        settled, self._transaction = self._transaction or [], []
        for _, taken in settled:
            self.unacked.put_back(taken)
            _count_open(taken, 1)


def steps_of(
    verdict: Verdict, taken: Sequence[Taken[ChannelConsumer]], *, failed: bool = True
) -> list[tuple[GroupId, SettleStep]]:
    """One per consumer. `failed`: what is requeued counts as a failed delivery (B09)."""
    ranges: dict[ChannelConsumer, list[tuple[int, int]]] = {}
    tokens: dict[ChannelConsumer, int] = {}
    for part in taken:
        ranges.setdefault(part.consumer, []).append((part.first, part.last))
        tokens[part.consumer] = max(part.token, tokens.get(part.consumer, 0))
    found: list[tuple[GroupId, SettleStep]] = []
    for consumer, of_consumer in ranges.items():
        info, key, positions = consumer.info, consumer.key, joined(sorted(of_consumer))
        match verdict:
            case "ack":
                step: SettleStep = Settle(info.queue, key, positions, tokens[consumer])
            case "requeue":
                step = Return(info.queue, key, positions, failed, None, tokens[consumer])
            case "discard":
                step = Discard(info.queue, key, positions, tokens[consumer])
        found.append((info.group, step))
    return found


def _settle_streams(
    taken: Sequence[Taken[ChannelConsumer]],
) -> list[Taken[ChannelConsumer]]:
    """Returns those of queues, which their leaders settle. A stream keeps its messages whatever
    becomes of a delivery: its consumer has room again, here and now.
    """
    found: list[Taken[ChannelConsumer]] = []
    for part in taken:
        feed = part.consumer.feed
        if feed is None:
            found.append(part)
        else:
            feed.settled(part.last - part.first + 1)
    return found


def _count_open(taken: Sequence[Taken[ChannelConsumer]], sign: int) -> None:
    """Of what clients have open of split queues: so many more (1) or fewer (-1)."""
    for part in taken:
        family = part.consumer.family
        if family is not None:
            family.open += sign * (part.last - part.first + 1)


def _first(run: _TagRun[C]) -> int:
    return run.first


def _part(run: _TagRun[C], first: int, last: int) -> Taken[C]:
    position = run.position + first - run.first
    return Taken(run.consumer, position, position + last - first, first, run.token, run.at_s)


log = structlog.get_logger(__name__)

#: What may be on its way to a consumer that settles by itself: it needs no window, but a slow one
#: must slow its queue down, not fill memory.
NO_ACK_CREDIT = 2_000
#: What a prefetch held back for less is sent with what is left of its time to be settled.
HELD_S_MIN = 1.0
#: What it holds back gets new time when so many parts of it have passed.
HELD_PARTS = 3


@dataclass(slots=True, eq=False)
class _Held:
    """A delivery that the channel's prefetch has no room for, yet; `frame` when it is its last."""

    consumer: ChannelConsumer
    batch: MessageBatch
    frame: Delivery | None
    since_s: float  # in loop time, from when on its consumer's time to settle it runs


class Deliveries:
    """One channel's consumers: subscribes them, writes their deliveries, takes their acks."""

    def __init__(self, channel: WritingChannel) -> None:
        self.consumers: dict[str, ChannelConsumer] = {}
        self.settles = ChannelSettles(channel.services.broker, channel.services.counters.amqp091)
        self.prefetch = 0  # of each new consumer; 0: no limit
        self.global_prefetch = 0  # of the channel
        self.reply_name: str | None = None  # set while it consumes from the pseudo-queue
        self.reply_tag = ""
        self._channel = channel
        self._host = channel.host
        self._services = channel.services
        self._counted = channel.services.counters.amqp091
        self._by_key: dict[tuple[str, ConsumerKey], ChannelConsumer] = {}
        self._subscribing: dict[int, ChannelConsumer] = {}
        self._getting: dict[int, ChannelConsumer] = {}
        #: Of the last get that was answered; they come one after the other.
        self._got_last: dict[GroupId, ConsumerKey] = {}
        self._held: deque[_Held] = deque()
        self._held_timer: asyncio.TimerHandle | None = None
        self._families: list[Family] = []
        self._untaken: list[Delivery] = []
        self._requests = 0
        self._cancels = 0
        self._notices: list[str] | None = None  # cancelled meanwhile, to be told later
        self._client: ClientSession | None = None

    @property
    def client(self) -> ClientSession:
        """The broker's end; a channel that only publishes needs none."""
        if self._client is None:
            if self._channel.closed:  # made now, it would stay: nobody ends it
                raise Refused("closed", "the channel is closed")
            self._client, _ = self._services.sessions.connect(
                self,
                session=None,
                resume_ms=0,
                vhost=self._host.vhost,
                forward=True,
                counted=False,
            )
            self._client.on_leader_lost = self._leader_lost
        return self._client

    @property
    def session(self) -> str | None:
        return None if self._client is None else self._client.session

    # --- the broker's words -----------------------------------------------------------------------

    def send(self, frame: Outgoing) -> None:
        if self._channel.closed:
            return
        match frame:
            case Delivery():
                self._delivery(frame)
            case outgoing.SubscribeAnswer(request, key, _):
                consumer = self._subscribing.pop(request)
                consumer.key = key
                self._by_key[consumer.info.name, key] = consumer
                if not consumer.silent:
                    self._channel.send_method(commands.Basic.ConsumeOk(consumer.tag))
            case outgoing.GetAnswer(request, _, key, ready, batches):
                self._got(self._getting.pop(request), key, ready, batches)
            case outgoing.Ended(queue, key, reason):
                self._ended(queue, key, reason)
            case _:
                pass  # answers to requests that are awaited, and who is active

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self, reason: str, detail: str) -> None:
        """The broker ended the session. A node that stops says so to whole connections."""
        if reason == "stopping":
            return
        self._client = None
        if "consumer_timeout" in detail:
            error = ChannelError_(
                PRECONDITION_FAILED,
                f"delivery acknowledgement on channel {self._channel.number} timed out."
                f" Timeout value used: {self._timeout_ms()} ms. This timeout value can be"
                " configured, see consumers doc guide to learn more",
            )
            log.warning("consumer_timeout", connection=self._host.name, reason=error.text)
            self._channel.fail(error)
        else:
            self._host.connection_error(ConnectionError_(CONNECTION_FORCED, detail))

    def _timeout_ms(self) -> int | None:
        """The shortest that applied here: which delivery it was, only its queue's leader knows."""
        known = [self._timeout_of(consumer) for consumer in self.consumers.values()]
        return min((timeout for timeout in known if timeout), default=None)

    def _timeout_of(self, consumer: ChannelConsumer) -> int | None:
        if consumer.timeout_ms is not None:
            return consumer.timeout_ms
        catalog = self._services.broker.cluster.catalog_machine
        config = catalog.config_of(consumer.info.queue)
        return None if config is None else config.consumer_timeout_ms

    # --- deliveries -------------------------------------------------------------------------------

    def _delivery(self, frame: Delivery) -> None:
        consumer = self._by_key.get((frame.queue, frame.consumer))
        if consumer is None or consumer.cancelled:
            self._give_back(frame)
            return
        family = consumer.family
        shared = family is not None and family.prefetch > 0
        if (shared or self.global_prefetch) and not consumer.no_ack:
            waiting = family.held if family is not None and shared else self._held
            last = len(frame.batches) - 1
            now_s = asyncio.get_running_loop().time()
            for position, batch in enumerate(frame.batches):
                held = _Held(consumer, batch, frame if position == last else None, now_s)
                waiting.append(held)
            self._emit_held()
            self._mind_held()
            return
        for batch in frame.batches:
            self._emit(consumer, batch)
        self._taken(frame)

    def _emit(self, consumer: ChannelConsumer, batch: MessageBatch) -> None:
        bodies = cast("list[bytes]", batch.bodies)
        count = len(bodies)
        if consumer.no_ack:
            tag = self.settles.unacked.number(count)
        else:
            now_s = asyncio.get_running_loop().time()
            tag = self.settles.unacked.add(consumer, batch.first, count, batch.token, now_s)
            if consumer.family is not None:
                consumer.family.open += count
        redelivered = batch.acquired_count > 0
        served = self._counted.of(consumer.info)
        served.consumed(count, auto=consumer.no_ack, redelivered=redelivered)
        number, frame_max = self._channel.number, self._host.frame_max
        wire_tag = consumer.wire_tag
        assert self._client is not None, "deliveries come from the broker"
        known = self._client.consumers.get((consumer.info.queue, consumer.key))
        large = batch.bodies[0]
        if isinstance(large, LargeBody):
            self._emit_large(consumer, batch, large, tag)
            return
        for start, end, where, properties in wire_runs_for(consumer, batch):
            part = bodies[start:end] if end - start < count else bodies
            data = writer.deliveries(
                number,
                wire_tag,
                tag + start,
                redelivered=redelivered,
                where=where,
                properties=properties,
                bodies=part,
                frame_bytes_max=frame_max,
            )
            piece = None
            if known is not None:
                piece = WrittenPiece(known.handed, batch.first + start, batch.token, part)
            self._channel.outlet.write(data, piece)

    def _emit_large(
        self, consumer: ChannelConsumer, batch: MessageBatch, body: LargeBody, tag: int
    ) -> None:
        """One whose body leaves in pieces: the only one of its batch."""
        info = consumer.info
        ((_, _, where, properties),) = wire_runs_for(consumer, batch)
        head = writer.delivery_head(
            self._channel.number,
            consumer.wire_tag,
            tag,
            redelivered=batch.acquired_count > 0,
            where=where,
            properties=properties,
            size_bytes=len(body),
        )
        known = None
        if self._client is not None:
            known = self._client.consumers.get((info.queue, consumer.key))
        piece = (
            None if known is None else WrittenPiece(known.handed, batch.first, batch.token, [body])
        )
        self._stream(consumer, batch, body, head, piece)

    def _stream(
        self,
        consumer: ChannelConsumer,
        batch: MessageBatch,
        body: LargeBody,
        head: bytes,
        piece: WrittenPiece | None,
    ) -> None:
        info = consumer.info

        def sent() -> None:
            if consumer.no_ack:
                ranges = [(batch.first, batch.first)]
                settle = Settle(info.queue, consumer.key, ranges, batch.token)
                self.settles.propose(info.group, settle, by_client=False)

        pieces = self._services.bodies.stream(info.group, body)
        self._channel.outlet.stream(Stream(head, pieces, piece, sent))

    def _taken(self, frame: Delivery) -> None:
        if self._host.congested or self._channel.outlet.busy:
            self._untaken.append(frame)
        elif self._client is not None:
            self._client.taken(frame)

    def writable(self) -> None:
        """The network takes more again."""
        if self._channel.outlet.busy:
            return
        for consumer in self.consumers.values():
            if consumer.feed is not None:
                consumer.feed.writable()
        untaken, self._untaken = self._untaken, []
        for frame in untaken:
            if self._client is not None:
                self._client.taken(frame)

    def _emit_held(self) -> None:
        """As many as the channel's prefetch allows (B16, global), and that of a consumer of several
        queues.
        """
        self._emit_some(self._held, None)
        for family in self._families:
            self._emit_some(family.held, family)

    def _emit_some(self, waiting: deque[_Held], family: Family | None) -> None:
        while waiting:
            held = waiting[0]
            batch = held.batch
            room = len(batch.bodies)
            if self.global_prefetch:
                room = min(room, self.global_prefetch - self.settles.unacked.count)
            if family is not None:
                room = min(room, family.prefetch - family.open)
            if room <= 0:
                return
            waited = asyncio.get_running_loop().time() - held.since_s > HELD_S_MIN
            if room < len(batch.bodies):
                first, held.batch = cut(batch, room)
                if waited:
                    self._extend(held.consumer, first)
                self._emit(held.consumer, first)
                return
            waiting.popleft()
            if waited:
                self._extend(held.consumer, batch)
            self._emit(held.consumer, batch)
            if held.frame is not None:
                self._taken(held.frame)

    def _give_back(self, frame: Delivery) -> None:
        """For a consumer that the client has cancelled: nobody has seen these."""
        client = self._client
        info = None
        if client is not None:
            info = self._services.broker.locate(self._host.vhost, frame.queue)
            client.taken(frame)
        if info is not None:
            ranges = [(b.first, b.first + len(b.bodies) - 1) for b in frame.batches]
            token = max(batch.token for batch in frame.batches)
            unseen = Return(
                info.queue, frame.consumer, joined(sorted(ranges)), token=token, unsent=True
            )
            self.settles.propose(info.group, unseen)

    def direct_reply(self, where: bytes, properties: bytes, bodies: list[bytes]) -> None:
        """Straight to this channel, which asked for it."""
        if self._channel.closed:
            return
        tag = self.settles.unacked.number(len(bodies))
        data = writer.deliveries(
            self._channel.number,
            short(self.reply_tag),
            tag,
            redelivered=False,
            where=where,
            properties=properties,
            bodies=bodies,
            frame_bytes_max=self._host.frame_max,
        )
        self._channel.outlet.write(data)

    # --- consumers --------------------------------------------------------------------------------

    async def subscribe(self, consumer: ChannelConsumer) -> None:
        """Consume-ok leaves before the first delivery."""
        self.consumers[consumer.tag] = consumer
        try:
            await self._register(consumer)
        except BaseException:
            self.consumers.pop(consumer.tag, None)
            raise
        if self._has_to_follow(consumer):
            await self._follow(consumer)

    async def _register(self, consumer: ChannelConsumer) -> None:
        self._requests += 1
        request = self._requests
        self._subscribing[request] = consumer
        credit = consumer.credit = consumer.prefetch or self.global_prefetch
        try:
            await self._channel.patiently(
                lambda: self.client.subscribe(
                    request,
                    consumer.info,
                    self._name_for_broker(consumer.tag, request),
                    credit=NO_ACK_CREDIT if consumer.no_ack else credit,
                    priority=consumer.priority,
                    exclusive=consumer.exclusive,
                    auto_settle=consumer.no_ack,
                    timeout_ms=consumer.timeout_ms,
                ),
                consumer.info,
            )
        except BaseException:
            self._subscribing.pop(request, None)
            raise

    # --- what a prefetch holds back: the client's time to settle it has not begun

    def _all_held(self) -> list[_Held]:
        return [*self._held, *(held for family in self._families for held in family.held)]

    def _extend(self, consumer: ChannelConsumer, batch: MessageBatch) -> None:
        ranges = [(batch.first, batch.first + len(batch.bodies) - 1)]
        extend = Extend(consumer.info.queue, consumer.key, ranges)
        self.settles.propose(consumer.info.group, extend, by_client=False)

    def _mind_held(self) -> None:
        """While any is held back."""
        if self._held_timer is not None:
            return
        timeouts = {self._timeout_of(held.consumer) for held in self._all_held()}
        timeout_ms = min((each for each in timeouts if each), default=None)
        if timeout_ms is None:
            return
        wait_s, loop = timeout_ms / HELD_PARTS / 1000, asyncio.get_running_loop()
        self._held_timer = loop.call_later(wait_s, self._mind_again, wait_s)

    def _mind_again(self, wait_s: float) -> None:
        self._held_timer = None
        if self._channel.closed:
            return
        now_s = asyncio.get_running_loop().time()
        for held in self._all_held():
            if now_s - held.since_s >= wait_s / 2:
                held.since_s = now_s
                self._extend(held.consumer, held.batch)
        self._mind_held()

    # --- of a split queue: see node.routing.shards

    def follow_shards(self) -> bool:
        """Consumers of split queues get from all shards that there are now. True: they do."""
        behind = [each for each in self.consumers.values() if self._has_to_follow(each)]
        for consumer in behind:
            if consumer.family is None or not consumer.family.following:
                self._channel.start(self._follow(consumer), "follow_shards")
        return not behind

    def _shards(self, info: QueueInfo) -> dict[QueueId, QueueInfo]:
        catalog = self._services.broker.cluster.catalog_machine
        return {shard.queue: shard for shard in shards_of(catalog, info)}

    def _has_to_follow(self, consumer: ChannelConsumer) -> bool:
        if consumer.feed is not None or consumer.key == NO_KEY or consumer.cancelled:
            return False
        members = () if consumer.family is None else consumer.family.members
        return self._shards(consumer.info).keys() != set(members)

    async def _follow(self, consumer: ChannelConsumer) -> None:
        family = consumer.family
        if family is None:
            family = Family(consumer.prefetch, self.settles.unacked.count_of(consumer))
            consumer.family = family
            self._families.append(family)
        family.following = True
        try:
            wanted = self._shards(consumer.info)
            for queue, info in wanted.items():
                if queue not in family.members:
                    await self._join_family(consumer, family, info)
            for queue in family.members.keys() - wanted.keys():
                member = family.members.pop(queue, None)
                if member is not None:  # else it ended meanwhile
                    await self._leave(member)
        finally:
            family.following = False

    async def _join_family(
        self, consumer: ChannelConsumer, family: Family, info: QueueInfo
    ) -> None:
        member = replace(consumer, info=info, key=NO_KEY, silent=True, name=consumer.info.name)
        family.members[info.queue] = member
        try:
            await self._register(member)
        except Refused as error:
            family.members.pop(info.queue, None)
            if error.code != codes.NO_QUEUE:  # it goes again
                raise
        if consumer.cancelled:  # meanwhile
            await self._leave(member)

    async def read_stream(
        self, consumer: ChannelConsumer, start: Start, wanted: Wanted | None
    ) -> None:
        """The same for a stream: all of it is here."""
        self.consumers[consumer.tag] = consumer
        info, reads = consumer.info, self._services.stream_reads
        try:
            first = await self._channel.patiently(lambda: reads.start(info, start), info)
        except BaseException:
            self.consumers.pop(consumer.tag, None)
            raise
        feed = consumer.feed = StreamFeed(
            StreamReader(reads, info, first, wanted),
            consumer.prefetch,
            takes=self._takes,
            deliver=partial(self._emit_stream, consumer),
            ended=partial(self._stream_ended, consumer),
        )
        if not consumer.silent:
            self._channel.send_method(commands.Basic.ConsumeOk(consumer.tag))
        feed.start(self._services.tasks)

    def _takes(self) -> bool:
        return not (self._host.congested or self._channel.outlet.busy)

    def _emit_stream(self, consumer: ChannelConsumer, messages: Sequence[StreamMessage]) -> None:
        channel, info, count = self._channel, consumer.info, len(messages)
        now_s = asyncio.get_running_loop().time()
        tag = self.settles.unacked.add(consumer, messages[0].sequence, count, 0, now_s)
        self._counted.of(info).consumed(count, auto=False, redelivered=False)
        ready: list[bytes] = []
        for tag_, message in enumerate(messages, tag):
            body = message.body
            where, properties = stream_on_wire(message, info.name)
            if isinstance(body, LargeBody):
                if ready:
                    channel.outlet.write(b"".join(ready))
                    ready.clear()
                head = writer.delivery_head(
                    channel.number,
                    consumer.wire_tag,
                    tag_,
                    redelivered=False,
                    where=where,
                    properties=properties,
                    size_bytes=len(body),
                )
                pieces = self._services.bodies.stream(info.group, body)
                channel.outlet.stream(Stream(head, pieces, None, _nothing))
                continue
            data = writer.deliveries(
                channel.number,
                consumer.wire_tag,
                tag_,
                redelivered=False,
                where=where,
                properties=properties,
                bodies=[body],
                frame_bytes_max=self._host.frame_max,
            )
            ready.append(data)
        if ready:
            channel.outlet.write(b"".join(ready))

    def _stream_ended(self, consumer: ChannelConsumer, error: Exception) -> None:
        if isinstance(error, StreamGone):
            self.consumers.pop(consumer.tag, None)
            self._notify_cancelled(consumer)
            return
        log.error("stream_reader_failed", queue=consumer.info.name, exc_info=error)
        self._channel.fail(ConnectionError_(INTERNAL_ERROR, "the node's log says more"))

    def _name_for_broker(self, tag: str, request: int) -> str:
        """To the broker a name means the same consumer for the life of its session, with all that
        it holds; to a client a tag is free again once its consumer was cancelled.
        """
        if not self._cancels:
            return tag
        return f"{request}#{tag}".encode()[:NAME_BYTES_MAX].decode(errors="ignore")

    async def cancel(self, tag: str) -> None:
        """No delivery leaves for it any more; what was delivered can still be settled (A16)."""
        consumer = self.consumers.pop(tag, None)
        if consumer is None:
            return
        self._cancels += 1
        consumer.cancelled = True
        if consumer.feed is not None:
            consumer.feed.stop()
            return
        members = self._disband(consumer)
        for each in (consumer, *members):
            await self._leave(each)

    def _disband(self, consumer: ChannelConsumer) -> list[ChannelConsumer]:
        """Those of the shards, which get nothing any more."""
        family = consumer.family
        if family is None or family not in self._families:
            return []  # or it is leaving them already
        self._families.remove(family)
        members = list(family.members.values())
        for member in members:
            member.cancelled = True
        return members

    async def _leave(self, consumer: ChannelConsumer) -> None:
        consumer.cancelled = True
        info, key = consumer.info, consumer.key
        for batch in self._take_held(consumer):
            last = batch.first + len(batch.bodies) - 1
            unseen = Return(info.queue, key, [(batch.first, last)], token=batch.token, unsent=True)
            self.settles.propose(info.group, unseen)
        try:
            await self._channel.patiently(lambda: self.client.cancel(0, info, key))
        except Refused as error:
            if error.code not in {codes.NO_QUEUE, codes.NO_CONSUMER}:
                raise  # else it ended with its queue, which is about to be told
        self._by_key.pop((info.name, key), None)

    def _take_held(self, consumer: ChannelConsumer) -> list[MessageBatch]:
        """What has not been delivered to it, and is not going to be."""
        family = consumer.family
        taken: list[_Held] = []
        for waiting in (self._held,) if family is None else (self._held, family.held):
            taken += [held for held in waiting if held.consumer is consumer]
            left = [held for held in waiting if held.consumer is not consumer]
            waiting.clear()
            waiting.extend(left)
        for held in taken:
            if held.frame is not None:
                self._taken(held.frame)
        return [held.batch for held in taken]

    def _ended(self, queue: str, key: ConsumerKey, reason: str) -> None:
        """By the broker: its queue was deleted, or it did not settle in time."""
        consumer = self._by_key.pop((queue, key), None)
        if consumer is None:
            return
        self._take_held(consumer)
        if reason != "queue_deleted":
            return
        if consumer.is_member:  # its queue is one again
            if consumer.family is not None:
                consumer.family.members.pop(consumer.info.queue, None)
            return
        self.consumers.pop(consumer.tag, None)
        for member in self._disband(consumer):
            self._channel.start(self._leave(member), "leave_shard")
        self._notify_cancelled(consumer)

    def _notify_cancelled(self, consumer: ChannelConsumer) -> None:
        consumer.cancelled = True
        if self._notices is not None:
            self._notices.append(consumer.tag)
        else:
            self._notify(consumer.tag)

    def _notify(self, tag: str) -> None:
        if self._host.client_capabilities.get("consumer_cancel_notify"):
            self._channel.send_method(commands.Basic.Cancel(tag, nowait=True))

    def hold_notices(self) -> None:
        """A channel that deletes a queue which it consumes is told of that first."""
        self._notices = []

    def flush_cancels(self) -> None:
        notices, self._notices = self._notices or [], None
        for tag in notices:
            self._notify(tag)

    def _leader_lost(self, moved: Subscription) -> None:
        """Ends it when it asked for that (x-cancel-on-ha-failover, C42). It is served until the
        next leader knows of its end, so what that hands to it comes here and is given back.
        """
        consumer = self._by_key.get((moved.info.name, moved.key))
        if consumer is None or consumer.cancelled or not consumer.cancel_on_failover:
            return
        consumer = self.consumers.get(consumer.tag, consumer)
        if consumer.cancelled:
            return
        if not self._channel.closed:
            moved.auto_settle = False  # nobody sees what comes now
            self._channel.start(self.cancel(consumer.tag), "cancel_on_failover")
            self._notify_cancelled(consumer)

    async def get(self, info: QueueInfo, *, no_ack: bool) -> None:
        """Of a split queue from any of its shards, another one first each time."""
        shards = list(self._shards(info).values())
        first = self._requests % len(shards) if shards else 0
        for shard in (*shards[first:], *shards[:first]):
            holder = ChannelConsumer("", shard, no_ack=no_ack, silent=True, name=info.name)
            await self._get_from(holder)
            if holder.key != NO_KEY:
                return
        await self._get_from(ChannelConsumer("", info, no_ack=no_ack))

    async def _get_from(self, holder: ChannelConsumer) -> None:
        """`silent`: nobody is told that there is nothing."""
        self._requests += 1
        request, info, no_ack = self._requests, holder.info, holder.no_ack
        self._getting[request] = holder
        lost_after: ConsumerKey | None = None

        async def ask() -> None:
            """What a try took whose answer was lost, the next one is answered with."""
            nonlocal lost_after
            try:
                await self.client.get(request, info, 1, auto_settle=no_ack, lost_after=lost_after)
            except OutcomeUnknown:
                lost_after = self._got_last.get(info.group, NO_KEY)
                raise

        try:
            await self._channel.patiently(ask, info)
        except Refused as error:
            if not holder.silent or error.code != codes.NO_QUEUE:  # the shard is gone
                raise
        finally:
            self._getting.pop(request, None)

    def _got(
        self, holder: ChannelConsumer, key: ConsumerKey, ready: int, batches: Sequence[MessageBatch]
    ) -> None:
        self._counted.of(holder.info).got(batches, auto=holder.no_ack)
        self._got_last[holder.info.group] = key
        if not batches:
            if not holder.silent:
                self._channel.send_method(commands.Basic.GetEmpty())
            return
        holder.key = key
        (batch,) = batches
        if holder.no_ack:
            tag = self.settles.unacked.number(1)
        else:
            now_s = asyncio.get_running_loop().time()
            tag = self.settles.unacked.add(holder, batch.first, 1, batch.token, now_s)
        ((_, _, where, properties),) = wire_runs(batch, holder.name)
        (body,) = batch.bodies
        number = self._channel.number
        head = writer.get_ok_head(
            number,
            tag,
            redelivered=batch.acquired_count > 0,
            where=where,
            message_count=ready,
            properties=properties,
            size_bytes=len(body),
        )
        if isinstance(body, LargeBody):
            self._stream(holder, batch, body, head, None)
            return
        frames = writer.body_frames(number, body, self._host.frame_max)
        self._channel.outlet.write(b"".join((head, *frames)))

    def set_prefetch(self, count: int, *, whole_channel: bool) -> None:
        """0: no limit (B16)."""
        if not whole_channel:
            self.prefetch = count
            return
        self.global_prefetch = count
        for consumer in self.every_consumer():
            if not consumer.no_ack and consumer.feed is None and consumer.key != NO_KEY:
                info, credit = consumer.info, consumer.prefetch or count
                consumer.credit = credit
                self.settles.propose(info.group, SetCredit(info.queue, consumer.key, credit))
        self._emit_held()

    def every_consumer(self) -> list[ChannelConsumer]:
        """Also those of shards."""
        found = list(self.consumers.values())
        return found + [each for family in self._families for each in family.members.values()]

    # --- settles ----------------------------------------------------------------------------------

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Runs of tags; (0, tag) is all up to it."""
        for first, last in ranges:
            if first == 0:
                self.settles.up_to("ack", last)
            else:
                self.settles.each("ack", first, last)
        if self._held or self._families:
            self._emit_held()

    def settle(self, verdict: Verdict, tag: int, *, multiple: bool) -> None:
        if multiple:
            self.settles.up_to(verdict, tag)
        else:
            self.settles.each(verdict, tag, tag)
        self._emit_held()

    def recover(self) -> None:
        """All that is open goes back to its queues (C10)."""
        self.settles.recover()
        self._emit_held()

    # --- the end ----------------------------------------------------------------------------------

    def stop_feeds(self) -> None:
        """Nothing of a stream leaves any more."""
        for consumer in self.consumers.values():
            if consumer.feed is not None:
                consumer.feed.stop()

    def end(self, *, goodbye: bool) -> None:
        """All that is open goes back to its queues (B11), counted as failed unless it was
        orderly.
        """
        if self.reply_name is not None:
            self._services.direct_replies.close(self.reply_name)
            self.reply_name = None
        if self._held_timer is not None:
            self._held_timer.cancel()
        connection, self._client = self._client, None
        if connection is not None:
            self._host.report_handed()
            self._services.sessions.disconnect(connection, goodbye=goodbye)


def _nothing() -> None: ...
