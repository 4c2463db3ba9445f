"""Queues of nodes and of connections, limits of a vhost, and what declaring again may say."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from cluster.machine import commands as c
from cluster.machine.catalog import CatalogMachine, NodeInfo, QueueInfo
from cluster.machine.effects import QueueDeclared, QueueRemoved
from cluster.machine.replies import (
    BAD_ARGUMENT,
    EXCLUSIVE_OWNER,
    INEQUIVALENT,
    LIMIT_REACHED,
    NO_GROUP,
    NO_VHOST,
    Declared,
)
from cluster.types import TRANSIENT_GROUPS
from tests.machine.catalog_world import Book


def transient(name: str, node: str = "n1", incarnation: int = 3, **more: Any) -> c.DeclareQueue:
    return c.DeclareQueue("/", name, {}, durable=False, node=node, incarnation=incarnation, **more)


def exclusive(name: str, owner: str | None) -> c.DeclareQueue:
    return transient(name, exclusive=True, owner=owner)


@pytest.fixture
def book() -> Book:
    book = Book()
    for node in ("n2", "n1"):
        book.does(c.RegisterNode(node, 3))
    return book


def queues(book: Book) -> list[str]:
    return [info.name for info in book.machine.queues()]


def test_nodes_are_numbered_in_the_order_in_which_they_first_came(book: Book):
    book.does(c.RegisterNode("n2", 9))

    assert [(info.node, info.number) for info in book.machine.nodes()] == [("n1", 2), ("n2", 1)]
    assert book.reopened().nodes() == book.machine.nodes()


def test_nodes_of_before_there_were_numbers_get_them_by_name():
    machine = CatalogMachine()
    tables = {"nodes": [["n1", 3, {}], ["n2", 4, {"http": "a:1"}]]}
    machine.restore(cbor2.dumps({"version": 1, "next_queue_id": 1, "tables": tables}))

    assert machine.nodes() == [NodeInfo("n1", 3, {}, 1), NodeInfo("n2", 4, {"http": "a:1"}, 2)]


def test_a_transient_queue_is_in_the_group_of_its_node(book: Book):
    applied = book.apply(transient("q", auto_delete=True))

    group = TRANSIENT_GROUPS + 2
    assert applied.reply == Declared(1, group, True)
    assert applied.effects == [QueueDeclared(1, group)]
    info = QueueInfo(1, group, "/", "q", {}, False, True, False, "n1", 3)
    for machine in (book.machine, book.reopened()):
        assert machine.queue("/", "q") == info
        assert machine.queues_of(group) == [info]
        assert machine.config_of(1) == c.QueueConfig(auto_delete=True)


@pytest.mark.parametrize("command", [transient("q", "n9"), transient("q", "n1", 2)])
def test_a_transient_queue_of_no_registered_process_is_refused(book: Book, command: Any):
    assert "not registered" in book.refuses(command, NO_GROUP)


def test_a_transient_queue_is_found_by_declaring_it_at_another_node(book: Book):
    book.apply(transient("q", "n1"))

    reply = book.apply(transient("q", "n2")).reply

    assert reply == Declared(1, TRANSIENT_GROUPS + 2, False)


def test_the_transient_queues_of_a_node_that_is_gone_are_gone_with_their_bindings(book: Book):
    for number, node in enumerate(("n1", "n1", "n2"), start=1):
        book.apply(transient(f"q{number}", node))
        book.bind("amq.topic", f"q{number}")
    book.queue("kept")

    book.does(c.ForgetNode("n1", 2), 0)
    assert queues(book) == ["q1", "q2", "q3", "kept"]
    applied = book.does(c.ForgetNode("n1", 3), 2)

    group = TRANSIENT_GROUPS + 2
    assert applied.effects == [QueueRemoved(1, group), QueueRemoved(2, group)]
    assert queues(book) == ["q3", "kept"]
    assert [b.destination for b in book.machine.bindings()] == ["q3"]
    book.does(c.ForgetNode("n1", 3), 0)
    book.does(c.ForgetNode("n9", 3), 0)


def test_the_next_start_of_a_node_ends_what_the_last_one_had(book: Book):
    book.apply(transient("q"))

    assert book.does(c.RegisterNode("n1", 3)).effects == []
    assert book.does(c.RegisterNode("n1", 4)).effects == [QueueRemoved(1, TRANSIENT_GROUPS + 2)]
    assert queues(book) == []
    book.refuses(transient("q"), NO_GROUP)
    book.apply(transient("q", incarnation=4))
    assert queues(book) == ["q"]


LOCKED = (
    "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally"
    " declared on another connection or the exclusive property value does not match that of the"
    " original declaration."
)


def test_an_exclusive_queue_is_its_connections(book: Book):
    book.apply(exclusive("q", "c1"))

    assert book.apply(exclusive("q", "c1")).reply == Declared(1, TRANSIENT_GROUPS + 2, False)
    for other in (exclusive("q", "c2"), transient("q"), transient("q", owner="c1")):
        assert book.refuses(other, EXCLUSIVE_OWNER) == LOCKED
    info = book.reopened().queue("/", "q")
    assert info is not None
    assert info.exclusive
    assert info.owner == "c1"


def test_a_shared_queue_cannot_be_had_exclusively(book: Book):
    book.apply(transient("q"))

    assert book.refuses(exclusive("q", "c1"), EXCLUSIVE_OWNER) == LOCKED


def test_an_exclusive_queue_needs_an_owner(book: Book):
    assert "connection" in book.refuses(exclusive("q", None), BAD_ARGUMENT)


@pytest.mark.parametrize(
    ("command", "what", "why"),
    [
        (transient("q"), "'durable'", "received 'false' but current is 'true'"),
        (
            c.DeclareQueue("/", "q", {"x-expires": 1}, auto_delete=True),
            "'auto_delete'",
            "received 'true' but current is 'false'",
        ),
        (
            c.DeclareQueue("/", "q", {"x-expires": 1}),
            "'x-expires'",
            "received the value '1' of type 'long' but current is none",
        ),
    ],
)
def test_another_queue_of_the_name_is_refused_in_the_words_people_search_for(
    book: Book, command: Any, what: str, why: str
):
    book.queue("q")

    reason = book.refuses(command, INEQUIVALENT)

    assert reason == f"inequivalent arg {what} for queue 'q' in vhost '/': {why}"


def test_arguments_without_effect_are_kept_and_not_compared(book: Book):
    book.queue("q", {"x-ours": ["a", {"b": 1}], "x-queue-mode": "lazy"})
    book.queue("q", {"x-queue-type": "quorum"})

    info = book.reopened().queue("/", "q")
    assert info is not None
    assert info.arguments == {"x-ours": ["a", {"b": 1}], "x-queue-mode": "lazy"}


def test_a_stream_is_refused_with_or_without_a_single_active_consumer(book: Book):
    """A40: AMQP cannot make one, so the combination cannot be had."""
    book.apply(c.UpgradeMachine(4))
    for more in ({}, {"x-single-active-consumer": True}):
        arguments = {"x-queue-type": "stream", **more}
        reason = book.refuses(c.DeclareQueue("/", "q", arguments), BAD_ARGUMENT)
        assert "created and read by NATS's clients" in reason


def test_a_queue_of_no_vhost_is_refused(book: Book):
    assert book.refuses(c.DeclareQueue("no", "q", {}), NO_VHOST) == "vhost 'no' not found"


def test_a_vhost_holds_at_most_as_many_queues_as_its_limit(book: Book):
    book.queue("a")
    book.does(c.PutEntry("vhosts", ["other"], {}))
    book.does(c.PutEntry("vhost_limits", ["/"], {"max-queues": 2}))
    book.queue("b")

    for command in (c.DeclareQueue("/", "q", {}), transient("q")):
        reason = book.refuses(command, LIMIT_REACHED)
        assert reason == (
            "cannot declare queue 'q' in vhost '/': queue limit in vhost '/' (2) is reached"
        )
    book.queue("b")  # there already
    book.queue("q", vhost="other")
    book.does(c.PutEntry("vhost_limits", ["/"], {"max-queues": -1}), 0)
    book.queue("c")
    book.does(c.PutEntry("vhost_limits", ["/"], {"max-queues": 0}), 0)
    book.refuses(c.DeclareQueue("/", "q", {}), LIMIT_REACHED)


def test_queues_of_a_vhost_are_listed_by_themselves(book: Book):
    book.does(c.PutEntry("vhosts", ["other"], {}))
    book.queue("a")
    book.queue("b", vhost="other")

    assert [info.name for info in book.machine.queues("other")] == ["b"]
    assert [info.name for info in book.machine.queues("/")] == ["a"]
    assert book.machine.queues("no") == []


def test_a_snapshot_of_before_there_were_vhosts_opens_with_those_of_its_queues():
    machine = CatalogMachine()
    tables = {
        "groups": [[1, "default-1", ["n1"], True]],
        "queues": [[1, 1, "/", "a", {}], [2, 1, "shop", "b", {"x-expires": 9}]],
    }
    machine.restore(cbor2.dumps({"version": 1, "next_queue_id": 3, "tables": tables}))
    machine.invariants()

    assert machine.queue("/", "a") == QueueInfo(1, 1, "/", "a", {})
    assert list(machine.entries("vhosts")) == [("/",), ("shop",)]
    assert machine.entry("users", ("guest",)) == CatalogMachine().entry("users", ("guest",))
    assert machine.exchange("shop", "amq.topic") is not None
    assert machine.config_of(2) == c.QueueConfig(expires_ms=9)
