"""Placement is a pure function that every node computes alike."""

from collections import Counter

from cluster.placement import place, place_all, preferred_leader
from cluster.types import GroupId, NodeId

FIVE = [NodeId(f"n{i}") for i in range(5)]
THREE = FIVE[:3]


def test_fewer_nodes_than_copies_use_all_nodes() -> None:
    assert place(THREE[:2], 3, {}) == ("n0", "n1")


def test_the_least_loaded_nodes_are_taken_first() -> None:
    assert place(FIVE, 3, {FIVE[0]: 4, FIVE[1]: 1}) == ("n2", "n3", "n4")


def test_groups_are_spread_so_that_no_node_holds_two_more_than_another() -> None:
    held = Counter(node for members in place_all(FIVE, 3, 8) for node in members)
    assert max(held.values()) - min(held.values()) <= 1


def test_leaders_of_many_groups_are_spread_evenly() -> None:
    leads = Counter(preferred_leader(GroupId(g), THREE) for g in range(9))
    assert set(leads.values()) == {3}


def test_the_order_in_which_members_are_named_does_not_matter() -> None:
    assert preferred_leader(GroupId(4), THREE) == preferred_leader(GroupId(4), THREE[::-1])
