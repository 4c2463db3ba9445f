"""What hot paths count with: plain integers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.groups.group import Role
from cluster.types import GroupId
from node.metrics.client_counters import CLASSIC, QUORUM, SIZE_BOUNDS, ProtocolCounters
from node.metrics.deaths import Deaths


@given(st.lists(st.lists(st.integers(0, 12_000), max_size=20)))
def test_a_batch_counts_as_its_messages_one_by_one(batches: list[list[int]]):
    together, apart = ProtocolCounters(), ProtocolCounters()
    for sizes in batches:
        bodies = [bytes(size) for size in sizes]
        together.published(bodies, routed=len(bodies), confirm=True)
        for body in bodies:
            apart.published([body], routed=1, confirm=True)

    assert together.sizes.buckets == apart.sizes.buckets
    assert together.sizes.sum == apart.sizes.sum == sum(map(sum, batches))
    assert together.received == apart.received == sum(map(len, batches))


@pytest.mark.parametrize("place", range(3))
def test_a_bound_belongs_to_the_bucket_below_it(place: int):
    counters = ProtocolCounters()
    bodies = [bytes(SIZE_BOUNDS[place]), bytes(SIZE_BOUNDS[place] + 1)]
    counters.published(bodies, routed=2, confirm=False)

    sizes = counters.sizes
    assert sizes.buckets[place] == sizes.buckets[place + 1] == 1


class Copies:
    """A group, as its copy on this node counters deaths."""

    def __init__(self) -> None:
        self.on_role: list[Any] = []
        self.dead: dict[tuple[str, bool], int] = {}
        counters = SimpleNamespace(dead=self.dead)
        self.group = SimpleNamespace(
            id=GroupId(5), machine=SimpleNamespace(counters=counters), ready=True
        )
        self.groups = {GroupId(5): self.group}
        self.transient = SimpleNamespace(own=None)

    def die(self, count: int, *, goes: bool = True) -> None:
        self.dead["expired", goes] = self.dead.get(("expired", goes), 0) + count

    def becomes(self, role: Role) -> None:
        for listener in self.on_role:
            listener(self.group, role, 1)


def test_only_deaths_while_this_node_led_are_its_own():
    copies = Copies()
    deaths = Deaths(cast(Any, copies))
    copies.die(100)  # while it followed
    copies.becomes(Role.LEADER)
    copies.die(2)
    assert deaths.counts() == {(QUORUM, "expired", True): 2}
    copies.becomes(Role.FOLLOWER)
    copies.die(50)
    copies.becomes(Role.CANDIDATE)
    copies.becomes(Role.LEADER)
    copies.die(3)
    copies.die(1, goes=False)

    assert deaths.counts() == {(QUORUM, "expired", True): 5, (QUORUM, "expired", False): 1}


def test_those_of_transient_queues_are_of_the_classic_type():
    copies = Copies()
    counters = SimpleNamespace(dead={("maxlen", False): 4})
    copies.transient.own = SimpleNamespace(machine=SimpleNamespace(counters=counters))

    assert Deaths(cast(Any, copies)).counts() == {(CLASSIC, "maxlen", False): 4}
