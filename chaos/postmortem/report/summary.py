"""summary.json: the same answer for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from chaos.postmortem.report.about import About
from chaos.postmortem.report.causes import told_harms, told_stage, worth_telling
from chaos.postmortem.report.facts import Chain, Check, Facts, Finding
from chaos.postmortem.report.numbers import given, key_numbers
from chaos.postmortem.report.units import iso

#: Raised when something in it changes its meaning; new keys do not.
FORMAT: Final = 1
#: Queues whose impact it has, the worst first.
IMPACT_MAX: Final = 100


def summary(facts: Facts, about: About) -> dict[str, Any]:
    """`status` as the exit status has it: clean | warnings | violation | unreadable."""
    return {
        "format": FORMAT,
        "version": about.version,
        "status": about.word,
        "exit": about.status,
        "verdict": about.verdict,
        "from": iso(about.from_ns or None),
        "to": iso(about.to_ns or None),
        "inputs": list(about.inputs),
        "history": about.history,
        "confirmed": about.confirmed,
        "options": {
            "message": about.message,
            "queue": about.queue,
            "since": about.since,
            "until": about.until,
            **about.options,
        },
        "limits": asdict(about.limits),
        "seconds": round(about.seconds, 1),
        "numbers": dict(key_numbers(facts)),
        "given": given(facts),
        "impact": [asdict(each) for each in facts.impact[:IMPACT_MAX]],
        "chains": [_chain(each) for each in worth_telling(facts.chains)],
        "checks": [_check(check) for check in facts.checks],
        "nodes": [asdict(row) for row in facts.nodes],
        "tables": dict(facts.rows),
        "messages": [asdict(each) for each in facts.messages],
    }


def _chain(chain: Chain) -> dict[str, Any]:
    return {
        "from": iso(chain.from_ns),
        "stages": [told_stage(stage) for stage in chain.stages],
        "codes": [each.code for each in chain.findings],
        "links": [list(pair) for pair in chain.links],
        "impact": told_harms(chain.harms),
    }


def _check(check: Check) -> dict[str, Any]:
    rule = check.rule
    return {
        "code": rule.code,
        "severity": rule.severity,
        "title": rule.title,
        "rule": rule.rule,
        "advice": rule.advice,
        "status": check.status,
        "skipped": check.skipped,
        "count": check.count,
        "examples": [_example(each) for each in check.examples],
    }


def _example(finding: Finding) -> dict[str, Any]:
    """Only what is known of it; times also as people write them."""
    rest = {
        name: value
        for name, value in asdict(finding).items()
        if value is not None and name not in ("code", "severity", "title")
    }
    times = {"from": iso(finding.from_ns), "to": iso(finding.to_ns)}
    return {**{name: value for name, value in times.items() if value}, **rest}
