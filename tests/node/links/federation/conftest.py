"""Clusters of ours that federate with each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.node.links.federation.sites import OurSite
from tests.node.nodes import Nodes


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[list[OurSite]]:
    names = ("a", "b", "c")
    clusters = [Nodes(tmp_path / name, cluster=name) for name in names]
    await asyncio.gather(*[nodes.__aenter__() for nodes in clusters])
    sites = [OurSite(name, nodes) for name, nodes in zip(names, clusters, strict=True)]
    for site in sites:
        await site.open()
    yield sites
    for site in sites:
        await site.connection.close()
    await asyncio.gather(*[nodes.__aexit__(None, None, None) for nodes in clusters])
