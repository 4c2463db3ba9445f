"""The power of all nodes is cut under load: once with honest disks, once with lying ones."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from chaos.scenes.power import PowerPlan, run

pytestmark = [pytest.mark.live, pytest.mark.chaos, pytest.mark.xdist_group("chaos-power")]


def _run(plan: PowerPlan, folder: Path) -> tuple[int, str]:
    said = StringIO()
    status = run(plan, folder, Console(file=said, width=100))
    if "cannot be tried here" in said.getvalue():
        pytest.skip(said.getvalue())
    return status, said.getvalue()


def test_nothing_that_was_confirmed_is_lost_with_the_power(tmp_path: Path):
    status, said = _run(PowerPlan(1, rounds=2), tmp_path)

    assert status == 0, said


def test_with_disks_that_lie_the_loss_is_seen(tmp_path: Path):
    status, said = _run(PowerPlan(1, rounds=1, lie=True), tmp_path)

    assert status == 1, said
    assert "  lost: " in said
    assert (tmp_path / "nodes" / "node-1" / "data").is_dir()
