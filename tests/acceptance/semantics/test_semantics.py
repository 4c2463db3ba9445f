"""Every check against three real nodes, which all of them share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.rows import report
from tests.acceptance.rows.suite import Check, Result
from tests.acceptance.semantics.brokers import QuorateNodes
from tests.acceptance.semantics.suite import SUITE

pytestmark = pytest.mark.live
# One cluster for all: with `--dist loadgroup` only one worker starts it.
SHARED = pytest.mark.xdist_group("semantics")


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuorateNodes]:
    started = QuorateNodes(tmp_path_factory.mktemp("semantics") / "nodes")
    try:
        started.start()
        yield started
    finally:
        started.end()


@SHARED
@pytest.mark.parametrize("check", SUITE.checks(), ids=lambda check: check.__name__)
def test_row(check: Check, nodes: QuorateNodes) -> None:
    if missing := SUITE.lacks(check, nodes):
        pytest.skip("needs " + " and ".join(missing))
    SUITE.visit(check, nodes)


def test_every_row_in_scope_is_checked_or_says_why_not() -> None:
    rows = [f"A{number:02}" for number in range(1, 41)]
    rows += [f"B{number:02}" for number in range(1, 36)]
    rows += [f"C{number:02}" for number in range(1, 35)] + ["C42", "C53"]
    checked = {SUITE.row_of(check) for check in SUITE.checks()}

    assert sorted(checked | set(SUITE.not_checked)) == rows
    assert not checked & set(SUITE.not_checked)


def test_differences_are_named_for_rows_that_are_checked() -> None:
    checked = {SUITE.row_of(check) for check in SUITE.checks()}

    assert set(SUITE.differences) <= checked


def test_only_differences_by_design_are_expected() -> None:
    def result(row: str, kind: str) -> Result:
        return Result(row, f"{row.lower()}_x", "shows", kind)

    ours = [result("A27", "ok"), result("A01", "ok"), result("B08", "failed"), result("C53", "ok")]
    theirs = [
        result("A27", "differs"),
        result("A01", "failed"),
        result("B08", "ok"),
        result("C53", "not run"),
    ]

    found = report.differences(SUITE, ours, theirs)

    assert [(each.ours.id, each.expected) for each in found] == [
        ("A27", True),
        ("A01", False),
        ("B08", False),
    ]
