"""docs/postmortem.md says what there is."""

from __future__ import annotations

import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from chaos.postmortem.findings.catalogue import RULES, exit_status
from chaos.postmortem.limits import Limits

TEXT = (Path(__file__).parents[2] / "docs/postmortem.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", RULES)
def test_every_rule_is_in_the_document(code: str) -> None:
    rule = RULES[code]
    assert f"| `{code}` | {rule.severity} | {rule.rule} |" in TEXT


@pytest.mark.parametrize("limit", fields(Limits), ids=lambda limit: limit.name)
def test_every_threshold_is_in_the_document(limit: Field[Any]) -> None:
    name, default = limit.name, limit.default
    assert f"| `{name.replace('_', '-')}` | {default:,.10g} |" in TEXT


def test_the_worst_finding_decides_the_exit_status() -> None:
    assert exit_status(set()) == 0
    assert exit_status({"warning"}) == 1
    assert exit_status({"warning", "unreadable"}) == 3
    assert exit_status({"warning", "unreadable", "violation"}) == 5


def test_every_rule_has_an_incident_in_the_document() -> None:
    table = TEXT.split("## Incidents that tests plant")[1].split("\n## ")[0]
    incidents = [line for line in table.splitlines() if line.startswith("| ") and "`" in line]

    assert {code for line in incidents for code in re.findall(r"`(\w+)`", line)} == {*RULES}
    assert len(incidents) >= 20
