"""The incident in plain words, to paste into a ticket: what, when, impact, cause, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chaos.postmortem.findings.catalogue import RULES
from chaos.postmortem.report.about import About
from chaos.postmortem.report.causes import told, told_harms, told_stage
from chaos.postmortem.report.facts import Chain, Facts, Finding
from chaos.postmortem.report.numbers import given
from chaos.postmortem.report.units import duration, facts_told, plural, span_of, stamp, visible

#: Of each part; the report has the rest.
LINES_MAX: Final = 20
QUEUES_MAX: Final = 10


def ticket(facts: Facts, about: About) -> str:
    span = f"{span_of(about.from_ns, about.to_ns)} UTC" if about.to_ns else "no record was read"
    parts = [
        f"{about.verdict}: {span}",
        _part("What happened, and when (UTC)", map(_chain, facts.chains)),
        _part("Impact", _impact(facts)),
        _part("Likely cause", _causes(facts.chains)),
        _part("Evidence", (_evidence(each) for it in facts.chains for each in it.findings)),
        _part("Next step", dict.fromkeys(_next(facts.chains))),
        f"Read: {given(facts)}. Not judged: {_skipped(facts)}. By quorate {about.version}.",
    ]
    return visible("\n\n".join(part for part in parts if part)) + "\n"


def _part(title: str, lines: Iterable[str]) -> str:
    lines = list(lines)
    more = [f"- … and {len(lines) - LINES_MAX:,} more, in the report"] if lines[LINES_MAX:] else []
    told = [f"- {line}" for line in lines[:LINES_MAX]]
    return "\n".join([title, *told, *more]) if lines else ""


def _chain(chain: Chain) -> str:
    stages = [" and ".join(told_stage(stage)) for stage in chain.stages]
    when = f"{stamp(chain.from_ns)[:19]}  " if chain.from_ns is not None else ""
    return when + ", then ".join([*stages, *told_harms(chain.harms)])


def _impact(facts: Facts) -> Iterable[str]:
    if facts.chains and not facts.impact:
        yield "No queue was without a leader, no publish was cut off, nothing was delivered again."
    for each in facts.impact[:QUEUES_MAX]:
        felt = [
            f"{duration(each.without_ms)} without service" if each.without_ms else None,
            plural(each.unanswered, "publish", "publishes")
            + f" without an answer, of which {each.again:,} came again"
            if each.unanswered
            else None,
            plural(each.redelivered, "message") + " delivered again" if each.redelivered else None,
        ]
        yield f"{each.queue}: {', '.join(filter(None, felt))}"
    if (rest := len(facts.impact) - QUEUES_MAX) > 0:
        yield f"{plural(rest, 'more queue')}, in the report"


def _causes(chains: Iterable[Chain]) -> Iterable[str]:
    """What nothing else led to."""
    for chain in chains:
        for each in chain.roots:
            yield f"{told(each)}: {facts_told(each.detail or RULES[each.code].rule)}"


def _evidence(finding: Finding) -> str:
    known = (
        finding.node and f"node {finding.node}",
        None if finding.group in (None, -1) else f"group {finding.group}",
        finding.queue and f"queue {finding.queue}",
        None if finding.first is None else f"entry {finding.first}",
        finding.message and f"message {finding.message}",
        finding.file and f"{finding.file} at {finding.offset}",
    )
    return f"{finding.code}: {', '.join(each for each in known if each)}"


def _next(chains: Iterable[Chain]) -> Iterable[str]:
    for chain in chains:
        for each in chain.roots:
            yield RULES[each.code].advice


def _skipped(facts: Facts) -> str:
    return (
        ", ".join(check.rule.code for check in facts.checks if check.status == "skipped") or "none"
    )
