"""What headers and properties of a message ask of its queues: to come later, or only once.

ValueError: a sentence about what is wrong with one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from cluster.machine.arguments import DEDUP_HEADER, SPAN_MS_MAX
from cluster.machine.marks import DEDUP_ID_CHARS_MAX

#: In how many ms; whoever is delivered the message sees the number negated.
DELAY = "x-delay"
#: When, in ms since the epoch.
DELIVERY_TIME = "x-opt-delivery-time"
#: An id under which a queue takes a message once, though it may be published again: who moves
#: messages between brokers gives it. No consumer sees it.
ONCE_ID = "x-once-id"
ONCE_ID_CHARS_MAX = 200
#: Asked for by a consumer's argument, a header of what it is delivered: which of all messages of
#: the cluster's queues it is.
POSITION = "x-message-position"
_NAMES = (DELAY.encode(), DELIVERY_TIME.encode())


def may_be_delayed(properties: bytes) -> bool:
    """False: surely not, and without looking closely."""
    return _NAMES[0] in properties or _NAMES[1] in properties


def due_ms(headers: Mapping[str, Any], now_ms: int) -> int | None:
    """Before when the message is not to be delivered. The later one, of two; None: at once."""
    found: list[int] = []
    delay_ms = headers.get(DELAY)
    if delay_ms is not None:
        found.append(now_ms + _number(DELAY, delay_ms))
    at = headers.get(DELIVERY_TIME)
    if at is not None:
        is_time = type(at) is dt.datetime
        found.append(int(at.timestamp()) * 1_000 if is_time else _number(DELIVERY_TIME, at))
    latest = max(found, default=now_ms)
    if latest - now_ms > SPAN_MS_MAX:
        raise ValueError(f"it would be delivered in {latest - now_ms} ms; allowed: {SPAN_MS_MAX}")
    return latest if latest > now_ms else None


def _number(name: str, value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is str and value.isascii() and value.removeprefix("-").isdecimal():
        return int(value[:20])
    raise ValueError(f"header '{name}' must be a whole number of ms, not {str(value)[:40]!r}")


def negated(headers: Mapping[str, Any]) -> dict[str, int]:
    """What consumers see instead: a message that is published again is not delayed again."""
    delay_ms = headers.get(DELAY)
    return {} if delay_ms is None else {DELAY: -_number(DELAY, delay_ms)}


def once_id(headers: Mapping[str, Any]) -> str:
    """Of a message that has one."""
    value = headers[ONCE_ID]
    if type(value) is not str or not 1 <= len(value) <= ONCE_ID_CHARS_MAX:
        raise ValueError(f"header '{ONCE_ID}' must be text of 1 to {ONCE_ID_CHARS_MAX} characters")
    return value


def dedup_id(
    arguments: Mapping[str, Any], message_id: Any, headers: Mapping[str, Any]
) -> str | None:
    """By what a queue that was declared with these arguments knows the message; None: nothing."""
    name = arguments.get(DEDUP_HEADER)
    value = message_id if name is None else headers.get(name)
    if value is None or value == "":
        return None
    if type(value) is int:
        value = str(value)
    if type(value) is not str or len(value) > DEDUP_ID_CHARS_MAX:
        what = "the message id" if name is None else f"header '{name}'"
        raise ValueError(
            f"{what} must be text of at most {DEDUP_ID_CHARS_MAX} characters, or a whole number"
        )
    return value
