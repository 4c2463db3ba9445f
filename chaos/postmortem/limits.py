"""From when on something is worth a warning."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass


class WrongArgument(ValueError):
    """What was asked for makes no sense; nothing was begun."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Names and defaults of all thresholds; each is a flag of `quorate postmortem`."""

    standstill_ms: float = 3_000  # a node that is up writes nothing
    lag_entries: int = 100  # a follower is that far behind ...
    lag_ms: float = 3_000  # ... for that long
    catch_up_ms: float = 30_000  # after it began, a node may lag
    slow_sync_ms: float = 1_000  # one fsync
    slow_disk_ms: float = 50  # half of a node's fsyncs, and ...
    slow_disk_times: float = 10  # ... that many times those of its peers ...
    slow_disk_minutes: int = 3  # ... for that long
    flapping_changes: int = 4  # unplanned changes of leader of a group ...
    flapping_minutes: int = 5  # ... within this time
    clock_jump_ms: float = 1_000  # wall clock against monotonic clock
    clock_offset_ms: float = 1_000  # between two nodes, beyond the bound of the measurement
    stuck_ms: int = 1_800_000  # a delivery is neither settled nor returned
    late_share: float = 0.9  # of `stuck_ms`, after which a delivery was settled after all
    storm_redeliveries: int = 1_000  # of a queue in a minute ...
    storm_share: float = 0.5  # ... when they are this share of its deliveries
    poison_failures: int = 5  # failed deliveries of one message
    loop_deaths: int = 10  # of one message in one queue

    def __post_init__(self) -> None:
        """Raises WrongArgument."""
        for name, value in asdict(self).items():
            called = name.replace("_", "-")
            if not (math.isfinite(value) and value >= 0):
                raise WrongArgument(f"{called}: give a number from 0 on")
            if name.endswith("_share") and value > 1:
                raise WrongArgument(f"{called}: give a share from 0 to 1")
