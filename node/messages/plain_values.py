"""What comes from clients and ends in JSON or in a table of AMQP: it is nested within bounds, and
its numbers are some.

JSON has no NaN and no infinity: one of them in one queue's arguments would make the list of all
queues unreadable. It is refused where it comes in, and left out of what an older log still has.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isfinite
from typing import Any, cast

#: How deep tables, maps and lists may be nested within each other.
DEPTH_MAX = 64

NOT_A_NUMBER = "NaN and infinity are no values"
#: JSON can say it: "\\ud800" alone. No log and no answer can hold it.
HALF_A_CHARACTER = "half of a character (a lone surrogate) is no text"
TOO_DEEP = f"values are nested deeper than {DEPTH_MAX}"


def wrong_value(value: Any) -> str | None:
    """What is wrong with it, in words."""
    left: list[tuple[Any, int]] = [(value, 0)]
    while left:
        each, depth = left.pop()
        if depth > DEPTH_MAX:
            return TOO_DEEP
        if type(each) is float:
            if not isfinite(each):
                return NOT_A_NUMBER
        elif type(each) is str:
            if not (each.isascii() or _can_be_written(each)):
                return HALF_A_CHARACTER
        elif type(each) is dict:
            inner = cast("dict[Any, Any]", each)
            left += [(one, depth + 1) for one in inner.values()]
            left += [(name, depth) for name in inner]
        elif type(each) in (list, tuple):
            left += [(one, depth + 1) for one in cast("list[Any]", each)]
    return None


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _nothing(_: Any) -> None:
    """In place of what JSON does not know, such as bytes: that is not looked for here."""


_encode: Callable[[Any], str] = json.JSONEncoder(
    allow_nan=False, check_circular=False, ensure_ascii=False, default=_nothing
).encode


def wrong_beside_bodies(meta: Any) -> str | None:
    """The same for what a batch of messages has beside its bodies, without a step of Python for
    each of them: only where something may be wrong it is looked at.
    """
    try:
        _encode(meta).encode()
    except (ValueError, TypeError, RecursionError):
        return wrong_value(meta)
    return None


def as_json(value: Any, default: Callable[[Any], Any]) -> str:
    """JSON at any rate: what it cannot hold is null."""
    try:
        return json.dumps(value, default=default, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return json.dumps(_within_bounds(value, 0), default=default, ensure_ascii=False)


def _within_bounds(value: Any, depth: int) -> Any:
    if type(value) is float and not isfinite(value):
        return None
    if isinstance(value, dict | list | tuple) and depth > 2 * DEPTH_MAX:
        return None
    if isinstance(value, dict):
        inner = cast("dict[Any, Any]", value).items()
        return {key: _within_bounds(each, depth + 1) for key, each in inner}
    if isinstance(value, list | tuple):
        return [_within_bounds(each, depth + 1) for each in cast("list[Any]", value)]
    return value


def finite(text: str) -> float:
    """Of JSON; ValueError: 1e999 is more than a number here can be."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(NOT_A_NUMBER)
    return number


def loads(data: bytes | str) -> Any:
    """JSON as the standard has it. ValueError says what is wrong."""
    try:
        value = json.loads(data, parse_float=finite, parse_constant=finite)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    wrong = wrong_value(value)
    if wrong is not None:
        raise ValueError(wrong)
    return value
