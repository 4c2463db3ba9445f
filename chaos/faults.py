"""The words in which a nemesis speaks, in the simulator and on live processes alike."""

from __future__ import annotations

from collections.abc import Mapping
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
    """What can be done to a cluster. Each can be asked at any time; what makes no sense does
    nothing.
    """

    @property
    def nodes(self) -> list[NodeId]: ...
    @property
    def missing(self) -> Mapping[str, str]:
        """Faults that cannot be had here, by the name of the method or its variant, and why."""
        ...

    def partition(self, grudge: Grudge, *, reset: bool = False) -> None:
        """Replace the current cuts by these. `reset`: connections over a cut are reset, not just
        silent.
        """
        ...

    def degrade(self, weather: Weather) -> None:
        """All links between nodes are like this from now on."""
        ...

    def heal(self) -> None:
        """End all cuts, bad weather, full, slow, failing and lying disks, and wrong clocks. What is
        down stays down.
        """
        ...

    # --- processes

    def kill(self, node: NodeId, *, power_loss: bool = False) -> None:
        """End its process at once; with a power loss the machine is gone too, and what it had not
        synced.
        """
        ...

    def terminate(self, node: NodeId) -> None:
        """Ask it to end in good order; it hands over what it leads."""
        ...

    def start(self, node: NodeId) -> None: ...
    def pause(self, node: NodeId) -> None: ...
    def resume(self, node: NodeId) -> None: ...

    # --- disks of running nodes

    def slow_disk(self, node: NodeId, sync_ms: float) -> None: ...
    def fail_fsync(self, node: NodeId) -> None:
        """Its next fsync fails: it must end itself."""
        ...

    def lie_fsync(self, node: NodeId) -> None:
        """Its fsyncs do nothing and say that they did, until `heal`."""
        ...

    def fill_disk(self, node: NodeId) -> None:
        """No room is left for it, until `heal`."""
        ...

    # --- the folders of nodes that are down

    def wipe(self, node: NodeId) -> None:
        """All that it had is gone, as after a new disk."""
        ...

    def copy_data(self, node: NodeId) -> None:
        """Keep a copy of its folder as it is now."""
        ...

    def restore_data(self, node: NodeId) -> None:
        """Put the kept copy in the place of its folder."""
        ...

    def damage(self, node: NodeId, kind: Damage) -> str | None:
        """Where something was damaged: file and offset. None: there was nothing to damage."""
        ...

    # --- clocks

    def skew_clock(self, node: NodeId, offset_ms: int) -> None:
        """Its wall clock jumps to this far from the true time."""
        ...


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
