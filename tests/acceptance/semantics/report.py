"""The table of results, the comparison of two brokers, and both as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.acceptance.semantics.differences import DESIGN_DIFFERENCES
from tests.acceptance.semantics.runner import DIFFERS, FAILED, NOT_RUN, OK, Result, as_json

COLOURS = {OK: "green", DIFFERS: "yellow", FAILED: "bold red", NOT_RUN: "dim"}
UNEXPECTED = "UNEXPECTED"


@dataclass(frozen=True)
class Difference:
    """One check that came out otherwise at the other broker."""

    ours: Result
    theirs: Result
    reason: str

    @property
    def expected(self) -> bool:
        return self.reason != UNEXPECTED


def row(result: Result) -> tuple[Text, ...]:
    return (
        Text(result.id),
        Text(result.shows),
        Text(result.result, style=COLOURS[result.result]),
        Text(result.note),
    )


def show(console: Console, title: str, results: Sequence[Result]) -> None:
    table = Table(title=title, title_justify="left", show_lines=False)
    table.add_column("id", no_wrap=True)
    table.add_column("what it shows", ratio=3)
    table.add_column("result", no_wrap=True)
    table.add_column("note", ratio=2)
    for result in sorted(results, key=lambda each: (each.id, each.name)):
        table.add_row(*row(result))
    console.print(table)
    counted = Counter(result.result for result in results)
    console.print(
        ", ".join(f"{counted[kind]} {kind}" for kind in (OK, DIFFERS, FAILED, NOT_RUN)),
        highlight=False,
    )


def differences(ours: Sequence[Result], theirs: Sequence[Result]) -> list[Difference]:
    """Checks that ran at both and came out differently."""
    by_name = {result.name: result for result in theirs}
    found: list[Difference] = []
    for result in ours:
        other = by_name.get(result.name)
        if other is None or NOT_RUN in {result.result, other.result}:
            continue
        if (result.result == OK) == (other.result == OK):
            continue
        reason = UNEXPECTED
        if result.id in DESIGN_DIFFERENCES and FAILED not in {result.result, other.result}:
            reason = f"ours by design: {DESIGN_DIFFERENCES[result.id]}"
        found.append(Difference(result, other, reason))
    return found


def show_differences(
    console: Console, other: str, ours: Sequence[Result], theirs: Sequence[Result]
) -> list[Difference]:
    """Prints and answers the differences, and what could not be compared."""
    found = differences(ours, theirs)
    table = Table(title=f"Differences from {other}", title_justify="left")
    table.add_column("id", no_wrap=True)
    table.add_column("what it shows", ratio=2)
    table.add_column("here", no_wrap=True)
    table.add_column("there", ratio=2)
    table.add_column("why", ratio=3)
    for each in found:
        table.add_row(
            Text(each.ours.id),
            Text(each.ours.shows),
            Text(each.ours.result, style=COLOURS[each.ours.result]),
            Text(each.theirs.note),
            Text(each.reason, style="" if each.expected else "bold red"),
        )
    if found:
        console.print(table)
    kinds = {result.name: result.result for result in theirs}
    only_here = {
        r.id for r in ours if r.result != NOT_RUN and kinds.get(r.name, NOT_RUN) == NOT_RUN
    }
    differing = {each.ours.id for each in found}
    same = {r.id for r in ours if r.result == OK and kinds.get(r.name) == OK} - differing
    same &= set(DESIGN_DIFFERENCES)
    unexpected = sum(not each.expected for each in found)
    lines = [f"Differences from {other}: {len(found)}, unexpected: {unexpected}."]
    if only_here:
        lines.append(f"Not run there, so not compared: {', '.join(sorted(only_here))}.")
    if same:
        lines.append(f"Listed as differences, and none here: {', '.join(sorted(same))}.")
    console.print("\n".join(lines), highlight=False)
    return found


def write_json(path: Path, broker: str, results: Sequence[Result]) -> None:
    about = {"broker": broker, "results": as_json(results)}
    path.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> tuple[str, list[Result]]:
    """What `write_json` wrote: the broker and its results. Raises OSError, ValueError."""
    about = json.loads(path.read_text(encoding="utf-8"))
    return str(about["broker"]), [Result(**each) for each in about["results"]]
