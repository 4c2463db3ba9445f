"""What values from outside may be: each check returns the value, or says what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, cast

NAME_BYTES_MAX = 255
COUNT_MAX = 2**63 - 1
#: Of the text and bytes within one map of arguments, and of the values in it.
PLAIN_BYTES_MAX = 64 * 1024
PLAIN_VALUES_MAX = 10_000
PLAIN_DEPTH_MAX = 16
INTEGER_MAX = 2**64 - 1

_SCALARS = frozenset({bool, float, type(None)})


class BadValue(Exception):
    """A value that cannot be; says what it may be."""


def integer(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            bounds = f"from {low} to {high}" if high < COUNT_MAX else f"of at least {low}"
            raise BadValue(f"an integer {bounds}")
        return value

    return check


def boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise BadValue("true or false")
    return value


def one_of(*words: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise BadValue("one of " + ", ".join(words))
        return value

    return check


def text(*, empty: bool, bytes_max: int = NAME_BYTES_MAX) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if isinstance(value, str) and is_text(value, bytes_max) and (empty or value):
            return value
        least = "" if empty else "non-empty "
        raise BadValue(f"{least}text of at most {bytes_max} bytes")

    return check


def is_text(value: str, bytes_max: int) -> bool:
    """Whether it is short enough, and can be written as UTF-8 at all."""
    try:
        return len(value.encode()) <= bytes_max
    except UnicodeEncodeError:  # a lone surrogate
        return False


def is_short_text(value: str) -> bool:
    """Whether a name fits where AMQP carries it."""
    return is_text(value, NAME_BYTES_MAX)


def is_name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and is_short_text(value)


def is_plain(value: Any) -> bool:
    """Whether a snapshot can hold it and every replica compares it alike: text, bytes, numbers,
    true, false, null, lists and maps with names, not too much of it.
    """
    left: list[tuple[Any, int]] = [(value, 0)]
    values = size = 0
    while left:
        each, depth = left.pop()
        values += 1
        kind = cast("type[Any]", type(each))
        if kind is str:
            if not is_text(each, PLAIN_BYTES_MAX):
                return False
            size += len(each.encode())
        elif kind is bytes:
            size += len(each)
        elif kind is int:
            if abs(each) > INTEGER_MAX:
                return False
        elif kind is list:
            left += [(one, depth + 1) for one in each[:PLAIN_VALUES_MAX]]
            values += max(0, len(each) - PLAIN_VALUES_MAX)
        elif kind is dict:
            if len(each) > PLAIN_VALUES_MAX or not all(type(name) is str for name in each):
                return False
            left += [(one, depth + 1) for pair in each.items() for one in pair]
        elif kind not in _SCALARS:
            return False
        if values > PLAIN_VALUES_MAX or size > PLAIN_BYTES_MAX or depth > PLAIN_DEPTH_MAX:
            return False
    return True


def is_finite(value: Any) -> bool:
    """Whether all numbers in it are some: JSON has no NaN and no infinity."""
    left: list[Any] = [value]
    while left:
        each = left.pop()
        if type(each) is float:
            if not isfinite(each):
                return False
        elif type(each) is dict:
            left += cast("dict[Any, Any]", each).values()
        elif type(each) is list:
            left += cast("list[Any]", each)
    return True


def shown(value: Any) -> str:
    """A value from outside within an error: as it is, but never much of it."""
    try:
        ascii_text = ascii(value)
    except RecursionError:
        return "a value that is nested too deeply"
    return ascii_text if len(ascii_text) <= 80 else ascii_text[:77] + "..."
