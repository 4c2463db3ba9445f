"""Regular expressions of users, checked for how long a match may take: one that tries very many
ways would hold the event loop of every node that matches it.

Names have at most 255 bytes, so the ways are counted as if each repeat could end at any of 256
places, unless what follows it says where it ends. An estimate: what it allows takes some 0.1 s.
"""

from __future__ import annotations

import math
import re
from importlib import import_module
from typing import Any

from cluster.machine import replies as codes
from node.errors import Refused

#: What `re` itself parses with.
ops: Any = import_module("re._parser")

#: Two to the power of this many ways: three free wildcards in an anchored pattern.
WAYS_BITS_MAX = 28
LENGTH_MAX = 255
_LENGTH_BITS = 8.0

_REPEATS: tuple[Any, ...] = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)
_BEGINNINGS: tuple[Any, ...] = (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING)
#: What comes after the last item: nothing, so it cannot fail; or anything.
_END: Any = ("end", None)
_ANYTHING: Any = ("anything", None)


def check_pattern(pattern: str) -> None:
    """Raises Refused. What is no regular expression at all is for others to say."""
    try:
        items: list[Any] = list(ops.parse(pattern))
    except (re.error, OverflowError, RecursionError):
        return
    anchored = bool(items) and items[0][0] is ops.AT and items[0][1] in _BEGINNINGS
    bits = _bits(items, _END) + (0.0 if anchored else _LENGTH_BITS)
    if bits > WAYS_BITS_MAX:
        raise Refused(
            codes.BAD_ARGUMENT,
            f"the pattern {pattern[:80]!r} can take too long to match: begin it with ^, use fewer"
            " wildcards, and no repeat within a repeat",
        )


def _bits(items: list[Any], after: Any) -> float:
    """The ways of a sequence multiply; here, as logarithms, they add up."""
    total: float = 0.0
    for item, following in zip(items, [*items, after][1:], strict=True):
        operation: Any = item[0]
        value: Any = item[1]
        if operation in _REPEATS:
            total += _repeat_bits(value, following)
        elif operation is ops.SUBPATTERN:
            total += _bits(list(value[3]), following)
        elif operation is ops.BRANCH:
            branches: list[list[Any]] = [list(branch) for branch in value[1]]
            total += max(_bits(branch, following) for branch in branches)
            total += 0.0 if _are_told_apart(branches) else math.log2(len(branches))
        elif operation in (ops.ASSERT, ops.ASSERT_NOT):
            total += _bits(list(value[1]), _ANYTHING)
        elif operation is ops.ATOMIC_GROUP:
            total += _bits(list(value), following)
        elif operation is ops.GROUPREF_EXISTS:
            total += _LENGTH_BITS
    return total


def _repeat_bits(repeat: Any, following: Any) -> float:
    least: int = repeat[0]
    most: int = repeat[1]
    items: list[Any] = list(repeat[2])
    times = min(int(most), LENGTH_MAX)
    within = _bits(items, following if times <= 1 else _ANYTHING) * times
    own = math.log2(max(0, times - least) + 1)
    return within if following is _END or _stops_before(items, following) else within + own


def _are_told_apart(branches: list[list[Any]]) -> bool:
    """By their first characters."""
    firsts = [branch[0] if branch else _ANYTHING for branch in branches]
    literal = all(operation is ops.LITERAL for operation, _ in firsts)
    return literal and len({value for _, value in firsts}) == len(firsts)


def _stops_before(body: list[Any], following: Any) -> bool:
    """Is it a repeat of characters, none of which is the literal that follows?"""
    if len(body) != 1 or following[0] is not ops.LITERAL:
        return False
    letter = chr(following[1])
    return not any(
        _may_be(body[0], ord(each)) for each in {letter, *letter.lower(), *letter.upper()}
    )


def _may_be(item: Any, code: int) -> bool:
    operation, value = item
    if operation is ops.LITERAL:
        return value == code
    if operation is ops.NOT_LITERAL:
        return value != code
    if operation is not ops.IN or any(each[0] is ops.CATEGORY for each in value):
        return True
    inside = any(
        each == (ops.LITERAL, code) or (each[0] is ops.RANGE and each[1][0] <= code <= each[1][1])
        for each in value
    )
    return inside is not (value[0][0] is ops.NEGATE)
