"""The arithmetic of majorities: numbers in, numbers out.

`quorum` is how many voters are needed. Any two majorities of the same voters share one, and so do
a majority before and a majority after one voter came or went.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")
Number = TypeVar("Number", int, float)


def majority(voters: int) -> int:
    """More than half."""
    return voters // 2 + 1


def votes_needed(voters: int, *, forced: bool) -> int:
    """To elect a leader. By members of a recovery without a majority (`forced`) all of them, so
    that the first leader lacks nothing that a survivor has.
    """
    return voters if forced else majority(voters)


def reached(values: Iterable[Number], quorum: int) -> Number:
    """The highest value that at least `quorum` of them have reached. Given synced indexes: up to
    where may be committed. Given times last heard: since when a majority was heard.
    """
    return sorted(values)[-quorum]


def agreed(counts: Mapping[T, int], quorum: int) -> T | None:
    """What as many as `quorum` say, if they do; `counts` counts who says what."""
    return next((what for what, count in counts.items() if count >= quorum), None)
