"""What stays of a run in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from chaos.history import Op
from chaos.report.outcome import Outcome, Status
from chaos.report.series import series_of
from chaos.report.tables import show_run
from chaos.report.timeline import draw_timeline

REPORT_WIDTH = 140


def write_report(ops: Sequence[Op], outcome: Outcome) -> None:
    """`verdicts.json`, `report.txt` and `timeline.png`."""
    folder = outcome.folder
    verdicts = json.dumps(outcome.as_json(), indent=2, default=str)
    (folder / "verdicts.json").write_text(verdicts + "\n", encoding="utf-8")
    with (folder / "report.txt").open("w", encoding="utf-8") as file:
        show_run(Console(file=file, width=REPORT_WIDTH), outcome)
    title = f"seed {outcome.seed}, mix {outcome.mix}: {outcome.status.word}"
    draw_timeline(
        series_of(ops),
        folder / "timeline.png",
        title=title,
        good=outcome.status is Status.VALID,
    )
