"""docs/security.md names tests and limits that exist."""

from __future__ import annotations

import ast
import importlib
import re

import pytest

from node.settings.settings import fields
from tests.architecture.sources import ROOT

DOCUMENT = ROOT / "docs" / "security.md"
#: | threat | what stands against it | setting or limit | test |
COLUMNS = 4


def rows() -> list[list[str]]:
    found: list[list[str]] = []
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        if len(cells) == COLUMNS and not set(cells[0]) <= set("-: ") and cells[0] != "threat":
            found.append(cells)
    return found


def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:50])
def test_each_threat_has_an_answer_and_tests_that_exist(row: list[str]):
    _, answer, _, tests = row
    assert len(answer) > 10
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
    assert named
    assert len(named) == tests.count("`") // 2
    for path, name in named:
        assert name in functions(path), f"{path} has no {name}"


def test_the_table_is_whole():
    assert len(rows()) > 30


def test_settings_and_constants_that_are_named_exist():
    text = DOCUMENT.read_text(encoding="utf-8")
    known = {key.partition(".")[0] for key in fields() if "." in key}
    for section, name in re.findall(r"`(\w+)\.(\w+)[^`]*`", text):
        if section in known and name != "":
            assert f"{section}.{name}" in fields() or f"`{section}.{name}*`" in text
    for names, module in re.findall(r"\|([^|]*)\(`([\w/]+)\.py`\)", text):
        found = importlib.import_module(module.replace("/", "."))
        for name in re.findall(r"`([A-Z][A-Z_]+)`", names):
            assert hasattr(found, name), f"{module} has no {name}"
