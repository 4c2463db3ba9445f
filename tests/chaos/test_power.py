"""The power of all nodes is cut under load: once with honest disks, once with lying ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from chaos.power import Options, run

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("chaos-power")]


def _run(options: Options, folder: Path) -> tuple[int, str]:
    console = Console(record=True, quiet=True, width=100)
    status = run(options, console, folder)
    said = console.export_text()
    if status == 2:
        pytest.skip(said)
    return status, said


def test_nothing_that_was_confirmed_is_lost_with_the_power(tmp_path: Path):
    status, said = _run(Options(rounds=2), tmp_path)

    assert status == 0, said


def test_with_disks_that_lie_the_loss_is_seen(tmp_path: Path):
    status, said = _run(Options(rounds=1, lie=True), tmp_path)

    assert status == 1, said
    assert "total-queue: VIOLATED" in said
    assert (tmp_path / "nodes" / "node-1" / "data").is_dir()
