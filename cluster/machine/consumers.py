"""Who takes messages from a queue, in which order, and who is the single active one.

Consumers that can take a message stand in rings, one per priority: the first in the highest ring is
served and goes to its end (A35, A36). One whose credit is used up, whose session is suspected or
that was cancelled leaves the ring.

With a single active consumer there are no rings: one is active, the others wait (A25). When one
that waits should take over (higher priority, or the active one's session is suspected), the active
one gets nothing new, and hands over when nothing is in flight with it (A27).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cluster.machine.commands import HandedTo
from cluster.machine.runs import RangeMap
from cluster.types import ConsumerKey, QueueId, SessionId

#: What a consumer with unlimited credit may hold before the machine waits for it all the same.
UNSETTLED_MAX = 1_000_000
#: What unlimited credit means: with a delivery limit, so many may be held, as in RabbitMQ's quorum
#: queues; without one, so many may be assigned and not yet handed to the network. Else a consumer
#: that crashes would make deliveries fail that never left.
UNLIMITED_CREDIT = 2_000
POSITION_MAX = (1 << 62) - 1
#: Mark of a consumer of which its node does not know how far it is: no token is below.
NOTHING_KNOWN = -1


class Hold(NamedTuple):
    """What the queue knows of messages in flight."""

    token: int
    due_ms: int  # to be settled by then; 0: at any time


@dataclass(eq=False, slots=True)
class Consumer:
    key: ConsumerKey
    session: SessionId
    tag: str
    credit: int = 0
    priority: int = 0
    exclusive: bool = False
    auto_settle: bool = False
    timeout_ms: int | None = None
    once: bool = False  # of a get: only remembers what is unsettled
    cancelled: bool = False  # only what is in flight keeps it (A16)
    connected: bool = True  # its session is not suspected
    held: RangeMap[Hold] = field(init=False)
    due_ms: int = 0  # nothing it holds is due before; 0: nothing is
    in_ring: bool = False
    held_max: int = UNSETTLED_MAX
    windowed: bool = False  # also bounded by what is in `ahead`
    ahead: RangeMap[int] = field(init=False)  # held, by token, and not known to be handed over
    handed: HandedTo | None = None  # of a session that was detached, when that is known

    def __post_init__(self) -> None:
        self.held, self.ahead = RangeMap(), RangeMap()

    @property
    def room(self) -> int:
        """How many messages it may be given now."""
        room = self.held_max - self.held.count
        if self.windowed:
            room = min(room, UNLIMITED_CREDIT - self.ahead.count)
        if room < 0:
            room = 0
        return room

    def set_bounds(self, version: int, *, delivery_limit: int | None) -> bool:
        """Of what it may hold, by its credit and its queue. True: they are others than before."""
        before = self.held_max, self.windowed
        unlimited = self.credit == 0 or self.auto_settle
        bounded = unlimited and version >= 2 and not self.auto_settle and not self.once
        self.held_max = UNSETTLED_MAX if unlimited else self.credit
        if bounded and delivery_limit is not None:
            self.held_max = UNLIMITED_CREDIT
        self.windowed = bounded and delivery_limit is None
        if not self.windowed:
            self.ahead.clear()
        return before != (self.held_max, self.windowed)

    @property
    def is_unknown(self) -> bool:
        """Its node cannot say how far it is."""
        return self.handed is not None and self.handed.mark == NOTHING_KNOWN

    def held_parts(self) -> list[tuple[int, int, bool]]:
        """What it holds, and whether that was handed to the network, as far as was told."""
        handed = self.handed
        if handed is None or self.is_unknown:
            return [(first, last, True) for first, last, _ in self.held]
        beyond: dict[int, RangeMap[bool]] = {}
        for first, last, token in handed.beyond:
            if 0 < first <= last <= POSITION_MAX:
                beyond.setdefault(token, RangeMap()).assign(first, last, True)
        parts: list[tuple[int, int, bool]] = []
        for first, last, hold in self.held:
            of_token = beyond.get(hold.token)
            if hold.token <= handed.mark or of_token is None:
                parts.append((first, last, hold.token <= handed.mark))
            else:
                parts += [(a, b, bool(known)) for a, b, known in of_token.segments(first, last)]
        return parts

    @property
    def registered(self) -> bool:
        return not (self.cancelled or self.once)

    @property
    def gone(self) -> bool:
        """Nothing is left of it but the record."""
        return not self.held.count and (self.cancelled or self.once)

    def drop(self, first: int, last: int) -> int:
        """It holds these no longer. Answers how many."""
        self.held.cut(first, last)
        if self.windowed:
            self.ahead.cut(first, last)
        return last - first + 1

    def dump(self, version: int) -> list[Any]:
        firsts, lasts, holds = self.held.dump()
        row = [
            self.key,
            self.session,
            self.tag,
            self.credit,
            self.priority,
            self.exclusive,
            self.auto_settle,
            self.timeout_ms,
            self.once,
            self.cancelled,
            self.connected,
            list(firsts),
            list(lasts),
            [list(hold) for hold in holds],
        ]
        if version >= 2:
            firsts, lasts, tokens = self.ahead.dump()
            handed = self.handed
            row += [
                [list(firsts), list(lasts), tokens],
                None if handed is None else [handed.mark, [list(each) for each in handed.beyond]],
            ]
        return row

    @classmethod
    def of(cls, data: Sequence[Any], queue: QueueId) -> Consumer:
        consumer = cls(data[0], data[1], data[2])
        (
            consumer.credit,
            consumer.priority,
            consumer.exclusive,
            consumer.auto_settle,
            consumer.timeout_ms,
            consumer.once,
            consumer.cancelled,
            consumer.connected,
        ) = data[3:11]
        consumer.held.load(data[11], data[12], [Hold(*hold) for hold in data[13]])
        consumer.due_ms = consumer.earliest_due()
        if len(data) > 14:
            consumer.ahead.load(*data[14])
            if data[15] is not None:
                mark, beyond = data[15]
                deliveries = [(first, last, token) for first, last, token in beyond]
                consumer.handed = HandedTo(queue, consumer.key, mark, deliveries)
        return consumer

    def earliest_due(self) -> int:
        return min((hold.due_ms for _, _, hold in self.held if hold.due_ms), default=0)


@dataclass(eq=False, slots=True)
class Consumers:
    """The consumers of one queue."""

    single_active: bool
    by_key: dict[int, Consumer] = field(default_factory=dict[int, Consumer])  # oldest first
    active: Consumer | None = None
    active_token: int = 0  # of the last change of the active one
    quiescing: bool = False  # another takes over when the active one holds nothing
    _by_tag: dict[tuple[str, str], Consumer] = field(
        default_factory=dict[tuple[str, str], Consumer]
    )
    _rings: dict[int, deque[Consumer]] = field(default_factory=dict[int, deque[Consumer]])
    _priorities: list[int] = field(default_factory=list[int])  # of the rings, highest first
    _to_elect: bool = False

    # --- registering ------------------------------------------------------------------------------

    def registered(self) -> list[Consumer]:
        return [consumer for consumer in self.by_key.values() if consumer.registered]

    @property
    def in_use(self) -> bool:
        """Somebody is subscribed."""
        return any(each.registered for each in self.by_key.values())

    def find(self, session: SessionId, tag: str) -> Consumer | None:
        return self._by_tag.get((session, tag))

    def add(self, consumer: Consumer) -> None:
        self.by_key[consumer.key] = consumer
        if not consumer.once:
            self._by_tag[consumer.session, consumer.tag] = consumer
        self.changed(consumer)

    def remove(self, consumer: Consumer) -> None:
        self._leave_ring(consumer)
        del self.by_key[consumer.key]
        if not consumer.once:
            del self._by_tag[consumer.session, consumer.tag]
        self._to_elect = True

    def changed(self, consumer: Consumer) -> None:
        """Its priority, its session or whether it is cancelled is another: find its place anew."""
        self._leave_ring(consumer)
        self._to_elect = True
        self.offer(consumer)

    def _leave_ring(self, consumer: Consumer) -> None:
        if consumer.in_ring:
            for ring in self._rings.values():
                if consumer in ring:
                    ring.remove(consumer)
            consumer.in_ring = False

    # --- serving ----------------------------------------------------------------------------------

    def offer(self, consumer: Consumer) -> None:
        """It may have room again: let it stand at the end of its ring."""
        if (
            consumer.in_ring
            or self.single_active
            or not consumer.registered
            or not consumer.connected
            or not consumer.room
        ):
            return
        ring = self._rings.get(consumer.priority)
        if ring is None:
            ring = self._rings[consumer.priority] = deque()
            self._priorities = sorted(self._rings, reverse=True)
        ring.append(consumer)
        consumer.in_ring = True

    def serving(self) -> deque[Consumer] | None:
        """The ring to serve next: whoever is in it has room."""
        if self.single_active:
            active = self.active
            if active is None or self.quiescing or not active.connected or not active.room:
                return None
            return deque((active,))
        for priority in self._priorities:
            ring = self._rings[priority]
            if ring:
                return ring
        return None

    def served(self, ring: deque[Consumer]) -> None:
        """The first of the ring was given something."""
        if ring[0].room:
            ring.rotate(-1)
        else:
            ring.popleft().in_ring = False

    def capacity(self) -> int:
        """How many messages could be handed out at once."""
        if self.single_active:
            ring = self.serving()
            return ring[0].room if ring else 0
        return sum(consumer.room for ring in self._rings.values() for consumer in ring)

    # --- the single active one --------------------------------------------------------------------

    def elect(self) -> bool:
        """Choose the active consumer. True when it is another than before."""
        if not self.single_active:
            return False
        active = self.active
        if not self._to_elect and not (self.quiescing and active and not active.held.count):
            return False
        self._to_elect = False
        self.quiescing = False
        if active is not None and (not active.registered or active.key not in self.by_key):
            active = None
        best = best_of(c for c in self.by_key.values() if c is not active)
        if active is None:
            chosen = best
        elif best is not None and (not active.connected or best.priority > active.priority):
            self.quiescing = active.held.count > 0
            chosen = active if self.quiescing else best
        else:
            chosen = active
        changed = chosen is not self.active
        self.active = chosen
        return changed

    def is_active(self, consumer: Consumer) -> bool:
        """The `active` flag (A34)."""
        if not consumer.registered or not consumer.connected:
            return False
        return not self.single_active or consumer is self.active

    def status_of(self, consumer: Consumer) -> str:
        if consumer.cancelled or consumer.once:
            return "cancelled" if consumer.cancelled else "get"
        if not consumer.connected:
            return "suspected"
        if not self.single_active:
            return "up"
        if consumer is not self.active:
            return "waiting"
        return "quiescing" if self.quiescing else "up"

    # --- snapshots --------------------------------------------------------------------------------

    def dump(self, version: int) -> list[Any]:
        rings = [
            [priority, [consumer.key for consumer in self._rings[priority]]]
            for priority in self._priorities
            if self._rings[priority]
        ]
        return [
            [consumer.dump(version) for consumer in self.by_key.values()],
            rings,
            None if self.active is None else self.active.key,
            self.active_token,
        ]

    def load(
        self, data: Sequence[Any], queue: QueueId, version: int, *, delivery_limit: int | None
    ) -> None:
        for row in data[0]:
            consumer = Consumer.of(row, queue)
            consumer.set_bounds(version, delivery_limit=delivery_limit)
            self.by_key[consumer.key] = consumer
            if not consumer.once:
                self._by_tag[consumer.session, consumer.tag] = consumer
        for priority, keys in data[1]:
            ring = self._rings[priority] = deque(self.by_key[key] for key in keys)
            for consumer in ring:
                consumer.in_ring = True
        self._priorities = sorted(self._rings, reverse=True)
        if data[2] is not None:
            self.active = self.by_key[data[2]]
        self.active_token = data[3]
        self._to_elect = True
        assert not self.elect(), "the snapshot has another active consumer than the rules choose"

    def invariants(self) -> None:
        in_rings = [c for priority in self._priorities for c in self._rings[priority]]
        assert len(in_rings) == len({c.key for c in in_rings}), "a consumer is in two rings"
        for consumer in self.by_key.values():
            consumer.held.invariants()
            consumer.ahead.invariants()
            for first, last, token in consumer.ahead:
                pieces = consumer.held.pieces(first, last)
                assert sum(end - start + 1 for start, end, _ in pieces) == last - first + 1, (
                    "assigned, and not held"
                )
                assert all(hold.token == token for _, _, hold in pieces), "of another delivery"
            assert consumer.windowed or not consumer.ahead.count, "counted for no window"
            assert not consumer.gone, "a consumer of which nothing is left is remembered"
            assert consumer.in_ring == (consumer in in_rings), "in_ring is wrong"
            able = consumer.registered and consumer.connected and consumer.room > 0
            assert consumer.in_ring == (able and not self.single_active), "in a ring, or in none"
            due_ms = consumer.earliest_due()
            assert not due_ms or 0 < consumer.due_ms <= due_ms, "a deadline would be missed"
        tags = [(c.session, c.tag) for c in self.by_key.values() if not c.once]
        assert len(tags) == len(self._by_tag), "a tag is missing, or one too many"
        if self.active is not None:
            assert self.by_key.get(self.active.key) is self.active, "the active consumer is gone"
            assert self.single_active, "an active consumer where all are active"


def best_of(consumers: Iterable[Consumer]) -> Consumer | None:
    """Who should become the single active one: highest priority, then first registered."""
    able = [consumer for consumer in consumers if consumer.registered and consumer.connected]
    return min(able, key=lambda consumer: (-consumer.priority, consumer.key), default=None)
