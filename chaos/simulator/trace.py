"""One aligned line an event, a hash over all that happened, and counters of what was tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

from chaos.simulator.loop import World


class Trace:
    """What a run did. Two runs of one seed have the same hash."""

    def __init__(self, world: World, show: Callable[[str], None] | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._show = show
        self._hash = blake2b(digest_size=16)

    def event(self, who: str, sign: str, what: str) -> None:
        """`sign` is one character: L F C roles, ! a fault, + up, - down, > a client's request, < an
        outcome.
        """
        line = f"{self._world.now_s:10.4f}  {who:<12} {sign}  {what}"
        self._hash.update(line.encode())
        if self._show is not None:
            self._show(line)

    def mark(self, what: str) -> None:
        """Into the hash only."""
        self._hash.update(f"{self._world.now_ns} {what}".encode())

    def count(self, name: str, by: int = 1) -> None:
        self.counts[name] += by

    def digest(self) -> str:
        return self._hash.hexdigest()
