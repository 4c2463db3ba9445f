"""What tests of the command share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from quorate.cli import output
from quorate.local import LocalCluster
from tests.local_nodes import three_nodes


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with three_nodes(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def no_login_is_left() -> Iterator[None]:
    """Commands run in this process, and tests after them do too."""
    yield
    for name, value in asdict(output.Login()).items():
        setattr(output.login, name, value)
