"""Clusters of fake nodes, and limits short enough to be reached in a test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import quorate
from tests.client.fake_node import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(3) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[quorate.Client]:
    async with quorate.connect(cluster.nodes[0].url, timeout=60) as client:
        yield client
