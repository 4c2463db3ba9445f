"""The catalog's clauses about nodes that come and go, and groups that move."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.machine import commands as c
from cluster.machine.catalog import CatalogMachine
from cluster.machine.replies import BAD_ARGUMENT, NO_GROUP, NO_NODE, Ok
from cluster.types import GroupId, NodeId
from tests.machine.catalog_world import Book


def book(*nodes: str, groups: int = 2) -> Book:
    """These nodes have come; each group is on the first three."""
    made = Book(groups)
    for node in ("n1", "n2", "n3", *nodes):
        made.apply(c.RegisterNode(NodeId(node), 1, {"peer": f"{node}:1"}))
    return made


def members(book: Book, group: int = 1) -> list[str]:
    info = book.machine.group(GroupId(group))
    assert info is not None
    return list(info.members)


def state(book: Book, node: str) -> str:
    info = book.machine.node(NodeId(node))
    assert info is not None
    return info.state


def add(node: str, address: str = "h:1") -> c.AddNode:
    return c.AddNode(NodeId(node), {"peer": address})


def remove(node: str, successor: str | None = None) -> c.RemoveNode:
    return c.RemoveNode(NodeId(node), None if successor is None else NodeId(successor))


def test_a_node_is_let_in_once_and_may_change_its_address():
    made = book()
    made.does(add("n4"))
    made.does(add("n4"), 0)
    made.does(add("n4", "h:2"))
    info = made.machine.node(NodeId("n4"))
    assert info is not None
    assert (info.addresses["peer"], info.incarnation, info.number) == ("h:2", 0, 4)


def test_the_places_of_a_node_that_leaves_go_to_those_with_the_least():
    made = book("n4", "n5")
    made.does(remove("n1"))
    assert [members(made, 1), members(made, 2)] == [["n2", "n3", "n4"], ["n2", "n3", "n5"]]
    assert state(made, "n1") == "leaving"
    made.does(remove("n1"), 0)


def test_a_node_that_has_never_come_is_given_places_last():
    made = book()
    made.does(add("n4"))
    made.apply(c.RegisterNode(NodeId("n5"), 1, {}))
    made.does(remove("n1"))
    assert members(made, 1) == members(made, 2) == ["n2", "n3", "n5"]


def test_the_successor_takes_all_places():
    made = book("n4", "n5")
    made.does(remove("n1", "n5"))
    assert members(made, 1) == members(made, 2) == ["n2", "n3", "n5"]


def test_without_others_a_group_goes_on_with_less():
    made = book()
    made.does(remove("n3"))
    assert members(made) == ["n1", "n2"]


def test_a_node_is_gone_when_no_group_counts_a_copy_of_it():
    made = book("n4", groups=1)
    made.does(remove("n1"))
    made.refuses(c.NodeGone(NodeId("n1")), BAD_ARGUMENT)
    made.does(c.GroupHeld(GroupId(1), 7, [NodeId(n) for n in ("n2", "n3", "n4")]))
    made.does(c.NodeGone(NodeId("n1")))
    made.does(c.NodeGone(NodeId("n1")), 0)
    assert state(made, "n1") == "removed"
    assert [info.node for info in made.machine.nodes()] == ["n2", "n3", "n4"]
    made.refuses(remove("n1"), NO_NODE)
    made.does(add("n1", "new:1"))
    assert state(made, "n1") == "member"


def test_older_news_of_copies_change_nothing():
    made = book("n4", groups=1)
    made.does(c.GroupHeld(GroupId(1), 7, [NodeId("n2")]))
    made.does(c.GroupHeld(GroupId(1), 6, [NodeId("n3")]), 0)
    info = made.machine.group(GroupId(1))
    assert info is not None
    assert (list(info.held), info.held_at) == (["n2"], 7)


def held(book: Book) -> list[str]:
    info = book.machine.group(GroupId(1))
    assert info is not None
    return list(info.held)


def test_who_survived_a_lost_majority_holds_the_group_though_its_log_is_shorter():
    made = book("n4", groups=1)
    n1, n2, n3, n4 = map(NodeId, ("n1", "n2", "n3", "n4"))
    made.does(c.GroupHeld(GroupId(1), 70, [n1, n2, n4]))
    made.does(c.GroupHeld(GroupId(1), 50, [n3], 1, [n1, n2]), 0)
    assert held(made) == ["n1", "n2", "n4"], "it did not know of n4"
    made.does(c.GroupHeld(GroupId(1), 50, [n3], 1, [n1, n2, n4]))
    assert held(made) == ["n3"]
    made.does(c.GroupHeld(GroupId(1), 90, [n1, n2]), 0)
    made.does(c.GroupHeld(GroupId(1), 40, [n1], 1), 0)
    assert held(made) == ["n3"], "that is of before"
    again = CatalogMachine()
    again.restore(made.machine.snapshot())
    assert again.digest() == made.machine.digest()
    made.does(c.GroupHeld(GroupId(1), 60, [n1], 1))
    assert held(made) == ["n1"]


def test_a_group_moves_and_moves_are_counted():
    made = book("n4")
    move = c.MoveGroup(GroupId(1), [NodeId(n) for n in ("n4", "n2", "n3")])
    assert made.apply(move).reply == Ok(1)
    made.does(move, 0)
    info = made.machine.group(GroupId(1))
    assert info is not None
    assert (list(info.members), info.moves) == (["n2", "n3", "n4"], 1)
    assert info.homes == {"n1", "n2", "n3", "n4"}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (add(""), BAD_ARGUMENT),
        (c.AddNode(NodeId("n9"), {"peer": ""}), BAD_ARGUMENT),
        (remove("n9"), NO_NODE),
        (remove("n2", "n9"), NO_NODE),
        (remove("n2", "n2"), NO_NODE),
        (c.MoveGroup(GroupId(9), [NodeId("n1")]), NO_GROUP),
        (c.MoveGroup(GroupId(1), []), BAD_ARGUMENT),
        (c.MoveGroup(GroupId(1), [NodeId("n1"), NodeId("n1")]), BAD_ARGUMENT),
        (c.MoveGroup(GroupId(1), [NodeId("n9")]), NO_NODE),
        (c.GroupHeld(GroupId(9), 1, [NodeId("n1")]), BAD_ARGUMENT),
        (c.GroupHeld(GroupId(1), 1, [NodeId("n1")], "1"), BAD_ARGUMENT),  # type: ignore[arg-type]
        (c.GroupHeld(GroupId(1), 1, [NodeId("n1")], 1, [7]), BAD_ARGUMENT),  # type: ignore[list-item]
    ],
)
def test_what_cannot_be_is_refused(command: Any, code: str):
    book().refuses(command, code)


def test_a_node_that_leaves_is_given_nothing_and_is_not_let_in_meanwhile():
    made = book("n4")
    made.does(remove("n4"))
    made.refuses(c.MoveGroup(GroupId(1), [NodeId("n4")]), NO_NODE)
    made.refuses(remove("n1", "n4"), NO_NODE)
    made.refuses(add("n4"), BAD_ARGUMENT)


def test_the_last_node_stays():
    made = Book(0)
    made.apply(c.RegisterNode(NodeId("n1"), 1, {}))
    made.refuses(remove("n1"), BAD_ARGUMENT)
