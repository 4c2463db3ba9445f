"""The fuzzer itself, and a short run of it with a fixed seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.fuzz.inputs import make
from tests.acceptance.fuzz.kinds import KINDS
from tests.acceptance.fuzz.run import Fuzz, load, save

SEED = 20_260
SECONDS = 10


def test_the_same_seed_makes_the_same_inputs_and_another_one_does_not():
    numbers = range(200)
    inputs = [make(SEED, number) for number in numbers]

    assert inputs == [make(SEED, number) for number in numbers]
    assert inputs != [make(SEED + 1, number) for number in numbers]
    assert {each.kind for each in inputs} >= set(KINDS) - {"many channels", "slow loris"}


def test_saved_inputs_are_read_back(tmp_path: Path):
    inputs = [make(SEED, number) for number in range(20)]
    save(tmp_path / "inputs.json", inputs)

    assert load(tmp_path / "inputs.json") == inputs


@pytest.mark.timeout(300)
async def test_nodes_stand_random_input_and_no_other_client_notices(tmp_path: Path):
    result = await Fuzz(tmp_path / "cluster", SEED, seconds=SECONDS).run()

    assert result.findings == []
    assert sum(result.kinds.values()) > 50
