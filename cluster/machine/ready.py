"""Messages that may be delivered now, in the order (priority descending, position).

A returned message goes where it came from, because its position never changes (B08).
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.machine.runs import RangeMap

PRIORITY_MAX = 255


class Ready:
    """One set of ranges a priority, and a bit a priority that says which are not empty."""

    __slots__ = ("_levels", "_used", "count")

    def __init__(self) -> None:
        self._levels: dict[int, RangeMap[None]] = {0: RangeMap()}
        self._used = 0
        self.count = 0

    def add(self, first: int, last: int, priority: int = 0) -> None:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = RangeMap()
        level.put(first, last, None)
        self._used |= 1 << priority
        self.count += last - first + 1

    @property
    def top(self) -> RangeMap[None]:
        """The level that is served next. Only when not empty."""
        return self._levels[self._used.bit_length() - 1]

    def take(self, limit: int) -> tuple[int, int]:
        """Remove up to `limit` neighbours at the head. Only when not empty."""
        priority = self._used.bit_length() - 1
        level = self._levels[priority]
        taken = level.take(limit)
        if not level.count:
            self._used ^= 1 << priority
        self.count -= taken[1] - taken[0] + 1
        return taken

    def priorities(self) -> list[int]:
        """Of the levels that hold something, highest first."""
        found: list[int] = []
        used = self._used
        while used:
            found.append(used.bit_length() - 1)
            used ^= 1 << found[-1]
        return found

    def has(self, priority: int) -> bool:
        return bool(self._used >> priority & 1)

    def head(self, priority: int) -> tuple[int, int]:
        return self._levels[priority].head

    def take_at(self, priority: int, limit: int) -> tuple[int, int]:
        """Remove up to `limit` neighbours at the head of one level."""
        level = self._levels[priority]
        taken = level.take(limit)
        if not level.count:
            self._used ^= 1 << priority
        self.count -= taken[1] - taken[0] + 1
        return taken

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(priority, first, last), in the order of delivery."""
        for priority in self.priorities():
            for first, last, _ in self._levels[priority]:
                yield priority, first, last

    def from_position(self, start: int, count: int) -> list[int]:
        """At most `count` positions of each level, from `start` on."""
        found: list[int] = []
        for priority in self.priorities():
            left = count
            for first, last, _ in self._levels[priority].ranges_from(start):
                if left <= 0:
                    break
                end = min(last, first + left - 1)
                found += range(first, end + 1)
                left -= end - first + 1
        return found

    # --- snapshots --------------------------------------------------------------------------------

    def levels(self) -> list[tuple[int, RangeMap[None]]]:
        return [(priority, self._levels[priority]) for priority in self.priorities()]

    def restore_level(self, priority: int, level: RangeMap[None]) -> None:
        self._levels[priority] = level
        self._used |= 1 << priority
        self.count += level.count

    def invariants(self) -> None:
        for priority, level in self._levels.items():
            level.invariants()
            assert bool(level.count) == bool(self._used >> priority & 1), "a used bit is wrong"
        assert sum(level.count for level in self._levels.values()) == self.count, "ready miscounted"
