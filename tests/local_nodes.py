"""Three real nodes on loopback, as `quorate up` starts them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from quorate.local import LocalCluster


@asynccontextmanager
async def three_nodes(folder: Path, *, settings: str = "") -> AsyncGenerator[LocalCluster]:
    cluster = LocalCluster.prepare(folder, preferred_ports=False, settings=settings)
    try:
        await cluster.start_all()
        await cluster.until_ready()
        yield cluster
    finally:
        # Those that are told to end together wait for each other for seconds.
        await asyncio.gather(*map(cluster.kill, cluster.nodes))
        await cluster.stop()
