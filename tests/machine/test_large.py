"""What must not depend on size: bounded work a command, bounded memory a message."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.checkout import CHUNKS_AT_ONCE_MAX
from cluster.machine.commands import (
    ATTR_DELIVER_AT_MS,
    ATTR_PRIORITY,
    ATTR_TTL_MS,
    CloseSession,
    CreateQueue,
    DeleteQueue,
    Enqueue,
    OpenSession,
    Purge,
    QueueConfig,
    Settle,
    Subscribe,
    Tick,
    UpdateQueue,
    UpgradeMachine,
)
from cluster.machine.effects import Applied, Deliver
from cluster.machine.queue import Queue
from cluster.machine.runs import RangeMap
from cluster.types import ConsumerKey, NodeId, QueueId, SessionId, Stamp
from tests.testkit.calls import calls_of

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


@pytest.mark.parametrize(("batch", "each"), [(256, 10), (1, 60)])
def test_a_backlog_takes_few_bytes_a_message(batch: int, each: int):
    log, count = Log(), 20_000
    tracemalloc.start()
    for _ in range(count // batch):
        log.enqueue(batch)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert size < each * count


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


COUNT = 5_000


def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often columns of ranges are moved in the middle."""
    found = [0]
    splice = RangeMap[Any]._splice

    def counted(ranges: RangeMap[Any], start: int, end: int, pieces: Any) -> None:
        found[0] += 1
        splice(ranges, start, end, pieces)

    monkeypatch.setattr(RangeMap, "_splice", counted)
    return found


def mixed(config: QueueConfig) -> Log:
    """Neighbours in the queue have different priorities, so marks are as many as messages."""
    log = Log(config)
    log.machine.apply(Stamp(2, 1, 1_000), UpgradeMachine(MACHINE_VERSION))
    attrs = [{ATTR_PRIORITY: 1 + number * 7 % 9} for number in range(COUNT)]
    log.apply(Enqueue(Q, None, 0, [BODY] * COUNT, None, attrs))
    return log


WAYS = {
    "purged": (QueueConfig(max_priority=9), lambda _: Purge(Q), 1_000, 0),
    "expired": (QueueConfig(max_priority=9, message_ttl_ms=500), lambda _: Tick(), 9_000, 0),
    "over a limit": (
        QueueConfig(max_priority=9),
        lambda config: UpdateQueue(Q, replace(config, max_length=2_500)),
        1_000,
        2_500,
    ),
    "dead-lettered": (
        QueueConfig(max_priority=9, message_ttl_ms=500, dead_letter_exchange="far"),
        lambda _: Tick(),
        9_000,
        0,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_messages_of_many_priorities_that_leave_together_are_moved_once(
    way: str, monkeypatch: pytest.MonkeyPatch
):
    config, command, at_ms, left = WAYS[way]
    log = mixed(config)
    count = moved(monkeypatch)

    log.machine.apply(Stamp(1_000_000, 1, at_ms), command(config))

    log.machine.invariants()
    view = log.machine.queue(Q)
    assert view is not None
    assert view.ready_count == left
    assert count[0] < 100


def test_what_a_consumer_of_many_priorities_held_comes_back_without_moving_all_marks(
    monkeypatch: pytest.MonkeyPatch,
):
    log = mixed(QueueConfig(max_priority=9))
    log.subscribe(COUNT)
    while (view := log.machine.queue(Q)) is not None and view.ready_count:
        log.apply(Tick())
    queue = log.machine._queues[Q]
    assert isinstance(queue, Queue)
    marks, splice, count = queue.messages.marks, RangeMap[Any]._splice, [0]

    def counted(ranges: RangeMap[Any], start: int, end: int, pieces: Any) -> None:
        count[0] += ranges is marks
        splice(ranges, start, end, pieces)

    monkeypatch.setattr(RangeMap, "_splice", counted)
    log.apply(CloseSession(SessionId("s")))

    view = log.machine.queue(Q)
    assert view is not None
    assert view.ready_count == COUNT
    assert count[0] < 100


def test_a_look_at_a_few_messages_reads_a_few_of_those_that_are_delayed():
    log = Log()
    attrs = [{ATTR_DELIVER_AT_MS: 10_000 + number * 7 % 5_000} for number in range(COUNT)]
    log.apply(Enqueue(Q, None, 0, [BODY] * COUNT, None, attrs))
    tracemalloc.start()
    rows = log.machine.browse(Q, 11, 5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [row.position for row in rows] == [11, 12, 13, 14, 15]
    assert peak < 20_000


SPECIAL = {
    "priorities": lambda number: {ATTR_PRIORITY: 1 + number * 7 % 9},
    "times to live": lambda number: {ATTR_TTL_MS: 10_000 + number * 7 % 5_000},
    "delays": lambda number: {ATTR_DELIVER_AT_MS: 10_000 + number * 7 % 5_000},
}


@pytest.mark.parametrize("what", SPECIAL)
def test_a_digest_looks_only_at_what_changed_since_the_last_one(what: str):
    log = Log()
    log.apply(UpgradeMachine(MACHINE_VERSION))
    attrs = [SPECIAL[what](number) for number in range(COUNT)]
    log.apply(Enqueue(Q, None, 0, [BODY] * COUNT, None, attrs))
    before = log.machine.digest()
    log.apply(Enqueue(Q, None, 0, [BODY], None, [SPECIAL[what](COUNT)]))
    tracemalloc.start()
    calls = calls_of(log.machine.digest)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert log.machine.digest() != before
    assert calls < 1_000
    assert peak < 20_000


def test_a_publish_into_a_backlog_of_different_times_to_live_looks_at_its_head_alone():
    log = Log()
    log.apply(
        Enqueue(
            Q, None, 0, [BODY] * COUNT, None, [SPECIAL["times to live"](n) for n in range(COUNT)]
        )
    )
    tracemalloc.start()
    log.apply(Enqueue(Q, None, 0, [BODY], None, [SPECIAL["times to live"](COUNT)]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 20_000


def test_one_message_that_expires_is_found_without_a_look_at_all_others():
    log = Log()
    attrs = [{ATTR_TTL_MS: 10_000 + 10 * number} for number in range(COUNT)]
    log.apply(Enqueue(Q, None, 0, [BODY] * COUNT, None, attrs))
    tracemalloc.start()
    log.machine.apply(Stamp(log.index + 1, 1, 11_005), Tick())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    view = log.machine.queue(Q)
    assert view is not None
    assert view.ready_count == COUNT - 1
    assert peak < 20_000
