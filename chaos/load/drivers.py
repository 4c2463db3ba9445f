"""New clients, by protocol."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

from chaos.load.addresses import Address, Chooser
from chaos.load.amqp_driver import AmqpDriver
from chaos.load.driver import Driver, Protocols
from chaos.load.http_calls import HttpCalls, named
from chaos.load.native_driver import NativeDriver
from chaos.load.nats_py_client import NatsPyClient


class Drivers:
    """Of one cluster; also `Nodes`. `addresses` may change while it runs: new calls see that."""

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

    # --- for workloads about links

    @property
    def credentials(self) -> tuple[str, str]:
        return self._addresses[0].credentials

    def uris(self, vhost: str) -> list[str]:
        return [address.amqp_url for address in self._in(vhost)]

    def open_amqp(self, name: str, vhost: str) -> Driver:
        dice = random.Random(f"{self._seed}/{name}/door")
        return AmqpDriver(name, self._in(vhost), dice, self._serials)

    def open_api(self, name: str) -> HttpCalls:
        return HttpCalls(Chooser(self._addresses, random.Random(f"{self._seed}/{name}/door")))

    def _in(self, vhost: str) -> list[Address]:
        """The addresses of now."""
        return [
            replace(each, amqp_url=f"{each.amqp_url.rpartition('/')[0]}/{named(vhost)}")
            for each in self._addresses
        ]
