"""Publishing for clients that cannot be redirected: to the leader, wherever it is, stored once.

There is one pipeline for each queue: a named publisher of this node. It numbers what all clients
here publish to the queue, and sends batches without waiting for the outcome of the one before.
After a change of leader it sends again, in order, all that has no outcome yet. The queue's machine
confirms a number that it has seen already and does not store it twice (cluster.machine.admission),
so a client sees nothing of it but time.

What the clients of one iteration of the loop publish to a queue leaves as one command.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple, cast

import structlog

from cluster.cluster_node import ClusterNode
from cluster.codec.entries import LARGE_SINCE
from cluster.groups.outcome import FINAL, Outcome, called_back
from cluster.machine.admission import EPHEMERAL_PREFIX
from cluster.machine.arguments import GROUP_KEY
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Enqueue
from cluster.machine.replies import NO_QUEUE, OUT_OF_SEQUENCE, Enqueued
from cluster.machine.stream.errors import STORED
from cluster.types import QueueId
from node.broker.bodies import Bodies, NewBody, NotTaken, PartedBody, WholeOnly, in_one_piece
from node.messages.group_keys import with_group_keys
from node.metrics.client_counters import Counts
from node.routing.shards import SHARD_OF
from node.tasks import Tasks

log = structlog.get_logger(__name__)

#: Of one command; far below what an entry may hold.
BODIES_AT_ONCE = 4_096
BYTES_AT_ONCE = 1 << 20
#: A pipeline looks for its leader this often, and gives its number up after this long without work:
#: well before the machine forgets an idle publisher of this kind.
RETRY_S = 0.02
IDLE_S_MAX = 600.0

#: Called once with the offsets, in what was published, that the queue refused (over a limit), as
#: ranges. All others are safe, or the queue is gone and they have nowhere to go.
Done = Callable[[Sequence[tuple[int, int]]], None]


class Stored(NamedTuple):
    """What a stream made of what was published at once: `Enqueued` has the fields' meaning, and
    what is in neither of the last two got consecutive sequences from `first` on.
    """

    first: int
    refused: Sequence[tuple[int, int]]
    answers: Mapping[int, tuple[int, int]]

    def each(self, count: int) -> list[tuple[int, int] | None]:
        """What was answered to each of so many messages; None: it was refused without a word."""
        refused = {place for first, last in self.refused for place in range(first, last + 1)}
        sequence = self.first
        found: list[tuple[int, int] | None] = []
        for place in range(count):
            answer = self.answers.get(place)
            if answer is not None:
                found.append((answer[0], answer[1]))
            elif place in refused:
                found.append(None)
            else:
                found.append((STORED, sequence))
                sequence += 1
        return found


#: Called once instead, for callers that publish to a stream and must know. None: it is gone.
OnStored = Callable[[Stored | None], None]


class Uploaded(NamedTuple):
    """Bodies of which the large ones have their parts in the log."""

    heads: list[bytes]  # or whole bodies
    large: dict[int, Any]  # as `Enqueue.large`


class _Item(NamedTuple):
    """What one client published at once."""

    bodies: Sequence[bytes]
    metas: Any  # one for all, or a list with one per body
    attrs: Any  # None, one for all, or a list
    size_bytes: int
    done: Done
    large: dict[int, Any] | None  # as `Enqueue.large`
    stored: OnStored | None = None  # in the place of `done`
    atomic: bool = False  # as `Enqueue.atomic`

    @property
    def alone(self) -> bool:
        """In its command."""
        return self.large is not None or self.atomic


@dataclass(slots=True, eq=False)
class _SentBatch:
    """One command, until its outcome is known."""

    command: Enqueue
    items: list[_Item]
    since_s: float  # when it was made, in loop time


class _Pipeline:
    """What this node publishes to one queue."""

    def __init__(self, info: QueueInfo, publisher: str) -> None:
        self.info = info
        self.is_stream = info.stream is not None
        self.publisher = publisher
        self.next = 1
        self.waiting: list[_Item] = []
        self.sent: deque[_SentBatch] = deque()
        self.stalled = False  # a task looks for the leader, and sends the first of `sent` again
        self.attempt = 0  # grows with every failure: outcomes of what was sent before do not count
        self.used_s = 0.0

    def batches(self, now_s: float) -> list[_SentBatch]:
        """What waits, as commands. A large body is alone: when its parts were forgotten, nothing
        else is refused. So is an atomic batch.
        """
        items, self.waiting = self.waiting, []
        if len(items) == 1:
            return [self._batch(items, now_s)]
        found: list[_SentBatch] = []
        start = bodies = size = 0
        for position, item in enumerate(items):
            if position > start and (
                bodies + len(item.bodies) > BODIES_AT_ONCE
                or size + item.size_bytes > BYTES_AT_ONCE
                or item.alone
                or items[position - 1].alone
            ):
                found.append(self._batch(items[start:position], now_s))
                start, bodies, size = position, 0, 0
            bodies += len(item.bodies)
            size += item.size_bytes
        found.append(self._batch(items[start:], now_s))
        return found

    def _batch(self, items: list[_Item], since_s: float) -> _SentBatch:
        if len(items) == 1:
            bodies, metas, attrs = items[0][:3]
        else:
            bodies = [body for item in items for body in item.bodies]
            metas = _joined(items, [item.metas for item in items])
            attrs = _joined(items, [item.attrs for item in items])
        if GROUP_KEY in self.info.arguments:
            attrs = with_group_keys(self.info.arguments, metas, attrs, len(bodies))
        large, atomic = items[0].large, items[0].atomic
        command = Enqueue(
            self.info.queue, self.publisher, self.next, bodies, metas, attrs, large, atomic
        )
        self.next += len(bodies)
        return _SentBatch(command, items, since_s)

    def renumber(self, publisher: str) -> None:
        """The machine forgot this publisher: what has no outcome is published under a new name."""
        self.publisher = publisher
        self.next = 1
        pending, self.sent = self.sent, deque()
        for batch in pending:
            self.sent.append(self._batch(batch.items, batch.since_s))


class QueuePublisher:
    """One per node: the pipelines to all queues that it publishes to for clients that number
    nothing themselves. These are AMQP's, and what comes by the management API, JetStream,
    exchanges of the native protocol and federation; metrics count all of it as AMQP.
    """

    def __init__(self, cluster: ClusterNode, tasks: Tasks, counts: Counts, bodies: Bodies) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._counts = counts
        self._bodies = bodies
        self._pipelines: dict[QueueId, _Pipeline] = {}
        self._due: list[_Pipeline] = []
        self._names = count(1)

    def publish(
        self,
        info: QueueInfo,
        bodies: Sequence[bytes],
        metas: Any,
        attrs: Any,
        size_bytes: int,
        done: Done,
        large: dict[int, Any] | None = None,
        stored: OnStored | None = None,
        *,
        atomic: bool = False,
    ) -> None:
        """In the order of the calls, for one queue. Of a body that is in `large` there is only how
        it begins: its parts are in the log. `stored` is called instead of `done`, if it is given.
        `atomic`: into a stream, all of it or nothing.
        """
        pipeline = self._pipelines.get(info.queue)
        if pipeline is None:
            pipeline = self._pipelines[info.queue] = _Pipeline(info, self._name())
        self._counts.published += len(bodies)
        if not pipeline.waiting:
            if not self._due:
                asyncio.get_running_loop().call_soon(self._flush)
            self._due.append(pipeline)
        pipeline.waiting.append(
            _Item(bodies, metas, attrs, size_bytes, done, large, stored, atomic)
        )

    async def store(
        self,
        info: QueueInfo,
        bodies: Sequence[bytes],
        metas: Sequence[Any],
        attrs: Sequence[Any],
        size_bytes: int,
        *,
        atomic: bool = False,
    ) -> Stored | None:
        """As `publish`, into a stream; what became of it."""

        def publish(stored: OnStored) -> None:
            given = info, bodies, metas, attrs, size_bytes
            self.publish(*given, _ignore, stored=stored, atomic=atomic)

        return await called_back(publish)

    def upload(
        self, info: QueueInfo, bodies: Sequence[NewBody]
    ) -> asyncio.Task[Uploaded | str | None]:
        """Brings the parts of large bodies into the log; `publish_large` needs it done. Several may
        be under way at once. Returns what was uploaded; or why it was not, in words; or None: the
        queue is gone, and so is whatever is published to it. (Its group may not know yet: there
        heads would pass for whole messages.)
        """
        return self._tasks.start(self._upload(info, bodies), name="upload")

    async def _upload(self, info: QueueInfo, bodies: Sequence[NewBody]) -> Uploaded | str | None:
        done = Uploaded([], {})
        in_parts = self._cluster.catalog_machine.version >= LARGE_SINCE
        for place, body in enumerate(bodies):
            if not isinstance(body, PartedBody):
                done.heads.append(body)
                continue
            try:
                if not in_parts:
                    raise WholeOnly
                kept = await self._bodies.upload(info, body)
            except WholeOnly:
                done.heads.append(in_one_piece(body))
                continue
            except NotTaken as error:
                return str(error)
            except Exception as error:  # a bug: refused, and nobody waits behind it
                log.error("upload_failed", queue=info.name, exc_info=error)
                return "an error of this node: its log says more"
            if kept is None:
                return None
            done.heads.append(body.head)
            done.large[place] = kept
        return done

    def publish_large(
        self,
        info: QueueInfo,
        uploaded: Uploaded | str | None,
        metas: Any,
        attrs: Any,
        size_bytes: int,
        done: Done,
        count: int,
    ) -> None:
        """As `publish`, of what `upload` brought."""
        if isinstance(uploaded, Uploaded):
            heads, large = uploaded
            self.publish(info, heads, metas, attrs, size_bytes, done, large or None)
        elif uploaded is None:
            done(_refused_of_gone(info, count))
        else:
            log.warning("publish_refused", queue=info.name, reason=uploaded)
            done([(0, count - 1)])

    def _name(self) -> str:
        incarnation = self._cluster.links.incarnation
        return f"{EPHEMERAL_PREFIX}node:{self._cluster.node}:{incarnation}:{next(self._names)}"

    def forget_idle(self, now_s: float) -> None:
        """Drop pipelines that are idle for long, or to deleted queues: called now and then."""
        idle = [
            queue
            for queue, pipeline in self._pipelines.items()
            if not pipeline.sent
            and not pipeline.waiting
            and (now_s - pipeline.used_s > IDLE_S_MAX or self._is_gone(pipeline))
        ]
        for queue in idle:
            del self._pipelines[queue]

    # --- sending ----------------------------------------------------------------------------------

    def _flush(self) -> None:
        due, self._due = self._due, []
        now_s = asyncio.get_running_loop().time()
        for pipeline in due:
            pipeline.used_s = now_s
            batches = pipeline.batches(now_s)
            pipeline.sent.extend(batches)
            for batch in batches:
                if not pipeline.stalled:  # a refusal may come at once
                    self._send(pipeline, batch)

    def _send(self, pipeline: _Pipeline, batch: _SentBatch) -> None:
        done = partial(
            self._outcome, pipeline, batch, pipeline.attempt, pipeline.sent[0].command.seqno
        )
        self._cluster.propose(pipeline.info.group, batch.command, done)

    def _outcome(
        self, pipeline: _Pipeline, batch: _SentBatch, attempt: int, oldest: int, outcome: Outcome
    ) -> None:
        """`attempt`: in which the batch was sent; all numbers below `oldest` had their outcome."""
        if pipeline.attempt != attempt:
            return
        reply = outcome.reply
        if type(reply) is Enqueued and outcome.kind == "ok":
            took_s = asyncio.get_running_loop().time() - batch.since_s
            self._counts.stored("amqp", reply, took_s)
            self._decided(pipeline, batch, reply.refused, reply)
        elif outcome.code == NO_QUEUE and self._is_gone(pipeline):
            self._decided(
                pipeline, batch, _refused_of_gone(pipeline.info, len(batch.command.bodies))
            )
        elif outcome.code in FINAL and pipeline.sent[0] is batch:
            log.warning("publish_refused", queue=pipeline.info.name, reason=outcome.reason)
            self._refuse(pipeline)
        else:
            if outcome.code == OUT_OF_SEQUENCE:
                self._check_sequence(pipeline, getattr(reply, "detail", None), oldest)
            self._stall(pipeline)

    def _decided(
        self,
        pipeline: _Pipeline,
        batch: _SentBatch,
        refused: Sequence[tuple[int, int]],
        reply: Enqueued | None = None,
    ) -> None:
        pipeline.sent.remove(batch)  # nearly always the first
        _finish(pipeline, batch, refused, reply)
        if pipeline.stalled:  # it was the one that is sent first: the others may follow
            pipeline.stalled = False
            for each in list(pipeline.sent):
                if not pipeline.stalled:
                    self._send(pipeline, each)

    def _is_gone(self, pipeline: _Pipeline) -> bool:
        """Deleted. A queue that the catalog has is going to be made in its group: by who declares
        it, or by the maintenance loop.
        """
        return self._cluster.catalog_machine.queue_by_id(pipeline.info.queue) is None

    def _refuse(self, pipeline: _Pipeline) -> None:
        """The first batch is refused for good, and the machine takes no number behind a gap: what
        is behind it is published under a new name, numbered from 1.
        """
        batch = pipeline.sent.popleft()
        _finish(pipeline, batch, [(0, len(batch.command.bodies) - 1)], None)
        pipeline.renumber(self._name())
        self._stall(pipeline)

    def _check_sequence(self, pipeline: _Pipeline, expected: Any, oldest: int) -> None:
        """A gap is normal after a change of leader: what is before it is on its way again. Unless
        the machine expects a number that had its outcome: then it forgot this publisher.
        """
        if type(expected) is int and expected < oldest:
            log.warning("publisher_forgotten", queue=pipeline.info.name, expected=expected)
            pipeline.renumber(self._name())

    # --- after a failure --------------------------------------------------------------------------

    def _stall(self, pipeline: _Pipeline) -> None:
        pipeline.stalled = True
        pipeline.attempt += 1
        self._tasks.start(self._recover(pipeline), name="publish_again")

    async def _recover(self, pipeline: _Pipeline) -> None:
        """As soon as there is a leader, send the first that has no outcome again, and once it has
        one all others: a leader that refuses for long is not asked to take all of it each time.
        """
        while True:
            await asyncio.sleep(RETRY_S)
            if self._cluster.leader_of(pipeline.info.group) is not None:
                break
            # Its node is down, and took a transient queue with it.
            if self._is_gone(pipeline):
                pending, pipeline.sent = pipeline.sent, deque()
                for batch in pending:
                    refused = _refused_of_gone(pipeline.info, len(batch.command.bodies))
                    _finish(pipeline, batch, refused, None)
                break
        if pipeline.sent:
            self._send(pipeline, pipeline.sent[0])
        else:
            pipeline.stalled = False


def _refused_of_gone(info: QueueInfo, count: int) -> Sequence[tuple[int, int]]:
    """Of so many messages to a queue that is gone: none, they are gone with it. But of a shard all:
    its queue is one again, to which they are to be published once more.
    """
    return [(0, count - 1)] if SHARD_OF in info.arguments else ()


def _ignore(_: Sequence[tuple[int, int]]) -> None:
    """`stored` is called instead."""


def _finish(
    pipeline: _Pipeline,
    batch: _SentBatch,
    refused: Sequence[tuple[int, int]],
    reply: Enqueued | None,
) -> None:
    if pipeline.is_stream:
        _finish_stored(batch, refused, reply)
        return
    if len(batch.items) == 1:
        batch.items[0].done(refused)
        return
    start = 0
    for item in batch.items:
        end = start + len(item.bodies) - 1
        item.done(_within(refused, start, end))
        start = end + 1


def _finish_stored(
    batch: _SentBatch, refused: Sequence[tuple[int, int]], reply: Enqueued | None
) -> None:
    """`reply`: of the stream's machine; None: what is not `refused` has nowhere to go."""
    sequence = 0 if reply is None else reply.first
    answers: Mapping[int, tuple[int, int]] = (reply and reply.answers) or {}
    places = deque(sorted(answers))
    start = 0
    for item in batch.items:
        count = len(item.bodies)
        own = _within(refused, start, start + count - 1)
        known: dict[int, tuple[int, int]] = {}
        while places and places[0] < start + count:
            place = places.popleft()
            known[place - start] = answers[place]
        if item.stored is None:
            item.done(own)
        elif reply is None and not own:
            item.stored(None)
        else:
            item.stored(Stored(sequence, own, known))
        sequence += count - sum(last - first + 1 for first, last in own)
        sequence -= sum(1 for code, _ in known.values() if code <= 0)
        start += count


def _within(refused: Sequence[tuple[int, int]], start: int, end: int) -> Sequence[tuple[int, int]]:
    """What is refused of these places, counted from the first of them."""
    if not refused:
        return ()
    return [
        (max(first, start) - start, min(last, end) - start)
        for first, last in refused
        if first <= end and last >= start
    ]


def _joined(items: Sequence[_Item], each: Sequence[Any]) -> Any:
    """One value for all bodies when they are the same, else a list with one per body."""
    first = each[0]
    if type(first) is not list and all(value is first or value == first for value in each):
        return first
    joined: list[Any] = []
    for item, value in zip(items, each, strict=True):
        many = type(value) is list
        joined += cast("list[Any]", value) if many else [value] * len(item.bodies)
    return joined
