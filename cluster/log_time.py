"""The time that a leader stamps on its entries."""

from __future__ import annotations

from cluster.seams import Clock


class LogTime:
    """The wall clock, except that it neither steps back nor stands still when that one does.

    A wall clock that jumped ahead and was set right again would otherwise stop every timer of the
    group until it came to where it had been: leases, expiry, the end of sessions.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._highest_ms = 0  # of all entries
        self._since_ns = clock.monotonic_ns()  # when that was the time

    def now_ms(self) -> int:
        passed_ms = (self._clock.monotonic_ns() - self._since_ns) // 1_000_000
        return max(self._clock.wall_ms(), self._highest_ms + passed_ms)

    def saw(self, stamped_ms: int) -> None:
        """An entry has this time: none after it has an earlier one."""
        if stamped_ms > self._highest_ms:
            # Parts of a millisecond are not lost, however many entries there are.
            passed_ns = (stamped_ms - self._highest_ms) * 1_000_000
            self._since_ns = min(self._clock.monotonic_ns(), self._since_ns + passed_ns)
            self._highest_ms = stamped_ms
