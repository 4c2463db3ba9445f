"""Which nodes hold a group, and which of them should lead it: pure functions of the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from cluster.types import GroupId, NodeId

#: Which machine a node runs on; a node that is not named has one of its own.
Hosts = Mapping[NodeId, str]
NO_HOSTS: Hosts = {}


def hosts_of(addresses: Mapping[NodeId, str]) -> Hosts:
    """Nodes whose addresses for other nodes, host:port, have the same host share a machine."""
    hosts = {node: address.rpartition(":")[0] for node, address in addresses.items()}
    return {node: host for node, host in hosts.items() if host}


def place(
    nodes: Sequence[NodeId],
    copies: int,
    held: Mapping[NodeId, int],
    unsettled: Collection[NodeId] = (),
    hosts: Hosts = NO_HOSTS,
) -> tuple[NodeId, ...]:
    """The `copies` least loaded of `nodes` (all of them when there are fewer), on as many hosts as
    can be; ties go by name.

    `held` says how many groups each node holds already. Perhaps the votes of `unsettled` nodes will
    not count: they are taken last, and only as long as the others are a majority.
    """
    settled = sum(node not in unsettled for node in nodes)
    able = min(len(nodes), max(1, copies), 2 * settled - 1 if settled else len(nodes))
    left, used, members = set(nodes), Counter[str](), list[NodeId]()
    while len(members) < able:
        node = min(left, key=lambda n: (n in unsettled, used[hosts.get(n, n)], held.get(n, 0), n))
        left.discard(node)
        used[hosts.get(node, node)] += 1
        members.append(node)
    return tuple(sorted(members))


def place_all(
    nodes: Sequence[NodeId], copies: int, groups: int, hosts: Hosts = NO_HOSTS
) -> list[tuple[NodeId, ...]]:
    """Members of `groups` new groups, spread evenly."""
    held: Counter[NodeId] = Counter()
    placed: list[tuple[NodeId, ...]] = []
    for _ in range(groups):
        members = place(nodes, copies, held, hosts=hosts)
        held.update(members)
        placed.append(members)
    return placed


def spread(
    nodes: Sequence[NodeId],
    groups: Mapping[GroupId, Sequence[NodeId]],
    copies: Mapping[GroupId, int] | None = None,
    hosts: Hosts = NO_HOSTS,
) -> dict[GroupId, tuple[NodeId, ...]]:
    """Members of all groups such that each has its copies on as many hosts as can be, and then no
    node holds two more than another where that allows it, with few copies moved.

    A group has as many members as before, or as `copies` says; all of `nodes` when there are fewer.
    """
    return _Spread(nodes, groups, hosts).made(copies or {})


class _Spread:
    def __init__(
        self, nodes: Sequence[NodeId], groups: Mapping[GroupId, Sequence[NodeId]], hosts: Hosts
    ) -> None:
        self._nodes = nodes
        self._before = groups
        self._hosts = hosts
        self._held = Counter(dict.fromkeys(nodes, 0))
        self._after = {
            group: {node for node in before if node in self._held}
            for group, before in groups.items()
        }
        for members in self._after.values():
            self._held.update(members)

    def made(self, copies: Mapping[GroupId, int]) -> dict[GroupId, tuple[NodeId, ...]]:
        for group, before in self._before.items():
            self._resize(self._after[group], max(1, copies.get(group, len(before))))
            self._part(self._after[group])
        while self._level():
            pass
        return {group: tuple(sorted(members)) for group, members in self._after.items()}

    def _resize(self, members: set[NodeId], wanted: int) -> None:
        while len(members) < min(wanted, len(self._nodes)):
            self._give(members, self._best_taker(members))
        while len(members) > wanted:
            self._take(members, self._first_giver(members))

    def _part(self, members: set[NodeId]) -> None:
        """Its copies on as many hosts as can be."""
        while len(members) < len(self._nodes):
            giver, taker = self._first_giver(members), self._best_taker(members)
            if self._shares(members - {giver}, taker) >= self._shares(members - {giver}, giver):
                return
            self._take(members, giver)
            self._give(members, taker)

    def _level(self) -> bool:
        """Move a copy from a node with more to one with less; False: there is none to be moved."""
        rising = sorted(self._nodes, key=lambda n: (self._held[n], n))
        for giver in reversed(rising):
            for taker in rising:
                if self._held[giver] - self._held[taker] <= 1:
                    break
                able = [g for g, m in self._after.items() if self._may_move(m, giver, taker)]
                if not able:
                    continue
                # Copies that are still to be made go first: they cost nothing.
                group = min(
                    able, key=lambda g: (giver in self._before[g], taker not in self._before[g], g)
                )
                self._take(self._after[group], giver)
                self._give(self._after[group], taker)
                return True
        return False

    def _may_move(self, members: set[NodeId], giver: NodeId, taker: NodeId) -> bool:
        if giver not in members or taker in members:
            return False
        rest = members - {giver}
        return self._shares(rest, taker) <= self._shares(rest, giver)

    def _shares(self, members: Collection[NodeId], node: NodeId) -> int:
        """How many of these are on its host."""
        host = self._hosts.get(node, node)
        return sum(self._hosts.get(each, each) == host for each in members)

    def _best_taker(self, members: set[NodeId]) -> NodeId:
        able = (node for node in self._nodes if node not in members)
        return min(able, key=lambda n: (self._shares(members, n), self._held[n], n))

    def _first_giver(self, members: set[NodeId]) -> NodeId:
        return max(members, key=lambda n: (self._shares(members, n), self._held[n], n))

    def _give(self, members: set[NodeId], node: NodeId) -> None:
        members.add(node)
        self._held[node] += 1

    def _take(self, members: set[NodeId], node: NodeId) -> None:
        members.remove(node)
        self._held[node] -= 1


def preferred_leader(group: GroupId, members: Sequence[NodeId]) -> NodeId:
    """Every node computes the same one, and over many groups each member is preferred equally
    often.
    """
    ordered = sorted(members)
    return ordered[int(group) % len(ordered)]
