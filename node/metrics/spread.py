"""How values are spread over buckets: a histogram that a hot path can afford."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

#: Bounds, in seconds, from what a sync of a fast disk takes to what nobody waits for.
SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
#: The same for what may wait for people: up to a day.
LONG_SECONDS = (*SECONDS, 300.0, 1_800.0, 7_200.0, 86_400.0)


class Spread:
    """Counts by bucket, the last one for what is above all bounds, and the sum of all values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """So many of this value; a bound belongs to the bucket below it."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each with all that is below it."""
        found: list[tuple[str, float]] = []
        total = 0
        names = [*[str(float(bound)) for bound in self.bounds], "+Inf"]
        for name, count in zip(names, self.counts, strict=True):
            total += count
            found.append((name, total))
        return found
