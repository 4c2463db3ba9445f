"""Who guesses a password waits, longer after each wrong one: that user, from that address. Nobody
else does: who knows a name must not be able to lock its owner out.
"""

from __future__ import annotations

import time
from asyncio import sleep
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from node.errors import Refused

#: Wrong passwords that cost nothing: people mistype.
FREE_MAX = 3
DELAY_S_MIN = 0.1
DELAY_S_MAX = 2.0
#: Who would have to wait longer is refused.
WAIT_S_MAX = 5.0
#: After so long without a wrong one all is forgotten.
FORGET_S = 60.0
TRACKED_MAX = 10_000


@dataclass(slots=True)
class _Wrong:
    count: int = 0
    last_s: float = 0.0
    free_at_s: float = 0.0  # when the next attempt may be made


class Waits:
    """Wrong attempts by who made them, and the moments at which the next may be made."""

    def __init__(self, free: int = FREE_MAX) -> None:
        self._free = free
        self._wrong: OrderedDict[Hashable, _Wrong] = OrderedDict()

    def __len__(self) -> int:
        return len(self._wrong)

    def wrong(self, who: Hashable, now_s: float) -> None:
        known = self._wrong.get(who)
        if known is None or known.last_s + FORGET_S < now_s:
            known = self._wrong[who] = _Wrong()
        known.count += 1
        known.last_s = now_s
        self._wrong.move_to_end(who)
        if len(self._wrong) > TRACKED_MAX:
            self._wrong.popitem(last=False)

    def right(self, who: Hashable) -> None:
        self._wrong.pop(who, None)

    def reserve(self, who: Hashable, now_s: float) -> float | None:
        """Seconds until this attempt's turn; turns of one do not coincide. None: too many are
        before it.
        """
        known = self._wrong.get(who)
        if known is None or known.count <= self._free or known.last_s + FORGET_S < now_s:
            return 0.0
        # The exponent is bounded, or a count of thousands would overflow.
        delay_s = min(DELAY_S_MAX, DELAY_S_MIN * 2 ** min(known.count - self._free - 1, 16))
        at_s = max(now_s, known.free_at_s, known.last_s + delay_s)
        if at_s - now_s > WAIT_S_MAX:
            return None
        known.free_at_s = at_s + delay_s
        return at_s - now_s


class LoginDelay:
    """One a node, for all its doors."""

    def __init__(self) -> None:
        self._waits = Waits()

    async def wait(self, user: str, address: str) -> None:
        """Until this attempt may be made. Refused when too many are before it."""
        wait_s = self._waits.reserve((address, user), time.monotonic())
        if wait_s is None:
            raise Refused("overloaded", "too many wrong passwords: try again in a minute")
        if wait_s > 0:
            await sleep(wait_s)

    def wrong(self, user: str, address: str) -> None:
        self._waits.wrong((address, user), time.monotonic())

    def right(self, user: str, address: str) -> None:
        self._waits.right((address, user))
