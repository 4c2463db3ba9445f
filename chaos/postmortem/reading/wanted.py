"""Which records are wanted: bounds of group, index, term and time, all of which must hold.

Damage is always wanted: no filter makes a log look sound that is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

#: Filters on these are understood.
COLUMNS: Final = ("group", "index", "term", "wall_ns")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one column; both ends included, None: open. `among`: these values only."""

    low: int | None = None
    high: int | None = None
    among: frozenset[int] | None = None

    def both(self, other: Bounds) -> Bounds:
        low = self.low if other.low is None else other.low
        high = self.high if other.high is None else other.high
        among = self.among if other.among is None else other.among
        return Bounds(
            low if self.low is None else max(self.low, low or self.low),
            high if self.high is None else min(self.high, self.high if high is None else high),
            among if self.among is None or among is None else self.among & among,
        )

    def may_hold(self, smallest: int, largest: int) -> bool:
        """Whether a value in this range could be wanted."""
        if self.low is not None and largest < self.low:
            return False
        if self.high is not None and smallest > self.high:
            return False
        return self.among is None or any(smallest <= each <= largest for each in self.among)


@dataclass(frozen=True, slots=True)
class Wanted:
    """`payloads`: also commands, the bulk of what there is."""

    bounds: Mapping[str, Bounds] = field(default_factory=dict[str, Bounds])
    payloads: bool = True

    def also(self, column: str, bounds: Bounds) -> Wanted:
        """With one more filter, which must hold too."""
        held = self.bounds.get(column)
        return replace(self, bounds={**self.bounds, column: held.both(bounds) if held else bounds})


EVERYTHING: Final = Wanted()
ONLY_DAMAGE: Final = Wanted({"group": Bounds(among=frozenset())})
