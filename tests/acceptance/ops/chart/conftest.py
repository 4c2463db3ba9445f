"""Tests that need helm are skipped, by name, where it cannot be had."""

from __future__ import annotations

import pytest

from tests.acceptance.ops.chart import tools


@pytest.fixture
def helm() -> None:
    """Whatever runs helm or a linter asks for this."""
    try:
        tools.helm()
        tools.validator()
    except tools.ToolMissing as missing:
        pytest.skip(f"helm is not there: {missing}")
