"""What is planted is found, named and located, and nothing else; of clean lives nothing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaos.checker.log_safety import log_safety
from cluster.log.reader import CORRUPT, TORN, read
from tests.postmortem.clean import an_hour, simulated
from tests.postmortem.plants import PLANTS, Planted

#: What the checker of the chaos suite, which knows nothing of any of this, says of some of them.
UNSAFE = {
    "divergence": "different entries committed",
    "two_leaders": "two leaders in a term",
    "missing_entry": "committed entries truncated",
    "state_mismatch": "different states",
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_is_what_it_says(name: str, tmp_path: Path):
    planted = PLANTS[name](tmp_path)
    verdict = log_safety(planted.logs) if planted.logs else None
    bad = [
        record
        for folder in planted.logs.values()
        for record in read(str(folder))
        if record.kind == CORRUPT
    ]

    if planted.code == "corrupt_segment":
        place = (planted.where["file"], planted.where["offset"])
        assert [(each.file, each.offset) for each in bad] == [place]
    elif verdict is not None:
        assert bad == []
        assert verdict.valid is (planted.code not in UNSAFE), verdict
        if planted.code in UNSAFE:
            assert verdict.counts[UNSAFE[planted.code]] == planted.count


def wrong_columns(planted: Planted, finding: dict[str, Any]) -> dict[str, Any]:
    """Columns that say something else than what was planted."""
    wrong: dict[str, Any] = {}
    for name, expected in planted.where.items():
        told = finding[name]
        if isinstance(expected, tuple):
            first, last = expected
            right = told is not None and first <= told <= last
        elif name == "file":
            right = told is not None and Path(told).resolve() == Path(expected).resolve()
        else:
            right = told == expected
        if not right:
            wrong[name] = {"expected": expected, "told": told}
    return wrong


@pytest.mark.spark
@pytest.mark.parametrize("name", PLANTS)
def test_what_was_planted_is_found_and_nothing_else(name: str, tmp_path: Path, spark: Any):
    from chaos.postmortem.pipeline import run

    planted = PLANTS[name](tmp_path / "nodes")

    result = run(planted.paths, str(tmp_path / "out"), spark=spark, build=planted.build)

    assert [each["code"] for each in result.findings] == [planted.code] * planted.count
    assert result.status == planted.exit
    for finding in result.findings:
        assert wrong_columns(planted, finding) == {}, finding


@pytest.mark.spark
@pytest.mark.parametrize("retain_bytes", [1 << 30, 1_050 << 10], ids=["whole", "cleaned"])
def test_an_hour_in_which_nothing_went_wrong(retain_bytes: int, tmp_path: Path, spark: Any):
    from chaos.postmortem.pipeline import run

    cluster = an_hour(tmp_path / "nodes", retain_bytes=retain_bytes)
    verdict = log_safety(cluster.logs)
    assert verdict.valid is True, verdict
    kinds = {each.kind for folder in cluster.logs.values() for each in read(str(folder))}
    assert {"snapshot", "stopped", "truncate", "live-entry", "digest", "link-down"} <= kinds
    assert not kinds & {CORRUPT, TORN}

    result = run(cluster.paths, str(tmp_path / "out"), spark=spark)

    assert result.findings == []
    assert result.status == 0


@pytest.mark.spark
def test_a_simulated_run_whose_clients_are_cut_off_now_and_then(tmp_path: Path, spark: Any):
    from chaos.postmortem.pipeline import run

    simulation = simulated(tmp_path / "nodes", 7, seconds=10, messages_per_s=60)
    assert simulation.status == 0, simulation.violations
    assert simulation.counts["redeliveries"] > 20

    nodes = [str(folder) for folder in (tmp_path / "nodes").iterdir()]
    result = run(nodes, str(tmp_path / "out"), spark=spark)

    assert result.findings == []
    assert result.status == 0
