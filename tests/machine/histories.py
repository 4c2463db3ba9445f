"""Random logs that use everything the machine can do. Run as a program it prints what came of one.

The same seed gives the same log, in every process: nothing here depends on hashes.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.commands import (
    ATTR_DEATHS,
    ATTR_DEDUP_ID,
    ATTR_DELIVER_AT_MS,
    ATTR_PRIORITY,
    ATTR_TTL_MS,
    Barrier,
    BodyPart,
    Cancel,
    CloseSession,
    CreateQueue,
    DeadLettersMoved,
    DeleteQueue,
    DetachSession,
    Discard,
    Enqueue,
    Extend,
    Get,
    Handed,
    HandedTo,
    NodeDown,
    NodeUp,
    OpenSession,
    Pause,
    Purge,
    PutOffDeadLetters,
    QueueConfig,
    Retime,
    Return,
    SendDeadLetters,
    SetCredit,
    Settle,
    Subscribe,
    Tick,
    Transaction,
    TransactionDone,
    TransactionPart,
    UpdateQueue,
    UpgradeMachine,
    Withdraw,
)
from cluster.machine.replies import OUT_OF_SEQUENCE, Enqueued, PartKept, Refused
from cluster.machine.runs import ranges_of
from cluster.types import ConsumerKey, GroupId, NodeId, QueueId, SessionId, Stamp

CONFIGS = {
    1: QueueConfig(),
    2: QueueConfig(
        max_priority=5,
        message_ttl_ms=400,
        dead_letter_queue=QueueId(5),
        dead_letter_exchange="",
        delivery_limit=2,
    ),
    3: QueueConfig(single_active_consumer=True, consumer_timeout_ms=500, delivery_limit=None),
    4: QueueConfig(
        max_length=20,
        max_length_bytes=200,
        overflow="reject-publish-dlx",
        dead_letter_exchange="far",
        dead_letter_routing_key="k",
        delayed_retry_type="all",
        delayed_retry_min_ms=30,
        delayed_retry_max_ms=90,
        delivery_limit=1,
    ),
    5: QueueConfig(
        max_length=15, message_ttl_ms=300, dead_letter_queue=QueueId(2), dead_letter_exchange=""
    ),
    6: QueueConfig(expires_ms=700, dedup_window_ms=200, consumer_timeout_ms=None),
    7: QueueConfig(max_length_bytes=100, overflow="reject-publish", dead_letter_exchange="x"),
}
SESSIONS = ["ann", "bob", "cid", "dan", "eve"]
NODES = ["n1", "n2", "n3"]
TAGS = ["x", "y"]


class History:
    """Draws commands that fit the state of its own machine."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = QueueMachine()
        self.now_ms = 1_000_000
        self.index = 1
        self.incarnations = dict.fromkeys(NODES, 1)
        self.seqnos: dict[tuple[int, str], int] = {}
        self.uploads: dict[tuple[int, str], list[tuple[int, int, int]]] = {}  # as answered

    def steps(self, count: int) -> Iterator[tuple[Stamp, Any]]:
        for queue, config in CONFIGS.items():
            yield self.step(CreateQueue(QueueId(queue), "/", f"q{queue}", config))
        upgrades = {
            self.random.choice([0, count // 3, count * 2 // 3, count]): version
            for version in range(2, MACHINE_VERSION + 1)
        }
        for number in range(count):
            if number in upgrades:
                yield self.step(UpgradeMachine(upgrades[number]))
            yield self.step(self.command())

    def step(self, command: Any) -> tuple[Stamp, Any]:
        # A new leader's clock may be behind; entries may hold several commands.
        self.now_ms += self.random.choice([0, 0, 1, 5, 20, 60, -30])
        self.index += self.random.choice([1, 1, 2])
        stamp = Stamp(self.index, 1, self.now_ms, 0, self.random.choice([0, 0, 3]))
        self.answered(command, self.machine.apply(stamp, command).reply)
        return stamp, command

    def answered(self, command: Any, reply: Any) -> None:
        """What is to be known of it for the next ones."""
        if isinstance(command, BodyPart) and isinstance(reply, PartKept):
            parts = self.uploads.setdefault((command.queue, command.upload), [])
            parts[command.number :] = [(reply.index, reply.offset, len(command.data))]
        if isinstance(command, Enqueue) and isinstance(reply, Refused | Enqueued):
            self.numbered(command, reply)

    def numbered(self, command: Enqueue, reply: Refused | Enqueued) -> None:
        """What the publisher's next number is, as it learns it."""
        if command.publisher is None:
            return
        ref = (command.queue, command.publisher)
        if isinstance(reply, Enqueued):
            self.seqnos[ref] = max(self.seqnos.get(ref, 1), command.seqno + len(command.bodies))
        elif reply.code == OUT_OF_SEQUENCE:
            self.seqnos[ref] = reply.detail

    def named(self, queue: QueueId, session: SessionId, *, auto_settle: bool) -> Any:
        """Messages that wait are fetched, retimed or withdrawn, among others that do not."""
        draw = self.random
        rows = self.machine.browse(queue, 1, 50)
        some = sorted(
            draw.sample(rows, min(len(rows), draw.choice([1, 3]))), key=attrgetter("position")
        )
        if draw.random() < 0.8:
            some = [row for row in some if row.state != "unsettled"]
        ranges = [(row.position, row.position) for row in some]
        return draw.choice(
            [
                Get(queue, session, 1, auto_settle, ranges),
                Retime(queue, ranges, self.now_ms + draw.choice([-50, 20, 200])),
                Withdraw(queue, ranges),
            ]
        )

    def command(self) -> Any:
        draw = self.random
        queue = QueueId(draw.randint(1, 7))
        session = SessionId(draw.choice(SESSIONS))
        node = NodeId(draw.choice(NODES))
        incarnation = self.incarnation(node)
        roll = draw.random()
        if roll < 0.30:
            return self.enqueue(queue)
        if roll < 0.55:
            return self.finish(queue)
        if roll < 0.65:
            return Subscribe(
                queue,
                session,
                draw.choice(TAGS),
                draw.choice([0, 1, 3, 10]),
                draw.choice([0, 0, 1, 5]),
                draw.random() < 0.05,
                draw.random() < 0.1,
                draw.choice([None, None, 200]),
            )
        if roll < 0.71:
            return OpenSession(session, node, incarnation, draw.choice([0, 50, 300]))
        if roll < 0.75:
            auto = draw.random() < 0.3
            if self.machine.version >= 5 and draw.random() < 0.4:
                return self.named(queue, session, auto_settle=auto)
            return Get(queue, session, draw.choice([1, 5]), auto)
        if roll < 0.80:
            return DetachSession(session, node, incarnation, self.handed(session))
        if roll < 0.84:
            return self.transaction(node, incarnation)
        return draw.choice(
            [
                Tick(),
                Tick(),
                Tick(),
                Barrier(),
                self.part(queue),
                self.part(queue),
                self.part(queue),
                CloseSession(session, self.handed(session)),
                self.taken(queue),
                self.taken(queue),
                NodeDown(node, incarnation, draw.random() < 0.5),
                NodeUp(node, incarnation),
                Cancel(queue, self.consumer(queue)),
                SetCredit(queue, self.consumer(queue), draw.choice([0, 1, 7])),
                Pause(queue, draw.random() < 0.3),
                Purge(queue) if draw.random() < 0.2 else Tick(),
                self.moved(queue),
                self.update(queue),
                DeleteQueue(queue, if_unused=draw.random() < 0.5) if roll > 0.97 else Tick(),
                CreateQueue(queue, "/", f"q{queue}", CONFIGS[queue]),
                "no command",
            ]
        )

    def incarnation(self, node: NodeId) -> int:
        """Mostly that of its process now; now and then a later one, or an old one."""
        now = self.incarnations[node] + (self.random.random() < 0.02)
        self.incarnations[node] = now
        return now - (self.random.random() < 0.05)

    def deliveries(self, queue: QueueId, key: ConsumerKey) -> list[tuple[int, int, int]]:
        """Some of what the consumer holds, now and then under a wrong token."""
        return [
            (
                chunk.first,
                chunk.first + self.random.randrange(chunk.bodies.count),
                chunk.token - (self.random.random() < 0.1),
            )
            for chunk in self.machine.consumer_holds(queue, key) or ()
            if self.random.random() < 0.5
        ]

    def handed(self, session: SessionId) -> list[HandedTo] | None:
        """What the session's node knows of its consumers, perhaps not of all."""
        if self.random.random() < 0.3:
            return None
        return [
            HandedTo(
                QueueId(queue),
                consumer.key,
                self.random.choice([0, view.last_token - 1]),
                self.deliveries(QueueId(queue), consumer.key),
            )
            for queue in CONFIGS
            if (view := self.machine.queue(QueueId(queue))) is not None
            for consumer in view.consumers
            if consumer.session == session and self.random.random() < 0.8
        ]

    def taken(self, queue: QueueId) -> Handed:
        key = self.consumer(queue)
        return Handed(queue, key, self.deliveries(queue, key))

    def moved(self, queue: QueueId) -> DeadLettersMoved | PutOffDeadLetters | SendDeadLetters:
        letters = self.machine.dead_letters(queue, 20)
        if letters and self.machine.version >= 5 and self.random.random() < 0.5:
            put_off = self.random.choice(letters).put_off
            numbers = [each.number for each in letters if each.put_off == put_off]
            some = self.random.sample(numbers, self.random.randint(1, len(numbers)))
            kind = SendDeadLetters if put_off else PutOffDeadLetters
            ranges = ranges_of(sorted(some))
            if kind is PutOffDeadLetters and self.random.random() < 0.5:
                number = self.random.choice(some)
                return kind(queue, ranges, ((number, number + 3, (8, 9)),))
            return kind(queue, ranges)
        number = self.random.choice(letters).number if letters else self.random.randint(1, 60)
        return DeadLettersMoved(queue, number)

    def update(self, queue: QueueId) -> UpdateQueue:
        return UpdateQueue(queue, CONFIGS[self.random.choice([queue, queue, 1, 2, 4, 5, 7])])

    def enqueue(self, queue: QueueId) -> Enqueue:
        draw = self.random
        bodies = [b"x" * draw.choice([10, 10, 10, 3]) for _ in range(draw.choice([1, 1, 4, 20]))]
        publisher = draw.choice([None, None, "pub", "~tmp", "dlx:9"])
        seqno = 0
        if publisher is not None:
            known = self.seqnos.get((queue, publisher), 1)
            seqno = max(1, known + draw.choice([0, 0, 0, -2, 1]))
        attrs: Any = None
        if draw.random() < 0.4:
            attrs = [self.attrs() for _ in bodies] if draw.random() < 0.7 else self.attrs()
        return Enqueue(queue, publisher, seqno, bodies, None, attrs, self.large(queue, bodies))

    def part(self, queue: QueueId) -> BodyPart:
        """Mostly the next one, of one of a few uploads."""
        upload = self.random.choice("uvw")
        number = len(self.uploads.get((queue, upload), ()))
        number = max(0, number + self.random.choice([0, 0, 0, 0, -1, 1]))
        return BodyPart(queue, upload, number, b"x" * self.random.choice([20, 20, 20, 30]))

    def large(self, queue: QueueId, bodies: list[bytes]) -> Any:
        """Which bodies are large: sometimes one, of parts that are mostly there."""
        if self.random.random() < 0.8:
            return None
        upload = self.random.choice("uvw")
        place = self.random.randrange(len(bodies))
        parts = self.uploads.pop((queue, upload), [])
        return {place: (upload, tuple(parts))} if parts else None

    def transaction(self, node: NodeId, incarnation: int) -> Any:
        """One that this group decides, a part of another's, or the end of one: some repeated."""
        draw = self.random
        steps = [self.step_of_transaction() for _ in range(draw.choice([0, 1, 2, 3]))]
        number = draw.choice([self.index, self.index, draw.randint(1, self.index)])
        below = max(1, number - draw.choice([0, 5, 50]))
        if draw.random() < 0.3:
            return TransactionPart(GroupId(draw.choice([5, 6])), number, below, steps)
        opened = self.machine.transactions()
        if opened and draw.random() < 0.3:
            one = draw.choice(opened)
            return TransactionDone(one.number, [draw.choice(one.groups), GroupId(9)])
        others = draw.sample([7, 8, 9], draw.choice([0, 0, 1, 2]))
        far = [Enqueue(QueueId(50), None, 0, [b"far"])]
        groups = [(GroupId(group), far) for group in others]
        return Transaction(node, incarnation, number, below, steps, groups)

    def step_of_transaction(self) -> Any:
        queue = QueueId(self.random.randint(1, 7))
        if self.random.random() < 0.6:
            return replace(self.enqueue(queue), publisher=None, seqno=0, large=None)
        step = self.finish(queue)
        return (
            step
            if isinstance(step, Settle | Return | Discard)
            else Settle(queue, step.consumer, [])
        )

    def attrs(self) -> dict[int, Any] | None:
        draw = self.random
        attrs: dict[int, Any] = {}
        if draw.random() < 0.4:
            attrs[ATTR_PRIORITY] = draw.randint(0, 7)
        if draw.random() < 0.3:
            attrs[ATTR_TTL_MS] = draw.choice([0, 20, 200])
        if draw.random() < 0.2:
            attrs[ATTR_DELIVER_AT_MS] = self.now_ms + draw.randint(-20, 200)
        if draw.random() < 0.3:
            attrs[ATTR_DEDUP_ID] = f"id{draw.randint(1, 9)}"
        if draw.random() < 0.1:
            attrs[ATTR_DEATHS] = [
                {
                    "queue": f"q{draw.randint(1, 7)}",
                    "reason": "expired",
                    "count": 1,
                    "to": ["", "r"],
                }
            ]
        return attrs or None

    def consumer(self, queue: QueueId) -> ConsumerKey:
        view = self.machine.queue(queue)
        keys = [consumer.key for consumer in view.consumers] if view else []
        return self.random.choice([*keys, ConsumerKey(5)])

    def finish(self, queue: QueueId) -> Any:
        draw = self.random
        view = self.machine.queue(queue)
        holders = (
            [consumer.key for consumer in view.consumers if consumer.unsettled] if view else []
        )
        if not holders:
            return Settle(queue, ConsumerKey(5), [(1, 1)])
        key = draw.choice(holders)
        held = sorted(
            chunk.first + nth
            for chunk in self.machine.consumer_holds(queue, key)
            for nth in range(chunk.bodies.count)
        )
        ranges: list[tuple[int, int]] = []
        for position in held:
            if draw.random() < 0.5:
                if ranges and ranges[-1][1] == position - 1:
                    ranges[-1] = (ranges[-1][0], position)
                else:
                    ranges.append((position, position))
        if draw.random() < 0.05:
            ranges.append((held[-1] + 1, held[-1] + 3))
        return draw.choice(
            [
                Settle(queue, key, ranges),
                Settle(queue, key, ranges),
                Return(queue, key, ranges),
                Return(queue, key, ranges, failed=True),
                Return(queue, key, ranges, unsent=True),
                Return(queue, key, ranges, delay_ms=draw.choice([0, 40])),
                Discard(queue, key, ranges),
                Extend(queue, key, ranges, draw.choice([None, 100])),
            ]
        )


def outcome(seed: int, count: int) -> str:
    """One line for all that a log leads to: every answer and the state at the end."""
    machine = QueueMachine()
    answers = hashlib.blake2b(digest_size=16)
    for stamp, command in History(seed).steps(count):
        answers.update(repr(machine.apply(stamp, command)).encode())
    answers.update(repr(machine.on_leader()).encode())
    return f"{answers.hexdigest()} {machine.digest().hex()}"


if __name__ == "__main__":
    print(outcome(int(sys.argv[1]), int(sys.argv[2])))
