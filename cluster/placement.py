"""Which nodes hold a group, and which of them should lead it: pure functions of the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from cluster.types import GroupId, NodeId


def place(nodes: Sequence[NodeId], copies: int, held: Mapping[NodeId, int]) -> tuple[NodeId, ...]:
    """The `copies` least loaded of `nodes` (all of them when there are fewer); ties go by name.

    `held` says how many groups each node holds already.
    """
    ranked = sorted(nodes, key=lambda node: (held.get(node, 0), node))
    return tuple(sorted(ranked[: max(1, copies)]))


def place_all(nodes: Sequence[NodeId], copies: int, groups: int) -> list[tuple[NodeId, ...]]:
    """Members of `groups` new groups, spread evenly."""
    held: Counter[NodeId] = Counter()
    placed: list[tuple[NodeId, ...]] = []
    for _ in range(groups):
        members = place(nodes, copies, held)
        held.update(members)
        placed.append(members)
    return placed


def preferred_leader(group: GroupId, members: Sequence[NodeId]) -> NodeId:
    """Every node computes the same one, and over many groups each member is preferred equally
    often.
    """
    ordered = sorted(members)
    return ordered[int(group) % len(ordered)]
