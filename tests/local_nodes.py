"""Three real nodes on loopback, as `quorate up` starts them."""

from __future__ import annotations

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
        await cluster.stop()
