"""What some messages carry beyond their body: priority, time to live, counts, deaths.

Most messages carry nothing and have no mark; neighbours with equal marks share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import cbor2

from cluster.machine.arguments import GROUP_KEY_SINCE
from cluster.machine.commands import (
    ATTR_DEATHS,
    ATTR_DEDUP_ID,
    ATTR_DELIVER_AT_MS,
    ATTR_GROUP_KEY,
    ATTR_PRIORITY,
    ATTR_TTL_MS,
)
from cluster.machine.deadletters import Deaths, valid_deaths
from cluster.machine.runs import CUTS_ONE_BY_ONE, RangeMap
from cluster.machine.sums import factor, packed, weight
from cluster.machine.versions import MACHINE_VERSION

PRIORITY_MAX = 255
DEDUP_ID_CHARS_MAX = 256
GROUP_KEY_CHARS_MAX = 255
TIME_MS_MAX = 1 << 53


class Mark(NamedTuple):
    priority: int = 0  # as published: the queue caps it, and so does the one it may die into
    ttl_ms: int | None = None  # its own, as published
    born_ms: int | None = None  # when it was first ready, if it was published with a delay
    expires_at_ms: int | None = None  # by its own ttl
    acquired: int = 0  # times handed out and given back
    failed: int = 0  # of these, failed deliveries
    deaths: Deaths | None = None
    wish_ms: int | None = None  # put aside by a consumer: until then, or until it expires


NO_MARK = Mark()
_MARKED, _PRIORITY, _TTL, _BORN, _EXPIRES, _ACQUIRED, _FAILED = (
    factor(name) for name in (b"marked", b"priority", b"ttl", b"born", b"expires", b"acq", b"fail")
)
_WISH = factor(b"wish")


class Marks(RangeMap[Mark]):
    """With a sum over all that is kept as they come and go."""

    __slots__ = ("_sum",)

    def __init__(self) -> None:
        super().__init__()
        self._sum: int | None = None  # None: nobody asked yet

    def fingerprint(self) -> list[Any]:
        """What tells two sets of marks apart; after the first time it costs what changed."""
        if self._sum is None:
            self._sum = _sum_of(self)
        return [self.count, packed(self._sum)]

    def put(self, first: int, last: int, value: Mark) -> None:
        super().put(first, last, value)
        if self._sum is not None:
            self._sum += _factor_of(value) * weight(first, last)

    def cut(self, first: int, last: int) -> list[tuple[int, int, Mark]]:
        removed = super().cut(first, last)
        if removed and self._sum is not None:
            self._sum = self._sum_without(removed, self._sum)
        return removed

    def cut_all(self, ranges: Sequence[tuple[int, int]]) -> None:
        before = self._sum
        if before is None or len(ranges) <= CUTS_ONE_BY_ONE:
            super().cut_all(ranges)
            return
        removed = [piece for first, last in ranges for piece in self.pieces(first, last)]
        super().cut_all(ranges)
        self._sum = self._sum_without(removed, before)

    def take(self, limit: int) -> tuple[int, int]:
        raise NotImplementedError("marks are not taken but cut")

    def _replace(self, first: int, last: int, value: Mark) -> bool:
        if self._sum is None:
            return super()._replace(first, last, value)
        before = self.get(first) or NO_MARK
        replaced = super()._replace(first, last, value)
        if replaced:
            self._sum += (_factor_of(value) - _factor_of(before)) * weight(first, last)
        return replaced

    def _sum_without(self, removed: Sequence[tuple[int, int, Mark]], before: int) -> int:
        """By way of what is less: what was removed, or what is left."""
        if len(removed) > self.range_count:
            return _sum_of(self)
        return before - _sum_of(removed)

    def invariants(self) -> None:
        super().invariants()
        assert self._sum in (None, _sum_of(self)), "the sum of the marks is wrong"


def _sum_of(ranges: Iterable[tuple[int, int, Mark]]) -> int:
    return sum(_factor_of(mark) * weight(first, last) for first, last, mark in ranges)


def _factor_of(mark: Mark) -> int:
    priority, ttl_ms, born_ms, expires_at_ms, acquired, failed, deaths, wish_ms = mark
    found = _MARKED + _PRIORITY * priority + _ACQUIRED * acquired + _FAILED * failed
    if ttl_ms is not None:
        found += _TTL * (ttl_ms + 1)
    if born_ms is not None:
        found += _BORN * (born_ms + 1)
    if expires_at_ms is not None:
        found += _EXPIRES * (expires_at_ms + 1)
    if deaths is not None:
        found += factor(cbor2.dumps(deaths, canonical=True))
    if wish_ms is not None:
        found += _WISH * (wish_ms + 1)
    return found


class Attrs(NamedTuple):
    """`Enqueue.attrs` of one message, checked."""

    priority: int = 0
    ttl_ms: int | None = None
    deliver_at_ms: int | None = None
    dedup_id: str | None = None
    deaths: Deaths | None = None
    group: str | None = None


NO_ATTRS = Attrs()
#: What `attrs` has for each message.
_MAPS = frozenset((dict, type(None)))


def parse_attrs(attrs: Any, version: int = MACHINE_VERSION) -> Attrs | str:
    """The attributes of one message, or a sentence about what is wrong with them."""
    if attrs is None:
        return NO_ATTRS
    if not isinstance(attrs, dict):
        return "attributes must be a map"
    given = cast("dict[Any, Any]", attrs)
    priority = given.get(ATTR_PRIORITY, 0)
    if not _is_int(priority) or not 0 <= priority <= PRIORITY_MAX:
        return f"priority must be an integer from 0 to {PRIORITY_MAX}"
    ttl_ms = given.get(ATTR_TTL_MS)
    if ttl_ms is not None and not (_is_int(ttl_ms) and 0 <= ttl_ms <= TIME_MS_MAX):
        return "the time to live must be a number of milliseconds, 0 or more"
    deliver_at_ms = given.get(ATTR_DELIVER_AT_MS)
    if deliver_at_ms is not None and not (_is_int(deliver_at_ms) and deliver_at_ms <= TIME_MS_MAX):
        return "the time of delivery must be milliseconds since the epoch"
    dedup_id = given.get(ATTR_DEDUP_ID)
    if dedup_id is not None and not (
        isinstance(dedup_id, str) and len(dedup_id) <= DEDUP_ID_CHARS_MAX
    ):
        return f"a de-duplication id must be text of at most {DEDUP_ID_CHARS_MAX} characters"
    deaths = given.get(ATTR_DEATHS)
    if deaths is not None:
        deaths = valid_deaths(deaths)
        if deaths is None:
            return "death records must be a list of maps with queue, reason and count"
    group = given.get(ATTR_GROUP_KEY) if version >= GROUP_KEY_SINCE else None
    if group is not None and not is_group_key(group):
        return f"a message's key is text of 1 to {GROUP_KEY_CHARS_MAX} characters"
    return Attrs(priority, ttl_ms, deliver_at_ms, dedup_id, deaths or None, group)


def group_keys(attrs: Any, count: int) -> list[str | None] | None:
    """The keys of so many messages, if they have no other attributes; None: look closely."""
    column = keys_of(attrs)
    if column is not None:
        found = column
    else:
        each = cast("Sequence[Any]", [attrs] * count if type(attrs) is dict else attrs)
        if type(each) not in (list, tuple) or not _MAPS.issuperset(map(type, each)):
            return None
        try:
            found = [
                one[ATTR_GROUP_KEY] if one is not None and len(one) == 1 else one for one in each
            ]
        except KeyError:
            return None
    if len(found) != count:
        return None
    if set(map(type, found)) == {str}:
        sizes = set(map(len, cast("list[str]", found)))
        return found if min(sizes) >= 1 and max(sizes) <= GROUP_KEY_CHARS_MAX else None
    return found if all(one is None or is_group_key(one) for one in found) else None


def keys_of(attrs: Any) -> list[Any] | None:
    """What `Enqueue.attrs` says of the messages, if that is a list of their keys."""
    given = cast("dict[Any, Any] | None", attrs if type(attrs) is dict else None)
    if not given or len(given) != 1:
        return None
    found = given.get(ATTR_GROUP_KEY)
    return cast("list[Any]", found) if type(found) is list else None


def each_attrs(attrs: Any, count: int, version: int = MACHINE_VERSION) -> Sequence[Any]:
    """`Enqueue.attrs` with an item for each of so many messages."""
    if isinstance(attrs, (list, tuple)):
        return cast("Sequence[Any]", attrs)
    keys = keys_of(attrs) if version >= GROUP_KEY_SINCE else None
    if keys is None:
        return [attrs] * count
    return [None if key is None else {ATTR_GROUP_KEY: key} for key in keys]


def is_group_key(value: Any) -> bool:
    return type(value) is str and 1 <= len(value) <= GROUP_KEY_CHARS_MAX


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
