"""The words in which a nemesis speaks, in the simulator and on live processes alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, Protocol

from cluster.types import NodeId

#: Which nodes a node does not hear: node -> nodes whose packets towards it are dropped.
Grudge = Mapping[NodeId, AbstractSet[NodeId]]

#: What can happen to the files of a node that is down: a bit flips in the middle of a segment or
#: of a snapshot, or the end of the newest segment is cut off, synced records with it.
Damage = Literal["log_bit", "snapshot_bit", "log_end"]


@dataclass(frozen=True, slots=True)
class Weather:
    """What links between nodes are like. All zero: as good as the machine has them."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0  # standard deviation of the delay
    loss: float = 0.0  # share of packets, 0 to 1
    bytes_per_s: float = 0.0  # 0: no limit


FAIR = Weather()


class Faults(Protocol):
    """What can be done to the nodes of a cluster, simulated or real. What makes no sense, such as
    to pause a node that is down, does nothing.
    """

    @property
    def nodes(self) -> list[NodeId]: ...
    def start(self, node: NodeId) -> None: ...
    def kill(self, node: NodeId) -> None: ...
    def power_loss(self, nodes: Sequence[NodeId]) -> None: ...  # all at the same instant
    def terminate(self, node: NodeId) -> None: ...
    def pause(self, node: NodeId) -> None: ...
    def resume(self, node: NodeId) -> None: ...
    def partition(self, grudge: Grudge, *, reset: bool = False) -> None: ...
    def slow_disk(self, node: NodeId, sync_ms: float | None) -> None: ...  # None: as usual
    def skew_clock(self, node: NodeId, offset_ms: int) -> None: ...
    # Folders of nodes that are down:
    def wipe(self, node: NodeId) -> None: ...
    def copy_data(self, node: NodeId) -> None: ...
    def restore_data(self, node: NodeId) -> None: ...
    def damage(self, node: NodeId, kind: Damage) -> str | None: ...


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


def ring(nodes: list[NodeId]) -> dict[NodeId, set[NodeId]]:
    """Each hears only the one before it: every node sees somebody, nobody sees a majority both
    ways.
    """
    count = len(nodes)
    return {
        node: {other for other in nodes if other not in (node, nodes[(place - 1) % count])}
        for place, node in enumerate(nodes)
    }


def bridge(middle: NodeId, nodes: list[NodeId]) -> dict[NodeId, set[NodeId]]:
    """Everyone sees the middle, the others do not all see each other: two of them believe in
    different worlds.
    """
    others = [node for node in nodes if node != middle]
    half = len(others) // 2
    return halves(others[:half], others[half:])
