"""The time that a leader stamps on its entries."""

from __future__ import annotations

from cluster.agreed_time import AgreedTime
from cluster.seams import Clock

#: Log time that is ahead of the agreed time goes on, at this fraction of its speed, until that has
#: caught up: it can neither go back nor stand still, as timers of the group go by it.
SLOWER = 2


class LogTime:
    """The agreed time, except that it neither goes back nor stands still. Without an `agreed`
    time, it goes by the wall clock.
    """

    def __init__(self, clock: Clock, agreed: AgreedTime | None = None) -> None:
        self._clock = clock
        self._agreed = agreed
        self._highest_ms = 0  # of all entries
        self._agreed_ms = 0  # at the last look
        self._since_ns = clock.monotonic_ns()  # when that was the time

    @property
    def in_doubt(self) -> bool:
        """Known by the last `now_ms`: nothing is to be stamped with it."""
        return self._agreed is not None and self._agreed.in_doubt

    def now_ms(self) -> int:
        now_ns = self._clock.monotonic_ns()
        agreed_ms = self._clock.wall_ms() if self._agreed is None else self._agreed.at(now_ns)
        self._agreed_ms = agreed_ms
        slow_ms = self._highest_ms + (now_ns - self._since_ns) // (SLOWER * 1_000_000)
        return max(agreed_ms, slow_ms)

    def ahead_ms(self) -> int:
        """How far it is ahead of the agreed time, which it lets catch up."""
        return self.now_ms() - self._agreed_ms

    def saw(self, stamped_ms: int) -> None:
        """An entry has this time: none after it has an earlier one."""
        if stamped_ms > self._highest_ms:
            # Parts of a millisecond are not lost, however many entries there are.
            passed_ns = (stamped_ms - self._highest_ms) * SLOWER * 1_000_000
            self._since_ns = min(self._clock.monotonic_ns(), self._since_ns + passed_ns)
            self._highest_ms = stamped_ms
