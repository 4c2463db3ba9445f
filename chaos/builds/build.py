"""What a broken build is: functions of the broker, each replaced by one that breaks its promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Change:
    """One attribute of a class or module, replaced by what `broken` makes of it."""

    owner: Any
    name: str
    broken: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Build:
    """A broker that breaks one promise, and looks well otherwise."""

    name: str
    does: str  # one sentence
    changes: tuple[Change, ...]


def put(build: Build) -> list[tuple[Change, Any]]:
    """Break it; returns what `take_back` needs."""
    honest: list[tuple[Change, Any]] = []
    for change in build.changes:
        owned = cast("dict[str, Any]", vars(change.owner))
        assert change.name in owned, f"{change.owner} has no {change.name} to break"
        before = owned[change.name]
        honest.append((change, before))
        setattr(change.owner, change.name, change.broken(before))
    return honest


def take_back(honest: list[tuple[Change, Any]]) -> None:
    for change, before in honest:
        setattr(change.owner, change.name, before)
