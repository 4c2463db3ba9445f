"""Which nodes hold a group, and which of them should lead it: pure functions of the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from cluster.types import GroupId, NodeId


def place(
    nodes: Sequence[NodeId],
    copies: int,
    held: Mapping[NodeId, int],
    unsettled: Collection[NodeId] = (),
) -> tuple[NodeId, ...]:
    """The `copies` least loaded of `nodes` (all of them when there are fewer); ties go by name.

    `held` says how many groups each node holds already. Perhaps the votes of `unsettled` nodes will
    not count: they are taken last, and only as long as the others are a majority.
    """
    ranked = sorted(nodes, key=lambda node: (node in unsettled, held.get(node, 0), node))
    settled = sum(node not in unsettled for node in nodes)
    able = ranked[: 2 * settled - 1] if settled else ranked
    return tuple(sorted(able[: max(1, copies)]))


def place_all(nodes: Sequence[NodeId], copies: int, groups: int) -> list[tuple[NodeId, ...]]:
    """Members of `groups` new groups, spread evenly."""
    held: Counter[NodeId] = Counter()
    placed: list[tuple[NodeId, ...]] = []
    for _ in range(groups):
        members = place(nodes, copies, held)
        held.update(members)
        placed.append(members)
    return placed


def spread(
    nodes: Sequence[NodeId],
    groups: Mapping[GroupId, Sequence[NodeId]],
    copies: Mapping[GroupId, int] | None = None,
) -> dict[GroupId, tuple[NodeId, ...]]:
    """Members of all groups such that no node holds two more than another, with few copies moved.

    A group has as many members as before, or as `copies` says; all of `nodes` when there are fewer.
    """
    held = Counter(dict.fromkeys(nodes, 0))
    spread: dict[GroupId, set[NodeId]] = {}
    for group, before in groups.items():
        spread[group] = {node for node in before if node in held}
        held.update(spread[group])
    for group, members in spread.items():
        wanted = max(1, (copies or {}).get(group, len(groups[group])))
        while len(members) < min(wanted, len(nodes)):
            taking = min((n for n in nodes if n not in members), key=lambda n: (held[n], n))
            members.add(taking)
            held[taking] += 1
        while len(members) > wanted:
            giving = max(members, key=lambda n: (held[n], n))
            members.remove(giving)
            held[giving] -= 1
    while nodes:
        least, most = (pick(nodes, key=lambda n: (held[n], n)) for pick in (min, max))
        if held[most] - held[least] <= 1:
            break
        # There is one that only `most` has, as it has more. Copies that are still to be made go
        # first: they cost nothing.
        able = [g for g, members in spread.items() if most in members and least not in members]
        group = min(able, key=lambda g: (most in groups[g], least not in groups[g], g))
        spread[group].symmetric_difference_update((most, least))
        held[most] -= 1
        held[least] += 1
    return {group: tuple(sorted(members)) for group, members in spread.items()}


def preferred_leader(group: GroupId, members: Sequence[NodeId]) -> NodeId:
    """Every node computes the same one, and over many groups each member is preferred equally
    often.
    """
    ordered = sorted(members)
    return ordered[int(group) % len(ordered)]
