"""Numbers of publishers: what is confirmed is stored, whatever was refused on its way here."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cluster.machine import QueueMachine
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
