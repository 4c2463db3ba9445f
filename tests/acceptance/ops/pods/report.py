"""The table of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from tests.acceptance.ops.pods.judging import Seen
from tests.acceptance.ops.pods.load import PROTOCOLS


def show(console: Console, seen: Sequence[Seen], missing: Mapping[str, str]) -> None:
    table = Table(title="pods of the chart, under load through the service")
    table.add_column("scene")
    for name in ("took", "confirmed", "delivered", "unknown", "refused"):
        table.add_column(name, justify="right")
    for protocol in PROTOCOLS:
        table.add_column(f"longest gap\n{protocol}", justify="right")
    table.add_column("verdict")
    for each in seen:
        gaps = [each.gaps_ms.get(protocol) for protocol in PROTOCOLS]
        table.add_row(
            each.scene,
            f"{each.took_s:.1f} s",
            *(f"{n:,}" for n in (each.confirmed, each.delivered, each.unknown, each.refused)),
            *("none" if gap is None else f"{gap:,.0f} ms" for gap in gaps),
            "[green]passed[/]" if each.passed else "[red]FAILED[/]",
        )
    console.print(table)
    for each in seen:
        for fact in each.facts:
            console.print(f"{each.scene}: {fact}", markup=False, highlight=False)
    for each in seen:
        for wrong in each.wrong:
            console.print(f"{each.scene}: WRONG: {wrong}", markup=False, highlight=False)
        for verdict in each.verdicts:
            if verdict.valid is not True:
                console.print(f"{each.scene}: {verdict.describe()}", markup=False, highlight=False)
    for what, why in missing.items():
        console.print(f"not done here: {what}: {why}", markup=False, highlight=False)
