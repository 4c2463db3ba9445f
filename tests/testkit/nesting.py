"""Values that hold each other."""

from __future__ import annotations

from typing import Any


def nested(depth: int, inner: Any = 1) -> Any:
    """So many levels, lists and maps in turn."""
    for number in range(depth):
        inner = {"n": inner} if number % 2 else [inner]
    return inner
