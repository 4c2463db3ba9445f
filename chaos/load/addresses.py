"""Where the nodes are, and which of them a client asks next."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Address:
    """One node, as clients reach it."""

    node: str
    url: str  # http://host:port
    amqp_url: str  # amqp://user:password@host:port/%2F
    nats: str = ""  # host:port; empty: it does not listen for NATS

    @property
    def credentials(self) -> tuple[str, str]:
        """User and password, of all protocols."""
        parts = urlsplit(self.amqp_url)
        return parts.username or "", parts.password or ""


class Chooser:
    """One client's choice of nodes. `addresses` may grow and shrink while it is used."""

    def __init__(self, addresses: Sequence[Address], dice: random.Random) -> None:
        self._addresses = addresses
        self._dice = dice
        self._failed: str | None = None

    def shuffled(self) -> list[Address]:
        """All of them, what failed last at the end."""
        found = self._dice.sample(list(self._addresses), len(self._addresses))
        return sorted(found, key=lambda address: address.node == self._failed)

    def failed(self, node: str) -> None:
        self._failed = node
