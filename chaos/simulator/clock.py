"""Clocks of simulated nodes: the wall clock is wrong by an offset and jumps; the monotonic one only
grows.
"""

from __future__ import annotations

from chaos.history import History
from chaos.simulator.loop import World

#: 2026-01-01T00:00:00Z: the wall clock of a run does not depend on the day it is run.
WALL_START_MS = 1_767_225_600_000


def new_history(world: World) -> History:
    """Of what is seen in this world, at its time."""
    return History(lambda: (world.now_ns, world.now_ns))


class SimClock:
    """One node's view of time. Monotonic clocks start at another value on every machine, as they
    do.
    """

    def __init__(self, world: World, *, offset_ms: int = 0, monotonic_offset_ns: int = 0) -> None:
        self._world = world
        self._monotonic_offset_ns = monotonic_offset_ns
        self.offset_ms = (
            offset_ms  # a fault may change it at any time: NTP step, operator, bad battery
        )

    def wall_ms(self) -> int:
        return self.wall_ns() // 1_000_000

    def wall_ns(self) -> int:
        return self._world.now_ns + (WALL_START_MS + self.offset_ms) * 1_000_000

    def monotonic_ns(self) -> int:
        return self._world.now_ns + self._monotonic_offset_ns
