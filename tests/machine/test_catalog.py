"""The catalog: names lead to queues, queues to groups, the same way on every node."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.codec.entries import Unknown
from cluster.machine import catalog_queues
from cluster.machine import commands as c
from cluster.machine.catalog import CatalogMachine, GroupInfo, NodeInfo, QueueInfo
from cluster.machine.effects import Applied, GroupCreated, QueueDeclared, QueueRemoved
from cluster.machine.replies import (
    BAD_ARGUMENT,
    INEQUIVALENT,
    LIMIT_REACHED,
    NO_GROUP,
    UNKNOWN_COMMAND,
    Declared,
    Ok,
    Refused,
)
from cluster.types import GroupId, NodeId, Stamp

MEMBERS = ["n1", "n2", "n3"]


class Book:
    """A catalog with a log of its own: applies commands at growing indexes."""

    def __init__(self, default_groups: int = 0) -> None:
        self.machine = CatalogMachine()
        self.log: list[Any] = []
        for number in range(1, default_groups + 1):
            self.apply(c.CreateGroup(f"default-{number}", MEMBERS, True))

    def apply(self, command: Any) -> Applied:
        self.log.append(command)
        applied = self.machine.apply(Stamp(len(self.log), 1, 0), command)
        self.machine.invariants()
        return applied

    def declare(self, name: str, group: str | None = None, **arguments: Any) -> Applied:
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        if group is not None:
            named["x-queue-group"] = group
        members = None if group is None else MEMBERS
        return self.apply(c.DeclareQueue("/", name, named, group, members))


def founded(group: int, name: str, members: list[str], *, default: bool = False) -> GroupInfo:
    """As it is until somebody moves it."""
    homes = tuple(NodeId(member) for member in members)
    return GroupInfo(GroupId(group), name, homes, default, homes, homes)


def test_a_node_is_found_with_its_addresses() -> None:
    book = Book()
    assert book.apply(c.RegisterNode("n1", 3, {"http": "a:1"})).reply == Ok(1)
    assert book.machine.node("n1") == NodeInfo("n1", 3, {"http": "a:1"}, 1)
    assert book.machine.nodes() == [NodeInfo("n1", 3, {"http": "a:1"}, 1)]
    assert book.machine.node("n2") is None


def test_an_older_incarnation_does_not_take_a_nodes_place() -> None:
    book = Book()
    book.apply(c.RegisterNode("n1", 3, {"http": "a:1"}))
    reply = book.apply(c.RegisterNode("n1", 2, {"http": "b:1"})).reply
    assert isinstance(reply, Refused)
    assert "is older" in reply.reason
    assert book.machine.node("n1") == NodeInfo("n1", 3, {"http": "a:1"}, 1)


def test_groups_are_numbered_from_one_in_the_order_they_were_made() -> None:
    book = Book()
    first = book.apply(c.CreateGroup("a", MEMBERS, True))
    second = book.apply(c.CreateGroup("b", ["n2"]))
    assert first == Applied(Ok(1), [GroupCreated(1, "a", tuple(MEMBERS))])
    assert second == Applied(Ok(1), [GroupCreated(2, "b", ("n2",))])
    assert book.machine.groups() == [
        founded(1, "a", MEMBERS, default=True),
        founded(2, "b", ["n2"]),
    ]


def test_making_a_group_again_does_nothing() -> None:
    book = Book(1)
    assert book.apply(c.CreateGroup("default-1", ["n9"])) == Applied(Ok(0))
    assert book.machine.group(1) == founded(1, "default-1", MEMBERS, default=True)


@pytest.mark.parametrize("members", [[], ["n1", "n1"], [""], [5], [["n1"]]])
def test_a_group_needs_different_members(members: list[Any]) -> None:
    reply = Book().apply(c.CreateGroup("a", members)).reply
    assert isinstance(reply, Refused)
    assert reply.code == BAD_ARGUMENT


def test_a_declared_queue_is_found_by_name_with_its_settings() -> None:
    book = Book(1)
    applied = book.declare("orders", x_max_length=5)
    assert applied == Applied(Declared(1, 1, True), [QueueDeclared(1, 1)])
    info = QueueInfo(1, 1, "/", "orders", {"x-max-length": 5})
    assert book.machine.queue("/", "orders") == info
    assert book.machine.queue_by_id(1) == info
    assert book.machine.queues() == book.machine.queues_of(1) == [info]
    assert book.machine.config_of(1) == c.QueueConfig(max_length=5)


def test_declaring_again_with_the_same_arguments_answers_the_same_queue() -> None:
    book = Book(2)
    book.declare("orders", x_max_length=5)
    assert book.declare("orders", x_max_length=5) == Applied(Declared(1, 1, False))


def test_declaring_again_with_other_arguments_is_refused_and_says_which() -> None:
    book = Book(1)
    book.declare("orders", x_max_length=5)
    reply = book.declare("orders", x_max_length=6).reply
    assert isinstance(reply, Refused)
    assert reply.code == INEQUIVALENT
    assert reply.reason.startswith("inequivalent arg 'x-max-length' for queue 'orders'")
    assert book.machine.config_of(1) == c.QueueConfig(max_length=5)


def test_queues_go_to_the_default_group_with_the_fewest() -> None:
    book = Book(3)
    book.apply(c.CreateGroup("named", MEMBERS))
    for name in "abcd":
        book.declare(name)
    assert [len(book.machine.queues_of(group)) for group in (1, 2, 3, 4)] == [2, 1, 1, 0]
    book.apply(c.RemoveQueue("/", "b"))
    assert book.declare("e").reply == Declared(5, 2, True)


def test_a_queue_before_the_first_default_group_is_refused() -> None:
    reply = Book().declare("orders").reply
    assert isinstance(reply, Refused)
    assert reply.code == NO_GROUP


def test_queues_that_name_a_group_share_it() -> None:
    book = Book(2)
    first = book.declare("orders", group="shop")
    assert first == Applied(
        Declared(1, 3, True), [GroupCreated(3, "shop", tuple(MEMBERS)), QueueDeclared(1, 3)]
    )
    assert book.declare("dead", group="shop") == Applied(
        Declared(2, 3, True), [QueueDeclared(2, 3)]
    )


def test_the_group_named_only_in_the_arguments_counts() -> None:
    book = Book(2)
    arguments = {"x-queue-group": "default-2"}
    assert book.apply(c.DeclareQueue("/", "q", arguments)).reply == Declared(1, 2, True)


def test_a_dedicated_queue_has_a_group_of_its_own() -> None:
    book = Book(1)
    book.declare("a", group="dedicated")
    book.declare("b", group="dedicated")
    assert [info.group for info in book.machine.queues()] == [2, 3]
    assert book.machine.group_named("dedicated-2") == founded(2, "dedicated-2", MEMBERS)


def test_a_dedicated_group_that_its_queue_left_is_used_again() -> None:
    book = Book(1)
    book.declare("a", group="dedicated")
    book.apply(c.RemoveQueue("/", "a"))
    assert book.declare("b", group="dedicated").reply == Declared(2, 2, True)
    assert len(book.machine.groups()) == 2


def test_a_queue_can_join_anothers_dedicated_group_but_not_invent_one() -> None:
    book = Book(1)
    book.declare("a", group="dedicated")
    assert book.declare("a-dead", group="dedicated-2").reply == Declared(2, 2, True)
    reply = book.declare("b", group="dedicated-9").reply
    assert isinstance(reply, Refused)
    assert "reserved" in reply.reason


def test_a_removed_queue_is_gone_and_its_number_is_not_used_again() -> None:
    book = Book(1)
    book.declare("orders")
    assert book.apply(c.RemoveQueue("/", "orders")) == Applied(Ok(1), [QueueRemoved(1, 1)])
    assert book.machine.queue("/", "orders") is None
    assert book.machine.queues_of(1) == []
    assert book.apply(c.RemoveQueue("/", "orders")) == Applied(Ok(0))
    assert book.declare("orders").reply == Declared(2, 1, True)


def test_queues_of_one_name_in_two_vhosts_are_two() -> None:
    book = Book(1)
    book.declare("orders")
    book.apply(c.PutEntry("vhosts", ["shop"], {}))
    other = book.apply(c.DeclareQueue("shop", "orders", {}))
    assert other.reply == Declared(2, 1, True)


@pytest.mark.parametrize(
    "command",
    [
        c.DeclareQueue("/", "", {}),
        c.DeclareQueue("", "q", {}),
        c.DeclareQueue("/", "x" * 256, {}),
        c.DeclareQueue("/", "\ud800", {}),
        c.DeclareQueue("/", "q", {"x-queue-type": "stream"}),
        c.DeclareQueue("/", "q", {}, "", MEMBERS),
        c.DeclareQueue("/", "q", {}, "g", ["n1", "n1"]),
        c.CreateGroup("", MEMBERS),
        c.CreateGroup("dedicated", MEMBERS),
        c.RegisterNode("", 1),
        c.RegisterNode("n1", 1, {"http": 5}),
        c.UpgradeMachine(99),
    ],
)
def test_a_bad_command_is_refused_and_changes_nothing(command: Any) -> None:
    book = Book(1)
    before = book.machine.digest()
    reply = book.apply(command).reply
    assert isinstance(reply, Refused)
    assert reply.code == BAD_ARGUMENT
    assert book.machine.digest() == before


def test_a_command_it_does_not_know_is_refused() -> None:
    for command in (Unknown(999, []), c.Purge(1), object()):
        reply = Book().apply(command).reply
        assert isinstance(reply, Refused)
        assert reply.code == UNKNOWN_COMMAND


def test_tick_and_barrier_change_nothing() -> None:
    book = Book(1)
    before = book.machine.snapshot()
    assert book.apply(c.Tick()) == book.apply(c.Barrier()) == Applied(Ok())
    assert book.machine.snapshot() == before


def test_the_number_of_queues_and_groups_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_queues, "QUEUES_MAX", 1)
    monkeypatch.setattr(catalog_queues, "GROUPS_MAX", 1)
    book = Book(1)
    book.declare("a")
    for applied in (book.declare("b"), book.apply(c.CreateGroup("g", MEMBERS))):
        assert isinstance(applied.reply, Refused)
        assert applied.reply.code == LIMIT_REACHED


def test_a_new_leader_is_told_of_every_group_and_queue() -> None:
    book = Book(1)
    book.declare("a")
    book.declare("b", group="shop")
    assert book.machine.on_leader() == [
        GroupCreated(1, "default-1", tuple(MEMBERS)),
        GroupCreated(2, "shop", tuple(MEMBERS)),
        QueueDeclared(1, 1),
        QueueDeclared(2, 2),
    ]


def test_it_owns_no_bodies_and_waits_for_no_time() -> None:
    machine = Book(1).machine
    assert machine.live_indexes() == []
    assert machine.next_due_ms() is None
    assert machine.overview() == {
        "type": "catalog",
        "version": 1,
        "nodes": 0,
        "groups": 1,
        "queues": 0,
        "exchanges": 7,
        "bindings": 0,
        "entries": 3,
    }


def test_a_snapshot_of_a_later_version_is_refused_with_advice() -> None:
    data = cbor2.dumps({"version": 99, "next_queue_id": 1, "tables": {}})
    assert "needs machine version 99" in str(CatalogMachine().beyond(data))
    assert CatalogMachine().beyond(CatalogMachine().snapshot()) is None


def test_a_snapshot_without_a_table_restores_it_empty() -> None:
    machine = Book(1).machine
    machine.restore(cbor2.dumps({"version": 1, "next_queue_id": 4, "tables": {}}))
    assert machine.groups() == []
    assert machine.next_queue_id == 4


names = st.sampled_from(["a", "b", "c", ""])
group_names = st.sampled_from([None, "dedicated", "shop", "default-1", "dedicated-2"])
arguments = st.dictionaries(
    st.sampled_from(["x-max-length", "x-expires", "x-bogus"]), st.integers(0, 2), max_size=2
)
members = st.none() | st.lists(st.sampled_from(MEMBERS), max_size=3)
any_command = st.one_of(
    st.builds(c.RegisterNode, st.sampled_from(MEMBERS), st.integers(0, 3)),
    st.builds(
        c.CreateGroup, st.sampled_from(["default-1", "shop"]), st.just(MEMBERS), st.just(True)
    ),
    st.builds(c.DeclareQueue, st.just("/"), names, arguments, group_names, members),
    st.builds(c.RemoveQueue, st.just("/"), names),
    st.just(c.Tick()),
)


@settings(max_examples=200)
@given(st.lists(any_command, max_size=30), st.integers(0, 30))
def test_a_snapshot_and_the_tail_give_the_same_state_as_the_whole_log(
    log: list[Any], cut: int
) -> None:
    book = Book(1)
    copy = CatalogMachine()
    for number, command in enumerate(log):
        if number == cut:
            copy.restore(book.machine.snapshot())
        applied = book.apply(command)
        if number >= cut:
            assert copy.apply(Stamp(number + 2, 1, 0), command) == applied
    if cut < len(log):
        assert copy.snapshot() == book.machine.snapshot()
        assert copy.digest() == book.machine.digest()


SCRIPT = """
from cluster.machine import commands as c
from cluster.machine.catalog import CatalogMachine
from cluster.types import GroupId, NodeId, Stamp
machine = CatalogMachine()
for n in range(1, 5):
    machine.apply(Stamp(n, 1, 0), c.CreateGroup(f"g{n}", ["n1", "n2"], True))
for n in range(5, 60):
    arguments = {"x-max-length": n, "x-expires": n}
    machine.apply(Stamp(n, 1, 0), c.DeclareQueue("/", f"q{n}", arguments))
print(machine.digest().hex())
"""


def test_the_state_does_not_depend_on_the_hash_seed() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
