"""The alert rules that the chart ships: each has a test that sees it fire and be silent."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.ops.prom import checks
from tests.architecture.sources import ROOT

RULES = ROOT / "helm/quorate/files/rules/quorate.yaml"
TESTS = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
METRICS = ROOT / "docs/metrics.md"
SEVERITIES = {"critical", "warning"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is missing, so rules are not run. On Debian: apt-get install prometheus",
)


@cache
def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def expectations(alert: str) -> list[list[str]]:
    """What each test of this alert expects: the series that fire, or none."""
    return [
        [sample["labels"] for sample in case["exp_samples"]]
        for file in TESTS
        for test in yaml.safe_load(file.read_text())["tests"]
        for case in test["promql_expr_test"]
        if f'alertname="{alert}"' in case["expr"]
    ]


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@needs_promtool
def test_prometheus_takes_the_rules():
    done = promtool("check", "rules", RULES)

    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_rules_fire_when_they_should_and_are_silent_otherwise(file: Path):
    done = promtool("test", "rules", file)

    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_a_rule_that_never_fires_does_not_pass(tmp_path: Path):
    broken = tmp_path / "rules.yaml"
    broken.write_text(RULES.read_text().replace("(quorate_raft_digest_mismatch) > 0", "(none) > 0"))
    tests = tmp_path / "raft.yaml"
    tests.write_text(
        TESTS[-1].read_text().replace(f"../../../../../{RULES.relative_to(ROOT)}", str(broken))
    )

    done = promtool("test", "rules", tests)

    assert done.returncode != 0
    assert "QuorateStateMismatch" in done.stdout + done.stderr


@pytest.mark.parametrize("alert", alerts())
def test_each_rule_has_a_test_that_sees_it_fire_and_one_that_sees_it_silent(alert: str):
    expected = expectations(alert)

    assert any(expected), (
        f"no test expects {alert} to fire: add one to tests/acceptance/ops/prom/rules"
    )
    assert not all(expected), f"no test expects {alert} to be silent: add one"


@pytest.mark.parametrize("alert", alerts())
def test_each_rule_says_how_bad_it_is_and_what_to_do(alert: str):
    rule = alerts()[alert]
    file, anchor = rule["annotations"]["runbook"].split("#")

    assert set(rule["labels"]) == {"severity"}
    assert rule["labels"]["severity"] in SEVERITIES
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert anchor == alert.lower()
    assert (ROOT / file) == METRICS
    assert f"\n### {alert}\n" in METRICS.read_text().partition("\n## Alerts\n")[2]


@pytest.mark.parametrize("alert", alerts())
def test_texts_name_only_labels_that_a_firing_alert_has(alert: str):
    texts = " ".join(alerts()[alert]["annotations"].values())
    named = set(re.findall(r"\$labels\.(\w+)", texts))
    firing = [series for each in expectations(alert) for series in each]

    # On machines without Kubernetes these two are not there, and the texts do without them.
    assert named - {"pod", "namespace"} <= set(re.findall(r'(\w+)="', firing[0]))


def test_what_rules_read_is_told_from_labels_and_from_what_they_record(tmp_path: Path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "groups: [{name: g, rules: [{alert: A, expr: 'max by (rabbitmq_node) (rabbitmq_b) > 0'},"
        " {record: 'A:rabbitmq_c', expr: 'sum(A:rabbitmq_c * on(x) erlang_d{e=\"kube-f\"})'}]}]"
    )

    assert [each.panel for each in checks.read_by(rules, "")] == ["erlang_d", "rabbitmq_b"]


def test_the_document_explains_no_alert_that_is_not_there():
    section = METRICS.read_text().partition("\n## Alerts\n")[2].partition("\n## ")[0]

    assert re.findall(r"^### (\w+)$", section, re.MULTILINE) == list(alerts())
