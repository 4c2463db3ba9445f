"""Periodic work of a node that shares turns of its event loop, so that an idle node wakes less."""

from __future__ import annotations

import asyncio

from cluster.seams import Clock

#: Turns are the multiples of it, by the node's clock: so are heartbeats, as the settings are.
TURN_S = 0.2
#: Timers of the loop are rounded to milliseconds: one that is early has had its turn.
EARLY_S = 0.002


def until_turn(clock: Clock, period_s: float) -> float:
    """Seconds to the last turn within the period; all of it, when it is shorter than a turn."""
    if period_s < TURN_S:
        return period_s
    now_s = clock.monotonic_ns() / 1e9
    return (now_s + EARLY_S + period_s) // TURN_S * TURN_S - now_s


async def next_turn(clock: Clock, period_s: float) -> None:
    await asyncio.sleep(until_turn(clock, period_s))
