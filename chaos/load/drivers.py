"""New clients, by protocol."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from chaos.load.addresses import Address
from chaos.load.amqp_driver import AmqpDriver
from chaos.load.driver import Driver, Protocols
from chaos.load.native_driver import NativeDriver
from chaos.load.nats_py_client import NatsPyClient


class Drivers:
    """Of one cluster. `addresses` may change while it runs: new calls see that."""

    def __init__(self, addresses: Sequence[Address], seed: int) -> None:
        self._addresses = addresses
        self._seed = seed
        self._serials = itertools.count()

    def open(self, name: str, protocol: Protocols) -> Driver:
        """For `Scene.open_driver`. It connects with its first call."""
        dice = random.Random(f"{self._seed}/{name}/door")
        if protocol == "native":
            return NativeDriver(name, self._addresses, dice)
        return AmqpDriver(name, self._addresses, dice, self._serials)

    def open_nats(self, name: str) -> NatsPyClient:
        """For `Scene.open_nats`."""
        return NatsPyClient(name, self._addresses)
