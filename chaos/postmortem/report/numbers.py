"""The numbers that one asks for first."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.postmortem.report.facts import Curve, Facts
from chaos.postmortem.report.units import duration, number


def key_numbers(facts: Facts) -> Iterator[tuple[str, str]]:
    """What it is, and how much; what is not known is left out."""
    yield "nodes", number(len({row.node for row in facts.nodes}))
    if facts.rows.get("merged"):
        yield "committed entries", number(facts.rows["merged"])
    if facts.queues:
        yield "published", number(sum(row.published for row in facts.queues))
        yield "delivered", number(sum(row.delivered for row in facts.queues))
        yield "delivered again", number(sum(row.redelivered for row in facts.queues))
    unplanned = [each for each in facts.elections if not each.planned]
    yield "unplanned elections", number(len(unplanned))
    gaps = [each.without_leader_ms for each in unplanned if each.without_leader_ms is not None]
    if gaps:
        yield "longest without a leader", duration(max(gaps))
    whole = facts.pictures[0] if facts.pictures else None
    if whole and whole.sync:
        yield "longest fsync", duration(_highest(whole.sync))
    if whole and whole.lag:
        yield "largest lag, entries", number(_highest(whole.lag))


def _highest(curves: tuple[Curve, ...]) -> float:
    return max((value for curve in curves for _, value in curve.points), default=0.0)
