"""The clock of tests, which goes only when it is told to."""

from __future__ import annotations

from typing import Protocol

#: What the wall clock shows when the monotonic one shows nothing.
WALL_NS = 1_700_000_000 * 10**9


class Moment(Protocol):
    """Where several clocks read the time, such as a `VirtualLoop`."""

    ns: int


class _Now:
    def __init__(self) -> None:
        self.ns = 1_000 * 10**9


class FakeClock:
    """As `cluster.seams.Clock`: both clocks pass together, and the wall clock may be wrong.

    With `step_ns` each look at it is so much later than the one before.
    """

    def __init__(self, moment: Moment | None = None, *, step_ns: int = 0) -> None:
        self.moment = _Now() if moment is None else moment
        self.step_ns = step_ns
        self.skew_ms = 0

    @property
    def ns(self) -> int:
        return self.moment.ns

    @ns.setter
    def ns(self, ns: int) -> None:
        self.moment.ns = ns

    @property
    def wall(self) -> int:
        """What `wall_ms` would answer, without a step."""
        return (WALL_NS + self.ns) // 1_000_000 + self.skew_ms

    def pass_ms(self, ms: float) -> None:
        self.ns += round(ms * 1e6)

    def monotonic_ns(self) -> int:
        self.ns += self.step_ns
        return self.ns

    def wall_ms(self) -> int:
        self.ns += self.step_ns
        return self.wall

    def wall_ns(self) -> int:
        self.ns += self.step_ns
        return WALL_NS + self.ns + self.skew_ms * 1_000_000
