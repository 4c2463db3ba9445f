"""The findings: what, when, where, and what to do, the worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from chaos.postmortem.report.facts import Check, Facts, Finding
from chaos.postmortem.report.markup import Content, Markup, tag
from chaos.postmortem.report.sheets import entries, folded, place, when
from chaos.postmortem.report.units import duration_ns, facts_told, plural, stamp

#: Of one rule, before the others are folded away.
OPEN_MAX: Final = 6

_SEVERITIES: Final[Mapping[str, int]] = {"violation": 0, "unreadable": 1, "warning": 2}
_BADGES: Final[Mapping[str, str]] = {
    "violation": "promise broken",
    "unreadable": "unreadable",
    "warning": "warning",
}


def by_severity(checks: Sequence[Check]) -> list[Check]:
    """Those that found something, the worst and then the earliest first."""

    def order(check: Check) -> tuple[int, int]:
        times = [each.from_ns for each in check.examples if each.from_ns is not None]
        return _SEVERITIES[check.rule.severity], min(times, default=0)

    return sorted((check for check in checks if check.count), key=order)


def cards(facts: Facts) -> list[Content]:
    found = by_severity(facts.checks)
    numbers = {each.finding: each.number for each in facts.incidents}
    several_days = len({stamp(each.from_ns)[:10] for each in facts.incidents}) > 1
    return [
        *(_card(check, numbers, dated=several_days) for check in found),
        _quiet(facts.checks, any_=bool(found)),
    ]


def _card(check: Check, numbers: Mapping[Finding, int], *, dated: bool) -> Markup:
    rule = check.rule
    cases = [_case(each, numbers.get(each), dated=dated) for each in check.examples]
    rest = check.count - len(cases)
    return tag(
        "section",
        tag(
            "h3",
            tag("span", _BADGES[rule.severity], class_=f"badge {rule.severity}"),
            f"{rule.title} ({check.count:,})" if check.count > 1 else rule.title,
            tag("span", rule.code, class_="code"),
        ),
        tag("p", rule.rule),
        tag("p", tag("b", "What to do: "), rule.advice, class_="advice"),
        tag("ol", cases[:OPEN_MAX], class_="cases"),
        folded(
            plural(len(cases) - OPEN_MAX, "more", "more"),
            "",
            tag("ol", cases[OPEN_MAX:], class_="cases"),
        )
        if len(cases) > OPEN_MAX
        else None,
        tag("p", f"… and {rest:,} more in the table ", tag("code", "findings"), class_="quiet")
        if rest > 0
        else None,
        class_=f"finding {rule.severity}",
        id=f"check-{rule.code}",
    )


def _case(finding: Finding, number: int | None, *, dated: bool) -> Markup:
    lasted = (finding.to_ns or 0) - (finding.from_ns or 0)
    day = stamp(finding.from_ns)[:10] + " " if dated and finding.from_ns is not None else ""
    return tag(
        "li",
        tag("span", number, class_="number") if number else tag("span"),
        tag(
            "div",
            day,
            when(finding.from_ns, finding.to_ns),
            tag("div", duration_ns(lasted), class_="where")
            if finding.from_ns is not None and lasted > 0
            else None,
            class_="when",
        ),
        tag(
            "div",
            tag("div", facts_told(finding.detail or finding.title), class_="detail"),
            tag("div", _separated(evidence(finding)), class_="where"),
        ),
        id=f"finding-{number}" if number else None,
    )


def evidence(finding: Finding) -> list[Content]:
    """Where to look, as far as it is known."""
    queue = None if finding.queue is None else f"queue {finding.queue}"
    group = None if finding.group in (None, -1) else f"group {finding.group}"
    index = entries(finding.first, finding.last)
    word = "entries" if finding.last not in (None, finding.first) else "entry"
    known: list[Content] = [
        None if finding.node is None else f"node {finding.node}",
        group,
        queue,
        f"{word} {index}" if index else None,
        None if finding.term is None else f"term {finding.term}",
        None if (finding.count or 1) == 1 else f"{finding.count:,} in all",
        None if finding.message is None else ["message ", tag("code", finding.message)],
        place(finding.file, finding.offset) or None,
    ]
    return [each for each in known if each is not None]


def _separated(parts: Sequence[Content]) -> list[Content]:
    return [[" · " if place else None, part] for place, part in enumerate(parts)]


def _quiet(checks: Sequence[Check], *, any_: bool) -> Markup:
    """The rules that found nothing, and those that could not be asked."""
    rows = [
        tag(
            "tr",
            tag("td", tag("span", check.status, class_=f"badge {check.status}")),
            tag("td", check.rule.title, class_="whole"),
            tag("td", check.rule.rule if check.skipped is None else check.skipped),
        )
        for check in checks
        if not check.count
    ]
    passed = sum(check.status == "pass" for check in checks)
    skipped = sum(check.status == "skipped" for check in checks)
    told = f"{skipped} could not be judged" if skipped else ""
    title = f"{plural(passed, 'other rule' if any_ else 'rule')} found nothing"
    return folded(title, told, tag("table", tag("tbody", rows))) if rows else Markup()
