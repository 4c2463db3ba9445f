"""The one writer of what people and programs read: `summary.json` and `report.html`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from chaos.postmortem.report.about import About
from chaos.postmortem.report.facts import Facts
from chaos.postmortem.report.page import page
from chaos.postmortem.report.summary import summary
from chaos.postmortem.report.ticket import ticket

SUMMARY: Final = "summary.json"
REPORT: Final = "report.html"
TICKET: Final = "ticket.txt"


def write_facts(facts: Facts, folder: Path, about: About) -> None:
    """What was there before is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    told = json.dumps(summary(facts, about), indent=2)
    (folder / SUMMARY).write_text(told + "\n", encoding="utf-8")
    (folder / TICKET).write_text(ticket(facts, about), encoding="utf-8")
    (folder / REPORT).write_text(page(facts, about), encoding="utf-8")
