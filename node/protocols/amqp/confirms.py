"""Publisher confirms of one channel: which publishes have their outcome, and how that is told.

Pure. Publishes are numbered from 1 after confirm.select (B24); each is confirmed or refused exactly
once (B27), several at once whenever no older one is open (`multiple`, B25). One that goes to
several queues is decided when all of them have answered (B30).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple


class Outcome(NamedTuple):
    """One basic.ack, or basic.nack when `refused`."""

    tag: int
    multiple: bool
    refused: bool


class ConfirmTracker:
    """Consecutive publishes with the same targets: counts the queues that have answered."""

    __slots__ = ("first", "last", "open", "refused")

    def __init__(self, first: int, last: int, queues: int) -> None:
        self.first = first
        self.last = last
        self.open = queues
        self.refused: set[int] | None = None

    def extend(self, following: ConfirmTracker) -> bool:
        """Both have one queue, the same, and nothing came between: they are one from now on."""
        if self.open != 1 or following.open != 1 or self.last + 1 != following.first:
            return False
        self.last = following.last
        return True

    def answered(self, refused: Sequence[tuple[int, int]], start: int) -> bool:
        """One queue has answered for all of them; `refused` are ranges of offsets in its batch, in
        which this tracker begins at `start`. True: all queues have.
        """
        for low, high in refused:
            low, high = max(low - start, 0), min(high - start, self.last - self.first)
            if low <= high:
                self.refused = self.refused or set()
                self.refused.update(range(self.first + low, self.first + high + 1))
        self.open -= 1
        return self.open == 0


class Confirms:
    """Of one channel in confirm mode."""

    def __init__(self) -> None:
        self.last = 0  # number of the newest publish
        self._low = 0  # all up to here are decided and told
        self._ahead: list[tuple[int, int]] = []  # decided beyond, ascending
        self._fresh: list[tuple[int, int]] = []  # decided since the last `take`
        self._refused: list[int] = []

    @property
    def open(self) -> int:
        """Publishes without an outcome."""
        return self.last - self._low - sum(last - first + 1 for first, last in self._ahead)

    def number(self, count: int) -> int:
        """The number of the first of `count` new publishes."""
        first = self.last + 1
        self.last += count
        return first

    def decided(self, tracker: ConfirmTracker) -> None:
        self._fresh.append((tracker.first, tracker.last))
        if tracker.refused:
            self._refused.extend(sorted(tracker.refused))

    def take(self) -> list[Outcome]:
        """What to tell the publisher now: refusals, then confirms."""
        fresh, self._fresh = self._fresh, []
        refused, self._refused = self._refused, []
        if not fresh:
            return []
        nacked = set(refused)
        outcomes = list[Outcome]()
        for tag in refused:
            outcomes.append(Outcome(tag, multiple=False, refused=True))
        ahead = self._ahead
        for each in fresh:
            insort(ahead, each)
        passed = 0
        for first, last in ahead:
            if first != self._low + 1:
                break
            self._low = last
            passed += 1
        del ahead[:passed]
        # Only what is decided now is named, though `multiple` also covers what was told before.
        below: list[int] = []
        beyond: list[int] = []
        for first, last in sorted(fresh):
            tags = range(first, last + 1)
            into = below if last <= self._low else beyond
            into.extend(tags if not nacked else [tag for tag in tags if tag not in nacked])
        if below:
            outcomes.append(Outcome(below[-1], multiple=len(below) > 1, refused=False))
        for tag in beyond:
            outcomes.append(Outcome(tag, multiple=False, refused=False))
        return outcomes
