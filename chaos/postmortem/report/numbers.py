"""The numbers that one asks for first."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.postmortem.report.facts import Curve, Facts
from chaos.postmortem.report.units import duration, number, plural


def key_numbers(facts: Facts) -> Iterator[tuple[str, str]]:
    """What it is, and how much; what is not known is left out."""
    yield "nodes", number(len({row.node for row in facts.nodes}))
    if facts.rows.get("merged"):
        yield "committed entries", number(facts.rows["merged"])
    if facts.queues:
        yield "published", number(sum(row.published for row in facts.queues))
        yield "delivered", number(sum(row.delivered for row in facts.queues))
        yield "delivered again", number(sum(row.redelivered for row in facts.queues))
    unplanned = [each for each in facts.elections if each.unplanned]
    yield "unplanned elections", number(len(unplanned))
    gaps = [each.without_leader_ms for each in unplanned if each.without_leader_ms is not None]
    if gaps:
        yield "longest without a leader", duration(max(gaps))
    whole = facts.pictures[0] if facts.pictures else None
    if whole and whole.sync:
        yield "longest fsync", duration(_highest(whole.sync))
    if whole and whole.lag:
        yield "largest lag, entries", number(_highest(whole.lag))


def given(facts: Facts) -> str:
    """What was given, beside what would be expected: all members, without gaps in their logs."""
    absent = sorted(row.node for row in facts.nodes if row.source == "not given")
    there = {row.node for row in facts.nodes if row.files}
    gaps = [check for check in facts.checks if check.rule.code == "archive_gap" and check.count]
    holes = sorted({each.node for check in gaps for each in check.examples if each.node})
    members = f"{len(there)} of {plural(len(there) + len(absent), 'member')}"
    if absent:
        members += f" (not {', '.join(absent)})"
    return members + (f"; segments or entries of {', '.join(holes)} are missing" if holes else "")


def _highest(curves: tuple[Curve, ...]) -> float:
    return max((value for curve in curves for _, value in curve.points), default=0.0)
