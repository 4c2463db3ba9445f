"""The answer in a few lines on a terminal, from `summary.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from chaos.postmortem.report.units import duration, facts_told, plural, visible
from chaos.postmortem.report.write import REPORT, SUMMARY, TICKET

_STYLES: Final = {"clean": "bold green", "warnings": "bold yellow"}
_BAD: Final = "bold red"
_SEVERITIES: Final = {
    "violation": "[bold red]promise broken[/]",
    "unreadable": "[bold magenta]unreadable[/]",
    "warning": "[yellow]warning[/]",
}
#: Of each rule; the others are in the report.
EXAMPLES_SHOWN: Final = 5
QUEUES_SHOWN: Final = 10
CHAINS_SHOWN: Final = 10


def print_summary(console: Console, folder: Path) -> None:
    """What `write_report` left in a folder: the verdict, the findings, where the report is."""
    told = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    style = _STYLES.get(told["status"], _BAD)
    span = f"{_short(told['from'])} – {_short(told['to'])} UTC" if told["from"] else "nothing read"
    console.print(f"[{style}]{escape(told['verdict'])}[/]  [dim]{span}[/]", highlight=False)
    dated = (told["from"] or "")[:10] != (told["to"] or "")[:10]
    if told["impact"]:
        console.print(_impact(told["impact"]))
    for chain in told["chains"][:CHAINS_SHOWN]:
        stages = [" + ".join(stage) for stage in chain["stages"]]
        line = " → ".join([*stages, *chain["impact"]])
        console.print(
            f"{_moment(chain['from'], dated)}  {visible(line)}", markup=False, highlight=False
        )
    if (rest := len(told["chains"]) - CHAINS_SHOWN) > 0:
        console.print(f"[dim]… and {rest:,} more such chains[/]")
    found = [check for check in told["checks"] if check["count"]]
    if found:
        console.print(_table(found, dated=dated))
    passed = sum(check["status"] == "pass" for check in told["checks"])
    skipped = [check for check in told["checks"] if check["status"] == "skipped"]
    rest = f"{plural(passed, 'rule')} found nothing."
    for why in dict.fromkeys(check["skipped"] for check in skipped):
        codes = ", ".join(check["code"] for check in skipped if check["skipped"] == why)
        rest += f" Not judged: {codes} ({escape(why)})."
    console.print(rest, highlight=False)
    console.print(f"Read: {told['given']}. To paste into a ticket: {folder / TICKET}", markup=False,
                  highlight=False, soft_wrap=True)  # fmt: skip
    console.print(f"Report: {folder / REPORT}", markup=False, highlight=False, soft_wrap=True)


def _table(found: list[dict[str, Any]], *, dated: bool) -> Table:
    order = list(_SEVERITIES)
    table = Table("", "what", "when", "where and how", box=None, pad_edge=False, header_style="dim")
    for check in sorted(found, key=lambda each: order.index(each["severity"])):
        examples = check["examples"][:EXAMPLES_SHOWN]
        rest = check["count"] - len(examples)
        for place, example in enumerate(examples):
            table.add_row(
                _SEVERITIES[check["severity"]] if place == 0 else "",
                escape(check["title"]) if place == 0 else "",
                _moment(example.get("from"), dated),
                escape(visible(_where(example))),
            )
        if rest > 0:
            table.add_row("", "", "", f"[dim]… and {rest:,} more[/]")
    return table


def _impact(queues: list[dict[str, Any]]) -> Table:
    heads = ("Impact", "without service", "publishes without answer", "delivered again")
    table = Table(heads[0], box=None, pad_edge=False, header_style="dim")
    for head in heads[1:]:
        table.add_column(head, justify="right")
    for each in queues[:QUEUES_SHOWN]:
        again = f" ({each['again']:,} came again)" if each["again"] else ""
        table.add_row(
            escape(visible(each["queue"])),
            duration(each["without_ms"]) if each["without_ms"] else "",
            f"{each['unanswered']:,}{again}" if each["unanswered"] else "",
            f"{each['redelivered']:,}" if each["redelivered"] else "",
        )
    if (rest := len(queues) - QUEUES_SHOWN) > 0:
        table.add_row(f"[dim]… and {rest:,} more[/]")
    return table


def _where(example: dict[str, Any]) -> str:
    index = example.get("first")
    last = example.get("last")
    known = (
        example.get("node"),
        f"group {example['group']}" if example.get("group", -1) >= 0 else None,
        example.get("queue"),
        None
        if index is None
        else f"entry {index}"
        if last in (None, index)
        else f"entries {index}–{last}",
        example.get("message"),
        _place(example),
    )
    place = ", ".join(str(each) for each in known if each is not None)
    detail = " ".join(facts_told(example.get("detail") or "").split())
    return f"{detail}\n{place}" if detail and place else detail or place


def _place(example: dict[str, Any]) -> str | None:
    file, offset = example.get("file"), example.get("offset")
    return file if offset is None or not file else f"{file} at {offset}"


def _moment(time: str | None, dated: bool) -> str:
    return _short(time) if dated else _short(time)[11:]


def _short(time: str | None) -> str:
    """2026-11-18 03:04:10"""
    return "" if time is None else time[:19].replace("T", " ")
