"""A real Prometheus: what it says to the boards and rules, and that the checks can fail."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.ops.prom import checks, rabbitmq
from tests.acceptance.ops.prom.checks import Outcome
from tests.acceptance.ops.prom.dashboards import Target, filled
from tests.acceptance.ops.prom.server import installed, prometheus
from tests.architecture.sources import ROOT

pytestmark = [
    pytest.mark.ops,
    pytest.mark.skipif(
        not installed(),
        reason="prometheus is missing, so boards and rules are not tried."
        " On Debian: apt-get install prometheus",
    ),
]


@pytest.mark.timeout(600)
def test_all_that_dashboards_and_rules_ask_for_is_there(tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "tests.acceptance.ops.prom",
        "--seconds",
        "10",
        "--patience",
        "40",
    ]

    done = subprocess.run(
        [*command, "--quiet"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


async def test_what_has_no_data_and_what_cannot_be_read_fails(tmp_path: Path):
    asked = [
        Target("board", "nothing", "A", "no_such_metric"),
        Target("board", "broken", "A", "sum(("),
        Target("board", "unknown variable", "A", "vector($nobody)"),
        Target("board", "something", "A", "vector(1)"),
    ]

    async with prometheus(tmp_path / "prometheus", [], []) as server:
        found = await checks.expressions(server, asked, {}, until=time.monotonic())

    by_panel = {each.part: each for each in found}
    assert by_panel["nothing A"].detail == "no data"
    assert "parse error" in by_panel["broken A"].detail
    assert "nobody" in by_panel["unknown variable A"].detail
    assert [part for part, each in by_panel.items() if each.outcome is Outcome.OK] == [
        "something A"
    ]


async def test_a_rule_that_fires_on_a_cluster_that_is_well_fails(tmp_path: Path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "groups: [{name: g, rules: [{alert: Always, expr: vector(1), labels: {severity: critical}},"
        " {alert: Never, expr: vector(1) > 1, labels: {severity: critical}}]}]"
    )

    async with prometheus(tmp_path / "prometheus", [], [rules]) as server:
        found = await checks.loaded_rules(server, until=time.monotonic() + 10)

    assert {each.part: each.outcome for each in found} == {
        "Always": Outcome.FAILED,
        "Never": Outcome.OK,
    }


def test_variables_are_replaced_in_all_their_forms():
    expr = 'rate(x{a="$a", b=~"${b}", c=~"${b:regex}"}[$__rate_interval])'

    assert filled(expr, {"a": "1", "b": "2"}) == 'rate(x{a="1", b=~"2", c=~"2"}[15s])'


def test_a_folder_that_lacks_a_file_of_rabbitmqs_says_how_to_get_it(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"Overview\.json is missing.\n.*were not checked"):
        rabbitmq.files(tmp_path)
