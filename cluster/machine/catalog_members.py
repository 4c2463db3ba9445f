"""Which nodes the cluster has, and which of them hold each group.

The catalog says what is wanted; each group's leader changes its members until they are that, and
tells the catalog who has a copy. A node keeps a copy as long as it is wanted there or may still
count, so nothing here can take a majority away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from cluster.machine.catalog_tables import GroupInfo, Groups, NodeInfo, Nodes
from cluster.machine.checks import is_name, shown
from cluster.machine.commands import AddNode, GroupHeld, MoveGroup, NodeGone, RemoveNode
from cluster.machine.effects import Applied, Effect
from cluster.machine.replies import BAD_ARGUMENT, NO_GROUP, NO_NODE, Ok, Refused
from cluster.types import GroupId, NodeId

#: A Raft group with more members is slower and no safer.
MEMBERS_MAX = 99


class Members:
    """The clauses about nodes that come and go, and groups that move."""

    def __init__(
        self, nodes: Nodes, groups: Groups, forget: Callable[[NodeInfo, int], list[Effect]]
    ) -> None:
        self._nodes = nodes
        self._groups = groups
        self._forget = forget

    def add_node(self, command: AddNode) -> Applied:
        """Let a node in. The same again: Ok(0). One that was removed comes back as a new one."""
        node, addresses = command.node, command.addresses
        if not is_name(node):
            return _refused(BAD_ARGUMENT, "a node's id must be non-empty text of at most 255 bytes")
        if not all(is_name(kind) and is_name(at) for kind, at in addresses.items()):
            return _refused(BAD_ARGUMENT, "addresses must map a kind to 'host:port', both text")
        known = self._nodes.by_id.get(node)
        if known is None:
            self._nodes.put(NodeInfo(node, 0, dict(addresses), len(self._nodes) + 1))
        elif known.state == "leaving":
            return _refused(
                BAD_ARGUMENT, f"node {node} is being removed; add it again when that is done"
            )
        elif known.state == "member" and {**known.addresses, **addresses} == known.addresses:
            return Applied(Ok(0))
        else:
            merged = {**known.addresses, **addresses}
            self._nodes.put(replace(known, addresses=merged, state="member"))
        return Applied(Ok(1))

    def remove_node(self, command: RemoveNode) -> Applied:
        """Its groups go to the successor where it has none, else to those that hold the fewest."""
        info = self._node(command.node)
        if info is None or info.state == "removed":
            return _refused(NO_NODE, f"there is no node {shown(command.node)} in the cluster")
        if info.state == "leaving":
            return Applied(Ok(0))
        others = [node for node in self.present() if node != info.node]
        if not others:
            return _refused(BAD_ARGUMENT, f"node {info.node} is the only one: it cannot be removed")
        successor = command.successor
        if successor is not None and successor not in others:
            return _refused(
                NO_NODE, f"node {shown(successor)} is to take over, but is no member of the cluster"
            )
        self._nodes.put(replace(info, state="leaving"))
        held = Counter(node for group in self._groups.all() for node in group.members)
        for group in self._groups.all():
            if info.node not in group.members:
                continue
            kept = [node for node in group.members if node != info.node]
            # Whoever was let in and has never come may never come.
            absent = {n: self._nodes.by_id[n].incarnation == 0 for n in others}
            able = sorted(others, key=lambda n: (n != successor, absent[n], held[n], n))
            taking = next((node for node in able if node not in kept), None)
            if taking is not None:
                kept.append(taking)
                held[taking] += 1
            self._want(group, kept)
        return Applied(Ok(1))

    def move_group(self, command: MoveGroup) -> Applied:
        """Ok(0) when these are wanted already."""
        group = self._group(command.group)
        if group is None:
            return _refused(NO_GROUP, f"there is no group {shown(command.group)}")
        refusal = wrong_members(command.members)
        if refusal is not None:
            return Applied(refusal)
        present = self.present()
        for node in command.members:
            if node not in present:
                return _refused(NO_NODE, f"node {shown(node)} is no member of the cluster")
        if set(command.members) == set(group.members):
            return Applied(Ok(0))
        self._want(group, command.members)
        return Applied(Ok(1))

    def group_held(self, command: GroupHeld) -> Applied:
        """Who has a copy, as of that entry of the group's own log. Older news: Ok(0)."""
        group = self._group(command.group)
        at, lost = (command.era, command.index), command.lost
        numbers = all(type(number) is int for number in at)
        if group is None or not numbers or wrong_members(command.members) or wrong_members(lost, 0):
            return _refused(BAD_ARGUMENT, "a group, an index of its log and its members are needed")
        is_newer = group.is_newer(*at, {*command.members, *lost})
        if at != (group.held_era, group.held_at) and not is_newer:
            return Applied(Ok(0))
        held = tuple(sorted(command.members))
        changed = replace(group, held=held, held_at=command.index, held_era=command.era)
        self._groups.put(changed)
        return Applied(Ok(1))

    def node_gone(self, command: NodeGone) -> Applied:
        """A node that leaves holds nothing any more. Its name stays known, its number taken."""
        info = self._node(command.node)
        if info is None or info.state != "leaving":
            return Applied(Ok(0))
        for group in self._groups.all():
            if info.node in group.members or info.node in group.held:
                return _refused(BAD_ARGUMENT, f"group {group.name} has a copy on {info.node}")
        self._nodes.put(replace(info, state="removed"))
        return Applied(Ok(1), self._forget(info, info.incarnation))

    def _node(self, node: object) -> NodeInfo | None:
        return self._nodes.by_id.get(NodeId(node)) if isinstance(node, str) else None

    def _group(self, group: object) -> GroupInfo | None:
        return self._groups.by_id.get(GroupId(group)) if isinstance(group, int) else None

    def present(self) -> list[NodeId]:
        return [info.node for info in self._nodes.all() if info.state == "member"]

    def _want(self, group: GroupInfo, members: Iterable[NodeId]) -> None:
        wanted = tuple(sorted(members))
        self._groups.put(replace(group, members=wanted, moves=group.moves + 1))


def wrong_members(members: object, least: int = 1) -> Refused | None:
    if not isinstance(members, Sequence) or not all(map(is_name, members)):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return Refused(BAD_ARGUMENT, "members must be different node ids")
    if len(set(members)) != len(members):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return Refused(BAD_ARGUMENT, "members must be different node ids")
    if not least <= len(members) <= MEMBERS_MAX:  # pyright: ignore[reportUnknownArgumentType]
        return Refused(BAD_ARGUMENT, f"a group has from 1 to {MEMBERS_MAX} members")
    return None


def _refused(code: str, reason: str) -> Applied:
    return Applied(Refused(code, reason))
