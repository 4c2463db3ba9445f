"""Between groups and connections, without I/O: who gets told what, and when to wait.

Inputs are method calls: frames of clients, effects of applied entries, outcomes of proposals, what
the network took. Outputs are values, fetched with `take`, that the caller carries out in order.
Everything held here is volatile: losing it loses nothing, since a consumer that is announced again
is sent whatever the machine says it holds.

Only consumers of groups that this node leads are known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from typing import Any, assert_never

from cluster.groups.outcome import ELSEWHERE, Outcome
from cluster.machine.commands import Discard, Enqueue, Handed, Return, Settle
from cluster.machine.consumers import UNLIMITED_CREDIT
from cluster.machine.effects import (
    ActiveChanged,
    ConsumerEnded,
    DeadLettersReady,
    Deliver,
    DeliveryLimitReached,
    Effect,
    QueueExpired,
    SessionEnded,
)
from cluster.machine.replies import Chunk, Enqueued, Ok
from cluster.machine.runs import joined
from cluster.types import Body, BodyRef, ConsumerKey, GroupId, LargeBody, QueueId
from node.dispatch.in_flight import InFlight
from node.dispatch.outgoing import (
    Active,
    Confirm,
    Delivery,
    Ended,
    Failure,
    MessageBatch,
    Moved,
    Outgoing,
    PublishConfirms,
    RequestAnswer,
)
from node.dispatch.plan import (
    ConnectionId,
    Detached,
    Drained,
    DropQueue,
    Fetch,
    MoveDeadLetters,
    Output,
    PauseReading,
    Propose,
    ResumeReading,
    Send,
    SessionOver,
    TellDeaths,
    Ticket,
    Unreadable,
)
from node.dispatch.progress import DeliveryProgress, Held
from node.metrics.client_counters import Counts

#: Consumers of one connection whose entries are fetched at the same time. Each may send what it
#: waited for, whether there is room or not.
FETCHING_MAX = 8
#: Chunks that a consumer asks for at once.
FETCHED_CHUNKS = 64

#: Bodies that one delivery frame aims at: large enough to cost nothing, small enough to take turns.
DELIVERY_BYTES_TARGET = 1 << 20

#: Of a message that was read.
BODY, META = itemgetter(0), itemgetter(1)

#: Empty: they are gone. None: they are not in memory.
ReadBodies = Callable[[GroupId, BodyRef], Sequence[tuple[Body, Any]] | None]


# --- state: losing it loses nothing ---------------------------------------------------------------


@dataclass(slots=True)
class ConsumerState:
    """One that this node serves, as the leader of its queue."""

    connection: ConnectionState
    group: GroupId
    queue: QueueId
    name: str
    key: ConsumerKey
    auto_settle: bool
    progress: DeliveryProgress
    mark: int  # highest token queued: tokens grow, so up to here nothing is new
    active: bool
    #: What its client has by newer decisions than this node had applied when it was announced:
    #: a leader that is ahead had served it.
    ahead: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    pending: deque[Chunk] = field(default_factory=deque[Chunk])  # never sent; at most what it holds
    cancelled: bool = False
    windowed: bool = False  # the machine waits until it hears what was dispatched
    #: First, last, token of what was dispatched and the machine has not heard of yet.
    unreported: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    unreported_count: int = 0
    fetching: bool = False  # waits for an entry that is not in memory
    #: One batch at a time, for how long its client takes: first, last, when it was sent.
    timed: tuple[int, int, float] | None = None


@dataclass(slots=True)
class ConnectionState:
    """Of a client, or of a node that serves one."""

    id: ConnectionId
    in_flight: InFlight
    confirms: list[Confirm] = field(default_factory=list[Confirm])
    unsent_bytes: int = 0  # delivered, and not `taken` yet
    consumers: dict[tuple[QueueId, ConsumerKey], ConsumerState] = field(
        default_factory=dict[tuple[QueueId, ConsumerKey], ConsumerState]
    )
    #: Consumers with something pending, in the order in which they take turns.
    waiting: dict[tuple[QueueId, ConsumerKey], ConsumerState] = field(
        default_factory=dict[tuple[QueueId, ConsumerKey], ConsumerState]
    )
    fetching: int = 0  # consumers whose entry is being fetched...
    #: ...and those that wait until so few are that they may fetch, too.
    cold: dict[tuple[QueueId, ConsumerKey], ConsumerState] = field(
        default_factory=dict[tuple[QueueId, ConsumerKey], ConsumerState]
    )


class Dispatcher:
    """Confirms, deliveries and back-pressure of all connections of one node."""

    def __init__(
        self,
        read_bodies: ReadBodies,
        *,
        in_flight_bytes_max: int,
        deliver_buffer_bytes_max: int,
        counts: Counts | None = None,
        now_s: Callable[[], float] = lambda: 0.0,
        on_first_delivery: Callable[[GroupId, int, int], None] | None = None,
    ) -> None:
        """`now_s` and `on_first_delivery` (group, entry, messages) are for latencies alone."""
        self.counts = Counts() if counts is None else counts
        self._now_s = now_s
        self._on_first_delivery = on_first_delivery
        self._read_bodies = read_bodies
        self._in_flight_bytes_max = in_flight_bytes_max
        self._deliver_buffer_bytes_max = deliver_buffer_bytes_max
        self._connections: dict[ConnectionId, ConnectionState] = {}
        self._consumers: dict[tuple[QueueId, ConsumerKey], ConsumerState] = {}
        self._of_group: dict[GroupId, set[tuple[QueueId, ConsumerKey]]] = {}
        #: As long as any is in one of these, `flush` is to be called at the end of the iteration.
        self.confirming: dict[ConnectionId, ConnectionState] = {}
        self.delivering: dict[ConnectionId, ConnectionState] = {}
        self._fetching: dict[tuple[GroupId, int], list[ConsumerState]] = {}  # who waits for it
        self._outputs: list[Output] = []

    def take(self) -> list[Output]:
        """What is to be done, in order; the caller does it all before the next input."""
        outputs, self._outputs = self._outputs, []
        return outputs

    # --- connections ------------------------------------------------------------------------------

    def opened(self, connection: ConnectionId) -> None:
        assert connection not in self._connections
        in_flight = InFlight(
            self._in_flight_bytes_max,
            pause=lambda: self._outputs.append(PauseReading(connection)),
            resume=lambda: self._outputs.append(ResumeReading(connection)),
        )
        self._connections[connection] = ConnectionState(connection, in_flight)

    def closed(self, connection: ConnectionId) -> None:
        """Its consumers are no longer known here; the machine still knows them. Idempotent."""
        gone = self._connections.pop(connection, None)
        if gone is None:
            return
        for ref in list(gone.consumers):
            self._forget(ref)
        self.confirming.pop(connection, None)
        self.delivering.pop(connection, None)

    def taken(self, connection: ConnectionId, size_bytes: int) -> None:
        """So much of what was delivered no longer congests the connection: there is room again."""
        state = self._connections.get(connection)
        if state is None:
            return
        state.unsent_bytes -= size_bytes
        assert state.unsent_bytes >= 0, "more was taken than was sent"
        if state.waiting and state.unsent_bytes * 2 <= self._deliver_buffer_bytes_max:
            self.delivering[connection] = state

    # --- requests ---------------------------------------------------------------------------------

    def publish(
        self,
        connection: ConnectionId,
        request: int,
        group: GroupId,
        queue: str,
        command: Enqueue,
        size_bytes: int,
    ) -> None:
        """One batch, one command; the confirm leaves with the others of its iteration."""
        state = self._connections[connection]
        self.counts.published += len(command.bodies)
        state.in_flight.add(size_bytes)
        self._outputs.append(
            Propose(
                group,
                command,
                Ticket(connection, request, queue, size_bytes, at_s=self._now_s()),
            )
        )

    def outcome(self, ticket: Ticket, outcome: Outcome) -> None:
        """How a publish ended. The connection may be gone by now."""
        reply = outcome.reply
        state = self._connections.get(ticket.connection)
        stored = reply if type(reply) is Enqueued and outcome.kind == "ok" else None
        if stored is not None:
            self.counts.stored("native", stored, self._now_s() - ticket.at_s)
        if state is None:
            return
        state.in_flight.done(ticket.size_bytes)
        if stored is not None:
            state.confirms.append(
                Confirm(
                    ticket.request, stored.first, stored.stored, stored.duplicates, stored.refused
                )
            )
            self.confirming[state.id] = state
            return
        self._outputs.append(
            Send(ticket.connection, answer_of(ticket.request, ticket.queue, outcome))
        )

    def settled(self, command: Settle | Return | Discard) -> None:
        """By its client. Does it end the batch of the consumer that is timed, or a part of it?"""
        consumer = self._consumers.get((command.queue, command.consumer))
        if consumer is None or consumer.timed is None:
            return
        first, last, at_s = consumer.timed
        count, end = overlap(first, last, command.ranges)
        if not count:
            return
        consumer.timed = (end + 1, last, at_s) if end < last else None
        if type(command) is Settle:
            self.counts.latencies.acked.add(self._now_s() - at_s, count)

    # --- consumers --------------------------------------------------------------------------------

    def announced(
        self,
        connection: ConnectionId,
        group: GroupId,
        queue: QueueId,
        name: str,
        consumer: ConsumerKey,
        *,
        holds: Iterable[Chunk],
        progress: DeliveryProgress | None = None,
        auto_settle: bool = False,
        active: bool = True,
        windowed: bool = False,
        is_large: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """From now on this connection gets what the consumer gets; first, what it holds and lacks.

        `holds` is what the machine says, `progress` what the client has of it; `windowed`: the
        machine assigns more when it is told what was dispatched; `is_large`: whether a position has
        a large body. What a leader sent and did not settle any more is settled now.
        """
        ref = (queue, consumer)
        state = self._connections[connection]
        if ref in self._consumers:
            self._forget(ref)
        progress = progress or DeliveryProgress()
        holds = list(holds)
        entry = ConsumerState(
            state, group, queue, name, consumer, auto_settle, progress, progress.mark, active
        )
        entry.windowed = windowed
        if windowed:
            for chunk in holds:
                if chunk.token <= progress.mark:
                    self._note_dispatched(entry, chunk.first, chunk.bodies.count, chunk.token)
            for first, last, token in progress.held:
                self._note_dispatched(entry, first, last - first + 1, token)
            self._report(entry)
        self._consumers[ref] = state.consumers[ref] = entry
        self._of_group.setdefault(group, set()).add(ref)
        if auto_settle:  # a large body is settled by who hands it to the network
            small = [chunk for chunk in holds if not is_large(chunk.first)]
            token = max([chunk.token for chunk in small], default=0)
            self._settle(entry, had(small, progress), token)
        self._queue(entry, lacking(holds, progress.held))
        # What the client has of these counts as sent: a leader's repeats must not bring it again.
        entry.mark = max([entry.mark, *[chunk.token for chunk in holds]])
        if not auto_settle:
            entry.ahead = [each for each in progress.held if each[2] > entry.mark]

    def cancelled(self, queue: QueueId, consumer: ConsumerKey) -> None:
        """The machine hands out no more to it; what it holds already is still sent."""
        known = self._consumers.get((queue, consumer))
        if known is not None:
            known.cancelled = True
            self._drop_if_drained(known)

    def _drop_if_drained(self, consumer: ConsumerState) -> None:
        """It is cancelled."""
        if not consumer.pending:
            self._forget((consumer.queue, consumer.key))
            self._outputs.append(Drained(consumer.connection.id, consumer.queue, consumer.key))

    def _forget(self, ref: tuple[QueueId, ConsumerKey]) -> None:
        consumer = self._consumers.pop(ref)
        connection = consumer.connection
        del connection.consumers[ref]
        connection.waiting.pop(ref, None)
        connection.cold.pop(ref, None)
        if consumer.fetching:
            consumer.fetching = False
            self._fetch_ended(consumer)
        elif connection.cold:  # it may have been the one whose turn it was
            self._thaw(connection)
            self.delivering[connection.id] = connection
        self._of_group[consumer.group].discard(ref)

    # --- groups -----------------------------------------------------------------------------------

    def effects(self, group: GroupId, effects: Sequence[Effect]) -> None:
        """Effects of a group that this node leads; when it starts to lead, all that is owed."""
        for effect in effects:
            if type(effect) is Deliver:
                consumer = self._consumers.get((effect.queue, effect.consumer))
                # Not announced yet: when it is, it gets all that it holds.
                if consumer is not None:
                    consumer.windowed = effect.windowed
                    self._queue(consumer, effect.chunks)
            else:
                self._other(group, effect)

    def _other(self, group: GroupId, effect: Effect) -> None:
        match effect:
            case ConsumerEnded(queue, key, _, reason):
                consumer = self._consumers.get((queue, key))
                if consumer is not None:
                    self._forget((queue, key))
                    self._send(consumer, Ended(consumer.name, key, reason))
            case ActiveChanged(queue, key, _, token):
                self._active(group, queue, key, token)
            case SessionEnded(session, reason):
                self._outputs.append(SessionOver(group, session, reason))
            case DeliveryLimitReached(queue, count):
                self._outputs.append(TellDeaths(group, queue, count))
            case DeadLettersReady(queue):
                self._outputs.append(MoveDeadLetters(group, queue))
            case QueueExpired(queue):
                self._outputs.append(DropQueue(group, queue))
            case _:
                pass  # effects of the catalog are the cluster's own business

    def _active(
        self, group: GroupId, queue: QueueId, active: ConsumerKey | None, token: int
    ) -> None:
        for ref in sorted(self._of_group.get(group, ())):
            if ref[0] != queue:
                continue
            consumer = self._consumers[ref]
            is_active = consumer.key == active
            if consumer.active != is_active:
                consumer.active = is_active
                self._send(consumer, Active(consumer.name, consumer.key, is_active, token))

    def follows(self, group: GroupId) -> None:
        """This node no longer leads the group: its consumers must find the new leader."""
        for ref in sorted(self._of_group.get(group, ())):
            consumer = self._consumers[ref]
            self._forget(ref)
            self._outputs.append(Detached(consumer.connection.id, *ref, consumer.progress))

    # --- what leaves at the end of an iteration ---------------------------------------------------

    def flush(self) -> None:
        """All new confirms as one frame per connection; deliveries while buffers have room."""
        for state in self.confirming.values():
            self._outputs.append(Send(state.id, PublishConfirms(state.confirms)))
            state.confirms = []
        self.confirming.clear()
        delivering, self.delivering = self.delivering, {}
        for state in delivering.values():
            self._pump(state)

    def _queue(self, consumer: ConsumerState, chunks: Iterable[Chunk]) -> None:
        before = consumer.mark
        if consumer.ahead:
            chunks, newest = lacking(chunks, consumer.ahead), max(consumer.ahead, key=_token)[2]
            if any(chunk.token > newest for chunk in chunks):
                consumer.ahead = []
        for chunk in chunks:
            if chunk.token > before:
                consumer.pending.append(chunk)
                consumer.mark = max(consumer.mark, chunk.token)
        if consumer.mark == before:
            return  # nothing in it is new
        ref, connection = (consumer.queue, consumer.key), consumer.connection
        if not consumer.fetching and ref not in connection.cold:
            connection.waiting[ref] = consumer
            self.delivering[connection.id] = connection

    def fetched(self, group: GroupId, first: int) -> None:
        """What a `Fetch` asked for has come: who waited for it is served at once, before it leaves
        the memory again.
        """
        for consumer in self._fetching.pop((group, first)):
            if consumer.fetching:  # else it was forgotten
                consumer.fetching = False
                self._serve(consumer)
                self._fetch_ended(consumer)

    def _fetch_ended(self, consumer: ConsumerState) -> None:
        connection = consumer.connection
        connection.fetching -= 1
        self._thaw(connection)
        if connection.waiting:
            self.delivering[connection.id] = connection

    def _thaw(self, connection: ConnectionState) -> None:
        """The first of those that could not fetch may."""
        if connection.cold and connection.fetching < FETCHING_MAX:
            ref = next(iter(connection.cold))
            connection.waiting[ref] = connection.cold.pop(ref)

    def _pump(self, state: ConnectionState) -> None:
        while state.waiting and state.unsent_bytes < self._deliver_buffer_bytes_max:
            self._serve(state.waiting.pop(next(iter(state.waiting))))

    def _serve(self, consumer: ConsumerState) -> None:
        """One frame, and then it waits for its next turn."""
        state = consumer.connection
        batches, size_bytes = self._next_batches(consumer)
        ref = (consumer.queue, consumer.key)
        if not consumer.fetching and ref not in state.cold:
            if consumer.pending:
                state.waiting[ref] = consumer  # behind the others
            if state.cold:
                self._thaw(state)
        if batches:
            state.unsent_bytes += size_bytes
            delivery = Delivery(consumer.name, consumer.key, batches, size_bytes)
            self._outputs.append(Send(state.id, delivery))
            for batch in batches:
                consumer.progress.add(batch)
            if consumer.windowed:
                for batch in batches:
                    self._note_dispatched(consumer, batch.first, len(batch.bodies), batch.token)
                self._report(consumer)
            if consumer.timed is None:
                first = batches[0].first
                end = first + len(batches[0].bodies) - 1
                consumer.timed = (first, end, self._now_s())
            if consumer.auto_settle:
                # A large body is settled by who hands it to the network, when all of it left.
                ranges = [
                    (b.first, b.first + len(b.bodies) - 1)
                    for b in batches
                    if type(b.bodies[0]) is not LargeBody
                ]
                self._settle(consumer, ranges, max([batch.token for batch in batches]))
        if consumer.cancelled:
            self._drop_if_drained(consumer)

    def _settle(
        self, consumer: ConsumerState, ranges: Sequence[tuple[int, int]], token: int
    ) -> None:
        """For a consumer that does not do so itself."""
        if ranges:
            command = Settle(consumer.queue, consumer.key, joined(sorted(ranges)), token)
            self._outputs.append(Propose(consumer.group, command, None))

    def _fetch(self, consumer: ConsumerState) -> None:
        """What comes next for it is not in memory."""
        connection, group = consumer.connection, consumer.group
        if connection.fetching >= FETCHING_MAX:
            connection.cold[consumer.queue, consumer.key] = consumer
            return
        first = last = consumer.pending[0].bodies.index
        for chunk in islice(consumer.pending, FETCHED_CHUNKS):
            if chunk.bodies.index < last:
                break
            last = chunk.bodies.index
        consumer.fetching = True
        connection.fetching += 1
        waiting = self._fetching.setdefault((group, first), [])
        waiting.append(consumer)
        if len(waiting) == 1:
            self._outputs.append(Fetch(group, first, last))

    def _note_dispatched(self, consumer: ConsumerState, first: int, count: int, token: int) -> None:
        consumer.unreported.append((first, first + count - 1, token))
        consumer.unreported_count += count

    def _report(self, consumer: ConsumerState) -> None:
        """Half a window at a time: no command per delivery, and the other half is on its way."""
        if consumer.unreported_count * 2 >= UNLIMITED_CREDIT:
            command = Handed(consumer.queue, consumer.key, consumer.unreported)
            self._outputs.append(Propose(consumer.group, command, None))
            consumer.unreported, consumer.unreported_count = [], 0

    def _next_batches(self, consumer: ConsumerState) -> tuple[list[MessageBatch], int]:
        """As much of what is pending as one frame should hold."""
        batches: list[MessageBatch] = []
        total = 0
        pending = consumer.pending
        counts = self.counts
        while pending and total < DELIVERY_BYTES_TARGET:
            chunk = pending.popleft()
            bodies = self._read_bodies(consumer.group, chunk.bodies)
            if bodies is None:
                pending.appendleft(chunk)
                self._fetch(consumer)
                break
            if len(bodies) != chunk.bodies.count:  # gone: no longer in flight, or a damaged log
                self._outputs.append(Unreadable(consumer.group, consumer.name, chunk))
                continue
            size = sum(map(len, map(BODY, bodies)))
            if type(bodies[0][0]) is LargeBody and batches:
                pending.appendleft(chunk)  # a frame of its own
                break
            if total + size > DELIVERY_BYTES_TARGET:
                if batches and len(bodies[0][0]) + total > DELIVERY_BYTES_TARGET:
                    pending.appendleft(chunk)  # begins the next frame
                    break
                taken = fitting(bodies, DELIVERY_BYTES_TARGET - total)
                if taken < len(bodies):
                    pending.appendleft(rest(chunk, taken))
                    bodies = bodies[:taken]
                    size = sum(map(len, map(BODY, bodies)))
            batches.append(batch_of(chunk, bodies))
            total += max(size, DELIVERY_BYTES_TARGET) if type(bodies[0][0]) is LargeBody else size
            counts.delivered += len(bodies)
            if chunk.acquired_count:
                counts.redelivered += len(bodies)
            elif self._on_first_delivery is not None:
                self._on_first_delivery(consumer.group, chunk.bodies.index, len(bodies))
        return batches, total

    def _send(self, consumer: ConsumerState, frame: Outgoing) -> None:
        self._outputs.append(Send(consumer.connection.id, frame))


# --- runs of messages, cut and joined -------------------------------------------------------------


def batch_of(chunk: Chunk, bodies: Sequence[tuple[Body, Any]]) -> MessageBatch:
    """A chunk with its bodies. Equal meta of all is said once."""
    metas = list(map(META, bodies))
    first = metas[0] if metas else None
    shared = len(set(map(id, metas))) == 1
    return MessageBatch(
        chunk.first,
        chunk.token,
        chunk.delivery_count,
        chunk.acquired_count,
        list(map(BODY, bodies)),
        # A list always means one per body, so a shared value that is itself a list is spelled out.
        first if shared and type(first) is not list else metas,
        chunk.deaths,
    )


def lacking(holds: Iterable[Chunk], held: Held) -> list[Chunk]:
    """The parts of `holds` that are not in `held` under the same token: oldest decision first, and
    what one decision handed out in the order of `holds`, which is that of priorities.
    """
    by_token: dict[int, list[tuple[int, int]]] = {}
    for first, last, token in held:
        by_token.setdefault(token, []).append((first, last))
    parts: list[Chunk] = []
    for chunk in holds:
        start, end = chunk.first, chunk.first + chunk.bodies.count - 1
        for first, last in sorted(by_token.get(chunk.token, ())):
            if last < start or first > end:
                continue
            if first > start:
                parts.append(_part(chunk, start, first - 1))
            start = last + 1
        if start <= end:
            parts.append(_part(chunk, start, end))
    parts.sort(key=lambda chunk: chunk.token)
    return parts


def had(holds: Iterable[Chunk], progress: DeliveryProgress) -> list[tuple[int, int]]:
    """The parts of `holds` that a client so far has."""
    by_token: dict[int, list[tuple[int, int]]] = {}
    for first, last, token in progress.held:
        by_token.setdefault(token, []).append((first, last))
    found: list[tuple[int, int]] = []
    for chunk in holds:
        start, end = chunk.first, chunk.first + chunk.bodies.count - 1
        if chunk.token <= progress.mark:
            found.append((start, end))
            continue
        for first, last in by_token.get(chunk.token, ()):
            if first <= end and last >= start:
                found.append((max(first, start), min(last, end)))
    return found


def overlap(first: int, last: int, ranges: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """How many of these positions are in the ranges, and the highest of them."""
    count = end = 0
    for start, stop in ranges:
        low, high = max(first, start), min(last, stop)
        if low <= high:
            count += high - low + 1
            end = max(end, high)
    return count, end


def _part(chunk: Chunk, first: int, last: int) -> Chunk:
    if first == chunk.first and last - first + 1 == chunk.bodies.count:
        return chunk
    ref = chunk.bodies
    offset = ref.offset + first - chunk.first
    return replace(chunk, first=first, bodies=BodyRef(ref.index, offset, last - first + 1))


def rest(chunk: Chunk, taken: int) -> Chunk:
    return _part(chunk, chunk.first + taken, chunk.first + chunk.bodies.count - 1)


def fitting(bodies: Sequence[tuple[Body, Any]], room: int) -> int:
    """How many of the first bodies fit, at least one: a single large one must leave too."""
    for count, (body, _) in enumerate(bodies):
        room -= len(body)
        if room < 0:
            return max(1, count)
    return len(bodies)


# --- leaves ---------------------------------------------------------------------------------------


def _token(held: tuple[int, int, int]) -> int:
    return held[2]


def answer_of(request: int, queue: str, outcome: Outcome) -> Outgoing:
    """The frame that tells how a request ended."""
    match outcome.kind:
        case "ok":
            return RequestAnswer(
                request, outcome.reply.count if isinstance(outcome.reply, Ok) else None
            )
        case "refused":
            if outcome.code in ELSEWHERE:
                return Moved(request, queue, outcome.leader)
            detail = getattr(outcome.reply, "detail", None)
            return Failure(request, outcome.code or "refused", outcome.reason or "refused", detail)
        case "unknown":
            reason = outcome.reason or "the leader changed before the outcome was known"
            return Failure(request, "unknown", f"{reason}; it may have happened: ask again")
        case _:
            assert_never(outcome.kind)
