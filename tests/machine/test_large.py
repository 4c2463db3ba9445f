"""What must not depend on size: bounded work a command, bounded memory a message."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from cluster.machine import QueueMachine
from cluster.machine.commands import (
    CreateQueue,
    Enqueue,
    OpenSession,
    QueueConfig,
    Settle,
    Subscribe,
    Tick,
)
from cluster.machine.dispatch import CHUNKS_AT_ONCE_MAX
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
