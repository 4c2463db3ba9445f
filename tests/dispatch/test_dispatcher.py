"""The dispatcher: inputs in, outputs out. No loop, no socket, no group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster.groups.group import Outcome
from cluster.machine.commands import Enqueue, Settle
from cluster.machine.effects import (
    ActiveChanged,
    ConsumerEnded,
    DeadLettersReady,
    Deliver,
    QueueExpired,
    SessionEnded,
)
from cluster.machine.replies import Chunk, Enqueued, Refused
from cluster.types import BodyRef, ConsumerKey, GroupId, QueueId, SessionId
from node.dispatch.dispatch import FETCHING_MAX, Dispatcher
from node.dispatch.outgoing import Active, Confirm, Delivery, Ended, Failure, Moved, PublishConfirms
from node.dispatch.plan import (
    ConnectionId,
    Detached,
    Drained,
    DropQueue,
    Fetch,
    MoveDeadLetters,
    PauseReading,
    Propose,
    ResumeReading,
    Send,
    SessionOver,
    Ticket,
    Unreadable,
)
from node.dispatch.progress import DeliveryProgress

GROUP = GroupId(1)
QUEUE = QueueId(7)
SESSION = SessionId("s")
ONE, TWO = ConnectionId(1), ConnectionId(2)
CONSUMER, OTHER = ConsumerKey(100), ConsumerKey(200)


def bodies(group: GroupId, ref: BodyRef) -> Sequence[tuple[bytes, Any]]:
    """Entry 0 is gone; the body of a message is its position's text, an entry's size its index."""
    if ref.index == 0:
        return []
    return [(b"x" * ref.index, None) for _ in range(ref.count)]


def dispatcher(**limits: int) -> Dispatcher:
    made = Dispatcher(
        bodies,
        in_flight_bytes_max=limits.get("in_flight", 1000),
        deliver_buffer_bytes_max=limits.get("buffer", 1000),
    )
    made.opened(ONE)
    made.opened(TWO)
    return made


def chunk(first: int, count: int = 1, *, token: int, size: int = 1, acquired: int = 0) -> Chunk:
    return Chunk(first, BodyRef(size, first, count), token, 0, acquired)


def announce(made: Dispatcher, holds: Sequence[Chunk] = (), **options: Any) -> list[Any]:
    connection = options.pop("connection", ONE)
    consumer = options.pop("consumer", CONSUMER)
    made.announced(connection, GROUP, QUEUE, "orders", consumer, holds=holds, **options)
    return flushed(made)


def flushed(made: Dispatcher) -> list[Any]:
    made.flush()
    return made.take()


def deliver(made: Dispatcher, *chunks: Chunk, consumer: ConsumerKey = CONSUMER) -> list[Any]:
    made.effects(GROUP, [Deliver(QUEUE, consumer, SESSION, chunks)])
    return flushed(made)


def positions(outputs: Sequence[Any]) -> list[int]:
    return [
        batch.first + offset
        for output in outputs
        if isinstance(output, Send) and isinstance(output.frame, Delivery)
        for batch in output.frame.batches
        for offset in range(len(batch.bodies))
    ]


def publish(made: Dispatcher, request: int, size: int = 10, connection: ConnectionId = ONE) -> Any:
    command = Enqueue(QUEUE, None, 0, [b"x"])
    made.publish(connection, request, GROUP, "orders", command, size)
    return made.take()


# --- publishing -----------------------------------------------------------------------------------


def test_a_publish_becomes_one_proposal():
    made = dispatcher()
    command = Enqueue(QUEUE, "p", 1, [b"x"] * 256)
    made.publish(ONE, 5, GROUP, "orders", command, 256)

    assert made.take() == [Propose(GROUP, command, Ticket(ONE, 5, "orders", 256, 0.0))]


def test_the_confirms_of_a_round_leave_as_one_frame_a_connection():
    made = dispatcher()
    tickets = [
        publish(made, request, connection=connection)[0].ticket
        for request, connection in [(1, ONE), (2, TWO), (3, ONE)]
    ]
    for number, ticket in enumerate(tickets):
        made.outcome(ticket, Outcome("ok", Enqueued(number + 1, 1)))

    assert made.take() == []
    assert flushed(made) == [
        Send(ONE, PublishConfirms([Confirm(1, 1, 1, 0, ()), Confirm(3, 3, 1, 0, ())])),
        Send(TWO, PublishConfirms([Confirm(2, 2, 1, 0, ())])),
    ]
    assert flushed(made) == []


@pytest.mark.parametrize(
    ("outcome", "frame"),
    [
        (
            Outcome("refused", Refused("queue_full", "why", 3), None, "queue_full", "why"),
            Failure(1, "queue_full", "why", 3),
        ),
        (Outcome("refused", None, None, "not_leader", "x", "b"), Moved(1, "orders", "b")),
        (Outcome("refused", None, None, "no_leader", "x"), Moved(1, "orders", None)),
        (Outcome("refused", None, None, "stopping", "x"), Moved(1, "orders", None)),
        (
            Outcome("unknown", None, None, "link_lost", "lost"),
            Failure(1, "unknown", "lost; it may have happened: ask again"),
        ),
    ],
)
def test_a_publish_that_is_not_confirmed_is_told_why(outcome: Outcome, frame: object):
    made = dispatcher()
    (proposal,) = publish(made, 1)

    made.outcome(proposal.ticket, outcome)

    assert made.take() == [Send(ONE, frame)]  # type: ignore[arg-type]


def test_reading_stops_over_the_limit_and_goes_on_below_half_of_it():
    made = dispatcher(in_flight=100)
    first = publish(made, 1, 60)[0].ticket
    outputs = publish(made, 2, 60)
    assert outputs[0] == PauseReading(ONE)
    assert publish(made, 3, 1)[0] != PauseReading(ONE)

    made.outcome(first, Outcome("ok", Enqueued(1, 1)))
    assert made.take() == []
    made.outcome(outputs[1].ticket, Outcome("unknown"))

    assert ResumeReading(ONE) in made.take()


def test_an_outcome_for_a_connection_that_is_gone_is_nobody_elses():
    made = dispatcher()
    (proposal,) = publish(made, 1)
    made.closed(ONE)

    made.outcome(proposal.ticket, Outcome("ok", Enqueued(1, 1)))

    assert flushed(made) == []
    assert made.counts.confirmed == 1


# --- delivering -----------------------------------------------------------------------------------


def test_a_consumer_is_sent_what_it_holds_when_it_is_announced_and_then_what_comes():
    made = dispatcher()
    assert deliver(made, chunk(1, token=1)) == []  # not announced yet

    assert positions(announce(made, [chunk(1, token=1)])) == [1]
    assert positions(deliver(made, chunk(2, 3, token=2))) == [2, 3, 4]


def test_what_a_change_of_leader_repeats_is_dropped():
    made = dispatcher()
    announce(made, [chunk(1, token=1)])
    deliver(made, chunk(2, token=2))

    assert deliver(made, chunk(1, token=1), chunk(2, token=2), chunk(3, token=3)) != []
    assert positions(deliver(made, chunk(3, token=3))) == []


def test_a_client_that_comes_back_gets_only_what_it_lacks():
    made = dispatcher()
    holds = [chunk(1, 5, token=1), chunk(6, 2, token=2), chunk(9, token=3)]
    held = [(2, 3, 1), (6, 7, 2), (9, 9, 99)]

    outputs = announce(made, holds, progress=DeliveryProgress(held=held))

    assert positions(outputs) == [1, 4, 5, 9]


def test_a_client_is_not_given_again_what_it_has_from_a_leader_that_is_ahead():
    """This node applies later what that leader had decided."""
    made = dispatcher()
    held = [(4, 5, 3), (3, 3, 2)]
    assert announce(made, [], progress=DeliveryProgress(1, held)) == []

    assert positions(deliver(made, chunk(3, token=2))) == []
    assert positions(deliver(made, chunk(4, 3, token=3))) == [6]
    assert positions(deliver(made, chunk(7, token=4))) == [7]
    assert positions(deliver(made, chunk(4, token=5))) == [4], "it was given back meanwhile"


def test_what_one_decision_handed_out_by_priority_is_sent_in_that_order():
    made = dispatcher()
    holds = [chunk(9, token=1), chunk(1, 2, token=1), chunk(4, token=2), chunk(3, token=2)]

    assert positions(announce(made, holds)) == [9, 1, 2, 4, 3]
    back = announce(made, holds, progress=DeliveryProgress(held=[(9, 9, 1), (4, 4, 2)]))
    assert positions(back) == [1, 2, 3]


def test_a_part_of_a_chunk_has_its_own_bodies():
    made = dispatcher()
    (output,) = announce(made, [chunk(1, 5, token=1)], progress=DeliveryProgress(held=[(1, 2, 1)]))

    (batch,) = output.frame.batches
    assert (batch.first, len(batch.bodies), batch.token) == (3, 3, 1)


def test_deliveries_stop_while_the_network_has_not_taken_the_last_ones():
    made = dispatcher(buffer=10)
    sent = announce(made, [chunk(n, token=n, size=10) for n in range(1, 3)])
    assert positions(sent) == [1, 2]  # one frame aims at more than this buffer holds

    assert positions(deliver(made, chunk(3, token=3, size=10))) == []
    made.taken(ONE, 10)
    assert flushed(made) == []
    made.taken(ONE, 10)
    assert positions(flushed(made)) == [3]


def test_consumers_of_one_connection_take_turns():
    made = dispatcher(buffer=4 << 20)
    half = 600_000
    announce(made)
    announce(made, consumer=OTHER)
    made.effects(
        GROUP,
        [
            Deliver(QUEUE, CONSUMER, SESSION, [chunk(n, token=n, size=half) for n in range(1, 5)]),
            Deliver(QUEUE, OTHER, SESSION, [chunk(9, token=9)]),
        ],
    )

    frames = [output.frame for output in flushed(made)]

    assert [frame.consumer for frame in frames] == [CONSUMER, OTHER, CONSUMER, CONSUMER, CONSUMER]


def test_a_large_chunk_leaves_in_several_frames():
    made = dispatcher(buffer=8 << 20)
    (outputs) = announce(made, [chunk(1, 3, token=1, size=700_000)])

    assert [len(output.frame.batches[0].bodies) for output in outputs] == [1, 1, 1]
    assert positions(outputs) == [1, 2, 3]


def test_a_delivery_whose_bodies_are_gone_is_told_and_skipped():
    made = dispatcher()
    gone = chunk(1, token=1, size=0)
    outputs = announce(made, [gone, chunk(2, token=2)])

    assert Unreadable(GROUP, "orders", gone) in outputs
    assert positions(outputs) == [2]


def test_auto_settle_proposes_to_settle_what_is_sent():
    made = dispatcher()
    outputs = announce(made, [chunk(1, 2, token=1), chunk(3, token=2)], auto_settle=True)

    assert outputs[1:] == [Propose(GROUP, Settle(QUEUE, CONSUMER, [(1, 3)], 2), None)]


def test_what_another_leader_sent_and_did_not_settle_is_settled():
    """But for large bodies: whoever hands one to the network settles it when all of it left."""
    made = dispatcher()
    holds = [chunk(1, 2, token=3), chunk(3, token=4), chunk(4, 4, token=5), chunk(8, token=6)]
    progress = DeliveryProgress(4, [(4, 5, 5)])
    outputs = announce(
        made, holds, progress=progress, auto_settle=True, is_large=lambda position: position == 3
    )

    assert outputs[0] == Propose(GROUP, Settle(QUEUE, CONSUMER, [(1, 2), (4, 5)], 6), None)
    assert positions(outputs) == [6, 7, 8]
    assert outputs[-1] == Propose(GROUP, Settle(QUEUE, CONSUMER, [(6, 8)], 6), None)
    assert len(outputs) == 3

    made.follows(GROUP)
    made.take()
    assert not any(type(each) is Propose for each in announce(made, holds, progress=progress))


def test_a_cancelled_consumer_is_still_sent_what_it_holds():
    made = dispatcher(buffer=1)
    announce(made, [chunk(1, token=1)])
    deliver(made, chunk(2, token=2))

    made.cancelled(QUEUE, CONSUMER)
    assert made.take() == []
    made.taken(ONE, 1)

    outputs = flushed(made)
    assert positions(outputs) == [2]
    assert outputs[-1] == Drained(ONE, QUEUE, CONSUMER)


def test_redeliveries_are_counted():
    made = dispatcher()
    announce(made, [chunk(1, 2, token=1), chunk(3, token=2, acquired=1)])

    assert (made.counts.delivered, made.counts.redelivered) == (3, 1)


# --- leaders, ends, single active consumers -------------------------------------------------------


def test_who_loses_the_leadership_says_how_far_each_client_is():
    made = dispatcher(buffer=1)
    announce(made, [chunk(1, token=5)])
    deliver(made, chunk(2, token=6))  # stays pending

    made.follows(GROUP)
    (output,) = made.take()

    assert isinstance(output, Detached)
    assert (output.progress.mark, output.progress.held) == (4, [(1, 1, 5)])
    made.effects(GROUP, [Deliver(QUEUE, CONSUMER, SESSION, [chunk(2, token=6)])])
    assert flushed(made) == []


def test_the_next_leader_sends_what_the_last_one_did_not():
    first, second = dispatcher(buffer=1), dispatcher(buffer=8 << 20)
    holds = [chunk(1, token=5), chunk(2, token=6)]
    announce(first, holds[:1])
    deliver(first, holds[1])
    first.follows(GROUP)
    (detached,) = first.take()

    assert positions(announce(second, holds, progress=detached.progress)) == [2]


def test_a_closed_connection_forgets_its_consumers():
    made = dispatcher()
    announce(made)
    made.closed(ONE)
    made.closed(ONE)

    assert deliver(made, chunk(1, token=1)) == []


def test_a_consumer_announced_again_moves_to_the_new_connection():
    made = dispatcher()
    announce(made)
    announce(made, connection=TWO)

    (output,) = deliver(made, chunk(1, token=1))
    assert output.connection == TWO


def test_the_end_of_a_consumer_is_told():
    made = dispatcher()
    announce(made)
    made.effects(GROUP, [ConsumerEnded(QUEUE, CONSUMER, SESSION, "queue_deleted")])

    assert made.take() == [Send(ONE, Ended("orders", CONSUMER, "queue_deleted"))]
    assert deliver(made, chunk(1, token=1)) == []


def test_only_consumers_whose_activity_changed_are_told():
    made = dispatcher()
    announce(made, active=True)
    announce(made, consumer=OTHER, connection=TWO, active=False)

    made.effects(GROUP, [ActiveChanged(QUEUE, OTHER, SESSION, 9)])
    assert made.take() == [
        Send(ONE, Active("orders", CONSUMER, False, 9)),
        Send(TWO, Active("orders", OTHER, True, 9)),
    ]
    made.effects(GROUP, [ActiveChanged(QUEUE, OTHER, SESSION, 9)])
    assert made.take() == []


def test_effects_that_others_carry_out_are_passed_on():
    made = dispatcher()
    made.effects(
        GROUP, [SessionEnded(SESSION, "lost"), DeadLettersReady(QUEUE), QueueExpired(QUEUE)]
    )

    assert made.take() == [
        SessionOver(GROUP, SESSION, "lost"),
        MoveDeadLetters(GROUP, QUEUE),
        DropQueue(GROUP, QUEUE),
    ]


# --- entries that are not in memory ---------------------------------------------------------------


class Memory:
    """Which entries are in memory; `bodies` of all others."""

    def __init__(self, *cold: int) -> None:
        self.cold = set(cold)

    def __call__(self, group: GroupId, ref: BodyRef) -> Sequence[tuple[bytes, Any]] | None:
        return None if ref.index in self.cold else bodies(group, ref)


def with_memory(*cold: int) -> tuple[Dispatcher, Memory]:
    memory = Memory(*cold)
    made = Dispatcher(memory, in_flight_bytes_max=1000, deliver_buffer_bytes_max=1000)
    made.opened(ONE)
    made.opened(TWO)
    return made, memory


def fetches(outputs: Sequence[Any]) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in outputs if isinstance(each, Fetch)]


def arrived(made: Dispatcher, memory: Memory, index: int) -> list[Any]:
    memory.cold.discard(index)
    made.fetched(GROUP, index)
    return made.take()


def test_what_is_not_in_memory_is_asked_for_and_sent_when_it_has_come():
    made, memory = with_memory(10, 20)
    outputs = announce(made, [chunk(1, token=1, size=10), chunk(2, token=1, size=20)])
    assert (fetches(outputs), positions(outputs)) == ([(10, 20)], [])
    memory.cold.discard(20)
    assert positions(deliver(made, chunk(3, token=2))) == []  # behind the others

    assert positions(arrived(made, memory, 10)) == [1, 2, 3]
    assert flushed(made) == []


def test_an_entry_that_several_wait_for_is_asked_for_once():
    made, memory = with_memory(10)
    assert fetches(announce(made, [chunk(1, token=1, size=10)])) == [(10, 10)]
    assert fetches(announce(made, [chunk(2, token=2, size=10)], consumer=OTHER)) == []
    held = [chunk(3, token=3, size=10)]
    assert fetches(announce(made, held, connection=TWO, consumer=ConsumerKey(300))) == []

    assert positions(arrived(made, memory, 10)) == [1, 2, 3]


def test_what_came_for_a_consumer_that_went_away_is_not_sent():
    for away in (lambda made: made.follows(GROUP), lambda made: made.closed(ONE)):
        made, memory = with_memory(10)
        announce(made, [chunk(1, token=1, size=10)])
        away(made)
        made.take()

        assert arrived(made, memory, 10) == []
        assert flushed(made) == []


def test_a_consumer_that_comes_back_while_its_entry_is_fetched_gets_it_once():
    made, memory = with_memory(10)
    announce(made, [chunk(1, token=1, size=10)])
    made.follows(GROUP)
    made.take()
    assert fetches(announce(made, [chunk(1, token=1, size=10)])) == []

    assert positions(arrived(made, memory, 10)) == [1]
    assert flushed(made) == []


def test_a_cancelled_consumer_is_drained_when_what_it_waited_for_is_sent():
    made, memory = with_memory(10)
    announce(made, [chunk(1, token=1, size=10)])
    made.cancelled(QUEUE, CONSUMER)
    assert made.take() == []

    outputs = arrived(made, memory, 10)
    assert positions(outputs) == [1]
    assert Drained(ONE, QUEUE, CONSUMER) in outputs


def test_what_was_fetched_and_is_gone_is_told():
    made, memory = with_memory(0)
    gone = chunk(1, token=1, size=0)
    announce(made, [gone])

    assert arrived(made, memory, 0) == [Unreadable(GROUP, "orders", gone)]


def test_what_was_fetched_and_dropped_again_is_asked_for_again():
    made, memory = with_memory(10)
    announce(made, [chunk(1, token=1, size=10)])
    made.fetched(GROUP, 10)
    assert fetches(made.take()) == [(10, 10)]

    assert positions(arrived(made, memory, 10)) == [1]


def test_a_connection_fetches_for_so_many_consumers_at_once_and_for_all_in_turn():
    indexes = range(1, 3 * FETCHING_MAX + 1)
    made, memory = with_memory(*indexes)
    asked: list[int] = []
    for index in indexes:
        held = [chunk(index, token=index, size=index)]
        outputs = announce(made, held, consumer=ConsumerKey(index))
        asked += [first for first, _ in fetches(outputs)]
    assert asked == list(indexes)[:FETCHING_MAX]
    sent: list[int] = []
    while asked:
        outputs = arrived(made, memory, asked.pop(0)) + flushed(made)
        sent += positions(outputs)
        asked += [first for first, _ in fetches(outputs)]
        assert len(asked) <= FETCHING_MAX
        made.taken(ONE, sum(o.frame.size_bytes for o in outputs if isinstance(o, Send)))

    assert sent == list(indexes)


def test_when_those_whose_turn_it_was_go_away_the_others_fetch():
    indexes = range(1, 4 * FETCHING_MAX + 1)
    made, memory = with_memory()
    for index in indexes:
        held = [chunk(index, token=index, size=1000 + index)]
        memory.cold.add(1000 + index)
        announce(made, held, consumer=ConsumerKey(index))
    outputs: list[Any] = []
    for index in indexes[:FETCHING_MAX]:  # more than the buffer holds: nobody fetches more
        outputs += arrived(made, memory, 1000 + index)
    turn = indexes[FETCHING_MAX : 3 * FETCHING_MAX]
    for index in turn:
        made.effects(GROUP, [ConsumerEnded(QUEUE, ConsumerKey(index), SESSION, "queue_deleted")])
    sent = positions(outputs)
    made.taken(ONE, sum(o.frame.size_bytes for o in outputs if isinstance(o, Send)))
    asked = [first for first, _ in fetches(flushed(made))]
    while asked:
        outputs = arrived(made, memory, asked.pop(0))
        made.taken(ONE, sum(o.frame.size_bytes for o in outputs if isinstance(o, Send)))
        outputs += flushed(made)
        sent += positions(outputs)
        asked += [first for first, _ in fetches(outputs)]

    assert sent == [index for index in indexes if index not in turn]


class Anything(RuleBasedStateMachine):
    """Whatever comes in whatever order: every position is sent once and in order."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.made = Dispatcher(self.memory, in_flight_bytes_max=1000, deliver_buffer_bytes_max=50)
        self.made.opened(ONE)
        self.fetching: list[int] = []
        self.token = 0
        self.holds: list[Chunk] = []
        self.sent: list[int] = []
        self.unsent: list[int] = []
        self.announced = False

    def collect(self) -> None:
        for output in self.made.take():
            if isinstance(output, Send) and isinstance(output.frame, Delivery):
                self.sent += positions([output])
                self.unsent.append(output.frame.size_bytes)
            elif isinstance(output, Fetch):
                assert output.first not in self.fetching
                self.fetching.append(output.first)

    @rule(index=st.integers(1, 40))
    def forget(self, index: int) -> None:
        self.memory.cold.add(index)

    @precondition(lambda self: self.fetching)
    @rule(comes=st.booleans())
    def fetched(self, comes: bool) -> None:
        index = self.fetching.pop(0)
        if comes:
            self.memory.cold.discard(index)
        self.made.fetched(GROUP, index)
        self.collect()

    @rule(count=st.integers(1, 5), size=st.integers(1, 40), repeat=st.booleans())
    def hand_out(self, count: int, size: int, repeat: bool) -> None:
        self.token += 1
        first = self.holds[-1].first + self.holds[-1].bodies.count if self.holds else 1
        fresh = chunk(first, count, token=self.token, size=size)
        self.holds.append(fresh)
        chunks = self.holds if repeat else [fresh]
        self.made.effects(GROUP, [Deliver(QUEUE, CONSUMER, SESSION, chunks)])

    @rule()
    def flush(self) -> None:
        self.made.flush()
        self.collect()

    @precondition(lambda self: not self.announced)
    @rule()
    def announce(self) -> None:
        self.announced = True
        progress = getattr(self, "progress", None)
        self.made.announced(
            ONE, GROUP, QUEUE, "orders", CONSUMER, holds=self.holds, progress=progress
        )

    @precondition(lambda self: self.announced)
    @rule()
    def change_leader(self) -> None:
        self.announced = False
        self.made.follows(GROUP)
        (detached,) = [each for each in self.made.take() if isinstance(each, Detached)]
        self.progress = detached.progress

    @precondition(lambda self: self.unsent)
    @rule()
    def take(self) -> None:
        self.made.taken(ONE, self.unsent.pop(0))

    @invariant()
    def every_position_once_in_order(self) -> None:
        assert self.sent == list(range(1, len(self.sent) + 1))

    @invariant()
    def never_far_over_the_buffer(self) -> None:
        assert len(self.unsent) <= 50

    def teardown(self) -> None:
        if not self.announced:
            self.announce()
        total = sum(each.bodies.count for each in self.holds)
        for _ in range(10_000):
            self.flush()
            if self.fetching:
                self.fetched(comes=True)
            elif self.unsent:
                self.take()
            else:
                break
        assert self.sent == list(range(1, total + 1))


TestAnything = Anything.TestCase
