"""How many copies of a group can take part now, and whether that is too few."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from quorate.cli.tables import Alarm

Row = dict[str, Any]


def copies_up(row: Row, down: Collection[str]) -> int | Alarm:
    """Of a group, as nodes tell of it. Those of the releases before did not say how many are
    wanted.
    """
    voters = (
        row["voters"]
        if "voters" in row
        else set(row.get("members", ())) - set(row.get("learners", ()))
    )
    up, wanted = len(set(voters) - set(down)), int(row.get("wanted", 0))
    return up if up >= wanted else Alarm(f"{up} of {wanted}")


def copies_on(row: Row, down: Collection[str]) -> str:
    """By name."""
    words = ", ".join(f"{node} (down)" if node in down else node for node in row["held"])
    up = copies_up(row, down)
    return Alarm(f"{words}: {up}") if isinstance(up, Alarm) else words
