"""The dashboard that the chart ships, as a file; what Prometheus says to it: test_prometheus.py."""

from __future__ import annotations

import re
from typing import Any

import pytest

from helm.dashboard import COLUMNS, FILE, written
from tests.acceptance.ops.prom import dashboards

DASHBOARD = dashboards.read(FILE)
PANELS = list(dashboards.panels(DASHBOARD))
VARIABLES = {each["name"] for each in DASHBOARD["templating"]["list"]}


def squares(panel: dict[str, Any]) -> set[tuple[int, int]]:
    at = panel["gridPos"]
    return {
        (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    }


def test_the_file_is_what_the_script_writes():
    assert FILE.read_text() == written(), "run: python -m helm.dashboard"


def test_no_two_panels_have_one_id():
    ids = [panel["id"] for panel in PANELS]

    assert len(set(ids)) == len(ids)


def test_panels_stay_within_the_width_and_do_not_overlap():
    taken: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        for square in squares(panel):
            assert square not in taken, f"{panel['title']} lies on {taken[square]}"
            assert square[0] < COLUMNS
            taken[square] = panel["title"]


def test_rows_are_those_that_operators_look_for():
    rows = [panel["title"] for panel in PANELS if panel["type"] == "row"]

    assert rows == [
        "Overview",
        "Raft",
        "Queues",
        "Latency",
        "Disk and log",
        "Consumers",
        "Dead letters and links",
    ]


@pytest.mark.parametrize(
    "panel", [each for each in PANELS if each["type"] != "row"], ids=lambda each: each["title"]
)
def test_a_panel_has_a_unit_a_source_and_queries(panel: dict[str, Any]):
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["targets"]
    refs = [target["refId"] for target in panel["targets"]]
    assert len(set(refs)) == len(refs)


def test_variables_are_known_and_used():
    texts = [target.expr for target in dashboards.targets(DASHBOARD)]
    used = set(re.findall(r"\$\{?(\w+)", " ".join(texts))) - set(dashboards.BUILT_IN)

    assert {"datasource", "namespace", "cluster", "node"} == VARIABLES
    assert used == VARIABLES - {"datasource"}
    assert all("$node" in text for text in texts)
