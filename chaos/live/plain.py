"""Loopback: what is left where the machine allows nothing else. Processes, data folders and clocks
can still be struck.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from chaos.faults import Grudge, Weather
from chaos.live.seams import Place, Ports
from cluster.types import NodeId

HOST = "127.0.0.1"
LOOPBACK = "nodes share loopback, where nothing can be cut"


class PlainNetwork:
    """Every node on loopback, on ports that were free."""

    kind = "loopback, uncut"
    missing: Mapping[str, str] = dict.fromkeys(("partition", "degrade", "cut_clients"), LOOPBACK)

    def __init__(self) -> None:
        self._places: dict[NodeId, Place] = {}

    def add(self, node: NodeId) -> Place:
        place = self._places[node] = Place(HOST, Ports(*free_ports(3)))
        return place

    def peer_address(self, node: NodeId, peer: NodeId) -> str:
        return f"{HOST}:{self._places[peer].ports.peer}"

    def partition(self, grudge: Grudge, *, reset: bool) -> None: ...
    def degrade(self, weather: Weather) -> None: ...
    def cut_clients(self, node: NodeId) -> None: ...
    def heal(self) -> None: ...
    def close(self) -> None: ...


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; all of them are held until the last one is found."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
