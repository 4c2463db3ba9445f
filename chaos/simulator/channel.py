"""A client's connection to a node, as TCP has them: in order, late, and broken without a word."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chaos.simulator.loop import NS, Process, World
from cluster.types import NodeId


@dataclass(frozen=True, slots=True)
class Welcome:
    """The node took the connection."""

    session: str
    resumed: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """The node's last word on this connection."""

    reason: str


class Channel:
    """One connection of a client. Either side may find it broken."""

    def __init__(
        self,
        world: World,
        dice: random.Random,
        latency_ms: float,
        client: Process,
        node: Process,
        at: NodeId,
    ) -> None:
        self.client = client
        self.at = at
        self.node = node
        self.open = True
        self.on_client: Callable[[Any], None] = lambda _message: None
        self.on_client_lost: Callable[[], None] = lambda: None
        self.on_node: Callable[[Any], None] = lambda _message: None
        self.on_node_lost: Callable[[], None] = lambda: None
        self._world = world
        self._dice = dice
        self._latency_ms = latency_ms
        self._due_ns = {client: 0, node: 0}

    def to_node(self, message: Any) -> None:
        self._send(self.node, lambda: self.on_node(message))

    def to_client(self, message: Any) -> None:
        self._send(self.client, lambda: self.on_client(message))

    def soon_at_node(self, call: Callable[[], None]) -> None:
        """The network took what the node sent last: after as long as a frame is on its way."""
        self._arrive(self.node, call)

    def _send(self, target: Process, call: Callable[[], None]) -> None:
        if self.open:
            self._arrive(target, lambda: call() if self.open else None)

    def _arrive(self, target: Process, call: Callable[[], None]) -> None:
        delay_ns = round(self._latency_ms * self._dice.uniform(0.5, 2.0) * 1e6)
        due_ns = max(self._due_ns[target], self._world.now_ns + delay_ns)
        self._due_ns[target] = due_ns
        self._world.kernel.call_at(due_ns / NS, lambda: target.call_soon(call))

    def cut(self, *, told: bool = True) -> None:
        """Broken: both ends learn it, unless the node's machine is gone (`told` False)."""
        if self.open:
            self.open = False
            if told:
                self._arrive(self.client, self._tell_client)
            self._arrive(self.node, self._tell_node)

    def _tell_client(self) -> None:
        self.on_client_lost()

    def _tell_node(self) -> None:
        self.on_node_lost()
