"""Who guesses a password waits, longer after each wrong one: that user, from that address. Others
do not: who knows a name must not be able to lock its owner out. Only where guesses for many users
come from, every login waits whose password this node does not remember as right.
"""

from __future__ import annotations

import ipaddress
import time
from asyncio import sleep
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from node.errors import Refused

#: Wrong passwords that cost nothing: people mistype.
FREE_MAX = 3
#: Users of one address whose passwords were wrong that cost nothing. One client with an old
#: password is one user however often it tries: many may share an address.
USERS_FREE_MAX = 20
DELAY_S_MIN = 0.1
DELAY_S_MAX = 2.0
#: Who would have to wait longer is refused.
WAIT_S_MAX = 5.0
#: After so long without a wrong one all is forgotten.
FORGET_S = 60.0
TRACKED_MAX = 10_000
#: Of a name: nobody's is longer.
NAME_CHARACTERS_MAX = 255
#: Who has one address of IPv6 has all that begin with these bits.
IPV6_PREFIX_BITS = 64


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

    def wrong(self, who: Hashable, now_s: float) -> int:
        """How many there were lately, with this one."""
        known = self._wrong.get(who)
        if known is None or known.last_s + FORGET_S < now_s:
            known = self._wrong[who] = _Wrong()
        known.count += 1
        known.last_s = now_s
        self._wrong.move_to_end(who)
        if len(self._wrong) > TRACKED_MAX:
            self._wrong.popitem(last=False)
        return known.count

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
    """One per node, for all its listeners."""

    def __init__(self) -> None:
        self._waits = Waits()
        self._sprays = Waits(USERS_FREE_MAX)

    async def wait(self, user: str, address: str) -> None:
        """Until this attempt may be made. Refused when too many are before it."""
        now_s = time.monotonic()
        of_user = self._waits.reserve(_who(user, address), now_s)
        of_all = None if of_user is None else self._sprays.reserve(network_of(address), now_s)
        if of_user is None or of_all is None:
            raise Refused("overloaded", "too many wrong passwords: try again in a minute")
        wait_s = max(of_user, of_all)
        if wait_s > 0:
            await sleep(wait_s)

    def wrong(self, user: str, address: str) -> None:
        now_s = time.monotonic()
        if self._waits.wrong(_who(user, address), now_s) == 1:
            self._sprays.wrong(network_of(address), now_s)

    def right(self, user: str, address: str) -> None:
        """The address is not forgiven: who sprays may have a password of its own."""
        self._waits.right(_who(user, address))


def _who(user: str, address: str) -> Hashable:
    return network_of(address), user[:NAME_CHARACTERS_MAX]


def network_of(address: str) -> str:
    """What one client has of addresses."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    prefix = int(found) >> (128 - IPV6_PREFIX_BITS)
    return f"{prefix:x}/{IPV6_PREFIX_BITS}"
