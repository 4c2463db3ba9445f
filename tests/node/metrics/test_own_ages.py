"""The oldest messages of a queue, against a slow twin that walks over all of them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cluster.machine import QueueMachine
from cluster.machine.commands import (
    ATTR_PRIORITY,
    CloseSession,
    CreateQueue,
    Discard,
    Enqueue,
    NodeDown,
    NodeUp,
    OpenSession,
    QueueConfig,
    Return,
    Settle,
    Subscribe,
    Tick,
)
from cluster.machine.interface import QueueGauges
from cluster.machine.replies import Subscribed
from cluster.types import ConsumerKey, NodeId, QueueId, SessionId, Stamp

QUEUE = QueueId(1)
NODE = NodeId("n1")


class Group:
    def __init__(self, **config: Any) -> None:
        self.machine = QueueMachine()
        self.index = 1
        self.now_ms = 1_000_000
        self.apply(CreateQueue(QUEUE, "/", "q", QueueConfig(**config)))

    def apply(self, command: Any) -> Any:
        self.index += 1
        return self.machine.apply(Stamp(self.index, 1, self.now_ms), command).reply

    def subscribe(self, name: str, credit: int) -> ConsumerKey:
        self.apply(OpenSession(SessionId(name), NODE, 1, 60_000))
        reply = self.apply(Subscribe(QUEUE, SessionId(name), "t", credit))
        assert isinstance(reply, Subscribed)
        return reply.consumer

    @property
    def gauges(self) -> QueueGauges:
        found = self.machine.gauges(QUEUE)
        assert found is not None
        return found

    def oldest(self, state: Any) -> int | None:
        rows = self.machine.browse(QUEUE, 1, 1 << 40, state)
        return min((row.enqueued_ms for row in rows), default=None)


@pytest.mark.parametrize("seed", range(6))
def test_the_oldest_are_those_that_a_walk_over_all_messages_finds(seed: int):
    random = Random(seed)
    group = Group(max_priority=random.choice([0, 3]))
    consumers = [group.subscribe(f"s{number}", random.choice([1, 3, 10])) for number in range(3)]
    seen = {True: 0, False: 0}
    for _ in range(200):
        group.now_ms += random.randint(0, 50)
        consumer = random.choice(consumers)
        held = group.machine.consumer_holds(QUEUE, consumer) or ()
        chunk = random.choice(held) if held else None
        end = [] if chunk is None else [(chunk.first, chunk.first + chunk.bodies.count - 1)]
        act = random.random()
        if act < 0.4:
            bodies = [b"m"] * random.randint(1, 5)
            attrs = {ATTR_PRIORITY: random.randint(0, 3)}
            group.apply(Enqueue(QUEUE, None, 0, bodies, None, attrs))
        elif end and act < 0.7:
            group.apply(Settle(QUEUE, consumer, end))
        elif end and act < 0.85:
            group.apply(Return(QUEUE, consumer, end, False, random.choice([0, 40])))
        elif end and act < 0.9:
            group.apply(Discard(QUEUE, consumer, end))
        else:
            group.apply(Tick())
        gauges = group.gauges
        assert gauges.oldest_ready_ms == group.oldest("ready")
        assert gauges.oldest_unsettled_ms == group.oldest("unsettled")
        assert gauges.consumers == 3
        assert not gauges.lacks_active
        seen[gauges.oldest_ready_ms is not None and gauges.oldest_unsettled_ms is not None] += 1
    assert seen[True] > 50


def test_a_single_active_consumer_is_lacked_while_all_who_want_to_be_it_are_suspected():
    group = Group(single_active_consumer=True)
    assert not group.gauges.lacks_active  # nobody wants to be it
    group.subscribe("a", 1)
    group.subscribe("b", 1)
    assert not group.gauges.lacks_active
    group.apply(NodeDown(NODE, 1, gone=False))
    found = group.machine.queue(QUEUE)
    assert found is not None
    assert not any(consumer.active for consumer in found.consumers)
    assert group.gauges.lacks_active
    group.apply(NodeUp(NODE, 1))
    assert not group.gauges.lacks_active
    group.apply(CloseSession(SessionId("a")))
    group.apply(CloseSession(SessionId("b")))
    assert group.gauges.consumers == 0
    assert not group.gauges.lacks_active


def test_a_queue_that_is_gone_has_no_gauges():
    assert Group().machine.gauges(QueueId(2)) is None
