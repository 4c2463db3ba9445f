"""The one writer of what people and programs read: `summary.json` and `report.html`."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import json
from pathlib import Path

from chaos.postmortem.report.about import About
from chaos.postmortem.report.facts import Facts
from chaos.postmortem.report.gather import gather
from chaos.postmortem.report.page import page
from chaos.postmortem.report.summary import summary
from chaos.postmortem.tables import Tables


def write_report(tables: Tables, folder: Path, about: About) -> None:
    """Into a folder that is made if it is not there; what was there before is replaced."""
    write_facts(gather(tables, about), folder, about)


def write_facts(facts: Facts, folder: Path, about: About) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    told = json.dumps(summary(facts, about), indent=2, default=str)
    (folder / "summary.json").write_text(told + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page(facts, about), encoding="utf-8")
