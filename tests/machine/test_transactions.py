"""Transactions over groups: all of each or nothing, whatever is lost, repeated or late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cluster.machine import QueueMachine
from cluster.machine.commands import (
    ATTR_DELIVER_AT_MS,
    CloseSession,
    CreateQueue,
    DeleteQueue,
    Enqueue,
    OpenSession,
    QueueConfig,
    Reserve,
    ResolveTransaction,
    Settle,
    Step,
    Subscribe,
    Tick,
    Transaction,
    TransactionDone,
    TransactionPart,
    UpgradeMachine,
)
from cluster.machine.effects import TransactionsDue
from cluster.machine.replies import (
    LIMIT_REACHED,
    NOT_EMPTY,
    QUEUE_FULL,
    UNKNOWN_COMMAND,
    Committed,
    Enqueued,
    Ok,
    Refused,
    Subscribed,
)
from cluster.machine.transactions import OPEN_MAX, RESERVED_MS
from cluster.types import ConsumerKey, GroupId, NodeId, QueueId, SessionId, Stamp
from tests.machine.histories import History
from tests.machine.world import World

NODE = NodeId("n1")
SESSION = SessionId("ann")


class Group:
    """A group of one queue, with the commands of its log."""

    def __init__(self, number: int) -> None:
        self.id = GroupId(number)
        self.queue = QueueId(number)
        self.world = World()
        self.log: dict[int, Any] = {}
        config = QueueConfig(max_length=6, overflow="reject-publish")
        self.apply(CreateQueue(self.queue, "/", f"q{number}", config))
        self.apply(OpenSession(SESSION, NODE, 1))
        subscribed = self.apply(Subscribe(self.queue, SESSION, "t", credit=2))
        assert isinstance(subscribed, Subscribed)
        self.consumer = subscribed.consumer

    @property
    def machine(self) -> QueueMachine:
        return self.world.machine

    def apply(self, command: Any) -> Any:
        reply = self.world.apply(command).reply
        self.log[self.world.index] = command
        return reply

    def bodies(self) -> list[bytes]:
        """Of all messages that were not settled."""
        rows = self.machine.browse(self.queue, 1, 100_000)
        return [self.world.bodies[row.chunk.bodies.index][row.chunk.bodies.offset] for row in rows]

    def held(self) -> list[int]:
        chunks = self.machine.consumer_holds(self.queue, self.consumer)
        return [chunk.first + nth for chunk in chunks for nth in range(chunk.bodies.count)]

    def body_of(self, position: int) -> bytes:
        (row,) = self.machine.browse(self.queue, position, 1)
        return self.world.bodies[row.chunk.bodies.index][row.chunk.bodies.offset]


class Groups(RuleBasedStateMachine):
    """Three groups; nodes that propose, carry out and forget in any order."""

    @initialize()
    def start(self) -> None:
        self.groups = [Group(number) for number in (1, 2, 3)]
        self.number = 0
        self.proposed: list[tuple[Group, Transaction]] = []
        self.answers: dict[int, Any] = {}
        self.parts: list[tuple[Group, TransactionPart]] = []
        #: What must be in each queue once every open transaction is done; gone: settled by one.
        self.expected: dict[GroupId, set[bytes]] = {group.id: set() for group in self.groups}

    def group(self, number: int) -> Group:
        return self.groups[number - 1]

    @rule(
        decides=st.integers(1, 3),
        counts=st.lists(st.integers(0, 3), min_size=3, max_size=3),
        settles=st.booleans(),
        nowhere=st.integers(0, 9),
    )
    def commit(self, decides: int, counts: list[int], settles: bool, nowhere: int) -> None:
        self.number += 1
        group = self.group(decides)
        steps: dict[int, list[Step]] = {}
        for number, count in enumerate(counts, 1):
            bodies = [b"%d.%d.%d" % (self.number, number, nth) for nth in range(count)]
            if bodies:
                steps[number] = [
                    Enqueue(QueueId(number), None, 0, [body], "meta") for body in bodies
                ]
        held = group.held()
        settled = held[:1] if settles else []
        done_with = {group.body_of(position) for position in settled}
        if settled:
            step = Settle(group.queue, group.consumer, [(settled[0], settled[0])])
            steps.setdefault(decides, []).insert(0, step)
        if nowhere == 9:
            steps.setdefault(decides, []).append(Enqueue(QueueId(99), None, 0, [b"lost"]))
        own = steps.pop(decides, [])
        others = [(GroupId(number), each) for number, each in steps.items()]
        command = Transaction(NODE, 1, self.number, 0, own, others)
        before = group.bodies()
        reply = group.apply(command)
        self.proposed.append((group, command))
        self.answers[self.number] = reply
        if isinstance(reply, Refused):
            assert group.bodies() == before, "a part of what was refused is done"
            return
        assert isinstance(reply, Committed)
        assert bool(reply.number) == bool(others)
        self.expected[group.id] -= done_with
        for target, each in [(group.id, own), *others]:
            for step in each:
                if isinstance(step, Enqueue):
                    self.expected[target] |= set(step.bodies)

    @precondition(lambda self: self.proposed)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        group, command = data.draw(st.sampled_from(self.proposed))
        before = group.bodies()
        assert group.apply(command) == self.answers[command.number]
        assert group.bodies() == before

    @rule(decides=st.integers(1, 3), data=st.data())
    def a_leader_carries_out(self, decides: int, data: st.DataObject) -> None:
        """Some of what is open, in any order; and it may forget to say so."""
        group = self.group(decides)
        for each in group.machine.transactions():
            for target in data.draw(st.permutations(each.groups)):
                if data.draw(st.booleans()):
                    self.carry_out(group, each.number, target, tell=data.draw(st.booleans()))

    def carry_out(self, group: Group, number: int, target_id: GroupId, *, tell: bool) -> None:
        opened = group.machine.transactions()
        (each,) = [each for each in opened if each.number == number]
        command = group.log[each.index]
        assert any(first <= each.index <= last for first, last in group.machine.live_indexes())
        target = self.group(target_id)
        part = TransactionPart(group.id, number, opened[0].number, dict(command.others)[target_id])
        target.apply(part)
        self.parts.append((target, part))
        if tell:
            group.apply(TransactionDone(number, [target_id]))

    @precondition(lambda self: self.parts)
    @rule(data=st.data())
    def a_part_comes_late(self, data: st.DataObject) -> None:
        target, part = data.draw(st.sampled_from(self.parts))
        before = target.bodies()
        target.apply(part)
        assert target.bodies() == before, "a part was done twice"

    @rule(number=st.integers(1, 3))
    def a_consumer_settles(self, number: int) -> None:
        group = self.group(number)
        for position in group.held()[:1]:
            self.expected[group.id].discard(group.body_of(position))
            group.apply(Settle(group.queue, group.consumer, [(position, position)]))

    @invariant()
    def every_transaction_is_done_or_owed(self) -> None:
        """All that is missing in a queue belongs to parts that somebody still has to carry out."""
        owed: dict[GroupId, set[bytes]] = {group.id: set() for group in self.groups}
        for group in self.groups:
            opened = group.machine.transactions()
            assert (TransactionsDue() in group.machine.on_leader()) == bool(opened)
            for each in opened:
                for target, steps in group.log[each.index].others:
                    if target in each.groups:
                        for step in steps:
                            owed[target] |= set(step.bodies)
        for group in self.groups:
            bodies = group.bodies()
            assert len(bodies) == len(set(bodies)), "something is there twice"
            assert set(bodies) <= self.expected[group.id], "something that nobody committed"
            assert self.expected[group.id] - set(bodies) <= owed[group.id], "something is lost"

    def teardown(self) -> None:
        for group in getattr(self, "groups", []):
            for each in group.machine.transactions():
                for target in each.groups:
                    self.carry_out(group, each.number, target, tell=True)
            assert not group.machine.transactions()
        for group in getattr(self, "groups", []):
            assert set(group.bodies()) == self.expected[group.id]


Groups.TestCase.settings = settings(stateful_step_count=25)
test_over_groups_it_is_all_or_nothing = Groups.TestCase


@given(st.integers(0, 1_000))
def test_what_is_refused_changes_no_queue_and_what_is_done_is_done_whole(seed: int):
    history = History(seed)
    for _ in history.steps(80):
        pass
    for _ in range(20):
        drawn = history.transaction(NODE, history.incarnations[NODE])
        if not isinstance(drawn, Transaction):
            continue
        drawn = replace(drawn, number=10_000 + history.index)  # one that was never answered
        machine = history.machine
        idle = QueueMachine()
        idle.restore(machine.snapshot())
        before = {queue: machine._queues[queue].message_count for queue in machine.queues()}
        history.index += 1
        stamp = Stamp(history.index, 1, history.now_ms, 0, 3)
        reply = machine.apply(stamp, drawn).reply
        idle.apply(stamp, Tick())
        if isinstance(reply, Refused):
            for queue in machine.queues():
                assert machine._queues[queue].dump() == idle._queues[queue].dump()
        elif drawn.steps:
            for step in drawn.steps:
                if isinstance(step, Enqueue):
                    continue
                holds = machine.consumer_holds(step.queue, step.consumer) or ()
                held = {c.first + nth for c in holds for nth in range(c.bodies.count)}
                if isinstance(step, Settle):
                    assert not any(first <= p <= last for first, last in step.ranges for p in held)
        machine.invariants()
        assert before.keys() == {*machine.queues()}


def test_a_session_that_ends_before_the_part_comes_keeps_nothing_from_being_published():
    group = Group(1)
    stored = group.apply(Enqueue(group.queue, None, 0, [b"a"]))
    assert isinstance(stored, Enqueued)
    group.apply(CloseSession(SESSION))
    part = TransactionPart(
        GroupId(2),
        1,
        1,
        [Settle(group.queue, group.consumer, [(1, 1)]), Enqueue(group.queue, None, 0, [b"b"])],
    )

    group.apply(part)

    assert group.bodies() == [b"a", b"b"]


def test_a_group_that_never_answers_stops_new_transactions_with_others_at_a_limit():
    world = World(copies=False)
    world.apply(CreateQueue(QueueId(1), "/", "q", QueueConfig()))
    machine = world.machine
    far = [(GroupId(2), [Enqueue(QueueId(9), None, 0, [b"x"])])]
    last: Any = None
    for number in range(1, OPEN_MAX + 2):
        stamp = Stamp(number + 5, 1, 0)
        last = machine.apply(stamp, Transaction(NODE, 1, number, number, [], far)).reply

    assert isinstance(last, Refused)
    assert last.code == LIMIT_REACHED
    own = [Enqueue(QueueId(1), None, 0, [b"x"])]
    alone = world.apply(Transaction(NODE, 1, OPEN_MAX + 5, OPEN_MAX + 5, own))
    assert alone.reply == Committed(0, 1)
    world.apply(TransactionDone(1, [GroupId(2)]))
    more = world.apply(Transaction(NODE, 1, OPEN_MAX + 6, OPEN_MAX + 6, [], far))
    assert more.reply == Committed(OPEN_MAX + 1, 2)


def test_a_snapshot_from_before_there_were_transactions_is_read_and_written_the_same():
    history = History(1)
    plain = QueueMachine()
    for stamp, command in history.steps(100):
        if not isinstance(command, Transaction | TransactionPart | TransactionDone):
            plain.apply(stamp, command)
    old = plain.snapshot()
    copy = QueueMachine()
    copy.restore(old)

    assert plain._transactions.dump() == []
    assert copy.snapshot() == old


def test_a_consumer_that_another_step_settled_for_is_still_known_to_the_next_one():
    """A get is forgotten with its last message: steps that come behind it were checked before."""
    world = World()
    world.apply(CreateQueue(QueueId(1), "/", "q", QueueConfig()))
    world.apply(OpenSession(SESSION, NODE, 1))
    world.apply(Enqueue(QueueId(1), None, 0, [b"a", b"b"]))
    world.run("session ann")
    world.queues["q"] = QueueId(1)
    world.run("get q ann 2")
    key = ConsumerKey(world.consumers["ann/get1"])
    steps = [Settle(QueueId(1), key, [(2, 2)]), Settle(QueueId(1), key, [(1, 1)])]

    assert world.apply(Transaction(NODE, 1, 1, 1, steps)).reply == Committed(0, 1)
    assert world.machine.browse(QueueId(1), 1, 10) == []


# --- room that is kept ----------------------------------------------------------------------------


MAX = 6  # of the queue of a `Group`


class Rooms(RuleBasedStateMachine):
    """Three groups at their limits; transactions that ask for room first, publishes between them,
    and nodes that die on the way.
    """

    version = 3

    @initialize()
    def start(self) -> None:
        self.groups = [Group(number) for number in (1, 2, 3)]
        for group in self.groups:
            group.apply(UpgradeMachine(self.version))
        self.number = 0
        self.parts: list[tuple[Group, TransactionPart, int]] = []
        self.abandoned = False

    def group(self, number: int) -> Group:
        return self.groups[number - 1]

    @rule(number=st.integers(1, 3), count=st.integers(1, MAX))
    def publish(self, number: int, count: int) -> None:
        group = self.group(number)
        group.apply(Enqueue(group.queue, None, 0, [b"x"] * count))

    @rule(
        decides=st.integers(1, 3),
        counts=st.lists(st.integers(0, 4), min_size=3, max_size=3),
        dies=st.booleans(),
    )
    def commit(self, decides: int, counts: list[int], dies: bool) -> None:
        self.number += 1
        steps = {
            number: [Enqueue(QueueId(number), None, 0, [b"y"] * count)]
            for number, count in enumerate(counts, 1)
            if count
        }
        own = steps.pop(decides, [])
        before = [group.bodies() for group in self.groups]
        asked: list[Group] = []
        for number, (step,) in steps.items():
            asked.append(self.group(number))
            count = len(step.bodies)
            wants = [(step.queue, count, count)]
            reserve = Reserve(NODE, 1, self.number, wants, source=GroupId(decides))
            reply = asked[-1].apply(reserve)
            if isinstance(reply, Refused):
                break
        else:
            others = [(GroupId(number), each) for number, each in steps.items()]
            reply = self.group(decides).apply(Transaction(NODE, 1, self.number, 0, own, others))
        if isinstance(reply, Refused):
            assert [group.bodies() for group in self.groups] == before
            if dies:
                self.abandoned = True
            else:
                self.give_back(*asked)
            return
        for number, each in steps.items():
            part = TransactionPart(GroupId(decides), reply.number, 0, each)
            self.parts.append((self.group(number), part, self.number))

    def give_back(self, *groups: Group) -> None:
        for group in groups:
            group.apply(Reserve(NODE, 1, self.number))

    @precondition(lambda self: self.parts)
    @rule(data=st.data(), dies=st.booleans())
    def carry_out(self, data: st.DataObject, dies: bool) -> None:
        place = data.draw(st.integers(0, len(self.parts) - 1))
        group, part, number = self.parts.pop(place)
        group.apply(replace(part, done_below=1))
        self.group(part.source).apply(TransactionDone(part.number, [group.id]))
        if dies:
            self.abandoned = True
        else:
            group.apply(Reserve(NODE, 1, number))

    @precondition(lambda self: self.abandoned and not self.parts)
    @rule()
    def time_passes(self) -> None:
        self.abandoned = False
        for group in self.groups:
            group.world.now_ms += RESERVED_MS
            group.apply(Tick())
            assert not group.machine._transactions.reserved

    @rule(number=st.integers(1, 3))
    def a_consumer_settles(self, number: int) -> None:
        group = self.group(number)
        for position in group.held()[:2]:
            group.apply(Settle(group.queue, group.consumer, [(position, position)]))

    @invariant()
    def no_limit_is_passed(self) -> None:
        for group in self.groups:
            view = group.machine.queue(group.queue)
            assert view is not None
            assert view.ready_count <= MAX


class RoomsInDoubt(Rooms):
    """From version 5 on: parts may come as late as they like."""

    version = 5

    @precondition(lambda self: self.abandoned)
    @rule()
    def time_passes(self) -> None:
        for group in self.groups:
            group.world.now_ms += RESERVED_MS
            group.apply(Tick())
            for source, back in group.machine.in_doubt():
                asked = ResolveTransaction(back.node, back.incarnation, back.number, group.id)
                if self.group(source).apply(asked) == Ok():
                    group.apply(back)
            expected = {number for each, _, number in self.parts if each is group}
            assert {number for _, _, number in group.machine._transactions.reserved} == expected


for rooms in (Rooms, RoomsInDoubt):
    rooms.TestCase.settings = settings(stateful_step_count=25)
test_transactions_of_several_groups_pass_no_limit = Rooms.TestCase
test_no_limit_is_passed_by_parts_that_come_late = RoomsInDoubt.TestCase


def test_room_that_is_kept_for_a_transaction_is_nobody_elses():
    group = Group(1)
    group.apply(UpgradeMachine(3))
    take = Enqueue(group.queue, None, 0, [b"1"] * 4)  # two of them are with the consumer
    assert group.apply(take) == Enqueued(1, 4)
    wanted = Reserve(NODE, 1, 7, [(group.queue, 3, 30)])

    assert group.apply(wanted) == Ok(1)
    assert group.apply(wanted) == Ok(1)  # twice is once

    assert group.apply(Enqueue(group.queue, None, 0, [b"2"] * 3)).stored == 1
    assert group.apply(Reserve(NODE, 1, 8, [(group.queue, 1, 1)])).code == QUEUE_FULL
    refused = group.apply(Transaction(NODE, 1, 9, 9, [Enqueue(group.queue, None, 0, [b"3"])]))
    assert refused.code == QUEUE_FULL
    assert group.apply(Reserve(NODE, 1, 7)) == Ok(1)
    assert group.apply(Enqueue(group.queue, None, 0, [b"4"] * 5)).stored == 3


def test_a_queue_that_shall_be_settled_is_not_removed_while_room_is_kept_in_it():
    group = Group(1)
    group.apply(UpgradeMachine(5))
    removal = DeleteQueue(group.queue, if_settled=True)
    assert group.apply(Reserve(NODE, 1, 7, [(group.queue, 1, 1)])) == Ok(1)
    assert group.apply(removal).code == NOT_EMPTY
    assert group.apply(Reserve(NODE, 1, 7)) == Ok(1)
    assert group.apply(removal) == Ok(0)
    assert group.apply(Reserve(NODE, 1, 8, [(group.queue, 1, 1)])) == Ok(0)


def test_a_queue_that_shall_be_empty_is_not_removed_while_something_is_on_its_way_to_it():
    """Neither before a move to it nor after that would both be possible."""
    for version, is_kept in ((4, False), (5, True)):
        group = Group(1)
        group.apply(UpgradeMachine(version))
        assert group.apply(Reserve(NODE, 1, 7, [(group.queue, 1, 1)])) == Ok(1)
        reply = group.apply(DeleteQueue(group.queue, if_empty=True))
        assert isinstance(reply, Refused) == is_kept


def test_what_is_delayed_needs_room_though_a_consumer_waits():
    group = Group(1)
    group.apply(UpgradeMachine(5))
    assert group.apply(Reserve(NODE, 1, 7, [(group.queue, MAX, MAX)])) == Ok(1)
    later = {ATTR_DELIVER_AT_MS: group.machine.now_ms + 1_000}
    for number, attrs in enumerate([later, None], start=1):
        step = Enqueue(group.queue, None, 0, [b"x"], None, attrs)
        reply = group.apply(Transaction(NODE, 1, number, number, [step]))
        assert isinstance(reply, Refused) == (attrs is later)


def test_of_several_queues_room_is_kept_in_all_or_none():
    group = Group(1)
    group.apply(UpgradeMachine(3))
    other = QueueId(55)
    config = QueueConfig(max_length_bytes=10, overflow="reject-publish")
    group.apply(CreateQueue(other, "/", "other", config))

    wants = [(group.queue, 6, 6), (QueueId(99), 1, 1), (other, 1, 11)]
    assert group.apply(Reserve(NODE, 1, 1, wants)).code == QUEUE_FULL

    assert group.apply(Reserve(NODE, 1, 2, [(group.queue, 6, 6), (other, 1, 10)])) == Ok(2)
    assert group.apply(Enqueue(other, None, 0, [b"x"])).stored == 0


def test_room_that_nobody_asks_for_again_is_given_back_after_a_while():
    group = Group(1)
    group.apply(UpgradeMachine(3))
    group.apply(Reserve(NODE, 1, 1, [(group.queue, 6, 6)]))
    group.apply(Enqueue(group.queue, None, 0, [b"x"] * 2))  # with the consumer at once
    full = Enqueue(group.queue, None, 0, [b"x"])
    assert group.apply(full).stored == 0
    group.world.now_ms += RESERVED_MS

    assert group.apply(full).stored == 1
    assert group.apply(Reserve(NODE, 1, 1)) == Ok(0)


def test_room_is_in_doubt_until_the_group_that_decides_has_said_what_became_of_it():
    for version, is_kept in ((4, False), (5, True)):
        group = Group(1)
        group.apply(UpgradeMachine(version))
        wanted = Reserve(NODE, 1, 7, [(group.queue, 1, 1)], source=GroupId(2))
        assert group.apply(wanted) == Ok(1)
        group.world.now_ms += RESERVED_MS
        effects = group.world.apply(Tick()).effects
        assert (effects == [TransactionsDue()]) == is_kept
        assert group.machine.in_doubt() == ([(2, Reserve(NODE, 1, 7))] if is_kept else [])
        assert (TransactionsDue() in group.machine.on_leader()) == is_kept

        reply = group.apply(DeleteQueue(group.queue, if_empty=True, if_settled=True))

        assert isinstance(reply, Refused) == is_kept
        assert group.apply(Reserve(NODE, 1, 7)) == Ok(int(is_kept))
        assert group.machine.in_doubt() == []


def test_room_is_kept_in_a_queue_that_comes_back_under_its_id():
    """Deleted, and the catalog is back before that. A copy from a snapshot counts it as well."""
    group = Group(1)
    group.apply(UpgradeMachine(5))
    group.apply(Reserve(NODE, 1, 7, [(group.queue, 3, 3)], source=GroupId(2)))
    group.apply(DeleteQueue(group.queue))
    config = QueueConfig(max_length=2, overflow="reject-publish")
    group.apply(CreateQueue(group.queue, "/", "q1", config))
    publish = Enqueue(group.queue, None, 0, [b"x"])
    assert group.apply(publish).refused

    assert group.apply(Reserve(NODE, 1, 7)) == Ok(1)

    assert not group.apply(publish).refused


def test_a_transaction_in_doubt_is_over_when_the_group_has_done_its_part():
    group, other = Group(1), GroupId(2)
    group.apply(UpgradeMachine(5))
    step = Enqueue(QueueId(2), None, 0, [b"x"])
    parts = [(other, [step]), (GroupId(3), [step])]
    committed = group.apply(Transaction(NODE, 1, 7, 7, [], parts))
    asked = ResolveTransaction(NODE, 1, 7, other)
    assert group.apply(asked) == Ok(1)
    # What was answered is forgotten, by a later one and by a later process, but not what is open.
    group.apply(Transaction(NODE, 1, 9, 9, [Enqueue(group.queue, None, 0, [b"y"])]))
    group.apply(Transaction(NODE, 2, 1, 1, [Enqueue(group.queue, None, 0, [b"y"])]))
    assert group.apply(asked) == Ok(1)

    assert group.apply(TransactionDone(committed.number, [other])) == Ok(1)

    assert group.apply(asked) == Ok()
    assert group.apply(replace(asked, group=GroupId(3))) == Ok(1)


def test_a_transaction_in_doubt_that_was_not_decided_never_will_be():
    group = Group(1)
    late = Transaction(NODE, 1, 7, 7, [Enqueue(group.queue, None, 0, [b"x"])])
    asked = ResolveTransaction(NODE, 1, 7, GroupId(2))
    assert group.apply(asked).code == UNKNOWN_COMMAND
    group.apply(UpgradeMachine(5))

    assert group.apply(asked) == Ok()

    assert group.apply(late).code == LIMIT_REACHED
    assert group.bodies() == []


def test_what_an_older_version_decided_is_in_doubt_while_it_is_open():
    group, other = Group(1), GroupId(2)
    parts = [(other, [Enqueue(QueueId(2), None, 0, [b"x"])])]
    group.apply(Transaction(NODE, 1, 7, 7, [], parts))
    group.apply(UpgradeMachine(5))
    assert group.apply(ResolveTransaction(NODE, 1, 7, other)) == Ok(1)


def test_before_version_3_no_room_is_kept():
    group = Group(1)
    group.apply(UpgradeMachine(2))

    assert group.apply(Reserve(NODE, 1, 1, [(group.queue, 6, 6)])).code == UNKNOWN_COMMAND
