"""Where a live cluster touches the machine: the network between its nodes, and their disks.

Each has an implementation for what the machine allows. `missing` names what it does not: faults by
the name of a method of `LiveCluster`, or `method:variant`, and why they cannot be had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chaos.faults import Grudge, Weather
from cluster.types import NodeId


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a node listens, on its own address."""

    http: int
    peer: int
    amqp: int
    nats: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node runs."""

    host: str  # the address that it listens on, and that clients use
    ports: Ports
    launch: Sequence[str] = ()  # what a command begins with to run there


class Network(Protocol):
    """The hosts of the nodes, and what is between them. Calls block for some milliseconds."""

    @property
    def kind(self) -> str:
        """In words, for the report."""
        ...

    @property
    def missing(self) -> Mapping[str, str]: ...
    def add(self, node: NodeId) -> Place:
        """Make room for one more node. Nodes come in any order and are never taken away."""
        ...

    def peer_address(self, node: NodeId, peer: NodeId) -> str:
        """host:port by which `node` reaches `peer` (or, for itself, on which it listens)."""
        ...

    def partition(self, grudge: Grudge, *, reset: bool) -> None: ...
    def degrade(self, weather: Weather) -> None: ...
    def cut_clients(self, node: NodeId) -> None:
        """Clients do not reach this node, until `heal`."""
        ...

    def heal(self) -> None: ...
    def close(self) -> None: ...


class Disks(Protocol):
    """A file system for each node. Calls block, some for a second."""

    @property
    def kind(self) -> str: ...
    @property
    def missing(self) -> Mapping[str, str]: ...
    def add(self, node: NodeId) -> Path:
        """An empty folder of its own; it stays where it is whatever happens to the disk."""
        ...

    def power_loss(self, nodes: Sequence[NodeId]) -> None:
        """All these machines at the same instant: the caller ends their processes right after;
        `power_back` must be called before they start again.
        """
        ...

    def power_back(self, nodes: Sequence[NodeId]) -> None:
        """What was synced is there again, and nothing else."""
        ...

    def slow(self, node: NodeId, pid: int, sync_ms: float) -> None: ...
    def fail(self, node: NodeId, pid: int) -> None:
        """The next fsync of this process fails."""
        ...

    def lie(self, node: NodeId, pid: int) -> None: ...
    def fill(self, node: NodeId, *, leave_bytes: int = 0) -> None:
        """No more than so much room is left, until `heal`."""
        ...

    def heal(self, node: NodeId) -> None: ...
    def close(self) -> None: ...
