"""Rates and the consumer capacity of a queue (A14), from two looks at it."""

from __future__ import annotations

from typing import Any

from cluster.machine import QueueMachine
from cluster.machine.commands import (
    CreateQueue,
    Enqueue,
    OpenSession,
    QueueConfig,
    Settle,
    Subscribe,
)
from cluster.machine.replies import Subscribed
from cluster.types import NodeId, QueueId, SessionId, Stamp
from node.management.facts import Moment, QueueFacts, Sample, facts_of, sampled, unpacked

QUEUE = QueueId(1)
SESSION = SessionId("s")


class Queue:
    """A real one, looked at under a clock of our own."""

    def __init__(self) -> None:
        self.machine = QueueMachine()
        self.now_s = 1_000
        self.index = 0
        self.before: Sample | None = None
        self.since = self.moment
        self.apply(CreateQueue(QUEUE, "/", "q", QueueConfig()))
        self.apply(OpenSession(SESSION, NodeId("n"), 1))

    @property
    def moment(self) -> Moment:
        return Moment(float(self.now_s), self.now_s * 1000)

    def apply(self, command: Any) -> Any:
        self.index += 1
        return self.machine.apply(Stamp(self.index, 1, self.now_s * 1000), command).reply

    def publish(self, count: int) -> None:
        self.apply(Enqueue(QUEUE, None, 0, [b"x"] * count))

    def subscribe(self, credit: int) -> Any:
        reply = self.apply(Subscribe(QUEUE, SESSION, "tag", credit))
        assert isinstance(reply, Subscribed)
        return reply.consumer

    def note(self) -> None:
        view = self.machine.queue(QUEUE)
        assert view is not None
        self.before, self.since = sampled(self.machine.counters.of[QUEUE], view), self.moment

    def look(self) -> QueueFacts:
        view = self.machine.queue(QUEUE)
        assert view is not None
        counters = self.machine.counters.of[QUEUE]
        facts = facts_of(view, counters, self.moment, self.before, self.since)
        assert unpacked(facts.packed()).packed() == facts.packed()
        return facts


def test_rates_are_of_the_time_since_the_last_look():
    queue = Queue()
    queue.publish(100)
    assert queue.look().rates[0] == 0
    queue.note()
    queue.publish(50)
    queue.now_s += 10

    facts = queue.look()

    assert facts.rates[0] == 5.0
    assert facts.messages_rates == [5.0, 5.0, 0.0]
    queue.note()
    queue.now_s += 10
    assert queue.look().rates[0] == 0


def test_a_queue_without_consumers_has_no_capacity():
    queue = Queue()
    queue.note()
    queue.publish(1)
    queue.now_s += 10

    assert queue.look().capacity == 0.0


def test_consumers_with_nothing_waiting_are_full_capacity():
    queue = Queue()
    queue.subscribe(10)
    assert queue.look().capacity == 1.0
    queue.note()
    queue.publish(10)
    queue.now_s += 10

    assert queue.look().capacity == 1.0


def test_the_time_in_which_messages_waited_for_busy_consumers_is_missing():
    queue = Queue()
    consumer = queue.subscribe(1)
    queue.note()
    queue.now_s += 4
    queue.publish(2)
    queue.now_s += 2
    queue.apply(Settle(QUEUE, consumer, [(1, 1)]))
    queue.now_s += 2

    assert queue.look().capacity == 0.75


def test_a_queue_that_was_held_up_before_the_last_look_still_is():
    queue = Queue()
    queue.subscribe(1)
    queue.publish(2)
    assert queue.look().capacity == 0.0
    queue.now_s += 100
    queue.note()
    queue.now_s += 10

    assert queue.look().capacity == 0.0
