"""NATS clients of a simulated world: the wires of `chaos.load.nats_client`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from chaos.load.nats_client import NatsClient
from chaos.simulator.channel import Channel, Closed
from chaos.simulator.loop import Process
from chaos.simulator.nats_host import NatsHello
from chaos.simulator.sim_cluster import SimCluster

#: A machine that is gone says nothing: so often a client looks.
LOOK_S = 1.0


class SimNatsClients:
    """New clients in one simulated process."""

    def __init__(self, cluster: SimCluster, process: Process) -> None:
        self._cluster = cluster
        self._process = process

    def open(self, name: str) -> NatsClient:
        dice = random.Random(f"{self._cluster.plan.seed}/{name}/door")
        return NatsClient(name, lambda: self._dial(dice), dice)

    async def _dial(self, dice: random.Random) -> SimWire | None:
        channel = self._cluster.connect(self._process, dice.choice(self._cluster.nodes))
        return None if channel is None else SimWire(channel)


class SimWire:
    """Implements `Wire`."""

    def __init__(self, channel: Channel) -> None:
        self.node = str(channel.at)
        self.on_data: Callable[[bytes], None] = lambda _data: None
        self.on_lost: Callable[[], None] = lambda: None
        self._channel = channel
        channel.on_client = self._arrived
        channel.on_client_lost = self._end
        channel.to_node(NatsHello())
        self._over = False
        self._watching = asyncio.ensure_future(self._watch())

    def write(self, data: bytes) -> None:
        self._channel.to_node(data)

    def cut(self) -> None:
        self._channel.cut()
        self._end()

    def _arrived(self, data: Any) -> None:
        if type(data) is Closed:
            self._end()
        elif not self._over:
            self.on_data(data)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._watching.cancel()
            self.on_lost()

    async def _watch(self) -> None:
        while self._channel.open:
            await asyncio.sleep(LOOK_S)
        self._end()
