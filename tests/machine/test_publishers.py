"""Numbers of publishers: what is confirmed is stored, whatever was refused on its way here."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.admission import REFUSED_OF_COMMAND_SINCE, REFUSED_RANGES_MAX
from cluster.machine.commands import CreateQueue, Enqueue, QueueConfig
from cluster.machine.replies import Enqueued, Refused
from cluster.types import QueueId, Stamp

QUEUE = QueueId(1)


class Log:
    """A machine, and the bodies that it stored."""

    def __init__(self) -> None:
        self.machine = QueueMachine()
        self._indexes = itertools.count(2)
        self.stored: list[bytes] = []
        self._apply(CreateQueue(QUEUE, "/", "q", QueueConfig()))

    def _apply(self, command: object) -> object:
        stamp = Stamp(next(self._indexes), 1, 1_000_000)
        return self.machine.apply(stamp, command).reply  # type: ignore[arg-type]

    def publish(self, seqno: int, *bodies: bytes) -> object:
        reply = self._apply(Enqueue(QUEUE, "p", seqno, list(bodies)))
        if isinstance(reply, Enqueued):
            self.stored += bodies[len(bodies) - reply.stored :]
        return reply


def test_a_publisher_that_the_queue_does_not_know_starts_at_1():
    log = Log()

    refused = log.publish(2, b"b")

    assert isinstance(refused, Refused)
    assert (refused.code, refused.detail) == ("out_of_sequence", 1)
    assert "from 1 on" in refused.reason
    assert isinstance(log.publish(1, b"a"), Enqueued)


@given(lost=st.lists(st.integers(0, 9), max_size=40), window=st.integers(1, 5))
def test_what_is_confirmed_is_stored_once_in_order_whichever_frames_do_not_arrive(
    lost: list[int], window: int
):
    """Frames that a node refuses before the log, while those behind them come through."""
    log = Log()
    bodies = [b"%d" % number for number in range(10)]
    confirmed: list[bytes] = []
    unlucky = iter(lost)
    while len(confirmed) < len(bodies):
        first = len(confirmed)
        replies: list[object] = []
        for number in range(first, min(first + window, len(bodies))):
            arrives = next(unlucky, 10) != number
            replies.append(log.publish(number + 1, bodies[number]) if arrives else None)
        for number, reply in enumerate(replies, first):
            if not isinstance(reply, Enqueued):
                break
            confirmed.append(bodies[number])

    assert log.stored == bodies


# --- what was refused, and sent again -------------------------------------------------------------

FULL = QueueConfig(max_length_bytes=100_000, overflow="reject-publish")


def full_queue(version: int) -> QueueMachine:
    """It has room for bodies of a byte, and for no large one."""
    machine = QueueMachine(version)
    machine.apply(Stamp(1, 1, 1_000_000), CreateQueue(QUEUE, "/", "q", FULL))
    return machine


def sent(machine: QueueMachine, seqno: int, count: int, publisher: str = "~p") -> Enqueued:
    """Every other one of these is refused, if they are new."""
    bodies = [b"x" if number % 2 else b"y" * 100_001 for number in range(count)]
    stamp = Stamp(seqno + 1, 1, 1_000_000)
    reply = machine.apply(stamp, Enqueue(QUEUE, publisher, seqno, bodies)).reply
    assert isinstance(reply, Enqueued)
    return reply


def places(reply: Enqueued) -> set[int]:
    return {place for first, last in reply.refused for place in range(first, last + 1)}


@pytest.mark.parametrize("version", [1, 4, MACHINE_VERSION])
@pytest.mark.parametrize("restored", [False, True])
def test_what_was_refused_is_never_a_duplicate_however_much_was(version: int, restored: bool):
    machine = full_queue(version)
    starts = range(1, 4_001, 500)
    first = {seqno: sent(machine, seqno, 500) for seqno in starts}
    if restored:
        snapshot = machine.snapshot()
        machine = QueueMachine()
        machine.restore(snapshot)
        assert machine.snapshot() == snapshot

    again = {seqno: sent(machine, seqno, 500) for seqno in starts}

    for seqno in starts:
        assert places(first[seqno]) <= places(again[seqno])
        assert again[seqno].stored == 0
        assert again[seqno].duplicates == 500 - len(places(again[seqno]))
    assert again[1].duplicates == 0, "nobody knows what of it was stored"
    assert again[3_501] == Enqueued(0, 0, 250, first[3_501].refused)


def test_of_one_command_all_that_was_refused_is_remembered_from_version_5_on():
    machine = full_queue(REFUSED_OF_COMMAND_SINCE)
    first = sent(machine, 1, 4_096)
    snapshot = machine.snapshot()

    again = sent(machine, 1, 4_096)
    restored = QueueMachine()
    restored.restore(snapshot)

    assert len(first.refused) == 2_048
    assert again == Enqueued(0, 0, 2_048, first.refused)
    assert sent(restored, 1, 4_096) == again
    restored.invariants()


def test_of_one_command_what_was_refused_is_refused_again_before_version_5():
    machine = full_queue(REFUSED_OF_COMMAND_SINCE - 1)
    first = sent(machine, 1, 4_096)

    again = sent(machine, 1, 4_096)

    assert places(first) < places(again)
    assert again.duplicates == 1_024


def test_what_comes_again_with_something_new_is_not_confirmed_either():
    machine = full_queue(MACHINE_VERSION)
    first = sent(machine, 1, 3_000)
    sent(machine, 3_001, 3_000)

    again = sent(machine, 1, 6_001)

    assert places(first) <= places(again)
    assert 6_000 in places(again)


def test_fewer_refusals_than_are_remembered_are_told_exactly():
    machine = full_queue(MACHINE_VERSION)
    first = sent(machine, 1, 2 * REFUSED_RANGES_MAX - 2)
    sent(machine, 1, 3_000, "another")

    assert sent(machine, 1, 2 * REFUSED_RANGES_MAX - 2).refused == first.refused
