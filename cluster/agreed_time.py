"""What time it is, by this node's clock and those of its peers, and what a leader makes of that
for the entries of its group.

Log time never goes back, so one stamp from a clock that is days ahead would expire at once what
should have stayed for days. Hence a node believes its own wall clock only as far as a majority of
the clocks it knows agrees, and only as far as the monotonic clock says that time has passed.
See `AgreedTime.at` for the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from cluster.seams import Clock
from cluster.types import NodeId

#: Further from the agreed time than this, a clock is out of bounds, and is not stamped with.
CLOCK_OFFSET_MS_MAX = 5_000
#: Agreed time jumps further than that only after the clocks have said the same for so long.
CLOCK_CONFIRM_MS = 5_000
#: Log time that is ahead of the agreed time goes on, at this fraction of its speed, until that has
#: caught up: it can neither go back nor stand still, as timers of the group go by it.
SLOWER = 2
#: The same complaint about a clock is logged once in this time.
COMPLAIN_S = 60.0
#: While it is in doubt what time it is, it is asked again after this.
DOUBT_S = 0.05

_MS_NS = 1_000_000

log = structlog.get_logger(__name__)


def majority_time(clocks: Sequence[int], apart_max: int, nodes: int) -> int | None:
    """The lower median of the known clocks, if those within `apart_max` of it are a majority of
    all `nodes`. So clocks that are wrong cannot move it while they are a minority.
    """
    ordered = sorted(clocks)
    middle = ordered[(len(ordered) - 1) // 2]
    near = sum(abs(each - middle) <= apart_max for each in ordered)
    return middle if 2 * near > nodes else None


class AgreedTime:
    """One per node, for all its groups. Times in ms of the wall clock, ns of the monotonic one."""

    def __init__(
        self,
        node: NodeId,
        clock: Clock,
        peers: Callable[[], Sequence[NodeId]],
        *,
        offset_ms_max: int = CLOCK_OFFSET_MS_MAX,
        confirm_ms: int = CLOCK_CONFIRM_MS,
    ) -> None:
        self.offset_ms = 0  # of the own clock, at the last look: positive is ahead
        #: Clocks jumped together, or nothing is known since the start: wait before stamping.
        self.in_doubt = False
        self.jumps = 0  # times that the own clock went out of bounds, or in doubt
        self._node = node
        self._clock = clock
        self._peers = peers
        self._max_ms = offset_ms_max
        self._confirm_ns = confirm_ms * _MS_NS
        self._began_ns = clock.monotonic_ns()
        self._readings: dict[NodeId, int] = {}  # ns by which the peer is ahead of our monotonic
        self._anchor: tuple[int, int] | None = None  # ms that was agreed upon, at ns
        self._pending: tuple[int, int] | None = None  # the same, of a jump to be confirmed
        self._complained_ns: int | None = None

    # --- what peers say

    def heard(self, peer: NodeId, asked_ns: int, wall_ns: int) -> None:
        """Its wall clock, in answer to what was asked at `asked_ns` of our monotonic clock."""
        now_ns = self._clock.monotonic_ns()
        round_trip_ns = now_ns - asked_ns
        if 0 <= round_trip_ns <= self._max_ms * _MS_NS // 2:  # or the answer says too little
            self._readings[peer] = wall_ns + round_trip_ns // 2 - now_ns
            self._judge(self._clock.wall_ms(), now_ns)

    def forget(self, peer: NodeId) -> None:
        """It is not connected any more."""
        self._readings.pop(peer, None)

    # --- what time it is

    def at(self, now_ns: int) -> int:
        """The time in ms; `now_ns` is the monotonic clock's.

        1. The own wall clock, while it is within bounds of the agreed time; that otherwise.
        2. Agreed time is what the clocks of a majority of all nodes show, as far as they are
           connected; of a cluster of one its own clock.
        3. Without such a majority it goes on by the monotonic clock.
        4. A jump of it is taken once it was confirmed for a while. After a start the first majority
           is believed at once if the own clock is part of it; if not, after the same while, in
           which each peer is asked again: what one of them said may be out of date.
           Meanwhile `in_doubt` says that nothing is to be stamped.
        5. After a start without a majority the earliest clock counts, after the same while.
        """
        wall_ms = self._clock.wall_ns() // _MS_NS
        if self._anchor is not None and not self.in_doubt:
            at_ms, at_ns = self._anchor
            offset_ms = wall_ms - at_ms - (now_ns - at_ns) // _MS_NS
            if -self._max_ms <= offset_ms <= self._max_ms:
                return wall_ms
        return self._judge(wall_ms, now_ns)

    async def settled(self) -> int:
        """The time in ms, once it is not in doubt: for what must not be off by a jump."""
        while True:
            now_ms = self.at(self._clock.monotonic_ns())
            if not self.in_doubt:
                return now_ms
            await asyncio.sleep(DOUBT_S)

    def _judge(self, wall_ms: int, now_ns: int) -> int:
        clocks = [wall_ms, *((each + now_ns) // _MS_NS for each in self._readings.values())]
        agreed_ms = majority_time(clocks, self._max_ms, 1 + len(self._peers()))
        expected_ms = None
        if self._anchor is not None:
            expected_ms = self._anchor[0] + (now_ns - self._anchor[1]) // _MS_NS
        known_ms = wall_ms if expected_ms is None else expected_ms
        in_doubt = False
        if agreed_ms is not None and self._may_take(agreed_ms, known_ms, now_ns):
            self._anchor, self._pending = (agreed_ms, now_ns), None
            truth_ms = agreed_ms
        elif agreed_ms is not None:
            in_doubt, truth_ms = True, known_ms
        elif expected_ms is not None:
            truth_ms = expected_ms
        else:
            in_doubt = now_ns - self._began_ns < self._confirm_ns
            truth_ms = min(clocks)
        if agreed_ms is None:
            self._pending = None
        return self._conclude(wall_ms, truth_ms, now_ns, in_doubt=in_doubt)

    def _may_take(self, agreed_ms: int, known_ms: int, now_ns: int) -> bool:
        if abs(agreed_ms - known_ms) <= self._max_ms:
            return True
        if self._pending is not None:
            at_ms, at_ns = self._pending
            if abs(agreed_ms - at_ms - (now_ns - at_ns) // _MS_NS) <= self._max_ms:
                return now_ns - at_ns >= self._confirm_ns
        self._pending = (agreed_ms, now_ns)
        return False

    def _conclude(self, wall_ms: int, truth_ms: int, now_ns: int, *, in_doubt: bool) -> int:
        was_fine = not self.out_of_bounds and not self.in_doubt
        self.offset_ms, self.in_doubt = wall_ms - truth_ms, in_doubt
        if not self.out_of_bounds:
            return truth_ms if in_doubt else wall_ms
        self.jumps += was_fine
        if self._complained_ns is None or now_ns - self._complained_ns >= COMPLAIN_S * 1e9:
            self._complained_ns = now_ns
            log.critical("clock_out_of_bounds", node=self._node, **self.status(), do=self.advice)
        return truth_ms

    # --- for people

    @property
    def out_of_bounds(self) -> bool:
        """The own clock is not what entries are stamped with."""
        return abs(self.offset_ms) > self._max_ms

    @property
    def advice(self) -> str | None:
        """What is wrong and what to do. None: nothing."""
        if not self.out_of_bounds:
            return None
        off = f"{_span(self.offset_ms)} {'ahead' if self.offset_ms > 0 else 'behind'}"
        if self.in_doubt:
            return (
                f"the clock of node {self._node} jumped and is {off} of where it should be;"
                " nothing is stamped until it is back or has stayed there:"
                " see to its NTP service (chronyc tracking, timedatectl)"
            )
        return (
            f"the clock of node {self._node} is {off} of the agreed time of the cluster;"
            " entries are stamped with the agreed time:"
            " see to the NTP service of that machine (chronyc tracking, timedatectl)"
        )

    def trusts(self, peer: NodeId) -> bool:
        """Its clock is within bounds, or nothing is known of it."""
        reading = self._readings.get(peer)
        if reading is None or self._anchor is None:
            return True
        at_ms, at_ns = self._anchor
        return abs((reading + at_ns) // _MS_NS - at_ms) <= self._max_ms

    def alarms(self) -> list[str]:
        """Of this clock, and of those of connected peers that are out of bounds."""
        found = [] if self.advice is None else [self.advice]
        return found + [
            f"the clock of node {peer} is out of bounds, by what this node knows:"
            f" ask `quorate status` there, and see to the NTP service of its machine"
            for peer in sorted(self._readings)
            if not self.trusts(peer)
        ]

    def status(self) -> dict[str, Any]:
        now_ns = self._clock.monotonic_ns()
        wall_ns = self._clock.wall_ns()
        return {
            "offset_ms": self.offset_ms,
            "in_doubt": self.in_doubt,
            "peers_offset_ms": {
                peer: (reading + now_ns - wall_ns) // _MS_NS
                for peer, reading in sorted(self._readings.items())
            },
        }


class LogTime:
    """The agreed time, except that it neither goes back nor stands still. Without an `agreed`
    time, it goes by the wall clock.
    """

    def __init__(self, clock: Clock, agreed: AgreedTime | None = None) -> None:
        self._clock = clock
        self._agreed = agreed
        self.highest_ms = 0  # of all entries
        self._agreed_ms = 0  # at the last look
        self._since_ns = clock.monotonic_ns()  # when that was the time

    @property
    def in_doubt(self) -> bool:
        """Known by the last `now_ms`: nothing is to be stamped with it."""
        return self._agreed is not None and self._agreed.in_doubt

    def now_ms(self) -> int:
        now_ns = self._clock.monotonic_ns()
        if self._agreed is None:
            agreed_ms = self._clock.wall_ns() // _MS_NS
        else:
            agreed_ms = self._agreed.at(now_ns)
        self._agreed_ms = agreed_ms
        slow_ms = self.highest_ms + (now_ns - self._since_ns) // (SLOWER * 1_000_000)
        return max(agreed_ms, slow_ms)

    def stamp_ms(self) -> int | None:
        """For an entry; None: it is not known now what time it is."""
        now_ms = self.now_ms()
        if self._agreed is not None and self._agreed.in_doubt:
            return None
        self.saw(now_ms)
        return now_ms

    def ahead_ms(self) -> int:
        """How far it is ahead of the agreed time, which it lets catch up."""
        return self.now_ms() - self._agreed_ms

    def saw(self, stamped_ms: int) -> None:
        """An entry has this time: none after it has an earlier one."""
        if stamped_ms > self.highest_ms:
            # Parts of a millisecond are not lost, however many entries there are.
            passed_ns = (stamped_ms - self.highest_ms) * SLOWER * 1_000_000
            self._since_ns = min(self._clock.monotonic_ns(), self._since_ns + passed_ns)
            self.highest_ms = stamped_ms


def _span(ms: int) -> str:
    seconds = abs(ms) / 1000
    for unit, size in (("days", 86_400), ("hours", 3_600)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
