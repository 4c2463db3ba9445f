"""The behaviour of the queue machine, script by script: see testdata."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.datadriven import run_script
from tests.machine.world import World

SCRIPTS = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_machine_does_what_the_script_says(script: Path, rewrite: bool):
    run_script(script, World().run, rewrite=rewrite)
