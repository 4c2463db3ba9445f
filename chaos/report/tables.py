"""Runs as tables: the verdicts of one, and many runs side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from chaos.checker.verdict import Valid, Verdict
from chaos.report.outcome import CLUSTER, Outcome, Status

#: Names under which checkers count the four things that must never be.
LOST = (
    "lost",
    "lost on its way",
    "half done",
    "settled without publishing",
    "gone, settled by nobody",
    "never handed",
)
UNEXPECTED = (
    "unexpected",
    "refused, yet delivered",
    "refused, yet stored",
    "nobody put it there",
    "out of thin air",
)
UNFLAGGED = (
    "duplicated without the flag",
    "stored twice",
    "moved twice",
    "handed after it was acknowledged",
)
TOKENS = ("token shared", "old token settled", "old token stored")

#: Of a file or a pipe, which has none: what is written there is read later, on a screen.
REPORT_WIDTH = 140
#: A narrower screen has tables without lines.
WIDTH_MIN = 100

_STYLES: dict[Valid, str] = {True: "green", False: "bold red", "unknown": "yellow"}
_WORDS: dict[Valid, str] = {True: "valid", False: "VIOLATED", "unknown": "unknown"}
_STATUS_STYLES = {
    Status.VALID: "green",
    Status.VIOLATED: "bold red",
    Status.UNKNOWN: "yellow",
    Status.CRASHED: "magenta",
}


def styled(status: Status) -> str:
    return f"[{_STATUS_STYLES[status]}]{status.word}[/]"


def counted(outcome: Outcome, names: Sequence[str]) -> int:
    return sum(outcome.totals.counts[name] for name in names)


def show_run(console: Console, outcome: Outcome) -> None:
    """All verdicts of one run, with the evidence of what is wrong."""
    totals = outcome.totals
    console.print(
        f"seed {outcome.seed}, mix {outcome.title}, {outcome.seconds:g} s: {styled(outcome.status)}"
    )
    console.print(f"network: {outcome.network}; disks: {outcome.disks}", markup=False)
    console.print(
        f"{totals.operations:,} operations, {totals.confirmed:,} messages confirmed,"
        f" {totals.delivered:,} delivered, {totals.unknown:,} unknown,"
        f" longest gap {totals.longest_gap_s:.1f} s"
    )
    befell = ", ".join(f"{kind} {count}" for kind, count in sorted(totals.faults.items()))
    console.print(f"faults: {befell or 'none'}", markup=False)
    if outcome.missing:
        console.print("not tried here: " + ", ".join(sorted(outcome.missing)), markup=False)
    table = Table("workload", "checker", "verdict", "what it counted")
    for name, verdicts in sorted(outcome.verdicts.items(), key=lambda row: row[0] == CLUSTER):
        for place, verdict in enumerate(verdicts):
            table.add_row(
                name if place == 0 else "",
                verdict.checker,
                f"[{_STYLES[verdict.valid]}]{_WORDS[verdict.valid]}[/]",
                escape(_counts(verdict)),
            )
    console.print(table)
    _show_wrong(console, outcome)
    if outcome.status is not Status.VALID:
        console.print(f"again: {outcome.command}", markup=False, soft_wrap=True)
        console.print(f"kept: {outcome.folder}", markup=False, soft_wrap=True)


def _show_wrong(console: Console, outcome: Outcome) -> None:
    """What is not valid, with its evidence."""
    for name, verdicts in outcome.verdicts.items():
        for verdict in verdicts:
            if verdict.valid is not True:
                console.print(f"{name}: {verdict.describe()}", markup=False, soft_wrap=True)
    if outcome.crash:
        console.print("the harness failed:", style="magenta")
        console.print(outcome.crash, markup=False, soft_wrap=True)


def _counts(verdict: Verdict) -> str:
    """Zeros say nothing: all that is bad is zero in a good run."""
    return ", ".join(f"{name} {count:,}" for name, count in verdict.counts.items() if count)


def show_campaign(
    console: Console, outcomes: Sequence[Outcome], not_reached: Sequence[str] = ()
) -> None:
    """A row for each run, then what was tried in all of them, and what is wrong. `not_reached`:
    faults that were due, and for which the time was too short.
    """
    table = Table(title=f"{len(outcomes)} runs", show_footer=True)
    if console.width < WIDTH_MIN:
        table.box, table.padding, table.pad_edge = None, (0, 1, 0, 0), False
    totals = [outcome.totals for outcome in outcomes]
    numbers: list[tuple[str, str]] = [
        ("faults", f"{sum(sum(each.faults.values()) for each in totals):,}"),
        ("opera-\ntions", f"{sum(each.operations for each in totals):,}"),
        ("con-\nfirmed", f"{sum(each.confirmed for each in totals):,}"),
        ("longest\ngap s", f"{max((each.longest_gap_s for each in totals), default=0.0):.1f}"),
        ("lost", str(sum(counted(outcome, LOST) for outcome in outcomes))),
        ("unex-\npected", str(sum(counted(outcome, UNEXPECTED) for outcome in outcomes))),
        ("dupli-\ncates", str(sum(counted(outcome, UNFLAGGED) for outcome in outcomes))),
        ("tokens", str(sum(counted(outcome, TOKENS) for outcome in outcomes))),
    ]
    table.add_column("seed", justify="right", footer="in all", no_wrap=True)
    table.add_column("mix", no_wrap=True)
    for name, footer in numbers:
        table.add_column(name, justify="right", footer=footer, no_wrap=True)
    bad = sum(1 for outcome in outcomes if outcome.status is not Status.VALID)
    table.add_column("verdict", no_wrap=True)
    for outcome in outcomes:
        table.add_row(
            str(outcome.seed),
            outcome.title,
            f"{sum(outcome.totals.faults.values()):,}",
            f"{outcome.totals.operations:,}",
            f"{outcome.totals.confirmed:,}",
            f"{outcome.totals.longest_gap_s:.1f}",
            _red(counted(outcome, LOST)),
            _red(counted(outcome, UNEXPECTED)),
            _red(counted(outcome, UNFLAGGED)),
            _red(counted(outcome, TOKENS)),
            styled(outcome.status),
        )
    console.print(table)
    if outcomes:
        console.print(f"[bold red]{bad} not valid[/]" if bad else "[green]all valid[/]")
    missing = {kind: why for outcome in outcomes for kind, why in outcome.missing.items()}
    show_faults(console, [each.faults for each in totals], missing)
    if not_reached:
        console.print(f"no time for: {', '.join(not_reached)}", markup=False)
    for outcome in outcomes:
        # Again, at the end: of a long output that may be all that is kept.
        if outcome.status is not Status.VALID:
            console.print(f"seed {outcome.seed}, {outcome.title}: {styled(outcome.status)}")
            _show_wrong(console, outcome)


def _red(count: int) -> str:
    return f"[bold red]{count}[/]" if count else "0"


def show_faults(console: Console, runs: Sequence[Counter[str]], missing: Mapping[str, str]) -> None:
    table = Table("fault", "times", "runs", "of which", title="Faults tried")
    for column in table.columns[1:3]:
        column.justify = "right"
    every: Counter[str] = Counter()
    for faults in runs:
        every.update(faults)
    kinds = {name: name.partition(":")[0] for name in sorted(every)}
    for kind in sorted(set(kinds.values())):
        names = [name for name in kinds if kinds[name] == kind]
        table.add_row(
            escape(kind),
            str(sum(every[name] for name in names)),
            str(sum(1 for faults in runs if any(faults[name] for name in names))),
            ", ".join(f"{name.partition(':')[2]} {every[name]}" for name in names if ":" in name),
        )
    console.print(table)
    if missing:
        table = Table(
            "fault", "why not", title="Faults that this machine does not allow: not tried"
        )
        for kind, why in sorted(missing.items()):
            table.add_row(escape(kind), escape(why))
        console.print(table)
