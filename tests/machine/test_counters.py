"""What is counted of a queue for rates, and for how long its messages had to wait for consumers."""

from __future__ import annotations

from typing import Any

from cluster.machine import QueueMachine
from cluster.machine.commands import (
    CreateQueue,
    DeleteQueue,
    Enqueue,
    Get,
    OpenSession,
    QueueConfig,
    Settle,
    Subscribe,
    Tick,
)
from cluster.machine.counters import QueueCounters
from cluster.machine.replies import Got, Subscribed
from cluster.types import NodeId, QueueId, SessionId, Stamp

QUEUE = QueueId(1)
SESSION = SessionId("s")


class Machine:
    def __init__(self) -> None:
        self.machine = QueueMachine()
        self.index = 1
        self.now_ms = 1_000_000
        self.apply(CreateQueue(QUEUE, "/", "q", QueueConfig()))
        self.apply(OpenSession(SESSION, NodeId("n"), 1))

    def apply(self, command: Any, after_ms: int = 0) -> Any:
        self.index += 1
        self.now_ms += after_ms
        return self.machine.apply(Stamp(self.index, 1, self.now_ms), command).reply

    @property
    def counters(self) -> QueueCounters:
        return self.machine.counters.of[QUEUE]

    def subscribe(self, credit: int) -> int:
        reply = self.apply(Subscribe(QUEUE, SESSION, "tag", credit))
        assert isinstance(reply, Subscribed)
        return reply.consumer


def test_messages_are_counted_where_they_come_and_go():
    machine = Machine()
    machine.apply(Enqueue(QUEUE, None, 0, [b"a", b"b", b"c", b"d"]))
    got = machine.apply(Get(QUEUE, SESSION, 1))
    assert isinstance(got, Got)
    machine.apply(Settle(QUEUE, got.consumer, [(1, 1)]))
    machine.apply(Get(QUEUE, SESSION, 1, auto_settle=True))
    consumer: Any = machine.subscribe(10)
    machine.apply(Settle(QUEUE, consumer, [(3, 3)]))
    machine.apply(Get(QUEUE, SESSION, 1))

    counters = machine.counters

    assert (counters.published, counters.settled, counters.delivered) == (4, 2, 2)
    assert (counters.got, counters.got_settled, counters.got_empty) == (1, 1, 1)


def test_a_queue_is_held_up_while_messages_wait_for_consumers_that_are_full():
    machine = Machine()
    machine.apply(Enqueue(QUEUE, None, 0, [b"a", b"b"]))
    machine.apply(Tick(), after_ms=500)
    assert machine.counters.held_up_until(machine.now_ms) == 0, "nobody is subscribed"

    consumer: Any = machine.subscribe(1)
    machine.apply(Tick(), after_ms=300)
    assert machine.counters.held_up_until(machine.now_ms) == 300

    machine.apply(Settle(QUEUE, consumer, [(1, 1)]), after_ms=100)
    machine.apply(Tick(), after_ms=5_000)
    assert machine.counters.held_up_until(machine.now_ms) == 400
    assert machine.counters.held_up_since_ms is None


def test_a_deleted_queue_is_counted_no_more():
    machine = Machine()
    machine.apply(Enqueue(QUEUE, None, 0, [b"a"]))

    machine.apply(DeleteQueue(QUEUE))

    assert QUEUE not in machine.machine.counters.of


def test_what_is_counted_is_no_state():
    machine, other = Machine(), QueueMachine()
    machine.apply(Enqueue(QUEUE, None, 0, [b"a"]))

    other.restore(machine.machine.snapshot())

    assert other.digest() == machine.machine.digest()
    assert QUEUE not in other.counters.of


def test_queues_that_changed_are_remembered_only_for_who_takes_them():
    """They may come and go for ever, on a node that nobody asks for metrics."""
    machine = Machine()
    counters = machine.machine.counters
    first, second = counters.watch(), counters.watch()
    machine.apply(DeleteQueue(QUEUE))
    assert list(first) == list(second) == [QUEUE]
    first.clear()
    counters.unwatch(second)

    machine.apply(CreateQueue(QueueId(QUEUE + 1), "/", "q", QueueConfig()))

    assert list(first) == [QUEUE + 1]
    assert list(second) == [QUEUE]
    assert counters.watched == 1
