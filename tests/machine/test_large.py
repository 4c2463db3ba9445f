"""What must not depend on size: bounded work a command, bounded memory a message."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from cluster.machine import QueueMachine
from cluster.machine.checkout import CHUNKS_AT_ONCE_MAX
from cluster.machine.commands import (
    CreateQueue,
    DeleteQueue,
    Enqueue,
    OpenSession,
    QueueConfig,
    Settle,
    Subscribe,
    Tick,
)
from cluster.machine.effects import Applied, Deliver
from cluster.types import ConsumerKey, NodeId, QueueId, SessionId, Stamp

Q = QueueId(1)
BODY = b"x" * 100


class Log:
    def __init__(self, config: QueueConfig | None = None) -> None:
        self.machine = QueueMachine()
        self.index = 1
        self.apply(CreateQueue(Q, "/", "q", config or QueueConfig()))
        self.apply(OpenSession(SessionId("s"), NodeId("n"), 1))

    def apply(self, command: Any) -> Applied:
        self.index += 1
        return self.machine.apply(Stamp(self.index, 1, 1_000), command)

    def enqueue(self, count: int) -> Applied:
        return self.apply(Enqueue(Q, None, 0, [BODY] * count))

    def subscribe(self, credit: int = 0) -> Applied:
        return self.apply(Subscribe(Q, SessionId("s"), "t", credit=credit))


def delivered(applied: Applied) -> int:
    return sum(
        chunk.bodies.count
        for effect in applied.effects
        if isinstance(effect, Deliver)
        for chunk in effect.chunks
    )


def test_one_command_hands_out_only_so_many_chunks_and_the_leader_is_asked_to_go_on():
    log = Log()
    for _ in range(CHUNKS_AT_ONCE_MAX + 500):
        log.enqueue(1)

    applied = log.subscribe()

    assert delivered(applied) == CHUNKS_AT_ONCE_MAX
    assert log.machine.next_due_ms() == 1_000
    assert delivered(log.apply(Tick())) == 500
    log.machine.invariants()
    due_ms = log.machine.next_due_ms()
    assert due_ms is not None
    assert due_ms > 1_000


@pytest.mark.parametrize(("batch", "megabytes"), [(256, 1), (1, 6)])
def test_a_backlog_takes_little_memory(batch: int, megabytes: int):
    """A tenth of a million: 10 MB a million in batches of 256, 60 MB a million one by one."""
    log = Log()
    tracemalloc.start()
    for _ in range(100_000 // batch):
        log.enqueue(batch)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert size < megabytes * 1_000_000


def test_what_was_settled_takes_no_memory():
    log = Log()
    reply: Any = log.subscribe(credit=10).reply
    consumer: ConsumerKey = reply.consumer
    log.enqueue(1)  # stays unsettled at the head for good
    for position in range(2, 20_002):
        log.enqueue(1)
        log.apply(Settle(Q, consumer, [(position, position)]))

    log.machine.invariants()
    assert len(log.machine.snapshot()) < 1_000
    assert len(log.machine.live_indexes()) == 1


def test_priorities_that_starve_others_take_no_memory():
    log = Log(QueueConfig(max_priority=1))
    log.enqueue(1)
    reply: Any = log.subscribe(credit=2).reply
    for position in range(2, 5_002):
        log.apply(Enqueue(Q, None, 0, [BODY], attrs={1: 1}))
        log.apply(Settle(Q, reply.consumer, [(position, position)]))

    log.machine.invariants()
    assert len(log.machine.snapshot()) < 1_000


def test_the_timetable_holds_no_more_than_there_is_to_come():
    """Each message that expires before the queue does once left an entry behind, for a week."""
    log = Log(QueueConfig(message_ttl_ms=10, expires_ms=7 * 86_400_000))
    for cycle in range(20_000):
        for now_ms, command in ((0, Enqueue(Q, None, 0, [BODY])), (20, Tick())):
            log.index += 1
            log.machine.apply(Stamp(log.index, 1, 1_000 + cycle * 40 + now_ms), command)
    assert log.machine.overview()["ready"] == 0
    assert len(log.machine._timetable.heap) < 200
    log.machine.invariants()


def test_queues_that_come_and_go_leave_nothing_in_the_timetable():
    log = Log()
    config = QueueConfig(expires_ms=7 * 86_400_000)
    for number in range(2, 2_000):
        log.apply(CreateQueue(QueueId(number), "/", f"q{number}", config))
        log.apply(DeleteQueue(QueueId(number)))
    assert len(log.machine._timetable.heap) < 200
    assert log.machine.next_due_ms() is None
