"""Rows of a benchmark: as a table for people, as JSON for machines."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tests.acceptance.bench.measure import NOISY_PERCENT, Cost


@dataclass(frozen=True)
class Goal:
    """A target of the project and how this run stands to it."""

    text: str
    met: bool


@dataclass
class Row:
    """One measurement. What does not apply stays None."""

    name: str
    what: str
    messages: int = 0
    rate: float | None = None  # messages a second
    p50_ms: float | None = None
    p99_ms: float | None = None
    cost: Cost | None = None
    detail: str = ""  # figures that have no column
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    goals: list[Goal] = field(default_factory=list[Goal])
    error: str | None = None

    @property
    def cpu_s_per_100k(self) -> float | None:
        if self.cost is None or not self.messages:
            return None
        return self.cost.nodes_cpu_s_per_100k(self.messages)

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "cpu_s_per_100k": self.cpu_s_per_100k,
            "noisy": bool(self.cost and self.cost.noisy),
        }


def _number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if digits == 0 or abs(value) >= 1000 else f"{value:,.{digits}f}"


def _goals(row: Row) -> str:
    return "\n".join(
        f"[green]ok[/] {goal.text}" if goal.met else f"[red]missed[/] {goal.text}"
        for goal in row.goals
    )


def table_of(rows: list[Row]) -> Table:
    table = Table(
        title="Three nodes on loopback, fsync on",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("run", no_wrap=True)
    table.add_column("what", min_width=28)
    for heading in ("msgs/s", "p50 ms", "p99 ms", "CPU s/100k"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("others %", justify="right", no_wrap=True)
    table.add_column("target")
    for row in rows:
        if row.error:
            table.add_row(row.name, f"{row.what}\n[red]failed: {row.error}[/]")
            continue
        others = ""
        if row.cost:
            share = row.cost.others_percent + row.cost.steal_percent
            others = f"[yellow]{share:.0f} noisy[/]" if row.cost.noisy else f"{share:.0f}"
        table.add_row(
            row.name,
            row.what + (f"\n[dim]{row.detail}[/]" if row.detail else ""),
            _number(row.rate, 0),
            _number(row.p50_ms),
            _number(row.p99_ms),
            _number(row.cpu_s_per_100k),
            others,
            _goals(row),
        )
    return table


def show(console: Console, facts: dict[str, Any], rows: list[Row]) -> None:
    console.print(table_of(rows))
    console.print(
        f"{facts['cores']} cores ({facts['cpu']}), {facts['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {facts['kernel']}, Python {facts['python']}; fdatasync "
        f"p50 {facts['fsync_p50_ms']:.2f} ms, p99 {facts['fsync_p99_ms']:.2f} ms.",
        highlight=False,
    )
    console.print(
        "The nodes and the clients share these cores. CPU s/100k: seconds of the three nodes "
        f"together for 100,000 messages. Noisy: others and steal took over {NOISY_PERCENT:.0f} % "
        "of the machine meanwhile; such a row says little.",
        highlight=False,
    )
    goals = [goal for row in rows for goal in row.goals]
    if goals:
        met = sum(goal.met for goal in goals)
        console.print(f"Targets: {met} of {len(goals)} met.", highlight=False)


def write_json(path: Path, facts: dict[str, Any], rows: list[Row]) -> None:
    """Rows of other runs that are there already stay."""
    names = {row.name for row in rows}
    kept: list[dict[str, Any]] = []
    if path.exists():
        kept = [row for row in json.loads(path.read_text())["rows"] if row["name"] not in names]
    document = {
        "version": 1,
        "machine": facts,
        "rows": kept + [row.as_json() for row in rows],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
