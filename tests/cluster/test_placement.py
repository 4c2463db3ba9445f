"""Placement is a pure function that every node computes alike."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.catalog.placement import hosts_of, place, place_all, preferred_leader, spread
from cluster.types import GroupId, NodeId
from tests.cluster.world import MakeWorld

FIVE = [NodeId(f"n{i}") for i in range(5)]
THREE = FIVE[:3]


def test_fewer_nodes_than_copies_use_all_nodes() -> None:
    assert place(THREE[:2], 3, {}) == ("n0", "n1")


def test_the_least_loaded_nodes_are_taken_first() -> None:
    assert place(FIVE, 3, {FIVE[0]: 4, FIVE[1]: 1}) == ("n2", "n3", "n4")


def test_unsettled_nodes_are_taken_last_and_are_never_a_majority() -> None:
    held = {FIVE[0]: 9, FIVE[1]: 8}
    assert place(FIVE, 3, held, {*FIVE[2:4]}) == ("n0", "n1", "n4")
    assert place(FIVE, 3, held, {*FIVE[1:4]}) == ("n0", "n2", "n4")
    assert place(FIVE, 5, held, {*FIVE[2:]}) == ("n0", "n1", "n2")
    assert place(FIVE, 3, held, {*FIVE[1:]}) == ("n0",)
    assert place(FIVE, 3, held, {*FIVE}) == ("n2", "n3", "n4"), "nobody else is there"


def test_groups_are_spread_so_that_no_node_holds_two_more_than_another() -> None:
    held = Counter(node for members in place_all(FIVE, 3, 8) for node in members)
    assert max(held.values()) - min(held.values()) <= 1


def test_leaders_of_many_groups_are_spread_evenly() -> None:
    leads = Counter(preferred_leader(GroupId(g), THREE) for g in range(9))
    assert set(leads.values()) == {3}


def test_the_order_in_which_members_are_named_does_not_matter() -> None:
    assert preferred_leader(GroupId(4), THREE) == preferred_leader(GroupId(4), THREE[::-1])


# --- several nodes on one host

SIX = [NodeId(f"n{i}") for i in range(6)]
#: n0 and n1 are on a, n2 and n3 on b, n4 and n5 on c.
HOSTS = {node: "abc"[number // 2] for number, node in enumerate(SIX)}


def test_nodes_with_the_same_host_in_their_addresses_share_it() -> None:
    addresses = {
        NodeId("n1"): "10.0.0.1:7000",
        NodeId("n2"): "10.0.0.1:7001",
        NodeId("n3"): "[::1]:7000",
        NodeId("n4"): "n4",
    }
    assert hosts_of(addresses) == {"n1": "10.0.0.1", "n2": "10.0.0.1", "n3": "[::1]"}


def test_no_host_gets_two_copies_of_a_group_while_another_has_none() -> None:
    assert place(SIX, 3, {}, hosts=HOSTS) == ("n0", "n2", "n4")
    assert place(SIX, 3, {SIX[0]: 1, SIX[2]: 1}, hosts=HOSTS) == ("n1", "n3", "n4")
    assert place(SIX[:4], 3, {SIX[0]: 9}, hosts=HOSTS) == ("n1", "n2", "n3")
    for members in place_all(SIX, 3, 16, HOSTS):
        assert {HOSTS[node] for node in members} == {*"abc"}
    held = Counter(node for members in place_all(SIX, 3, 16, HOSTS) for node in members)
    assert set(held.values()) == {8}


def test_copies_that_share_a_host_are_parted() -> None:
    after = spread(SIX, as_placed("012", "123", "345", "024"), hosts=HOSTS)
    for members in after.values():
        assert {HOSTS[node] for node in members} == {*"abc"}
    assert moved(as_placed("012", "123", "345", "024"), after) == 3


@given(st.data())
def test_a_spread_over_hosts_shares_them_least_then_is_even_and_is_final(
    data: st.DataObject,
) -> None:
    nodes = ids(data.draw(st.integers(1, 9)))
    hosts = {node: data.draw(st.sampled_from("abcd")) for node in nodes}
    some = st.sets(st.sampled_from(nodes), min_size=1).map(sorted)
    before = dict(enumerate(data.draw(st.lists(some, max_size=12)), start=1))
    placed = {GroupId(group): members for group, members in before.items()}

    after = spread(nodes, placed, hosts=hosts)

    for group, members in after.items():
        assert len(set(members)) == len(members) == len(placed[group])
        fresh = place(nodes, len(members), {}, hosts=hosts)
        assert most_on_a_host(members, hosts) == most_on_a_host(fresh, hosts)
    assert spread(nodes, after, hosts=hosts) == after


def most_on_a_host(members: Sequence[NodeId], hosts: Mapping[NodeId, str]) -> int:
    return max(Counter(hosts[node] for node in members).values())


# --- spreading what is there


def ids(count: int) -> list[NodeId]:
    return [NodeId(f"n{number}") for number in range(count)]


def as_placed(*groups: str) -> dict[GroupId, list[NodeId]]:
    """Each group as digits of its nodes: "012"."""
    return {
        GroupId(number): [NodeId(f"n{digit}") for digit in members]
        for number, members in enumerate(groups, start=1)
    }


def moved(
    before: Mapping[GroupId, Sequence[NodeId]], after: Mapping[GroupId, Sequence[NodeId]]
) -> int:
    """Copies that must be made."""
    return sum(len(set(after[group]) - set(before[group])) for group in before)


def loads(nodes: Sequence[NodeId], placed: Mapping[GroupId, Sequence[NodeId]]) -> list[int]:
    held = Counter(node for members in placed.values() for node in members)
    return [held[node] for node in nodes]


def fewest_moves(nodes: Sequence[NodeId], held: Sequence[int]) -> int:
    """As many as the nodes with too little lack, whichever of them may have one more."""
    low, more = divmod(sum(held), len(nodes))
    richest = sorted(held, reverse=True)
    wanted = [low + (place < more) for place in range(len(nodes))]
    return sum(max(0, want - has) for want, has in zip(wanted, richest, strict=True))


def test_two_new_nodes_get_their_share_and_nothing_else_moves() -> None:
    before = as_placed(*["012"] * 8)
    after = spread(FIVE, before)
    assert sorted(loads(FIVE, after)) == [4, 5, 5, 5, 5]
    assert moved(before, after) == fewest_moves(FIVE, [8, 8, 8, 0, 0]) == 9


def test_what_is_spread_already_stays_as_it_is() -> None:
    before = as_placed("012", "123", "034", "124")
    assert {g: list(m) for g, m in spread(FIVE, before).items()} == before


def test_a_group_may_get_more_copies_or_less() -> None:
    after = spread(FIVE, as_placed("01", "01234"), {GroupId(1): 3, GroupId(2): 4})
    assert [len(members) for members in after.values()] == [3, 4]
    assert max(loads(FIVE, after)) - min(loads(FIVE, after)) <= 1


def test_without_nodes_there_is_nothing_to_spread_over() -> None:
    assert spread([], as_placed("01")) == {GroupId(1): ()}


@given(st.data())
def test_a_spread_is_even_keeps_every_group_as_large_and_moves_no_copy_in_vain(
    data: st.DataObject,
) -> None:
    nodes = ids(data.draw(st.integers(1, 9)))
    some = st.sets(st.sampled_from(nodes), min_size=1).map(sorted)
    before = dict(enumerate(data.draw(st.lists(some, max_size=12)), start=1))
    placed = {GroupId(group): members for group, members in before.items()}

    after = spread(nodes, placed)

    assert {g: len(m) for g, m in after.items()} == {g: len(m) for g, m in placed.items()}
    assert all(len(set(members)) == len(members) for members in after.values())
    held = loads(nodes, after)
    assert max(held) - min(held) <= 1
    assert moved(placed, after) == fewest_moves(nodes, loads(nodes, placed))


@given(st.data())
def test_copies_on_nodes_that_are_gone_are_made_on_others(data: st.DataObject) -> None:
    every = ids(7)
    nodes = sorted(data.draw(st.sets(st.sampled_from(every), min_size=3)))
    some = st.sets(st.sampled_from(every), min_size=1, max_size=3).map(sorted)
    drawn = data.draw(st.lists(some, max_size=12))
    placed = {GroupId(group): members for group, members in enumerate(drawn, start=1)}

    after = spread(nodes, placed)

    assert {g: len(m) for g, m in after.items()} == {g: len(m) for g, m in placed.items()}
    assert {node for members in after.values() for node in members} <= set(nodes)
    assert max(loads(nodes, after)) - min(loads(nodes, after)) <= 1


# --- in a cluster


@pytest.mark.virtual_time
async def test_groups_of_a_cluster_have_their_copies_on_different_hosts(
    make_world: MakeWorld,
) -> None:
    """The default groups, which are made before all nodes are known, and one that is asked for."""
    hosts = {f"n{number}": "abc"[(number - 1) // 2] for number in range(1, 7)}
    world = await make_world(6, hosts=hosts, default_groups=4).born()
    node = world.any
    assert (await node.declare_queue("/", "q", {"x-queue-group": "own"})).kind == "ok"

    groups = node.catalog_machine.groups()
    assert len(groups) == 5
    for group in groups:
        assert sorted(hosts[member] for member in group.members) == ["a", "b", "c"], group.name
