"""Three real nodes on loopback, shared by the tests of one module."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from chaos.load.addresses import Address
from chaos.load.doors import Doors
from quorate.local import LocalCluster


@asynccontextmanager
async def three_nodes(folder: Path) -> AsyncGenerator[LocalCluster]:
    cluster = LocalCluster.prepare(folder, preferred_ports=False)
    try:
        await cluster.start_all()
        await cluster.until_ready()
        yield cluster
    finally:
        await cluster.stop()


def doors_of(cluster: LocalCluster, seed: int = 0) -> Doors:
    addresses = [Address(node.name, node.url, node.amqp_url) for node in cluster.nodes]
    return Doors(addresses, seed)
