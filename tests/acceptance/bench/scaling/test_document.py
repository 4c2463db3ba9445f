from __future__ import annotations

import math
from typing import Any

import pytest

from tests.acceptance.bench.scaling import document, sums
from tests.acceptance.bench.scaling.dimensions import DIMENSIONS, snapshot_cost


def point(dimension: str, series: str, at: float, **figures: float) -> dict[str, Any]:
    return {"dimension": dimension, "series": series, "at": at, "figures": figures}


ROLES = {"gateway_us": 10.0, "leader_us": 20.0, "follower_us": 5.0}
POINTS = (
    point("messages", "varied", 1_000, rate=1_000, cpu_us=300.0, others_percent=3),
    point("queues", "idle", 1, idle_percent=0.5, rss_mb=60),
    point("queues", "load on all", 1, cpu_us=40, others_percent=40),
    point("queues", "load on few", 1, cpu_us=50),
    point("queues", "idle", 10_000, idle_percent=0.6, rss_mb=160, declares=2_000),
    point("queues", "restart", 10_000, restart_cpu_s=3.0),
    point("groups", "idle", 3, idle_percent=0.5, rss_mb=60),
    point("groups", "idle", 13, idle_percent=1.5, rss_mb=62),
    point("nodes", "at a rate", 6, idle_percent=0.5, hosts=3),
    point("nodes", "at a rate", 9, idle_percent=0.8, hosts=3),
    point("consumers", "one queue", 1, rss_mb=80),
    point("roles", "memory of a queue", 1_000, catalog_kb=2.0, member_kb=5.0),
    point("roles", "published", 1, **ROLES),
    point("roles", "published, consumed", 1_000, **ROLES, log_bytes=900),
    point("roles", "published", 1_000, **ROLES),
    point("backlog", "kept", 0, restart_cpu_s=1.0),
)


def results(*points: dict[str, Any]) -> document.Document:
    machine = {"cores": 2, "cpu": "x", "memory_bytes": 1 << 30, "kernel": "6", "python": "3.11"}
    return {
        "date": "today",
        "commit": "abc",
        "product": "1",
        "quick": False,
        "minutes": 20,
        "machine": {**machine, "fsync_p50_ms": 0.5, "fsync_p99_ms": 1.0},
        "notes": ["size was not finished: x"],
        "points": list(points),
    }


def test_of_two_runs_each_point_is_kept_that_was_less_disturbed():
    first = [
        point("size", "publish", 1, cpu_us=1, others_percent=50),
        point("size", "publish", 2, cpu_us=2, others_percent=5),
        point("queues", "idle", 1, idle_percent=3),
    ]
    again = [
        point("size", "publish", 1, cpu_us=3, others_percent=10),
        point("size", "publish", 2, cpu_us=4, others_percent=9),
        point("size", "publish", 3, cpu_us=5, others_percent=9),
    ]

    kept = sums.least_disturbed(first, again)

    assert sorted(each["figures"].get("cpu_us", 0) for each in kept) == [0, 2, 3, 5]
    assert sums.least_disturbed(again, first)[0] is again[0]


def test_a_slope_is_what_each_one_more_adds():
    assert sums.slope(POINTS, "groups", "idle", "idle_percent") == pytest.approx(0.1)
    assert math.isnan(sums.slope(POINTS, "backlog", "kept", "restart_cpu_s"))


def test_a_message_costs_the_node_of_its_client_its_leader_and_two_followers():
    load = sums.loads(POINTS)[0]

    assert load.roles.sum_us == 10 + 20 + 2 * 5
    assert load.cores == 40
    assert load.processes == pytest.approx(40 / 0.6)
    assert load.machines * load.rate == pytest.approx(1_000_000 * 9)


def test_the_cost_of_many_queues_is_that_of_the_most_that_were_measured():
    titles = [load.title for load in sums.loads(POINTS)]

    assert titles == [
        "one queue, published",
        "1,000 queues, published",
        "1,000 queues, published and consumed",
    ]


def test_the_plan_shows_its_sums():
    lines = {line.what: line for line in sums.plan(POINTS)}

    assert lines["of which the catalog"].result.startswith("2.8 GB")
    assert lines["log"].result == "100 MB/s on each machine's disks"
    assert lines["network, sent by a machine"].result.startswith("167 MB/s = 1.3 Gbit/s")
    assert lines["CPU of a start, without a backlog"].result.startswith("21 s")
    assert lines["declaring all queues"].result.startswith("50 s")


def test_the_page_has_a_row_for_each_place_and_says_what_was_shared():
    text = document.text_of(results(*POINTS))

    assert "| 10,000 | 2,000 | 0.60 | 160 | – | – | – | – | – | – |" in text
    assert "| 1 | – | 0.50 | 60 | – | – | 40 | – | 50 | 40 |" in text
    assert "| 1,000 queues, published | 10 + 20 + 2 x 5 = 40 | 40 |" in text
    assert "over 15 % in 1 of 2" in text
    assert "size was not finished" in text
    assert "{{" not in text


def test_what_was_not_measured_is_a_dash():
    text = document.text_of(results())

    assert "Not measured in this run." in text
    assert "nan" not in text


def test_the_picture_and_the_results_stand_beside_the_page(tmp_path: Any):
    document.write(results(*POINTS), tmp_path)

    names = {path.name for path in (tmp_path / "scaling").iterdir()}
    assert names == {"results.json", "growth.png"}


def test_every_dimension_has_its_table():
    assert list(document.SHEETS) == list(DIMENSIONS)


def test_a_snapshot_of_a_machine_is_timed_as_a_whole_and_by_its_steps():
    figures = snapshot_cost(1_000)

    assert 0 < figures["snapshot_step_ms"] <= figures["snapshot_cpu_ms"]
