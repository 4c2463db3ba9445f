"""What `quorate failover` says of the gaps that it has measured."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorate.failover import Failover, report
from quorate.numbered import SequenceCheck


def measured(gaps_ms: list[float]) -> Failover:
    """A run with these gaps, in which nothing was lost."""
    gaps: list[dict[str, Any]] = [
        {"kill": number, "killed": "node-1", "then": "node-2", "gap_ms": gap_ms}
        for number, gap_ms in enumerate(gaps_ms, 1)
    ]
    return cast(
        "Failover",
        SimpleNamespace(
            gaps=gaps,
            consuming=SimpleNamespace(sequence=SequenceCheck()),
            publishing=SimpleNamespace(confirmed_count=7, unknown=0, refused=0),
            lost_count=lambda: 0,
        ),
    )


def told(gaps_ms: list[float], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert report(measured(gaps_ms), as_json=True) == 0
    return json.loads(capsys.readouterr().out)


def test_the_p95_of_many_gaps_leaves_a_twentieth_out(capsys: pytest.CaptureFixture[str]) -> None:
    found = told([float(each) for each in range(1, 101)], capsys)

    assert (found["median_ms"], found["p95_ms"], found["max_ms"]) == (50.5, 96, 100)


def test_the_p95_of_few_gaps_is_the_longest(capsys: pytest.CaptureFixture[str]) -> None:
    found = told([30.0, 10.0, 20.0], capsys)

    assert (found["median_ms"], found["p95_ms"], found["max_ms"]) == (20, 30, 30)


def test_the_table_has_the_median_the_p95_and_the_longest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report(measured([30.0, 10.0, 20.0]), as_json=False) == 0

    lines = capsys.readouterr().out.splitlines()
    for name, gap in (("median", "20"), ("p95", "30"), ("max", "30")):
        assert any(name in line and gap in line for line in lines), name
