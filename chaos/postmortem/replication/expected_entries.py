"""What must still be there: whether one node's log of one group holds what it said is committed.

Told in log order of runs of entries, and of all that voids or commits some.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from cluster.log.snapshots import BIRTH

TRUNCATED: Final = "it was committed, and truncated"
SKIPPED: Final = "the log goes on behind it without it"
ENDED: Final = "the log says that it is committed, and ends before it"
NOT_GIVEN: Final = "segments that had it are not there"


@dataclass(frozen=True, slots=True)
class Lack:
    """Entries that should be there. explained: segments are gone that may have held them."""

    first: int
    last: int
    place: int  # of the record that shows it
    reason: str
    explained: bool


@dataclass(slots=True)
class _Run:
    first: int
    last: int
    begins: int  # places
    ends: int


@dataclass
class ExpectedEntries:
    """Of one group on one node."""

    base: int = BIRTH.index
    commit: int = 0
    _runs: list[_Run] = field(default_factory=list[_Run])
    _copies: list[_Run] = field(default_factory=list[_Run])
    _holes: list[tuple[int, bool]] = field(default_factory=list[tuple[int, bool]])
    _seen: int = -1  # the last place

    def entries(
        self, first: int, last: int, begins: int, ends: int, seen: int | None = None
    ) -> Iterator[Lack]:
        """From the place of the first one to that of the last one; `seen`: the log goes on to
        there with no more of them.
        """
        yield from self.truncate(first, begins)
        if self._runs and self._runs[-1].last == first - 1:
            self._runs[-1].last, self._runs[-1].ends = last, ends
        else:
            self._runs.append(_Run(first, last, begins, ends))
        self._seen = ends if seen is None else seen

    def copies(self, first: int, last: int, begins: int, ends: int) -> None:
        """Of entries that lay in segments which are dropped."""
        self._copies.append(_Run(first, last, begins, ends))
        self._seen = ends

    def truncate(self, index: int, place: int) -> Iterator[Lack]:
        self._seen = place
        last = self._runs[-1].last if self._runs else 0
        if index <= min(self.commit, last):
            yield Lack(index, min(self.commit, last), place, TRUNCATED, explained=False)
            self.commit = index - 1  # so it is told once
        while self._runs and self._runs[-1].first >= index:
            self._runs.pop()
        if self._runs and self._runs[-1].last >= index:
            self._runs[-1].last = index - 1

    def committed(self, index: int) -> None:
        self.commit = max(self.commit, index)

    def marked(self, index: int, place: int) -> None:
        """A snapshot stands for what is not above it."""
        self._seen = place
        self.base = max(index, BIRTH.index)
        self.committed(index)

    def installed(self, index: int, place: int) -> None:
        """A snapshot from elsewhere replaced everything."""
        self.marked(index, place)
        self._runs.clear()
        self._copies.clear()

    def removed(self) -> None:
        """The group, or the disk."""
        self.base, self.commit = BIRTH.index, 0
        self._runs.clear()
        self._copies.clear()
        self._holes.clear()

    def hole(self, place: int, *, told: bool) -> None:
        """Something is not there, or unreadable. told: that is reported by itself."""
        self._holes.append((place, told))

    def ended(self) -> Iterator[Lack]:
        """What the log lacks, now that it is read."""
        last = self._runs[-1].last if self._runs else self.base
        runs = sorted([*self._runs, *self._copies], key=lambda run: run.first)
        at, before = self.base + 1, -1
        for run in runs:
            if run.first > at:
                begins = run.begins
                if run in self._copies or begins <= before:
                    begins = self._seen
                yield from self._lack(at, run.first - 1, before, begins, SKIPPED)
            if run.last >= at:
                at, before = run.last + 1, run.ends
        top = max(last, self.commit)
        if at <= top:
            yield from self._lack(at, top, before, self._seen, ENDED)

    def _lack(self, first: int, last: int, after: int, place: int, reason: str) -> Iterator[Lack]:
        until = place if reason == SKIPPED else 1 << 63
        holes = [(at, told) for at, told in self._holes if after < at]
        if all(at > until for at, _ in holes):
            yield Lack(first, last, place, reason, explained=False)
        elif not any(told for _, told in holes):  # copies of them may be where it is unreadable
            yield Lack(first, last, place, NOT_GIVEN, explained=True)
