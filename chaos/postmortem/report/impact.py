"""What users felt and what led to it, above all findings: a table, and a line for each chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.postmortem.report.causes import told, told_harms, worth_telling
from chaos.postmortem.report.facts import Chain, Facts, Finding, Harm, QueueImpact
from chaos.postmortem.report.markup import Content, Markup, tag
from chaos.postmortem.report.numbers import given
from chaos.postmortem.report.sheets import place, sheet
from chaos.postmortem.report.units import clock, duration, number, stamp

CHAINS_MAX: Final = 30
_KINDS: Final[Mapping[str, str]] = {
    "without_leader": "no leader",
    "unanswered": "cut off",
    "redelivered": "again",
}


def impact(facts: Facts) -> Markup:
    read = tag("p", f"Read: {given(facts)}.", class_="quiet")
    if not any(check.count for check in facts.checks):
        return read
    if not facts.impact:
        none = "No queue was without a leader, no publish was cut off, nothing was delivered again."
        return tag("section", tag("h2", "Impact"), tag("p", none), read)
    return tag(
        "section",
        tag("h2", "Impact"),
        sheet(
            facts.impact,
            (
                ("=queue", lambda row: row.queue),
                (">without service", lambda row: duration(row.without_ms or None)),
                (">publishes without an answer", _unanswered),
                (">delivered again", lambda row: number(row.redelivered or None)),
                ("the worst of it", lambda row: [_evidence(each) for each in row.evidence]),
            ),
        ),
        read,
    )


def led_to(facts: Facts) -> Markup:
    chains = worth_telling(facts.chains)
    if not chains:
        return Markup()
    numbers = {each.finding: each.number for each in facts.incidents}
    rest = len(chains) - CHAINS_MAX
    return tag(
        "section",
        tag("h2", "What led to what"),
        tag("ol", [_line(each, numbers) for each in chains[:CHAINS_MAX]], class_="chains"),
        tag("p", f"… and {rest:,} more", class_="quiet") if rest > 0 else None,
    )


def _unanswered(row: QueueImpact) -> str:
    if not row.unanswered:
        return ""
    again = f" ({row.again:,} came again)" if row.again else ""
    return f"{row.unanswered:,}{again}"


def _evidence(harm: Harm) -> Markup:
    where = place(harm.file, harm.offset) or f"group {harm.group}, entry {harm.entry}"
    return tag("div", f"{_KINDS[harm.kind]}: {stamp(harm.from_ns)} · ", where, class_="where")


def _line(chain: Chain, numbers: Mapping[Finding, int]) -> Markup:
    stages: list[Content] = [
        [[" + " if at else None, _told(each, numbers)] for at, each in enumerate(stage)]
        for stage in chain.stages
    ]
    costs: list[Content] = [tag("b", each) for each in told_harms(chain.harms)]
    arrow = tag("span", " → ", class_="quiet")
    parts = [*stages, *costs]
    return tag(
        "li",
        tag("span", clock(chain.from_ns), class_="when"),
        tag("div", [[arrow if at else None, each] for at, each in enumerate(parts)]),
    )


def _told(finding: Finding, numbers: Mapping[Finding, int]) -> Content:
    at = numbers.get(finding)
    return tag("a", told(finding), href=f"#finding-{at}") if at else told(finding)
