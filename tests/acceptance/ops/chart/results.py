"""What was looked at and what came out, as a table; the exit status of a whole run."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDTH_UNKNOWN = 150


class Outcome(enum.Enum):
    """Of one check."""

    OK = "ok"
    FAILED = "failed"
    NOT_RUN = "not run"


STYLES = {Outcome.OK: "green", Outcome.FAILED: "bold red", Outcome.NOT_RUN: "yellow"}


@dataclass(frozen=True, slots=True)
class Result:
    """One check of one case. `detail` says what is wrong, or what the check saw."""

    case: str
    check: str
    outcome: Outcome
    detail: str = ""


def judged(case: str, check: str, wrong: Sequence[str], seen: str = "") -> Result:
    """Failed when anything is wrong."""
    if wrong:
        return Result(case, check, Outcome.FAILED, "\n".join(wrong))
    return Result(case, check, Outcome.OK, seen)


def console() -> Console:
    """As wide as the terminal, or wide enough for a log."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDTH_UNKNOWN)


def matrix(results: Iterable[Result], title: str) -> Table:
    """A row a case, a column a check."""
    results = list(results)
    checks = list(dict.fromkeys(each.check for each in results))
    by_place = {(each.case, each.check): each.outcome for each in results}
    table = Table("case", *checks, title=title, title_justify="left")
    for case in dict.fromkeys(each.case for each in results):
        row = [by_place.get((case, check)) for check in checks]
        table.add_row(case, *(f"[{STYLES[o]}]{o.value}[/]" if o else "" for o in row))
    return table


def rows(results: Iterable[Result], title: str) -> Table:
    """A row a check."""
    table = Table("step", "outcome", "seen", title=title, title_justify="left")
    for each in results:
        style = STYLES[each.outcome]
        table.add_row(each.check, f"[{style}]{each.outcome.value}[/]", escape(each.detail))
    return table


def closing(out: Console, results: Sequence[Result]) -> int:
    """Names all that failed or did not run, and gives the exit status."""
    for each in results:
        if each.outcome is not Outcome.OK:
            out.print(
                f"[{STYLES[each.outcome]}]{each.outcome.value}[/] {each.case}, {each.check}:"
                f" {escape(each.detail)}",
                highlight=False,
                soft_wrap=True,
            )
    counts = {outcome: sum(each.outcome is outcome for each in results) for outcome in Outcome}
    line = f"{counts[Outcome.OK]} passed, {counts[Outcome.FAILED]} failed"
    if counts[Outcome.NOT_RUN]:
        line += f", {counts[Outcome.NOT_RUN]} not run"
    out.print(line, highlight=False)
    return 1 if counts[Outcome.FAILED] else 0
