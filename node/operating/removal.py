"""What the removal of a node would cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def risks_of(
    nodes: Sequence[Row], groups: Sequence[Row], node: str, successor: str | None
) -> list[str]:
    """What would be less safe without this node; rows are as the management API shows them."""
    staying = [row for row in nodes if row["state"] != "leaving" and row["name"] != node]
    able = {row["name"] for row in staying} if successor is None else {successor}
    fewer = [
        row
        for row in groups
        if row["id"] and node in row["members"] and not able - set(row["members"])
    ]
    risks: list[str] = []
    if fewer:
        copies = min(len(row["members"]) for row in fewer)
        risks.append(
            f"{len(fewer)} of {len(groups) - 1} groups would lose a copy and have as few as"
            f" {copies - 1}"
        )
    up = sum(row["running"] for row in staying)
    majority = len(staying) // 2 + 1
    if up < majority:
        risks.append(
            f"of the {len(staying)} nodes that stay {up} are up, and a majority is {majority}"
        )
    if successor is not None and any(
        row["name"] == successor and not row["running"] for row in nodes
    ):
        risks.append(f"{successor}, which is to take over, is down")
    return risks
