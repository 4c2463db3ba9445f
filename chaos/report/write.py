"""What stays of a run in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from chaos.history import Op, read_history
from chaos.nemesis.mixes import title_of
from chaos.report.outcome import Outcome, Status
from chaos.report.series import series_of
from chaos.report.tables import REPORT_WIDTH, show_run
from chaos.report.timeline import draw_timeline


def write_report(ops: Sequence[Op], outcome: Outcome) -> None:
    """`verdicts.json`, `report.txt` and `timeline.png`."""
    folder = outcome.folder
    verdicts = json.dumps(outcome.as_json(), indent=2, default=str)
    (folder / "verdicts.json").write_text(verdicts + "\n", encoding="utf-8")
    with (folder / "report.txt").open("w", encoding="utf-8") as file:
        show_run(Console(file=file, width=REPORT_WIDTH), outcome)
    _draw(ops, folder, outcome.seed, outcome.title, outcome.status.word)


def draw_again(folder: Path) -> None:
    """`timeline.png`, from what the folder of a run holds."""
    about = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
    ops = read_history(folder / "history.jsonl")
    _draw(ops, folder, about["seed"], title_of(about["mix"]), about["status"])


def _draw(ops: Sequence[Op], folder: Path, seed: int, mix: str, word: str) -> None:
    draw_timeline(
        series_of(ops),
        folder / "timeline.png",
        title=f"seed {seed}, mix {mix}: {word}",
        good=word == Status.VALID.word,
    )
