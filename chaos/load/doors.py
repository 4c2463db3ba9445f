"""New clients, by protocol."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from chaos.load.addresses import Address
from chaos.load.amqp_door import AmqpDoor
from chaos.load.door import Door, Protocols
from chaos.load.native_door import NativeDoor


class Doors:
    """Of one cluster. `addresses` may change while it runs: new calls see that."""

    def __init__(self, addresses: Sequence[Address], seed: int) -> None:
        self._addresses = addresses
        self._seed = seed
        self._serials = itertools.count()

    def open(self, name: str, protocol: Protocols) -> Door:
        """For `Scene.open_door`. It connects with its first call."""
        dice = random.Random(f"{self._seed}/{name}/door")
        if protocol == "native":
            return NativeDoor(name, self._addresses, dice)
        return AmqpDoor(name, self._addresses, dice, self._serials)
