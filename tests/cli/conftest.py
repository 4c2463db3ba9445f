"""What tests of the command share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quorate.local import LocalCluster
from tests.local_nodes import three_nodes


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with three_nodes(tmp_path / "cluster") as cluster:
        yield cluster
