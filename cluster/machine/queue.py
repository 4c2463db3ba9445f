"""The queue type `queue`: a message goes to one consumer and is gone when it is settled.

A message is in exactly one of ready, delayed, unsettled (held by a consumer) and outbox, under the
position it got when it was stored. The parts decide; the queue puts them together, says in which
order they come at the end of a command, and reads and writes their state as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from operator import itemgetter
from typing import Any, assert_never

from cluster.machine.admission import QueueAdmission
from cluster.machine.checkout import Checkout
from cluster.machine.commands import (
    Acknowledge,
    Arriving,
    BodyPart,
    Cancel,
    DeadLettersMoved,
    DeleteMessage,
    Discard,
    DropConsumer,
    Enqueue,
    Extend,
    Fetch,
    Get,
    Handed,
    HandedTo,
    Pause,
    Purge,
    PutConsumer,
    PutOffDeadLetters,
    QueueCommand,
    Ranges,
    RestoreConsumer,
    RestoreIds,
    Retime,
    Return,
    SendDeadLetters,
    SetCredit,
    Settle,
    Subscribe,
    UpdateQueue,
    Withdraw,
)
from cluster.machine.context import ApplyContext
from cluster.machine.deadletters import DELETED, Deaths
from cluster.machine.disposal import Disposal, dump_removed, load_removed
from cluster.machine.effects import (
    ConsumerEnded,
    DeadLetter,
    DeadLettersReady,
    Effect,
    QueueExpired,
)
from cluster.machine.expiry import MessageExpiry
from cluster.machine.identity import QueueIdentity
from cluster.machine.interface import ConsumerView, QueueGauges, QueueView, Removed, Row, RowState
from cluster.machine.keyed import HeldKey
from cluster.machine.lifetime import QueueLifetime
from cluster.machine.limits import QueueLimits, full
from cluster.machine.marks import NO_MARK, Mark
from cluster.machine.messages import Messages
from cluster.machine.replies import BAD_ARGUMENT, WRONG_KIND, Chunk, Ok, Refused, Reply
from cluster.machine.runs import RangeMap
from cluster.machine.settings import wrong_settings
from cluster.machine.subscribing import Subscriptions
from cluster.machine.surgery import Surgery
from cluster.machine.timetable import Deadline
from cluster.types import ConsumerKey, numbers_skipped


class Queue:
    __slots__ = (
        "admission",
        "checkout",
        "consumers",
        "deadline",
        "disposal",
        "expiry",
        "id",
        "identity",
        "lifetime",
        "limits",
        "messages",
        "name",
        "subscriptions",
        "surgery",
    )

    def __init__(self, identity: QueueIdentity, now_ms: int) -> None:
        self.id = identity.id
        self.name = identity.name
        self.identity = identity
        self.deadline = Deadline()
        self.messages = Messages(identity, self.deadline)
        self.disposal = Disposal(identity, self.messages)
        self.expiry = MessageExpiry(identity, self.messages, self.disposal)
        self.checkout = Checkout(identity, self.messages, self.expiry, self.disposal, self.deadline)
        self.consumers = self.checkout.consumers
        self.lifetime = QueueLifetime(identity, self.consumers, self.deadline, now_ms)
        self.subscriptions = Subscriptions(identity, self.messages, self.checkout, self.lifetime)
        self.surgery = Surgery(identity, self.messages, self.disposal)
        self.limits = QueueLimits(identity, self.messages, self.disposal, self.checkout)
        self.admission = QueueAdmission(
            identity, self.messages, self.limits, self.expiry, self.disposal, self.deadline
        )

    # --- commands ---------------------------------------------------------------------------------

    def apply(self, context: ApplyContext, command: QueueCommand) -> Reply:
        """What the command says. What can happen because of it happens in `advance`."""
        match command:
            case Enqueue():
                return self.admission.enqueue(context, command)
            case Settle():
                return self.checkout.settle(context, command)
            case Handed():
                return self.checkout.dispatched(command)
            case BodyPart():
                return self.admission.keep_part(context, command)
            case Return():
                return self.checkout.give_back(context, command)
            case Discard():
                return self.checkout.discard(context, command)
            case Extend():
                return self.checkout.extend(context, command)
            case Subscribe():
                return self.subscriptions.subscribe(context, command)
            case SetCredit():
                return self.subscriptions.set_credit(context, command)
            case Cancel():
                return self.subscriptions.cancel(context, command)
            case Get():
                return self.subscriptions.get(context, command)
            case DeadLettersMoved():
                return self.disposal.moved(context, command)
            case PutOffDeadLetters():
                return Ok(self.disposal.outbox.wait(command.ranges, command.safe_in))
            case SendDeadLetters():
                return Ok(self.disposal.outbox.go(command.ranges, context.number_after))
            case Purge():
                return self.disposal.purge(context)
            case Pause():
                self.checkout.paused = command.paused
                return Ok(self.message_count)
            case Withdraw():
                return self.surgery.withdraw(context, command)
            case Retime():
                return self.surgery.retime(context, command)
            case UpdateQueue():
                return self._update(command)
            case (
                DeleteMessage()
                | PutConsumer()
                | DropConsumer()
                | Fetch()
                | Acknowledge()
                | RestoreConsumer()
                | RestoreIds()
            ):
                return Refused(WRONG_KIND, f"queue {self.name} is no stream")
            case _:
                assert_never(command)

    def _update(self, command: UpdateQueue) -> Reply:
        """A policy changed."""
        config = command.config
        wrong = wrong_settings(config)
        if wrong is not None:
            return Refused(BAD_ARGUMENT, wrong)
        if self.identity.is_stale(command.as_of):
            return Ok()
        declared = self.identity.config
        if config.expires_ms != declared.expires_ms:
            self.lifetime.reported_ms = None
        self.identity.configure(config.declared_as(declared), command.as_of)
        if config.message_ttl_ms != declared.message_ttl_ms:
            self.checkout.put_aside_anew()
        self.limits.configure()
        self.checkout.bound_consumers()
        return Ok()

    def set_version(self, version: int) -> None:
        """Of the machine: it just has this one."""
        self.identity.version = version
        self.checkout.seen = self.messages.store.next - 1
        self.checkout.bound_consumers()

    def skip_lost(self, context: ApplyContext, term: int) -> None:
        """Others know messages by their positions, and decisions by their tokens."""
        self.messages.store.next += numbers_skipped(term)
        self.checkout.skip_lost(context, term)

    def close(self, context: ApplyContext) -> None:
        """It is being deleted."""
        identity, consumers = self.identity, self.consumers
        if self.messages.store.count:
            self.disposal.count(context, DELETED, self.messages.store.count, goes=False)
        if identity.recorder is not None:
            positions = [(first, last) for first, last, _ in self._places()]
            identity.recorder.queue_deleted(identity, positions, consumers.registered())
        for consumer in list(consumers.by_key.values()):
            context.group.consumer_removed(consumer.session, self.id, consumer.key)
            if consumer.registered:
                context.effects.append(
                    ConsumerEnded(self.id, consumer.key, consumer.session, "queue_deleted")
                )

    @property
    def group_key(self) -> str | None:
        return self.identity.config.group_key

    def takes_all(self, count: int, sizes: Sequence[int]) -> bool:
        return self.limits.takes_all(count, sizes)

    def take_dead_letters(
        self,
        context: ApplyContext,
        *,
        index: int,
        offset: int,
        sizes: Sequence[int],
        priority: int,
        deaths: Deaths,
        parts: Mapping[int, Sequence[tuple[int, int]]],
        names: Sequence[str | None] | None,
    ) -> None:
        """With overflow `drop-head` older messages make room for them.

        Otherwise it was asked before whether there is room: nobody is there to be refused.
        """
        mark = Mark(priority=priority, deaths=deaths)
        first = self.messages.add(index, offset, sizes, context.now_ms, mark, names=names)
        for place, indexes in parts.items():
            self.messages.store.add_parts(first + place, indexes)
        if (recorder := self.identity.recorder) is not None:
            last, reason = first + len(sizes) - 1, deaths[0]["reason"]
            recorder.dead_lettered(self.identity, first, last, index, offset, reason)

    # --- as a part of the group -------------------------------------------------------------------

    def objection(self, context: ApplyContext, steps: Sequence[Enqueue]) -> Refused | None:
        return self.admission.objection(context, steps)

    def no_room(
        self, _context: ApplyContext, count: int, size: int, _batches: Sequence[Arriving]
    ) -> Refused | None:
        """What consumers might take at once is no room: they may be gone by then."""
        return None if self.takes_all(count, (size,)) else full(self.name, count)

    def reserve(self, count: int, size: int) -> None:
        self.limits.reserve(count, size)

    @property
    def reserved(self) -> tuple[int, int]:
        return self.limits.reserved_count, self.limits.reserved_bytes

    def lacks(
        self, consumer: ConsumerKey, ranges: Ranges, token: int | None = None
    ) -> Refused | None:
        return self.checkout.lacks(consumer, ranges, token)

    def keeps(self, ranges: Ranges) -> Refused | None:
        return self.surgery.objection(ranges)

    def used(self, now_ms: int) -> None:
        self.lifetime.used(now_ms)

    @property
    def in_use(self) -> bool:
        return self.consumers.in_use

    @property
    def removed(self) -> Mapping[str, Removed]:
        return self.disposal.removed

    def dead_letters(self, count: int, after: DeadLetter | None) -> Sequence[DeadLetter]:
        return self.disposal.dead_letters(count, after)

    def consumer_connected(self, key: ConsumerKey, *, connected: bool) -> None:
        self.subscriptions.connected(key, connected=connected)

    def consumer_was_handed(self, key: ConsumerKey, handed: HandedTo | None) -> None:
        self.subscriptions.was_handed(key, handed)

    def end_consumer(self, context: ApplyContext, key: ConsumerKey, *, failed: bool) -> None:
        self.subscriptions.end(context, key, failed=failed)

    # --- the end of a command ---------------------------------------------------------------------

    def advance(self, context: ApplyContext) -> bool:
        """See `QueueKind.advance`: the parts act in this order, after every command."""
        now_ms, messages, checkout = context.now_ms, self.messages, self.checkout
        due_ms = self.deadline.due_ms
        is_due = due_ms is not None and due_ms <= now_ms
        if self.consumers.single_active:
            checkout.elect(context)
        if messages.delayed:
            messages.end_delays(now_ms)
        may_expire = messages.ready.count > 0 and messages.may_expire
        if messages.ready.count:
            if may_expire:  # a TTL of 0 means now or never: so before and after
                self.expiry.sweep(context, inclusive=False)
            if self.consumers.by_key and not checkout.paused:
                checkout.hand_out(context)
            if may_expire and messages.ready.count:
                self.expiry.sweep(context, inclusive=True)
        if self.limits.drops_head:
            self.limits.drop_head(context)
        if is_due:
            self.admission.uploads.forget_idle(now_ms)
            checkout.meet_deadlines(context)
            self.lifetime.end(context)
            self._plan_anew(now_ms)
        else:
            self._look_ahead(now_ms, may_expire)
        return messages.ready.count > 0 and bool(self.consumers.by_key) and self.consumers.in_use

    def _look_ahead(self, now_ms: int, may_expire: bool) -> None:
        """See to it that somebody looks when the next message or the queue itself is due."""
        if self.messages.ready.count:
            if may_expire and (expires_at_ms := self.expiry.head_ms()) is not None:
                self.deadline.wake_at(expires_at_ms)
            may_serve = self.consumers.by_key and not self.checkout.paused
            if may_serve and self.messages.ready.free and self.consumers.serving() is not None:
                self.deadline.wake_at(now_ms)  # there was more than one command may hand out
        config = self.identity.config
        if config.expires_ms is not None or config.auto_delete:
            self.lifetime.look_ahead()

    def _plan_anew(self, now_ms: int) -> None:
        """Work out the earliest time from everything that can be due."""
        self.deadline.due_ms = None
        self._look_ahead(now_ms, self.messages.may_expire)
        if self.messages.delayed:
            self.deadline.wake_at(self.messages.delayed[0][0])
        self.admission.look_ahead()
        for consumer in self.consumers.by_key.values():
            if consumer.due_ms:
                self.deadline.wake_at(consumer.due_ms)

    # --- looking ----------------------------------------------------------------------------------

    @property
    def waiting_count(self) -> int:
        return self.messages.waiting_count

    @property
    def message_count(self) -> int:
        return self.messages.waiting_count + self.checkout.unsettled_count

    def effects_on_leader(self) -> list[Effect]:
        """What a new leader must do again."""
        effects = self.checkout.effects_on_leader()
        if self.disposal.outbox.count:
            effects.append(DeadLettersReady(self.id))
        if self.lifetime.reported_ms is not None:
            effects.append(QueueExpired(self.id))
        return effects

    def consumer_holds(self, key: ConsumerKey) -> Sequence[Chunk] | None:
        consumer = self.consumers.by_key.get(key)
        return None if consumer is None else self.checkout.held_chunks(consumer)

    def is_of_get(self, key: ConsumerKey) -> bool:
        consumer = self.consumers.by_key.get(key)
        return consumer is not None and consumer.once

    def is_windowed(self, key: ConsumerKey) -> bool:
        consumer = self.consumers.by_key.get(key)
        return consumer is not None and consumer.windowed

    def is_large(self, position: int) -> bool:
        return bool(self.messages.store.parts_of(position, position))

    def held_keys(self, most: int) -> list[tuple[HeldKey, ConsumerKey | None]]:
        """Of the keys that messages wait for those with the most, and who has each; None: it waits
        for its retry.
        """
        keyed, consumers = self.messages.keyed, self.consumers.by_key.values()
        return [
            (held, next((each.key for each in consumers if held.position in each.held), None))
            for held in (keyed.held(most) if keyed is not None else ())
        ]

    def consumer_keys(self) -> list[tuple[str, ConsumerKey]]:
        return [(consumer.session, consumer.key) for consumer in self.consumers.by_key.values()]

    def live_indexes(self) -> list[tuple[int, int]]:
        return self.messages.store.live_indexes() + self.admission.uploads.live_indexes()

    def _places(self) -> list[tuple[int, int, str]]:
        """(first, last, where) of all messages, by position."""
        places = self.messages.waiting()
        places += [(each.first, each.last, "outbox") for each in self.disposal.outbox.everything()]
        for consumer in self.consumers.by_key.values():
            places += [(first, last, "unsettled") for first, last, _ in consumer.held]
        return sorted(places)

    def view(self) -> QueueView:
        identity, messages, consumers = self.identity, self.messages, self.consumers
        oldest_ms = None
        if messages.ready.count:
            oldest_ms = messages.store.time_of(messages.ready.front[0])
        return QueueView(
            id=self.id,
            name=self.name,
            vhost=identity.vhost,
            config=identity.config,
            ready_count=messages.ready.count,
            unsettled_count=self.checkout.unsettled_count,
            delayed_count=messages.delayed_count,
            dead_letter_count=self.disposal.outbox.count,
            bytes=messages.store.bytes,
            ready_bytes=messages.waiting_bytes,
            upload_bytes=self.admission.uploads.bytes,
            paused=self.checkout.paused,
            publishers=len(self.admission.publishers),
            oldest_ready_ms=oldest_ms,
            last_token=self.checkout.last_token,
            removed=dict(self.disposal.removed),
            consumers=[
                ConsumerView(
                    key=consumer.key,
                    session=consumer.session,
                    tag=consumer.tag,
                    credit=consumer.credit,
                    unsettled=consumer.held.count,
                    priority=consumer.priority,
                    exclusive=consumer.exclusive,
                    auto_settle=consumer.auto_settle,
                    active=consumers.is_active(consumer),
                    status=consumers.status_of(consumer),
                    room=consumer.room,
                    timeout_ms=consumer.timeout_ms,
                )
                for consumer in consumers.by_key.values()
            ],
        )

    def gauges(self) -> QueueGauges:
        """Looks at the heads of priorities and consumers: positions grow with time, so there the
        oldest messages are.
        """
        ready, store, consumers = self.messages.ready, self.messages.store, self.consumers
        oldest_ready = min((ready.head(each)[0] for each in ready.priorities()), default=None)
        heads = [each.held.head[0] for each in consumers.by_key.values() if each.held.count]
        subscribed = sum(each.registered for each in consumers.by_key.values())
        active = consumers.active
        has_active = active is not None and consumers.is_active(active)
        return QueueGauges(
            self.identity.vhost,
            self.name,
            subscribed,
            None if oldest_ready is None else store.time_of(oldest_ready),
            store.time_of(min(heads)) if heads else None,
            consumers.single_active and subscribed > 0 and not has_active,
            self.identity.config.slo_oldest_age_ms,
        )

    def rows(self, start: int, count: int, state: RowState | None = None) -> list[Row]:
        """At most `count` messages from position `start` on, in this state or wherever they are."""
        found: list[tuple[int, RowState, ConsumerKey | None, int, int | None]] = []
        if state in (None, "ready"):
            ready = self.messages.ready.from_position(start, count)
            found.extend((position, "ready", None, 0, None) for position in ready)
        for consumer in self.consumers.by_key.values() if state in (None, "unsettled") else ():
            left = count
            for first, last, hold in consumer.held.ranges_from(start):
                end = min(last, first + left - 1)
                due_ms = hold.due_ms or None
                found.extend(
                    (position, "unsettled", consumer.key, hold.token, due_ms)
                    for position in range(first, end + 1)
                )
                left -= end - first + 1
                if left <= 0:
                    break
        delayed = self.messages.delayed if state in (None, "delayed") else ()
        behind = ((max(first, start), last, at) for at, first, last in delayed if last >= start)
        for first, last, ready_at_ms in nsmallest(count, behind):
            last = min(last, first + count - 1)
            found.extend((at, "delayed", None, 0, ready_at_ms) for at in range(first, last + 1))
        found.sort(key=itemgetter(0))
        return [self._row(*each) for each in found[: max(0, count)]]

    def _row(
        self,
        position: int,
        state: RowState,
        consumer: ConsumerKey | None,
        token: int,
        due_ms: int | None,
    ) -> Row:
        messages = self.messages
        mark = messages.marks.get(position)
        return Row(
            position=position,
            state=state,
            chunk=messages.chunks_of(position, position, token)[0],
            bytes=messages.store.bytes_of(position, position),
            enqueued_ms=messages.store.time_of(position),
            expires_at_ms=self.expiry.expires_at_ms(position),
            due_ms=due_ms,
            priority=self.identity.capped(mark.priority) if mark else 0,
            consumer=consumer,
            mark=mark or NO_MARK,
        )

    # --- snapshots --------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        messages, ids = self.messages, self.admission.dedup_ids
        keyed = None if messages.keyed is None else messages.keyed.dump()
        return [messages.store.dump(), *self._dump(messages.dump(), ids.dump(), keyed)]

    def fingerprint(self) -> list[Any]:
        """All that tells two states apart, without the columns of the store."""
        messages, ids, version = self.messages, self.admission.dedup_ids, self.identity.version
        rows = messages.fingerprint() if version >= 3 else messages.dump()
        dedup_ids = ids.fingerprint() if version >= 2 else ids.dump()
        return [messages.store.fingerprint(), *self._dump(rows, dedup_ids)]

    def _dump(
        self, messages: list[Any], dedup_ids: list[Any], keyed: list[Any] | None = None
    ) -> list[Any]:
        version, lifetime = self.identity.version, self.lifetime
        row = [
            *messages,
            self.consumers.dump(version),
            self.admission.publishers.dump(),
            dedup_ids,
            self.disposal.outbox.dump(),
            self.checkout.paused,
            self.checkout.last_token,
            None if self.consumers.in_use else lifetime.unused_since_ms,
            lifetime.reported_ms,
            self.messages.waiting_bytes,
            lifetime.had_consumer,
        ]
        if version >= 2:
            row += [self.checkout.seen, dump_removed(self.disposal.removed)]
        if version >= 3:
            row.append(self.admission.uploads.dump())
        if keyed is not None:
            row.append(keyed)
        return row

    def load(self, data: Sequence[Any], now_ms: int) -> None:
        """Fill a queue that was just made."""
        identity, checkout, lifetime = self.identity, self.checkout, self.lifetime
        (
            store,
            levels,
            marks,
            delayed,
            consumers,
            publishers,
            dedup_ids,
            outbox,
            checkout.paused,
            checkout.last_token,
            unused_since_ms,
            lifetime.reported_ms,
            waiting_bytes,
            *later,
        ) = data
        # Older snapshots know of no queue for which it matters.
        lifetime.had_consumer = bool(later and later[0])
        if identity.version >= 2:
            checkout.seen = later[1]
            self.disposal.removed = load_removed(later[2])
        if identity.version >= 3:
            self.admission.uploads.load(later[3])
        lifetime.unused_since_ms = unused_since_ms or 0
        self.messages.load(store, levels, marks, delayed, waiting_bytes)
        if self.messages.keyed is not None:
            self.messages.keyed.load(later[-1])
        limit = identity.config.delivery_limit
        self.consumers.load(consumers, self.id, identity.version, delivery_limit=limit)
        self.admission.publishers.load(publishers)
        self.admission.dedup_ids.load(dedup_ids)
        self.disposal.outbox.load(outbox)
        checkout.unsettled_count = sum(c.held.count for c in self.consumers.by_key.values())
        self._plan_anew(now_ms)

    def invariants(self) -> None:
        """Asserts what must hold between commands."""
        messages, store = self.messages, self.messages.store
        for part in (
            messages,
            self.checkout,
            self.limits,
            self.disposal.outbox,
            self.admission.publishers,
            self.admission.uploads,
        ):
            part.invariants()
        places = self._places()
        end = 0
        alive: RangeMap[None] = RangeMap()
        for first, last, place in places:
            assert first > end, f"a message is {place} and somewhere else"
            end = last
            if place != "outbox":
                alive.put(first, last, None)
        count = sum(last - first + 1 for first, last, _ in places)
        assert count == store.count, "a message is nowhere, or settled and somewhere"
        size = sum(store.bytes_of(first, last) for first, last, _ in places)
        assert size == store.bytes, "bytes miscounted"
        for first, last, _ in messages.marks:
            assert alive.missing(first, last) is None, "a message that is gone is still marked"
