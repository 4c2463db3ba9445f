"""The stock engine under the same harness: the harness sees what is wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from chaos.simulator.stock import run_stock


@pytest.fixture(autouse=True)
def _no_logging() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_cut_follower_and_a_killed_leader_cost_it_acknowledged_entries() -> None:
    results = [run_stock(seed, "cut and kill") for seed in range(12)]

    assert sum(1 for result in results if result.lost) >= 3
    assert sum(1 for result in results if result.kinds()["promises"]) >= 9


def test_a_power_loss_costs_it_what_it_never_synced() -> None:
    results = [run_stock(seed, "power loss") for seed in range(4)]

    assert all(result.lost for result in results)


def test_its_runs_are_functions_of_their_seeds() -> None:
    first, second = run_stock(3), run_stock(3)

    assert first == second
