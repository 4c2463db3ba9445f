"""What is planted is found, named and located, and nothing else; of clean lives nothing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from chaos.checker.log_safety import log_safety
from cluster.log.reader import CORRUPT, TORN, read, records
from tests.postmortem.clean import an_hour, simulated
from tests.postmortem.plants import SCENES, Expected

#: What the checker of the chaos suite, which knows nothing of any of this, says of some of them.
UNSAFE = {
    "divergence": "different entries committed",
    "two_leaders": "two leaders in a term",
    "missing_entry": "committed entries truncated",
    "state_mismatch": "different states",
}


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_what_it_says(name: str, tmp_path: Path):
    planted = SCENES[name](tmp_path)
    codes = {each.code for each in planted.expected}
    bad = [
        record
        for folder in planted.logs.values()
        for record in read(str(folder))
        if record.kind == CORRUPT
    ]

    assert bad == []
    if planted.logs:
        verdict = log_safety(planted.logs)
        assert verdict.valid is not bool(codes & UNSAFE.keys()), verdict
        for code, anomaly in UNSAFE.items():
            assert verdict.counts[anomaly] == (code in codes)


def test_what_cannot_be_read_is_where_the_scene_says(tmp_path: Path):
    planted = SCENES["unreadable"](tmp_path)
    expected = next(each for each in planted.expected if each.code == "corrupt_segment").where

    found = [
        record
        for folder in planted.paths
        for record in _of_archive(Path(folder))
        if record.kind in (CORRUPT, TORN)
    ]

    assert [(each.file, each.offset) for each in found] == [(expected["file"], expected["offset"])]


def _of_archive(folder: Path) -> list[Any]:

    return [
        each for path in sorted(folder.glob("*.log")) for each in records(str(path), last=False)
    ]


def wrong_columns(expected: Expected, finding: dict[str, Any]) -> dict[str, Any]:
    """Columns that say something else than what was planted."""
    wrong: dict[str, Any] = {}
    for name, value in expected.where.items():
        told = finding[name]
        if isinstance(value, tuple):
            low, high = cast("tuple[int, int]", value)
            right = told is not None and low <= told <= high
        elif name == "file":
            right = told is not None and Path(told).resolve() == Path(value).resolve()
        else:
            right = told == value
        if not right:
            wrong[name] = {"expected": value, "told": told}
    return wrong


@pytest.mark.spark
@pytest.mark.parametrize("name", SCENES)
def test_what_was_planted_is_found_and_nothing_else(name: str, tmp_path: Path, spark: Any):
    from chaos.postmortem.pipeline import Asked, run

    planted = SCENES[name](tmp_path / "nodes")

    result = run(planted.paths, tmp_path / "out", spark=spark, asked=Asked(build=planted.build))

    expected = sorted(planted.expected, key=lambda each: (each.code, each.where.get("node", "")))
    found = sorted(result.findings, key=lambda each: (each["code"], each["node"] or ""))
    assert [each["code"] for each in found] == [each.code for each in expected]
    assert result.status == planted.exit
    wrong = {e.code: wrong_columns(e, f) for e, f in zip(expected, found, strict=True)}
    assert wrong == {each.code: {} for each in expected}


@pytest.mark.spark
def test_an_hour_in_which_nothing_went_wrong(tmp_path: Path, spark: Any):
    from chaos.postmortem.pipeline import run

    cluster = an_hour(tmp_path / "nodes", retain_bytes=1_050 << 10)
    verdict = log_safety(cluster.logs)
    assert verdict.valid is True, verdict
    kinds = {each.kind for folder in cluster.logs.values() for each in read(str(folder))}
    assert {"snapshot", "stopped", "truncate", "live-entry", "digest", "link-down"} <= kinds
    assert not kinds & {CORRUPT, TORN}

    result = run(cluster.paths, tmp_path / "out", spark=spark)

    assert result.findings == []
    assert result.status == 0


@pytest.mark.spark
def test_a_simulated_run_whose_clients_are_cut_off_now_and_then(tmp_path: Path, spark: Any):
    from chaos.postmortem.pipeline import run

    simulation = simulated(tmp_path / "nodes", 7, seconds=10, messages_per_s=60)
    assert simulation.status == 0, simulation.violations
    assert simulation.counts["redeliveries"] > 20

    result = run([str(tmp_path / "nodes")], tmp_path / "out", spark=spark)

    assert result.findings == []
    assert result.status == 0
