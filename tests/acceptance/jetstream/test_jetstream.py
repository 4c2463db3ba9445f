"""Every check against three real nodes, which all of them share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.jetstream.servers import QuorateServers
from tests.acceptance.jetstream.suite import SUITE
from tests.acceptance.rows.suite import Check

pytestmark = pytest.mark.live
#: On a machine that is busy a leader may be taken for dead, and then pulls end: that is no finding.
ELECTIONS_MAX = 3
# One cluster for all: with `--dist loadgroup` only one worker starts it.
SHARED = pytest.mark.xdist_group("jetstream")


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuorateServers]:
    started = QuorateServers(tmp_path_factory.mktemp("jetstream") / "nodes")
    try:
        started.start()
        yield started
    finally:
        started.end()


@SHARED
@pytest.mark.parametrize("check", SUITE.checks(), ids=lambda check: check.__name__)
def test_row(check: Check, servers: QuorateServers) -> None:
    if missing := SUITE.lacks(check, servers):
        pytest.skip("needs " + " and ".join(missing))
    for _ in range(ELECTIONS_MAX):
        try:
            SUITE.visit(check, servers)
        except AssertionError as error:
            if "Leadership Change" not in str(error):
                raise
        else:
            return
    SUITE.visit(check, servers)


def test_every_row_in_scope_is_checked_or_says_why_not() -> None:
    rows = [*(f"D{number:02}" for number in range(1, 31)), "N1", "N2"]
    checked = {SUITE.row_of(check) for check in SUITE.checks()}

    assert sorted(checked | set(SUITE.not_checked)) == rows


def test_differences_are_named_for_checks_that_there_are() -> None:
    names = {check.__name__ for check in SUITE.checks()}

    assert set(SUITE.differences) <= names | {SUITE.row_of(check) for check in SUITE.checks()}
