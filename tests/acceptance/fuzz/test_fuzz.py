"""The fuzzer itself, and a short run of it by each protocol with a fixed seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.fuzz.inputs import Input, make
from tests.acceptance.fuzz.run import TARGETS, Fuzz, load, save

SEED = 20_260
SECONDS = 10
#: Kinds that few inputs are of.
RARE = {"many channels", "slow loris", "subscription flood", "fan-out"}

pytestmark = pytest.mark.parametrize("protocol", list(TARGETS))


def some_inputs(protocol: str, seed: int, count: int) -> list[Input]:
    target = TARGETS[protocol]()
    return [make(target.kinds, target.goodbye, seed, number) for number in range(count)]


def test_the_same_seed_makes_the_same_inputs_and_another_one_does_not(protocol: str):
    inputs = some_inputs(protocol, SEED, 200)

    assert inputs == some_inputs(protocol, SEED, 200)
    assert inputs != some_inputs(protocol, SEED + 1, 200)
    assert {each.kind for each in inputs} >= set(TARGETS[protocol]().kinds) - RARE


def test_saved_inputs_are_read_back(tmp_path: Path, protocol: str):
    inputs = some_inputs(protocol, SEED, 20)
    save(tmp_path / "inputs.json", protocol, inputs)

    assert load(tmp_path / "inputs.json") == (protocol, inputs)


@pytest.mark.timeout(300)
async def test_nodes_stand_random_input_and_no_other_client_notices(tmp_path: Path, protocol: str):
    result = await Fuzz(protocol, tmp_path / "cluster", SEED, seconds=SECONDS).run()

    assert result.findings == []
    assert sum(result.kinds.values()) > 50
