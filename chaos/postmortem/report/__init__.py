"""What a person reads of a post-mortem: summary.json, report.html, some lines on the terminal.

Three parts: `gather` asks Spark for few rows, `facts` is what they become, and all the others draw
and write that without Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chaos.postmortem.report.about import About
from chaos.postmortem.report.write import write_facts

if TYPE_CHECKING:
    from chaos.postmortem.tables import Tables

__all__ = ["About", "write_report"]


def write_report(tables: Tables, folder: Path, about: About) -> None:
    """`summary.json` and `report.html`; the folder is made if it is not there."""
    from chaos.postmortem.report.gather import gather

    write_facts(gather(tables, about), folder, about)
