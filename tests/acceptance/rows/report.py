"""The table of results, the comparison of two servers, and both as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.acceptance.rows.suite import DIFFERS, FAILED, NOT_RUN, OK, Result, Suite, as_json

COLOURS = {OK: "green", DIFFERS: "yellow", FAILED: "bold red", NOT_RUN: "dim"}
UNEXPECTED = "UNEXPECTED"


@dataclass(frozen=True)
class Difference:
    """One check that came out otherwise at the other server."""

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


def differences(suite: Suite, ours: Sequence[Result], theirs: Sequence[Result]) -> list[Difference]:
    """Checks that ran at both and came out differently."""
    by_name = {result.name: result for result in theirs}
    found: list[Difference] = []
    for result in ours:
        other = by_name.get(result.name)
        if other is None or NOT_RUN in {result.result, other.result}:
            continue
        if (result.result == OK) == (other.result == OK):
            continue
        why = suite.reason(result.id, result.name)
        if why is None or FAILED in {result.result, other.result}:
            found.append(Difference(result, other, UNEXPECTED))
        else:
            found.append(Difference(result, other, f"ours by design: {why}"))
    return found


def show_differences(
    console: Console,
    suite: Suite,
    other: str,
    ours: Sequence[Result],
    theirs: Sequence[Result],
) -> list[Difference]:
    """Prints and answers the differences, and what could not be compared."""
    found = differences(suite, ours, theirs)
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
    same = {r.id for r in ours if r.result == OK and kinds.get(r.name) == OK}
    same |= {r.name for r in ours if r.result == OK and kinds.get(r.name) == OK}
    same &= set(suite.differences)
    same -= {word for each in found for word in (each.ours.id, each.ours.name)}
    unexpected = sum(not each.expected for each in found)
    lines = [f"Differences from {other}: {len(found)}, unexpected: {unexpected}."]
    if only_here:
        lines.append(f"Not run there, so not compared: {', '.join(sorted(only_here))}.")
    if same:
        lines.append(f"Listed as differences, and none here: {', '.join(sorted(same))}.")
    console.print("\n".join(lines), highlight=False)
    return found


def write_json(path: Path, product: str, results: Sequence[Result]) -> None:
    about = {"broker": product, "results": as_json(results)}
    path.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> tuple[str, list[Result]]:
    """What `write_json` wrote: the server and its results. Raises OSError, ValueError."""
    about = json.loads(path.read_text(encoding="utf-8"))
    return str(about["broker"]), [Result(**each) for each in about["results"]]
