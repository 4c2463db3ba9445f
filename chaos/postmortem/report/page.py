"""report.html: the verdict, the findings, the pictures; tables folded away. One file, no script."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Final

from chaos.postmortem.report.about import About
from chaos.postmortem.report.cards import by_severity, cards
from chaos.postmortem.report.facts import Facts
from chaos.postmortem.report.figures import figures
from chaos.postmortem.report.impact import impact, led_to
from chaos.postmortem.report.markup import Content, Markup, tag
from chaos.postmortem.report.message_histories import message_histories
from chaos.postmortem.report.numbers import key_numbers
from chaos.postmortem.report.sheets import folded, sheets
from chaos.postmortem.report.units import duration, number, plural, span_of

#: Whatever a queue is called: nothing is loaded, nothing runs.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(facts: Facts, about: About) -> str:
    return document(
        f"Post-mortem: {about.verdict}",
        _header(facts, about),
        impact(facts),
        led_to(facts),
        tag("h2", "Findings"),
        cards(facts),
        message_histories(facts.messages, facts.more.get("steps", 0)),
        figures(facts, about.limits),
        tag("h2", "Tables"),
        sheets(facts),
        _how(facts, about),
    )


def document(title: str, *content: Content) -> str:
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"/>'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, tag("body", content), lang="en") + "\n"


def in_a_sentence(facts: Facts) -> str:
    """What was found, as a list of titles with counts."""
    told = [
        check.rule.title[:1].lower()
        + check.rule.title[1:]
        + (f" ({check.count:,}×)" if check.count > 1 else "")
        for check in by_severity(facts.checks)
    ]
    if not told:
        return "No rule of the catalogue found anything."
    return _capital(", ".join(told)) + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _header(facts: Facts, about: About) -> Markup:
    span = (
        f"{span_of(about.from_ns, about.to_ns)} UTC,"
        f" {duration((about.to_ns - about.from_ns) / 1e6)}"
        if about.to_ns
        else "no record was read"
    )
    only = [
        f"{name} {value}"
        for name, value in (("queue", about.queue), ("since", about.since), ("until", about.until))
        if value
    ]
    numbers = [tag("li", tag("b", value), tag("span", name)) for name, value in key_numbers(facts)]
    asked = facts.messages[0].id if facts.messages else None
    return tag(
        "header",
        tag("h1", tag("span", about.verdict, class_="verdict")),
        tag("p", in_a_sentence(facts)),
        tag("p", span, f"; only {', '.join(only)}" if only else None, class_="quiet"),
        tag("p", "Asked for: ", tag("a", f"the history of message {asked}", href="#message"))
        if asked
        else None,
        tag("ul", numbers, class_="numbers"),
        class_=about.word,
    )


def _how(facts: Facts, about: About) -> Markup:
    """What this was made of, for whoever wants to do it again."""
    options = {
        "inputs": ", ".join(about.inputs),
        "history of clients": about.history,
        "confirmed, by clients": about.confirmed,
        "message": about.message,
        "queue": about.queue,
        "since": about.since,
        "until": about.until,
        **about.options,
        **{name: number(value) for name, value in asdict(about.limits).items()},
    }
    rows = [
        tag("tr", tag("td", name, class_="whole"), tag("td", value))
        for name, value in options.items()
        if value
    ]
    tables = [
        tag("tr", tag("td", tag("code", name)), tag("td", f"{count:,}", class_="right"))
        for name, count in facts.rows.items()
    ]
    told = f"quorate {about.version}, {duration(about.seconds * 1e3)}"
    return Markup(
        folded("Inputs, options and thresholds", told, tag("table", tag("tbody", rows)))
        + folded(
            "Tables beside this report",
            f"{plural(len(facts.rows), 'table')} as Parquet, for questions of your own",
            tag("table", tag("tbody", tables)),
        )
    )
