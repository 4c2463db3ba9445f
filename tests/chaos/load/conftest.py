"""Three real nodes, shared by the tests of one module."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from chaos.history import Recorder
from chaos.load.addresses import Address
from chaos.load.drivers import Drivers
from chaos.load.workload import Scene
from quorate.local import LocalCluster
from tests.local_nodes import three_nodes

SEED = 1
#: A calm cluster stays calm when the machine stands still for seconds. A node that ended is
#: replaced without a timeout.
SETTINGS = "raft.election_ms_min = 6000\nraft.election_ms_max = 9000\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("nodes") / "cluster"
    async with three_nodes(folder, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def drivers(cluster: LocalCluster) -> Drivers:
    addresses = [Address(node.name, node.url, node.amqp_url) for node in cluster.nodes]
    return Drivers(addresses, SEED)


@pytest.fixture
def scene(drivers: Drivers, tmp_path: Path) -> Scene:
    return Scene(Recorder(tmp_path / "history.jsonl"), drivers.open, SEED, nodes=drivers)
