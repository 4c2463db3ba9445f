from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """One node."""
    async with Nodes(tmp_path) as nodes:
        yield api_of(nodes.one)
