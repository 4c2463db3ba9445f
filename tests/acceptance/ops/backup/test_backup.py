from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.ops.backup.scenes import Verdict, from_archive, out_of_order, under_load


def failed(verdicts: list[Verdict]) -> list[Verdict]:
    assert verdicts
    return [each for each in verdicts if not each.ok]


def test_what_is_displaced_is_counted():
    assert out_of_order([1, 2, 5], 1) == 0
    assert out_of_order([1, 5, 2], 1) == 1
    assert out_of_order([3, 7, 2, 1, 4], 4) == 0
    assert out_of_order([2, 3], 4) == 1


@pytest.mark.ops
@pytest.mark.timeout(600)
async def test_a_cluster_comes_back_as_it_was_when_it_was_backed_up(tmp_path: Path):
    assert failed(await under_load(tmp_path / "load", print)) == []


@pytest.mark.ops
@pytest.mark.timeout(600)
async def test_a_cluster_comes_back_as_of_any_time_that_was_archived(tmp_path: Path):
    assert failed(await from_archive(tmp_path / "archive", print)) == []
