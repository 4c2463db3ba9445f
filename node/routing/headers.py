"""Whether the headers of a message match the arguments of a binding (C04)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Matches = Callable[[Mapping[str, Any]], bool]

_MATCH = "x-match"
_ABSENT: Any = object()


def matcher(arguments: Mapping[str, Any]) -> Matches:
    """The binding as a question. Anything but any, any-with-x and all-with-x means all."""
    how = arguments.get(_MATCH, "all")
    with_x = how in ("all-with-x", "any-with-x")
    wanted = [
        (name, value)
        for name, value in arguments.items()
        if name != _MATCH and (with_x or not name.startswith("x-"))
    ]
    ends_with = how in ("any", "any-with-x")  # any: the first that is there; all: that is not

    def matches(headers: Mapping[str, Any]) -> bool:
        for name, value in wanted:
            found = headers.get(name, _ABSENT)
            # Without a value presence is enough. 1, 1.0 and true differ, as they do on the wire.
            has = found is not _ABSENT and (
                value is None or (type(found) is type(value) and found == value)
            )
            if has is ends_with:
                return ends_with
        return not ends_with

    return matches
