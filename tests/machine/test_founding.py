"""States of different moments are made to agree, and a new cluster begins with them."""

from __future__ import annotations

from typing import Any

from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import (
    CreateGroup,
    CreateQueue,
    DeclareQueue,
    Enqueue,
    OpenSession,
    QueueConfig,
    RegisterNode,
    Subscribe,
    Tick,
    Transaction,
    TransactionPart,
)
from cluster.machine.founding import agreed, end_sessions, found_again, queue_ids
from cluster.types import GroupId, NodeId, QueueId, SessionId, Stamp

A, B = GroupId(1), GroupId(2)
SOURCE, TARGET = QueueId(1), QueueId(2)


class World:
    """A machine with one queue, and its log's indexes."""

    def __init__(self, queue: QueueId) -> None:
        self.machine = QueueMachine()
        self.index = 1
        self.do(CreateQueue(queue, "/", f"q{queue}", QueueConfig()))

    def do(self, command: Any, now_ms: int = 1000) -> Any:
        self.index += 1
        return self.machine.apply(Stamp(self.index, 1, now_ms), command).reply

    def again(self, data: bytes) -> None:
        self.machine.restore(data)
        self.machine.invariants()


def letter(number: int) -> Enqueue:
    return Enqueue(TARGET, f"dlx:{SOURCE}", number, [b"letter"])


def step() -> Enqueue:
    return Enqueue(TARGET, None, 0, [b"step"])


def test_letters_that_the_sender_has_yet_to_number_are_not_taken_for_repeated():
    sender, receiver = World(SOURCE), World(TARGET)
    assert receiver.do(letter(1)).stored == 1  # of a later moment than the sender

    states = agreed({A: sender.machine.snapshot(), B: receiver.machine.snapshot()})
    receiver.again(states[B])

    assert receiver.do(letter(1)).stored == 1
    assert receiver.do(letter(1)).stored == 0


def test_letters_that_the_sender_has_numbered_stay_known():
    sender, receiver = World(SOURCE), World(TARGET)
    config = QueueConfig(dead_letter_exchange="", dead_letter_routing_key="q2", message_ttl_ms=1)
    sender.do(CreateQueue(QueueId(3), "/", "q3", config))
    sender.do(Enqueue(QueueId(3), None, 0, [b"dies"]))
    sender.do(Tick(), now_ms=5000)
    assert [dead.number for dead in sender.machine.dead_letters(QueueId(3))] == [1]
    carried = Enqueue(TARGET, "dlx:3", 1, [b"dies"])
    assert receiver.do(carried).stored == 1

    states = agreed({A: sender.machine.snapshot(), B: receiver.machine.snapshot()})
    receiver.again(states[B])

    assert receiver.do(carried).stored == 0


def test_parts_of_transactions_that_are_yet_to_be_decided_are_carried_out():
    sender, receiver = World(SOURCE), World(TARGET)
    begun = Enqueue(SOURCE, None, 0, [b"own"])
    sender.do(Transaction(NodeId("n1"), 1, 1, 0, [begun], [(B, [step()])]))
    for number in (1, 2):
        receiver.do(TransactionPart(A, number, 1, [step()]))

    states = agreed({A: sender.machine.snapshot(), B: receiver.machine.snapshot()})
    receiver.again(states[B])

    assert receiver.do(TransactionPart(A, 1, 1, [step()])).count == 0
    assert receiver.do(TransactionPart(A, 2, 1, [step()])).count == 1


def test_states_that_agree_stay_as_they_are():
    sender, receiver = World(SOURCE), World(TARGET)
    sender.do(Enqueue(SOURCE, "p", 1, [b"1"]))
    receiver.do(Enqueue(TARGET, "p", 1, [b"1"]))
    states = {A: sender.machine.snapshot(), B: receiver.machine.snapshot()}

    assert agreed(states) == states


def test_what_sessions_held_is_ready_again():
    world = World(SOURCE)
    machine = world.machine
    world.do(OpenSession(SessionId("s"), NodeId("n1"), 5, 60_000))
    world.do(Subscribe(SOURCE, SessionId("s"), "c"))
    world.do(Enqueue(SOURCE, None, 0, [b"1", b"2"]))
    assert machine.overview()["unsettled"] == 2

    assert end_sessions(machine, world.index + 1, 2) == 1

    about = machine.overview()
    assert (about["ready"], about["unsettled"], about["sessions"]) == (2, 0, 0)


def test_a_catalog_begins_again_with_its_founders():
    catalog = CatalogMachine()
    commands = [
        RegisterNode(NodeId("n1"), 7, {"peer": "h:1"}),
        RegisterNode(NodeId("n2"), 8, {"peer": "h:2"}),
        CreateGroup("default-1", [NodeId("n1"), NodeId("n2")], default=True),
        DeclareQueue("/", "orders", {}),
    ]
    for index, command in enumerate(commands, start=2):
        catalog.apply(Stamp(index, 1, 1000), command)
    founders = [NodeId("n2"), NodeId("n3")]

    begun = CatalogMachine()
    begun.restore(found_again(catalog, founders, 9, 2, {40}))

    begun.invariants()
    assert [(info.node, info.incarnation) for info in begun.nodes()] == [("n2", 8), ("n3", 0)]
    assert begun.node(NodeId("n1")) is not None, "its name and number stay taken"
    group = begun.groups()[0]
    assert list(group.members) == list(group.held) == founders
    assert begun.queue("/", "orders") is not None
    assert begun.next_queue_id == 41


def test_the_queues_of_states_are_known():
    assert queue_ids([World(SOURCE).machine.snapshot(), World(TARGET).machine.snapshot()]) == {1, 2}
