from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.bench.compare import document
from tests.acceptance.bench.compare.rows import (
    QUORATE,
    RABBITMQ,
    ROWS,
    TABLES,
    Summary,
    Target,
    figure,
    ratio,
)

ROW = next(row for row in ROWS if row.name == "single")


def run(number: int, broker: str, **figures: float) -> dict[str, Any]:
    return {"row": "single", "round": number, "broker": broker, "figures": figures}


def results(*runs: dict[str, Any]) -> document.Document:
    machine = {"cores": 2, "cpu": "x", "memory_bytes": 1 << 30, "kernel": "6", "python": "3.11"}
    return {
        "date": "today",
        "commit": "abc",
        "rounds": 3,
        "quick": False,
        "minutes": 20,
        "machine": {**machine, "fsync_p50_ms": 0.5, "fsync_p99_ms": 1.0},
        "brokers": {QUORATE: "1", RABBITMQ: "2"},
        "notes": ["nothing was left out"],
        "runs": list(runs),
    }


RUNS = (
    run(0, QUORATE, p50_ms=1.0, cpu_us=500.0),
    run(0, RABBITMQ, p50_ms=2.0, cpu_us=1000.0),
    run(1, QUORATE, p50_ms=9.0, cpu_us=300.0),
    run(1, RABBITMQ, p50_ms=10.0, cpu_us=1000.0),
    run(2, QUORATE, p50_ms=1.0, cpu_us=200.0),  # the peer's run failed
)


def test_a_ratio_is_of_the_same_round_and_then_the_median():
    assert ratio(RUNS, ROW, RABBITMQ, "p50_ms") == Summary(0.7, 0.5, 0.9)
    assert figure(RUNS, ROW, QUORATE, "p50_ms") == Summary(1.0, 1.0, 9.0)


def test_a_rate_is_met_from_its_bound_on_and_a_cost_up_to_it():
    assert Target("rate", 4, RABBITMQ).met(4.0)
    assert not Target("rate", 4, RABBITMQ).met(3.9)
    assert Target("cpu_us", 0.4, RABBITMQ).met(0.4)
    assert not Target("cpu_us", 0.4, RABBITMQ).met(0.41)


def test_the_page_says_what_is_met_and_what_was_shared():
    text = document.text_of(results(*RUNS))

    assert "| p50 | 1.00 ms (1.00 – 9.00) | RabbitMQ 6.00 ms (2.00 – 10.0) |" in text
    assert "**0.70x (0.50 – 0.90)** | p50 ≤ 0.8x | ✅ |" in text
    assert "**0.40x (0.30 – 0.50)** | CPU ≤ 0.4x | ✅ |" in text
    assert "2 of 2 targets that were measured are met." in text
    assert "{{" not in text


def test_pictures_and_results_stand_beside_the_page(tmp_path: Any):
    document.write(results(*RUNS), tmp_path)

    names = {path.name for path in (tmp_path / "performance").iterdir()}
    assert names == {"results.json", "ratios.png", "figures.png"}


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_a_table_has_its_page(table: Any):
    found = results() | {"table": table.name}

    text = document.text_of(found)

    assert table.name in text
    assert "{{" not in text


EVERY = [row for table in TABLES.values() for row in table.rows]


@pytest.mark.parametrize("row", EVERY, ids=lambda row: row.name)
def test_every_target_is_of_a_broker_that_its_row_measures(row: Any):
    assert QUORATE in row.runs
    assert all(target.peer is None or target.peer in row.runs for target in row.targets)
