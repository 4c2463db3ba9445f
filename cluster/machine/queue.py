"""One queue: its messages, its consumers, and what commands do to them.

A message is in exactly one of ready, delayed, unsettled (held by a consumer) and outbox, under the
position it got when it was stored; `store` knows where its body lies, `marks` what is special.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from cluster.machine import admission, disposal, settling, snapshot, subscribing, timetable, views
from cluster.machine.commands import BodyPart, HandedTo, QueueConfig
from cluster.machine.consumers import NOTHING_KNOWN, Consumer, Consumers
from cluster.machine.deadletters import DELETED, Deaths, Outbox
from cluster.machine.dispatch import CHUNKS_AT_ONCE_MAX, hand_out, held_chunks
from cluster.machine.effects import (
    ActiveChanged,
    ConsumerEnded,
    DeadLettersReady,
    Deliver,
    Effect,
    QueueExpired,
)
from cluster.machine.interface import Removed
from cluster.machine.marks import NO_MARK, Mark
from cluster.machine.publishers import DedupIds, Publishers
from cluster.machine.ready import Ready
from cluster.machine.replies import Chunk, Reply
from cluster.machine.runs import RangeMap
from cluster.machine.store import Store
from cluster.machine.turn import Turn
from cluster.machine.uploads import Uploads
from cluster.machine.witness import Witness
from cluster.types import ConsumerKey, QueueId

NO_PARTS: Mapping[int, Sequence[tuple[int, int]]] = {}


class Queue:
    """The queue type `queue`: a message goes to one consumer and is gone when it is settled."""

    __slots__ = (
        "config",
        "consumers",
        "dedup_ids",
        "delayed",
        "delayed_count",
        "drops_head",
        "due_ms",
        "had_consumer",
        "id",
        "last_token",
        "marks",
        "name",
        "never_refuses",
        "outbox",
        "paused",
        "publishers",
        "ready",
        "removed",
        "reserved_bytes",
        "reserved_count",
        "scheduled_ms",
        "seen",
        "store",
        "told_ms",
        "unsettled_count",
        "unused_since_ms",
        "uploads",
        "version",
        "vhost",
        "waiting_bytes",
        "witness",
    )

    def __init__(
        self, queue: QueueId, vhost: str, name: str, config: QueueConfig, now_ms: int
    ) -> None:
        self.id = queue
        self.vhost = vhost
        self.name = name
        self.store = Store()
        self.ready = Ready()
        self.marks: RangeMap[Mark] = RangeMap()
        self.delayed: list[tuple[int, int, int]] = []  # heap of (ready at ms, first, last)
        self.delayed_count = 0
        self.unsettled_count = 0
        self.waiting_bytes = 0  # of ready and delayed messages
        self.reserved_count = 0  # room that transactions of other groups keep
        self.reserved_bytes = 0
        self.consumers = Consumers(config.single_active_consumer)
        self.publishers = Publishers()
        self.dedup_ids = DedupIds()
        self.outbox = Outbox()
        self.uploads = Uploads()
        self.paused = False
        self.had_consumer = False
        self.last_token = 0
        self.removed: dict[str, Removed] = {}  # by reason, since machine version 2
        self.seen = 0  # up to here clients may have seen messages, besides those held now
        self.unused_since_ms = now_ms  # of no meaning while a consumer is registered
        self.told_ms: int | None = None  # when QueueExpired was last emitted
        self.due_ms: int | None = None  # nothing happens by itself before; perhaps nothing then
        self.scheduled_ms: int | None = None  # what the group's timetable says
        self.drops_head = False
        self.never_refuses = True
        self.witness: Witness | None = None  # of somebody who replays a log
        self.version = 1  # of the group's machine
        self._configure(config)

    def _configure(self, config: QueueConfig) -> None:
        self.config = config
        limited = config.max_length is not None or config.max_length_bytes is not None
        self.drops_head = limited and config.overflow == "drop-head"
        self.never_refuses = not limited or self.drops_head

    enqueue = admission.enqueue
    subscribe = subscribing.subscribe
    cancel = subscribing.cancel
    set_credit = subscribing.set_credit
    get = subscribing.get
    settle = settling.settle
    give_back = settling.give_back
    discard = settling.discard
    extend = settling.extend
    handed = settling.handed
    lacks = settling.lacks
    purge = disposal.purge
    dead_letters_moved = disposal.dead_letters_moved
    admits = admission.admits
    view = views.queue_view
    gauges = views.queue_gauges
    rows = views.rows
    dead_letters = views.dead_letters

    # --- what limits and deliveries look at -------------------------------------------------------

    @property
    def waiting_count(self) -> int:
        """Messages that the limits count."""
        return self.ready.count + self.delayed_count

    @property
    def may_expire(self) -> bool:
        return self.config.message_ttl_ms is not None or self.marks.count > 0

    @property
    def message_count(self) -> int:
        return self.waiting_count + self.unsettled_count

    @property
    def is_used(self) -> bool:
        return any(consumer.registered for consumer in self.consumers.by_key.values())

    @property
    def is_left(self) -> bool:
        """To be dropped now, unless somebody is subscribed: the last consumer has gone."""
        return self.had_consumer and self.config.auto_delete

    @property
    def is_held_up(self) -> bool:
        return self.ready.count > 0 and self.is_used

    def seen_up_to(self) -> int:
        """The highest position that a client may have seen."""
        return max([self.seen, *[each.held.end for each in self.consumers.by_key.values()]])

    def passing(self) -> int:
        """How many messages would surely go straight through to consumers."""
        if self.ready.count or self.paused:
            return 0
        return min(self.consumers.capacity(), CHUNKS_AT_ONCE_MAX)

    def takes_all(self, count: int, sizes: Sequence[int]) -> bool:
        """Is there surely room for so many more, with nothing to refuse?"""
        if self.never_refuses:
            return True
        count += self.waiting_count + self.reserved_count
        size = sum(sizes) + self.waiting_bytes + self.reserved_bytes
        config = self.config
        if config.max_length is not None and count > config.max_length:
            return False
        return config.max_length_bytes is None or size <= config.max_length_bytes

    @property
    def room_kept(self) -> tuple[int, int]:
        return self.reserved_count, self.reserved_bytes

    def keep_room(self, count: int, size: int) -> None:
        self.reserved_count += count
        self.reserved_bytes += size

    def capped(self, priority: int) -> int:
        return min(priority, self.config.max_priority)

    def new_token(self, turn: Turn) -> int:
        """Fences one delivery decision: larger than all before."""
        token = self.last_token + 1
        if token < turn.token_floor:
            token = turn.token_floor
        self.last_token = token
        return token

    def due_of(self, consumer: Consumer, now_ms: int, timeout_ms: int | None = None) -> int:
        """By when what the consumer gets now is to be settled; 0: at any time (A18)."""
        if timeout_ms is None:
            timeout_ms = consumer.timeout_ms
        if timeout_ms is None:
            timeout_ms = self.config.consumer_timeout_ms
        return now_ms + timeout_ms if timeout_ms else 0

    def expect_by(self, consumer: Consumer, due_ms: int) -> None:
        if due_ms:
            if not consumer.due_ms or due_ms < consumer.due_ms:
                consumer.due_ms = due_ms
            self.wake_at(due_ms)

    def wake_at(self, due_ms: int) -> None:
        if self.due_ms is None or due_ms < self.due_ms:
            self.due_ms = due_ms

    # --- messages in ------------------------------------------------------------------------------

    def store_messages(
        self,
        turn: Turn,
        *,
        index: int,
        offset: int,
        sizes: Sequence[int],
        mark: Mark | None,
        ready_at_ms: int | None = None,
    ) -> int:
        """Give these bodies positions and make them ready, now or later."""
        count = len(sizes)
        store = self.store
        bytes_before = store.bytes
        first = store.append(count, index, offset, sizes, turn.now_ms)
        last = first + count - 1
        self.waiting_bytes += store.bytes - bytes_before
        if mark is not None and mark != NO_MARK:
            self.marks.put(first, last, mark)
        if ready_at_ms is not None:
            self.delay(first, last, ready_at_ms)
        else:
            self.ready.add(first, last, 0 if mark is None else self.capped(mark.priority))
        return first

    def take_dead_letters(
        self,
        turn: Turn,
        *,
        index: int,
        offset: int,
        sizes: Sequence[int],
        priority: int,
        deaths: Deaths,
        parts: Mapping[int, Sequence[tuple[int, int]]] = NO_PARTS,
    ) -> None:
        """With overflow `drop-head` older messages make room for them.

        Otherwise it was asked before whether there is room: nobody is there to be refused.
        """
        mark = Mark(priority=priority, deaths=deaths)
        first = self.store_messages(turn, index=index, offset=offset, sizes=sizes, mark=mark)
        for place, indexes in parts.items():
            self.store.add_parts(first + place, indexes)
        if self.witness is not None:
            last = first + len(sizes) - 1
            self.witness.letter(self, first, last, index, offset, deaths[0]["reason"])

    def keep_part(self, turn: Turn, command: BodyPart) -> Reply:
        """Of a large body of which a message is to be made later."""
        reply = self.uploads.keep(turn, command)
        due_ms = self.uploads.due_ms
        if due_ms is not None:
            self.wake_at(due_ms)
        return reply

    def delay(self, first: int, last: int, ready_at_ms: int) -> None:
        heappush(self.delayed, (ready_at_ms, first, last))
        self.delayed_count += last - first + 1
        self.wake_at(ready_at_ms)

    def end_delays(self, now_ms: int) -> None:
        """What is due by now is ready."""
        while self.delayed and self.delayed[0][0] <= now_ms:
            _, first, last = heappop(self.delayed)
            self.delayed_count -= last - first + 1
            self.make_ready(first, last)

    def make_ready(self, first: int, last: int) -> None:
        if not self.marks.count:
            self.ready.add(first, last)
            return
        for start, end, mark in self.marks.segments(first, last):
            self.ready.add(start, end, self.capped(mark.priority) if mark else 0)

    # --- consumers --------------------------------------------------------------------------------

    def freed(self, turn: Turn, consumer: Consumer) -> None:
        """It holds less than before."""
        if consumer.gone:
            self.remove_consumer(turn, consumer)
        elif not consumer.in_ring:
            self.consumers.offer(consumer)

    def remove_consumer(self, turn: Turn, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        turn.group.consumer_removed(consumer.session, self.id, consumer.key)

    def elect(self, turn: Turn) -> None:
        consumers = self.consumers
        if consumers.elect():
            active = consumers.active
            consumers.active_token = self.new_token(turn)
            turn.effects.append(self._active_changed(active))
            if self.witness is not None:
                self.witness.active(self)

    def _active_changed(self, active: Consumer | None) -> ActiveChanged:
        return ActiveChanged(
            self.id,
            None if active is None else active.key,
            None if active is None else active.session,
            self.consumers.active_token,
        )

    # --- messages out -----------------------------------------------------------------------------

    def take_head(self, limit: int) -> tuple[int, int]:
        """Remove up to `limit` neighbours that come next: ready ones, or else delayed ones."""
        if self.ready.count:
            first, last = self.ready.take(limit)
        else:
            ready_at_ms, first, last = heappop(self.delayed)
            self.delayed_count -= last - first + 1
            if last - first >= limit:
                self.delay(first + limit, last, ready_at_ms)
                last = first + limit - 1
        self.waiting_bytes -= self.store.bytes_of(first, last)
        return first, last

    def take_head_bytes(self, wanted: int, look_at: int) -> tuple[int, int]:
        """As `take_head`: at most as many as are needed to be rid of so many bytes."""
        first, last = self.ready.top.head if self.ready.count else self.delayed[0][1:]
        count = 0
        for size in self.store.sizes_of(first, min(last, first + look_at - 1)):
            count += 1
            wanted -= size
            if wanted <= 0:
                break
        return self.take_head(count)

    # --- the queue as a whole ---------------------------------------------------------------------

    def update(self, config: QueueConfig) -> None:
        """A policy changed; what only a declaration may say stays as declared (A31)."""
        if config.expires_ms != self.config.expires_ms:
            self.told_ms = None
        self._configure(
            dataclasses.replace(
                config,
                type=self.config.type,
                single_active_consumer=self.config.single_active_consumer,
                max_priority=self.config.max_priority,
                auto_delete=self.config.auto_delete,
            )
        )
        self._bound_consumers()

    def set_version(self, version: int) -> None:
        """Of the machine: it just has this one."""
        self.version = version
        self.seen = self.store.next - 1
        self._bound_consumers()

    def _bound_consumers(self) -> None:
        for consumer in list(self.consumers.by_key.values()):
            if consumer.set_bounds(self.version, delivery_limit=self.config.delivery_limit):
                self.consumers.changed(consumer)

    def used(self, now_ms: int) -> None:
        """Declared again: its expiry starts anew."""
        self.unused_since_ms = now_ms
        self.told_ms = None

    def unused(self, turn: Turn) -> None:
        """A consumer went, perhaps the last one."""
        self.unused_since_ms = turn.now_ms
        if self.is_left:
            self.wake_at(turn.now_ms)

    def close(self, turn: Turn) -> None:
        """It is being deleted."""
        if self.store.count:
            disposal.count_removed(self, turn, DELETED, self.store.count, goes=False)
        if self.witness is not None:
            self.witness.queue_deleted(self)
        for consumer in list(self.consumers.by_key.values()):
            turn.group.consumer_removed(consumer.session, self.id, consumer.key)
            if consumer.registered:
                turn.effects.append(
                    ConsumerEnded(self.id, consumer.key, consumer.session, "queue_deleted")
                )

    def session_here(self, key: ConsumerKey, *, here: bool) -> None:
        """The session of this consumer is suspected, or back."""
        consumer = self.consumers.by_key[key]
        consumer.here = here
        if here:
            consumer.handed = None
        self.consumers.changed(consumer)

    def session_was_handed(self, key: ConsumerKey, handed: HandedTo | None) -> None:
        """How far this consumer is, whose session is about to end; None: its node does not know."""
        consumer = self.consumers.by_key[key]
        if handed is None and consumer.registered:
            handed = HandedTo(self.id, key, NOTHING_KNOWN, ())
        consumer.handed = handed

    def session_over(self, turn: Turn, key: ConsumerKey, *, failed: bool) -> None:
        """The session of this consumer is dead."""
        self.end_consumer(turn, self.consumers.by_key[key], failed=failed)

    def end_consumer(self, turn: Turn, consumer: Consumer, *, failed: bool) -> None:
        """Nothing is left of it: all it holds is returned (B11)."""
        if consumer.registered:
            consumer.cancelled = True
            self.unused(turn)
            if self.witness is not None:
                self.witness.consumer_ended(self, consumer, turn.effects)
        parts = consumer.held_parts()
        consumer.held.clear()
        self.seen = max([self.seen, *[last for _, last, handed in parts if handed]])
        failed = failed and not consumer.is_unknown
        delay_ms = None if failed else 0
        for first, last, handed in parts:
            settling.take_back(
                self,
                turn,
                consumer,
                (first, last),
                failed=failed,
                asked=False,
                sent=handed,
                delay_ms=delay_ms,
            )
        consumer.ahead.clear()
        self.remove_consumer(turn, consumer)

    # --- the end of a command ---------------------------------------------------------------------

    def advance(self, turn: Turn) -> None:
        """Let everything happen that can happen now. Doing it twice changes nothing."""
        now_ms = turn.now_ms
        is_due = self.due_ms is not None and self.due_ms <= now_ms
        consumers = self.consumers
        if consumers.single_active:
            self.elect(turn)
        if self.delayed:
            self.end_delays(now_ms)
        if self.ready.count:
            if self.may_expire:
                disposal.sweep(self, turn, inclusive=False)
            if not self.paused:
                hand_out(self, turn)
            if self.ready.count and self.may_expire:
                disposal.sweep(self, turn, inclusive=True)
        if self.drops_head:
            disposal.drop_over_limit(self, turn)
        if is_due:
            timetable.meet_deadlines(self, turn)
            timetable.plan_anew(self, now_ms)
        else:
            timetable.look_ahead(self, now_ms)

    # --- looking, and snapshots -------------------------------------------------------------------

    def owed(self) -> list[Effect]:
        """What a new leader must do again."""
        effects: list[Effect] = []
        if self.consumers.single_active:
            effects.append(self._active_changed(self.consumers.active))
        for consumer in self.consumers.by_key.values():
            chunks = held_chunks(self, consumer)
            if chunks:
                effects.append(
                    Deliver(self.id, consumer.key, consumer.session, chunks, consumer.windowed)
                )
        if self.outbox.count:
            effects.append(DeadLettersReady(self.id))
        if self.told_ms is not None:
            effects.append(QueueExpired(self.id))
        return effects

    def holds(self, key: ConsumerKey) -> Sequence[Chunk] | None:
        consumer = self.consumers.by_key.get(key)
        return None if consumer is None else held_chunks(self, consumer)

    def is_windowed(self, key: ConsumerKey) -> bool:
        consumer = self.consumers.by_key.get(key)
        return consumer is not None and consumer.windowed

    def consumer_keys(self) -> list[tuple[str, ConsumerKey]]:
        return [(consumer.session, consumer.key) for consumer in self.consumers.by_key.values()]

    def live_indexes(self) -> list[tuple[int, int]]:
        return self.store.live_indexes() + self.uploads.live_indexes()

    def dump(self) -> list[Any]:
        return snapshot.dump_queue(self)

    def fingerprint(self) -> list[Any]:
        return snapshot.digest_queue(self)

    def load(self, data: Sequence[Any], now_ms: int) -> None:
        snapshot.load_queue(self, data)
        timetable.plan_anew(self, now_ms)

    def invariants(self) -> None:
        snapshot.check_queue(self)
