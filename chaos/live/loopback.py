"""Loopback: where nodes listen that have no hosts of their own, and a network of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from chaos.faults import Grudge, Weather
from chaos.live.seams import Place, Ports
from cluster.types import NodeId
from quorate.ports import HOST, free_port

UNCUT = "nodes share loopback, where nothing can be cut"


def free_place() -> Place:
    return Place(HOST, Ports(*(free_port() for _ in fields(Ports))))


class PlainNetwork:
    """A `Network` with nothing between nodes, so that what is measured on it is theirs."""

    kind = "loopback, uncut"
    missing: Mapping[str, str] = dict.fromkeys(("partition", "degrade", "cut_clients"), UNCUT)

    def __init__(self) -> None:
        self._places: dict[NodeId, Place] = {}

    def add(self, node: NodeId) -> Place:
        place = self._places[node] = free_place()
        return place

    def peer_address(self, node: NodeId, peer: NodeId) -> str:
        return f"{HOST}:{self._places[peer].ports.peer}"

    def partition(self, grudge: Grudge, *, reset: bool) -> None: ...
    def degrade(self, weather: Weather) -> None: ...
    def cut_clients(self, node: NodeId) -> None: ...
    def heal(self) -> None: ...
    def close(self) -> None: ...
