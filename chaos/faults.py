"""The words in which a nemesis speaks, in the simulator and on live processes alike."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from cluster.types import NodeId

#: Which nodes a node does not hear: node -> nodes whose packets towards it are dropped.
Grudge = Mapping[NodeId, AbstractSet[NodeId]]


class Faults(Protocol):
    """What can be done to a cluster. Each can be asked at any time; what makes no sense does
    nothing.
    """

    @property
    def nodes(self) -> list[NodeId]: ...
    def partition(self, grudge: Grudge, *, reset: bool = False) -> None:
        """Replace the current cuts by these. `reset`: connections over a cut are reset, not just
        silent.
        """
        ...

    def heal(self) -> None:
        """End all cuts, slow disks and wrong clocks."""
        ...

    def kill(self, node: NodeId, *, power_loss: bool = False) -> None:
        """End its process at once; with a power loss the machine is gone too, and what it had not
        synced.
        """
        ...

    def start(self, node: NodeId) -> None: ...
    def pause(self, node: NodeId) -> None: ...
    def resume(self, node: NodeId) -> None: ...
    def slow_disk(self, node: NodeId, sync_ms: float) -> None: ...
    def skew_clock(self, node: NodeId, offset_ms: int) -> None: ...


def isolate(node: NodeId, nodes: list[NodeId]) -> dict[NodeId, set[NodeId]]:
    """Nobody hears the node and it hears nobody."""
    others = {other for other in nodes if other != node}
    return {node: others, **{other: {node} for other in sorted(others)}}


def deafen(node: NodeId, nodes: list[NodeId]) -> dict[NodeId, set[NodeId]]:
    """The node hears nobody, but is heard."""
    return {node: {other for other in nodes if other != node}}


def silence(node: NodeId, nodes: list[NodeId]) -> dict[NodeId, set[NodeId]]:
    """The node is not heard, but hears."""
    return {other: {node} for other in nodes if other != node}


def halves(left: list[NodeId], right: list[NodeId]) -> dict[NodeId, set[NodeId]]:
    """No packet between the two sides."""
    return {**{node: set(right) for node in left}, **{node: set(left) for node in right}}


def bridge(middle: NodeId, nodes: list[NodeId]) -> dict[NodeId, set[NodeId]]:
    """Everyone sees the middle, the others do not all see each other: two of them believe in
    different worlds.
    """
    others = [node for node in nodes if node != middle]
    half = len(others) // 2
    return halves(others[:half], others[half:])
