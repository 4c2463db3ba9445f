"""Whether the headers of a message match the arguments of a binding (C04)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Matches = Callable[[Mapping[str, Any]], bool]

_MATCH = "x-match"


def matcher(arguments: Mapping[str, Any]) -> Matches:
    """The binding as a question. Anything but any, any-with-x and all-with-x means all."""
    how = arguments.get(_MATCH, "all")
    with_x = how in ("all-with-x", "any-with-x")
    wanted = [
        (name, value)
        for name, value in arguments.items()
        if name != _MATCH and (with_x or not name.startswith("x-"))
    ]
    if how in ("any", "any-with-x"):
        return lambda headers: any(_has(headers, name, value) for name, value in wanted)
    return lambda headers: all(_has(headers, name, value) for name, value in wanted)


def _has(headers: Mapping[str, Any], name: str, wanted: Any) -> bool:
    if name not in headers:
        return False
    if wanted is None:
        return True  # its presence is enough
    found = headers[name]
    # 1, 1.0 and true are different values, as they are on the wire.
    return type(found) is type(wanted) and found == wanted
