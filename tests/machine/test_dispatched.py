"""What is assigned to a consumer ahead of what the network took, and what counts as delivered."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.commands import (
    CreateQueue,
    DetachSession,
    Enqueue,
    Get,
    Handed,
    HandedTo,
    OpenSession,
    QueueConfig,
    Settle,
    Subscribe,
    UpdateQueue,
    UpgradeMachine,
)
from cluster.machine.consumers import UNLIMITED_CREDIT
from cluster.machine.effects import Deliver
from cluster.machine.replies import UNKNOWN_COMMAND, Ok, Refused
from cluster.types import ConsumerKey, NodeId, QueueId, SessionId, Stamp

Q, S, NODE = QueueId(1), SessionId("s"), NodeId("n1")
BACKLOG = 20_000
CLASSIC = QueueConfig(delivery_limit=None)
QUORUM = QueueConfig()


class Script:
    def __init__(self, config: QueueConfig, *, version: int = MACHINE_VERSION) -> None:
        self.machine = QueueMachine(version)
        self.index = 1
        self.tokens: dict[int, int] = {}
        self.windowed: bool | None = None
        self.do(CreateQueue(Q, "/", "q", config))
        self.key = ConsumerKey(0)

    def do(self, command: Any) -> Any:
        self.index += 1
        reply, effects = self.machine.apply(Stamp(self.index, 1, 1_000), command)
        self.machine.invariants()
        for effect in effects:
            if isinstance(effect, Deliver):
                self.windowed = effect.windowed
                for chunk in effect.chunks:
                    for position in range(chunk.first, chunk.first + chunk.bodies.count):
                        self.tokens[position] = chunk.token
        return reply

    def subscribe(self, credit: int = 0) -> None:
        self.do(OpenSession(S, NODE, 1))
        self.key = self.do(Subscribe(Q, S, "t", credit)).consumer

    def dispatched(self, first: int, last: int) -> Any:
        return self.do(Handed(Q, self.key, [(first, last, self.tokens[first])]))

    @property
    def view(self) -> Any:
        return self.machine.queue(Q)

    def crash(self, handed: int) -> None:
        """After the network took so many of the first messages."""
        beyond = [(position, position, self.tokens[position]) for position in range(1, handed + 1)]
        self.do(DetachSession(S, NODE, 1, [HandedTo(Q, self.key, 0, beyond)]))


def publish(script: Script, count: int = BACKLOG) -> None:
    for _ in range(count // 1_000):
        script.do(Enqueue(Q, None, 0, [b"x"] * 1_000))


def test_a_consumer_that_crashes_in_a_loop_spoils_only_what_it_was_sent():
    """20,000 messages without a credit limit: the queue was empty after 21 rounds."""
    script = Script(QUORUM)
    publish(script)
    for _ in range(21):
        script.subscribe()
        assert script.view.unsettled_count == UNLIMITED_CREDIT
        script.crash(handed=1)
    assert script.view.ready_count == BACKLOG - 1
    untouched = script.machine.browse(Q, 2, BACKLOG)
    assert {(row.chunk.acquired_count, row.chunk.delivery_count) for row in untouched} == {(0, 0)}


def test_with_a_delivery_limit_unlimited_credit_is_a_number_held():
    script = Script(QUORUM)
    publish(script)
    script.subscribe()
    assert script.view.unsettled_count == UNLIMITED_CREDIT
    assert script.windowed is False
    script.do(Settle(Q, script.key, [(1, 500)]))
    assert script.view.unsettled_count == UNLIMITED_CREDIT


def test_without_one_it_is_a_number_ahead_of_the_network():
    """A client of a classic queue that settles nothing gets all there is, as in RabbitMQ."""
    script = Script(CLASSIC)
    publish(script)
    script.subscribe()
    assert script.windowed is True
    taken = 0
    while script.view.ready_count:
        assert script.view.unsettled_count == taken + UNLIMITED_CREDIT
        assert script.dispatched(taken + 1, taken + 1_000) == Ok(1_000)
        taken += 1_000
    assert script.view.unsettled_count == BACKLOG


def test_what_is_settled_was_taken_by_the_network():
    script = Script(CLASSIC)
    publish(script)
    script.subscribe()
    script.do(Settle(Q, script.key, [(1, 700)]))
    assert script.view.unsettled_count == UNLIMITED_CREDIT
    assert script.dispatched(1, 2_000) == Ok(1_300), "the settled ones do not count twice"


def test_another_delivery_of_the_same_message_is_not_meant():
    script = Script(CLASSIC)
    publish(script)
    script.subscribe()
    stale = Handed(Q, script.key, [(1, 10, script.tokens[1] + 1)])
    assert script.do(stale) == Ok(0)
    assert script.do(Handed(Q, ConsumerKey(7), [(1, 1, 1)])).code == "no_consumer"


def test_a_policy_with_a_delivery_limit_bounds_what_is_held_already():
    script = Script(CLASSIC)
    publish(script)
    script.subscribe()
    script.dispatched(1, 2_000)
    script.do(UpdateQueue(Q, QUORUM))
    script.do(Settle(Q, script.key, [(1, 1_000)]))
    assert script.view.unsettled_count == 3_000, "over the bound, and nothing new"
    script.do(Settle(Q, script.key, [(1_001, 3_000)]))
    assert script.view.unsettled_count == UNLIMITED_CREDIT


@pytest.mark.parametrize("config", [CLASSIC, QUORUM])
def test_the_older_machine_goes_on_as_before(config: QueueConfig):
    script = Script(config, version=1)
    publish(script)
    script.subscribe()
    assert script.view.unsettled_count == BACKLOG
    refused = script.dispatched(1, 2)
    assert isinstance(refused, Refused)
    assert refused.code == UNKNOWN_COMMAND
    script.crash(handed=1)
    rows = script.machine.browse(Q, 1, BACKLOG)
    assert {(row.chunk.acquired_count, row.chunk.delivery_count) for row in rows} == {(1, 1)}


@pytest.mark.parametrize("config", [CLASSIC, QUORUM])
def test_an_upgrade_bounds_what_comes_next(config: QueueConfig):
    script = Script(config, version=1)
    publish(script)
    script.subscribe()
    script.do(UpgradeMachine(2))
    assert script.view.unsettled_count == BACKLOG
    publish(script)
    bound = BACKLOG if config is QUORUM else BACKLOG + UNLIMITED_CREDIT
    assert script.view.unsettled_count == bound


def test_a_snapshot_keeps_the_window_and_what_was_told():
    script = Script(CLASSIC)
    publish(script)
    script.subscribe()
    script.dispatched(1, 1_000)
    copy = QueueMachine()
    copy.restore(script.machine.snapshot())
    assert copy.snapshot() == script.machine.snapshot()
    assert copy.digest() == script.machine.digest()
    copy.invariants()


def test_a_get_is_not_bounded_by_a_window():
    script = Script(CLASSIC)
    publish(script)
    script.do(OpenSession(S, NODE, 1))
    got = script.do(Get(Q, S, 5_000))
    assert sum(chunk.bodies.count for chunk in got.chunks) == 5_000
