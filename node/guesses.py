"""Who guesses passwords waits: longer after each wrong one, by user and by address."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass

from node.errors import Refused

#: Wrong passwords that cost nothing: people mistype, and an address may be that of many clients.
FREE_OF_USER = 3
FREE_OF_ADDRESS = 30
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
    """Wrong attempts by one kind of name, and the moments at which the next may be made."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._wrong: OrderedDict[str, _Wrong] = OrderedDict()

    def wrong(self, name: str, now_s: float) -> None:
        known = self._wrong.get(name)
        if known is None or known.last_s + FORGET_S < now_s:
            known = self._wrong[name] = _Wrong()
        known.count += 1
        known.last_s = now_s
        self._wrong.move_to_end(name)
        if len(self._wrong) > TRACKED_MAX:
            self._wrong.popitem(last=False)

    def right(self, name: str) -> None:
        self._wrong.pop(name, None)

    def reserve(self, name: str, now_s: float) -> float | None:
        """Seconds until this attempt's turn; turns of one name do not coincide. None: too many are
        before it.
        """
        known = self._wrong.get(name)
        if known is None or known.count <= self._free or known.last_s + FORGET_S < now_s:
            return 0.0
        # The exponent is bounded, or a count of thousands would overflow.
        delay_s = min(DELAY_S_MAX, DELAY_S_MIN * 2 ** min(known.count - self._free - 1, 16))
        at_s = max(now_s, known.free_at_s, known.last_s + delay_s)
        if at_s - now_s > WAIT_S_MAX:
            return None
        known.free_at_s = at_s + delay_s
        return at_s - now_s


class Guesses:
    """One a node."""

    def __init__(self) -> None:
        self._users = Waits(FREE_OF_USER)
        self._addresses = Waits(FREE_OF_ADDRESS)

    async def wait(self, user: str, address: str) -> None:
        """Until this attempt may be made. Refused when others have too many before it."""
        now_s = time.monotonic()
        waits = [self._users.reserve(user, now_s)]
        if address:
            waits.append(self._addresses.reserve(address, now_s))
        if None in waits:
            raise Refused("overloaded", "too many wrong passwords: try again in a minute")
        wait_s = max(wait for wait in waits if wait is not None)
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def wrong(self, user: str, address: str) -> None:
        now_s = time.monotonic()
        self._users.wrong(user, now_s)
        if address:
            self._addresses.wrong(address, now_s)

    def right(self, user: str) -> None:
        self._users.right(user)
