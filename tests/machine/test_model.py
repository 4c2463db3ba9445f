"""The queue machine against a twin that keeps every message as an object, in lists."""

# pyright: basic

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cluster.machine import MACHINE_VERSION
from cluster.machine.commands import (
    ATTR_DELIVER_AT_MS,
    ATTR_PRIORITY,
    ATTR_TTL_MS,
    Cancel,
    CloseSession,
    CreateQueue,
    DetachSession,
    Discard,
    Enqueue,
    Get,
    HandedTo,
    OpenSession,
    Pause,
    Purge,
    QueueConfig,
    Retime,
    Return,
    SetCredit,
    Settle,
    Subscribe,
    Tick,
    Transaction,
    UpgradeMachine,
    Withdraw,
)
from cluster.machine.effects import Applied, Deliver
from cluster.machine.replies import Chunk, Committed, Enqueued, Got, Ok, Refused, Subscribed
from cluster.types import ConsumerKey, NodeId, QueueId, SessionId
from tests.machine.world import START_MS, World

Q, DEAD = QueueId(1), QueueId(2)
SESSIONS = ("ann", "bob")
NODE = NodeId("n1")


@dataclass
class Message:
    position: int
    body: bytes
    priority: int = 0
    ttl_ms: int | None = None
    expires_ms: int | None = None
    ready_ms: int = 0
    acquired: int = 0
    failed: int = 0
    token: int = 0

    @property
    def order(self) -> tuple[int, int]:
        return (-self.priority, self.position)


@dataclass
class Consumer:
    session: str
    credit: int
    once: bool = False
    cancelled: bool = False
    held: list[Message] = field(default_factory=list)

    @property
    def room(self) -> bool:
        return not (self.once or self.cancelled) and (
            self.credit == 0 or len(self.held) < self.credit
        )


class QueueModel(RuleBasedStateMachine):
    """Messages are neither lost nor made, in order, within credit and limits."""

    @initialize(
        max_priority=st.sampled_from([0, 3]),
        ttl=st.sampled_from([None, None, 30]),
        max_length=st.sampled_from([None, None, 3, 10]),
        overflow=st.sampled_from(["drop-head", "reject-publish"]),
        delivery_limit=st.sampled_from([None, 1]),
        retry=st.sampled_from(["disabled", "failed", "all"]),
        version=st.integers(1, MACHINE_VERSION),
    )
    def start(
        self,
        max_priority: int,
        ttl: int | None,
        max_length: int | None,
        overflow: Any,
        delivery_limit: int | None,
        retry: Any,
        version: int,
    ) -> None:
        self.config = QueueConfig(
            max_priority=max_priority,
            message_ttl_ms=ttl,
            max_length=max_length,
            overflow=overflow,
            delivery_limit=delivery_limit,
            delayed_retry_type=retry,
            delayed_retry_min_ms=10,
            delayed_retry_max_ms=15,
            dead_letter_queue=DEAD,
            dead_letter_exchange="",
        )
        self.world = World()
        self.waiting: list[Message] = []  # ready and delayed
        self.consumers: dict[int, Consumer] = {}
        self.dead: list[bytes] = []
        self.paused = False
        self.sent = 0
        self.transactions = 0
        self.position = 0
        self.token = 0
        self.version = version
        self.seen = 0  # no client has seen a message behind this, unless it is held
        self.do(UpgradeMachine(version))
        self.do(CreateQueue(Q, "/", "q", self.config))
        self.do(CreateQueue(DEAD, "/", "dead", QueueConfig()))
        for session in SESSIONS:
            self.do(OpenSession(SessionId(session), NODE, 1))
        self.subscribe("ann", "x", credit=2, priority=0)

    # --- one command, and what must come of it ----------------------------------------------------

    @property
    def now(self) -> int:
        return START_MS + self.world.now_ms

    def do(self, command: Any) -> Applied:
        return self.world.apply(command)

    def follow(self, applied: Applied) -> None:
        """Let the twin do what the machine did, if it may."""
        delivered: dict[int, tuple[int, Chunk]] = {}
        for effect in applied.effects:
            if isinstance(effect, Deliver) and effect.queue == Q:
                for chunk in effect.chunks:
                    for nth in range(chunk.bodies.count):
                        position = chunk.first + nth
                        assert position not in delivered, "delivered twice"
                        delivered[position] = (effect.consumer, chunk)
        self.expire(self.now - 1)
        left = dict(delivered)
        tokens = []
        while left:
            message = self.next_ready()
            assert message is not None, "delivered what is not ready"
            self.waiting.remove(message)
            if self.expired(message, self.now - 1):
                self.dead.append(message.body)
                continue
            assert message.position in left, "an earlier message was passed over"
            key, chunk = left.pop(message.position)
            consumer = self.consumers[key]
            assert consumer.room, "more than its credit, or not subscribed"
            self.check(message, chunk)
            message.token = chunk.token
            tokens.append(chunk.token)
            consumer.held.append(message)
        self.fenced(tokens)
        self.expire(self.now)
        if self.config.overflow == "drop-head" and self.config.max_length is not None:
            while len(self.waiting) > self.config.max_length:
                message = self.next_ready() or min(
                    self.waiting, key=lambda m: (m.ready_ms, m.position)
                )
                self.waiting.remove(message)
                self.dead.append(message.body)

    def check(self, message: Message, chunk: Chunk) -> None:
        nth = message.position - chunk.first
        assert self.world.bodies[chunk.bodies.index][chunk.bodies.offset + nth] == message.body
        assert chunk.acquired_count == message.acquired
        assert chunk.delivery_count == message.failed

    def fenced(self, tokens: list[int]) -> None:
        if tokens:
            assert min(tokens) > self.token, "a token was used before"
            self.token = max(tokens)

    def ready(self) -> list[Message]:
        return sorted((m for m in self.waiting if m.ready_ms <= self.now), key=lambda m: m.order)

    def next_ready(self) -> Message | None:
        return next(iter(self.ready()), None)

    def expired(self, message: Message, now: int) -> bool:
        return message.expires_ms is not None and message.expires_ms <= now

    def expire(self, now: int) -> None:
        """Whatever has expired at the head of its priority."""
        blocked: set[int] = set()
        for message in self.ready():
            if message.priority in blocked:
                continue
            if self.expired(message, now):
                self.waiting.remove(message)
                self.dead.append(message.body)
            else:
                blocked.add(message.priority)

    def give_back(self, message: Message, *, failed: bool, delayed: bool) -> None:
        message.acquired += 1
        message.failed += failed
        limit = self.config.delivery_limit
        if failed and limit is not None and message.failed > limit:
            self.dead.append(message.body)
            return
        message.ready_ms = self.now
        if delayed and self.config.delayed_retry_type in ("all", "failed" if failed else "-"):
            message.ready_ms += min(10 * max(1, message.failed), 15)
        self.waiting.append(message)

    # --- rules ------------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 20),
        priority=st.integers(0, 4),
        ttl=st.sampled_from([None, None, 0, 5]),
        delay=st.sampled_from([None, None, 7]),
    )
    def enqueue_special(
        self, count: int, priority: int, ttl: int | None, delay: int | None
    ) -> None:
        self.enqueue(count, priority, ttl, delay)

    @rule(count=st.integers(1, 30))
    def enqueue_plain(self, count: int) -> None:
        self.enqueue(count, 0, None, None)

    def enqueue(self, count: int, priority: int, ttl: int | None, delay: int | None) -> None:
        bodies = [b"%d" % (self.sent + nth) for nth in range(count)]
        self.sent += count
        attrs: dict[int, int] = {}
        if priority:
            attrs[ATTR_PRIORITY] = priority
        if ttl is not None:
            attrs[ATTR_TTL_MS] = ttl
        if delay is not None:
            attrs[ATTR_DELIVER_AT_MS] = self.now + delay
        room = self.room() if delay is None else self.room(straight=False)
        applied = self.do(Enqueue(Q, None, 0, bodies, attrs=attrs or None))
        reply = applied.reply
        assert isinstance(reply, Enqueued)
        refused = {n for first, last in reply.refused for n in range(first, last + 1)}
        assert refused == set(range(count)[room:]), "a limit is not exact"
        assert reply.stored == count - len(refused)
        ttls = []
        born = self.now + (delay or 0)
        if ttl is not None:
            ttls.append(ttl)
        if self.config.message_ttl_ms is not None:
            ttls.append(self.config.message_ttl_ms)
        for body in bodies[:room]:
            self.position += 1
            message = Message(self.position, body, min(priority, self.config.max_priority))
            message.ready_ms = born
            message.ttl_ms = min(ttls, default=None)
            message.expires_ms = born + min(ttls) if ttls else None
            self.waiting.append(message)
        self.follow(applied)

    def room(self, *, straight: bool = True) -> int:
        """How many of a batch may be taken."""
        if self.config.overflow == "drop-head" or self.config.max_length is None:
            return 1_000
        passing = 0
        if straight and not self.ready() and not self.paused:
            for consumer in self.consumers.values():
                if consumer.room:
                    passing += (
                        1_000 if not consumer.credit else consumer.credit - len(consumer.held)
                    )
        return passing + max(0, self.config.max_length - len(self.waiting))

    @rule(
        session=st.sampled_from(SESSIONS),
        tag=st.sampled_from("xy"),
        credit=st.integers(0, 4),
        priority=st.integers(0, 1),
    )
    def subscribe_again(self, session: str, tag: str, credit: int, priority: int) -> None:
        self.subscribe(session, tag, credit, priority)

    def subscribe(self, session: str, tag: str, credit: int, priority: int) -> None:
        applied = self.do(Subscribe(Q, SessionId(session), tag, credit=credit, priority=priority))
        assert isinstance(applied.reply, Subscribed)
        key = applied.reply.consumer
        consumer = self.consumers.setdefault(key, Consumer(session, credit))
        consumer.credit = credit
        consumer.cancelled = False
        self.follow(applied)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), give_back=st.booleans())
    def cancel(self, data: st.DataObject, give_back: bool) -> None:
        key = self.pick(data)
        applied = self.do(Cancel(Q, ConsumerKey(key), give_back))
        consumer = self.consumers.get(key)
        if consumer is not None and give_back:
            for message in sorted(consumer.held, key=lambda m: m.position):
                self.give_back(message, failed=False, delayed=False)
            del self.consumers[key]
        elif consumer is None or consumer.once or consumer.cancelled:
            assert isinstance(applied.reply, Refused)
        else:
            consumer.cancelled = True
            self.forget_empty()
        self.follow(applied)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), credit=st.integers(0, 5))
    def set_credit(self, data: st.DataObject, credit: int) -> None:
        key = self.pick(data)
        applied = self.do(SetCredit(Q, ConsumerKey(key), credit))
        if isinstance(applied.reply, Ok):
            self.consumers[key].credit = credit
        self.follow(applied)

    @precondition(lambda self: self.holders())
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        self.finish(data, "settle")

    @precondition(lambda self: self.holders())
    @rule(data=st.data())
    def give_some_back(self, data: st.DataObject) -> None:
        self.finish(data, "return")

    @precondition(lambda self: self.holders())
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self.finish(data, "failed")

    @precondition(lambda self: self.holders())
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        self.finish(data, "discard")

    def finish(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.sampled_from(self.holders()))
        held = sorted(m.position for m in self.consumers[key].held)
        chosen = sorted(data.draw(st.sets(st.sampled_from(held), min_size=1, max_size=6)))
        if data.draw(st.integers(0, 9)) == 9:
            chosen.append(max(chosen) + 7)
        ranges: list[tuple[int, int]] = []
        for position in chosen:
            if ranges and ranges[-1][1] == position - 1:
                ranges[-1] = (ranges[-1][0], position)
            else:
                ranges.append((position, position))
        command: Any = Settle(Q, ConsumerKey(key), ranges)
        if how in ("return", "failed"):
            command = Return(Q, ConsumerKey(key), ranges, failed=how == "failed")
        elif how == "discard":
            command = Discard(Q, ConsumerKey(key), ranges)
        applied = self.do(command)
        if any(position not in held for position in chosen):
            assert isinstance(applied.reply, Refused)
            assert not applied.effects
            self.follow(applied)
            return
        assert applied.reply == Ok(len(chosen))
        consumer = self.consumers[key]
        done = [m for m in consumer.held if m.position in chosen]
        consumer.held = [m for m in consumer.held if m.position not in chosen]
        self.seen = max([self.seen, *chosen])
        for message in sorted(done, key=lambda m: m.position):
            if how in ("return", "failed"):
                self.give_back(message, failed=how == "failed", delayed=True)
            elif how == "discard":
                self.dead.append(message.body)
        self.forget_empty()
        self.follow(applied)

    @rule(data=st.data(), counts=st.lists(st.integers(1, 3), max_size=3), wrong=st.integers(0, 5))
    def transaction(self, data: st.DataObject, counts: list[int], wrong: int) -> None:
        """Publishes and a settle at once, or nothing of it."""
        steps: list[Any] = []
        bodies: list[bytes] = []
        for count in counts:
            batch = [b"%d" % (self.sent + nth) for nth in range(count)]
            self.sent += count
            steps.append(Enqueue(Q, None, 0, batch))
            bodies += batch
        settled: list[Message] = []
        holders = self.holders()
        if holders and data.draw(st.booleans()):
            key = data.draw(st.sampled_from(holders))
            settled = [data.draw(st.sampled_from(self.consumers[key].held))]
            position = settled[0].position
            steps.insert(0, Settle(Q, ConsumerKey(key), [(position, position)]))
        if wrong == 5:
            steps.append(Enqueue(QueueId(9), None, 0, [b"nowhere"]))
        self.transactions += 1
        fits = len(bodies) <= self.room()
        applied = self.do(Transaction(NODE, 1, self.transactions, self.transactions, steps))
        if wrong == 5 or not fits:
            assert isinstance(applied.reply, Refused)
        else:
            assert applied.reply == Committed(0, 1)
            for consumer in self.consumers.values():
                consumer.held = [m for m in consumer.held if m not in settled]
            self.seen = max([self.seen, *[m.position for m in settled]])
            self.forget_empty()
            for body in bodies:
                self.position += 1
                message = Message(self.position, body, ready_ms=self.now)
                if self.config.message_ttl_ms is not None:
                    message.ttl_ms = self.config.message_ttl_ms
                    message.expires_ms = self.now + message.ttl_ms
                self.waiting.append(message)
        self.follow(applied)

    @rule(session=st.sampled_from(SESSIONS), count=st.integers(1, 4))
    def get(self, session: str, count: int) -> None:
        applied = self.do(Get(Q, SessionId(session), count))
        assert isinstance(applied.reply, Got)
        consumer = Consumer(session, 0, once=True)
        got = [c for c in applied.reply.chunks for _ in range(c.bodies.count)]
        positions = [
            chunk.first + nth for chunk in applied.reply.chunks for nth in range(chunk.bodies.count)
        ]
        while not self.paused and len(consumer.held) < count:
            message = self.next_ready()
            if message is None:
                break
            self.waiting.remove(message)
            if self.expired(message, self.now - 1):
                self.dead.append(message.body)
                continue
            chunk = got[len(consumer.held)]
            self.check(message, chunk)
            message.token = chunk.token
            consumer.held.append(message)
        assert positions == [m.position for m in consumer.held]
        self.fenced([chunk.token for chunk in got])
        if consumer.held:
            self.consumers[applied.reply.consumer] = consumer
        self.follow(applied)

    @rule(
        session=st.sampled_from(SESSIONS),
        crash=st.booleans(),
        really=st.integers(0, 4),
        told=st.booleans(),
        data=st.data(),
    )
    def end_session(
        self, session: str, crash: bool, really: int, told: bool, data: st.DataObject
    ) -> None:
        """Its node may tell how far each consumer is, or does not know some of them."""
        if really < 4:
            return
        theirs = {k: c for k, c in sorted(self.consumers.items()) if c.session == session}
        handed = {
            key: data.draw(st.integers(0, len(consumer.held)))
            for key, consumer in theirs.items()
            if data.draw(st.booleans())
        }
        said: list[HandedTo] | None = None
        if told:
            said = [
                HandedTo(
                    Q,
                    ConsumerKey(key),
                    0,
                    [(m.position, m.position, m.token) for m in theirs[key].held[:count]],
                )
                for key, count in handed.items()
            ]
        if crash:
            applied = self.do(DetachSession(SessionId(session), NODE, 1, said))
        else:
            applied = self.do(CloseSession(SessionId(session), said))
        for key, consumer in theirs.items():
            sent, failed = len(consumer.held), crash
            if told and self.version >= 2:
                if key in handed:
                    sent = handed[key]
                elif not (consumer.once or consumer.cancelled):
                    failed = False
            delivered = {m.position for m in consumer.held[:sent]}
            others = [m.position for k, c in self.consumers.items() if k != key for m in c.held]
            self.seen = max([self.seen, *delivered])
            seen = max([self.seen, *others])
            for message in sorted(consumer.held, key=lambda m: m.position):
                if message.position in delivered:
                    self.give_back(message, failed=failed, delayed=failed)
                elif message.position <= seen:
                    self.give_back(message, failed=False, delayed=False)
                else:
                    message.ready_ms = self.now
                    self.waiting.append(message)
            del self.consumers[key]
        self.follow(applied)
        self.do(OpenSession(SessionId(session), NODE, 1))

    @rule(really=st.integers(0, 9))
    def purge(self, really: int) -> None:
        if really < 9:
            return
        applied = self.do(Purge(Q))
        assert applied.reply == Ok(len(self.waiting))
        self.waiting = []
        self.follow(applied)

    @precondition(lambda self: self.version >= 5 and self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: Any) -> None:
        some = data.draw(st.sets(st.sampled_from([m.position for m in self.waiting]), min_size=1))
        held = [m.position for consumer in self.consumers.values() for m in consumer.held]
        refused = self.do(Withdraw(Q, [(at, at) for at in sorted({*some, self.position + 1})]))
        assert isinstance(refused.reply, Refused), "a message that never was cannot be withdrawn"
        for position in held:
            assert isinstance(self.do(Withdraw(Q, [(position, position)])).reply, Refused)
        self.waiting = [m for m in self.waiting if m.position not in some]
        applied = self.do(Withdraw(Q, [(at, at) for at in sorted(some)]))
        assert applied.reply == Ok(len(some))
        self.follow(applied)

    @precondition(lambda self: self.version >= 5 and self.waiting)
    @rule(data=st.data(), session=st.sampled_from(SESSIONS))
    def fetch(self, data: Any, session: str) -> None:
        """What is ready and has expired is dead; what is delayed lives until it is due."""
        some = data.draw(st.sets(st.sampled_from([m.position for m in self.waiting]), min_size=1))
        held = {m.position for consumer in self.consumers.values() for m in consumer.held}
        named = [(at, at) for at in sorted({*some, *held, self.position + 1})]
        applied = self.do(Get(Q, SessionId(session), 1, positions=named))
        assert isinstance(applied.reply, Got)
        consumer = Consumer(session, 0, once=True)
        got = [c for c in applied.reply.chunks for _ in range(c.bodies.count)]
        for message in sorted(
            [m for m in self.waiting if m.position in some], key=attrgetter("position")
        ):
            self.waiting.remove(message)
            if message.ready_ms <= self.now and self.expired(message, self.now - 1):
                self.dead.append(message.body)
                continue
            chunk = got[len(consumer.held)]
            self.check(message, chunk)
            message.token = chunk.token
            consumer.held.append(message)
        assert len(got) == len(consumer.held)
        self.fenced([chunk.token for chunk in got])
        if consumer.held:
            self.consumers[applied.reply.consumer] = consumer
        self.follow(applied)

    @precondition(lambda self: self.version >= 5 and self.waiting)
    @rule(data=st.data(), later_ms=st.integers(-5, 40))
    def retime(self, data: Any, later_ms: int) -> None:
        some = data.draw(st.sets(st.sampled_from([m.position for m in self.waiting]), min_size=1))
        found = [m for m in self.waiting if m.position in some]
        for message in found:
            message.ready_ms = max(self.now, self.now + later_ms)
            if not message.acquired and message.ttl_ms is not None:
                message.expires_ms = message.ready_ms + message.ttl_ms
        ranges = [(at, at) for at in sorted({*some, self.position + 1})]
        applied = self.do(Retime(Q, ranges, self.now + later_ms))
        assert applied.reply == Ok(len(some))
        self.follow(applied)

    @rule(how=st.integers(0, 5))
    def pause(self, how: int) -> None:
        paused = how == 5
        self.paused = paused
        self.follow(self.do(Pause(Q, paused)))

    @rule(ms=st.integers(0, 20))
    def time_passes(self, ms: int) -> None:
        self.world.now_ms += ms
        self.follow(self.do(Tick()))

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([*sorted(self.consumers), 7]))

    def holders(self) -> list[int]:
        return [key for key in sorted(self.consumers) if self.consumers[key].held]

    def forget_empty(self) -> None:
        for key, consumer in list(self.consumers.items()):
            if (consumer.once or consumer.cancelled) and not consumer.held:
                del self.consumers[key]

    # --- always -----------------------------------------------------------------------------------

    @invariant()
    def every_message_is_where_the_twin_has_it(self) -> None:
        rows = self.world.machine.browse(Q, 1, 100_000)
        found = [(r.position, r.state, r.consumer, r.chunk.acquired_count) for r in rows]
        expected = [
            (m.position, "ready" if m.ready_ms <= self.now else "delayed", None, m.acquired)
            for m in self.waiting
        ]
        expected += [
            (m.position, "unsettled", key, m.acquired)
            for key, consumer in self.consumers.items()
            for m in consumer.held
        ]
        assert found == sorted(expected, key=lambda row: row[0])

    @invariant()
    def nobody_waits_for_what_is_ready(self) -> None:
        if self.ready() and not self.paused:
            assert not any(consumer.room for consumer in self.consumers.values())

    @invariant()
    def the_limit_holds(self) -> None:
        if self.config.max_length is not None and self.config.overflow == "drop-head":
            assert len(self.waiting) <= self.config.max_length

    @invariant()
    def the_dead_are_in_the_dead_letter_queue(self) -> None:
        rows = self.world.machine.browse(DEAD, 1, 100_000)
        bodies = [self.world.bodies[r.chunk.bodies.index][r.chunk.bodies.offset] for r in rows]
        assert sorted(bodies) == sorted(self.dead)


QueueModel.TestCase.settings = settings(stateful_step_count=40)
test_messages_are_neither_lost_nor_made = QueueModel.TestCase
