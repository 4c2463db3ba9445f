"""What some messages carry beyond their body: priority, time to live, counts, deaths.

Most messages carry nothing and have no mark; neighbours with equal marks share one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from cluster.machine.commands import (
    ATTR_DEATHS,
    ATTR_DEDUP_ID,
    ATTR_DELIVER_AT_MS,
    ATTR_PRIORITY,
    ATTR_TTL_MS,
)
from cluster.machine.deadletters import Deaths, valid_deaths
from cluster.machine.ready import PRIORITY_MAX

DEDUP_ID_CHARS_MAX = 256
TIME_MS_MAX = 1 << 53


class Mark(NamedTuple):
    priority: int = 0  # as published: the queue caps it, and so does the one it may die into
    ttl_ms: int | None = None  # its own, as published
    born_ms: int | None = None  # when it was first ready, if it was published with a delay
    expires_at_ms: int | None = None  # by its own ttl
    acquired: int = 0  # times handed out and given back
    failed: int = 0  # of these, failed deliveries
    deaths: Deaths | None = None


NO_MARK = Mark()


class Attrs(NamedTuple):
    """`Enqueue.attrs` of one message, checked."""

    priority: int = 0
    ttl_ms: int | None = None
    deliver_at_ms: int | None = None
    dedup_id: str | None = None
    deaths: Deaths | None = None


NO_ATTRS = Attrs()


def parse_attrs(attrs: Any) -> Attrs | str:
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
    return Attrs(priority, ttl_ms, deliver_at_ms, dedup_id, deaths or None)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
