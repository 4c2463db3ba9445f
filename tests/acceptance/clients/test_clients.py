"""Real clients against three Quorate nodes on loopback: every step of each must be fine.

Those of a protocol share one cluster, so they run one after another in one process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.acceptance.clients.brokers import QuorateBroker, nats, quorate_nodes
from tests.acceptance.clients.roster import CLIENTS, NATS_CLIENTS, Client
from tests.acceptance.clients.running import Outcome, run_client

#: The slowest is first built by cargo; a program that hangs is given up earlier.
CLIENT_S_MAX = 1_200


def marked(client: Client) -> object:
    marks = [pytest.mark.toolchain] if client.toolchain else []
    return pytest.param(client, id=client.name, marks=marks)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[QuorateBroker]:
    async with quorate_nodes(tmp_path_factory.mktemp("clients") / "cluster") as broker:
        yield broker


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def nats_broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[QuorateBroker]:
    async with quorate_nodes(tmp_path_factory.mktemp("clients") / "cluster", nats) as broker:
        yield broker


@pytest.mark.clients
@pytest.mark.timeout(CLIENT_S_MAX)
@pytest.mark.xdist_group("clients")
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("client", [marked(client) for client in CLIENTS])
async def test_does_all_that_it_is_known_for_and_survives_the_leader_of_its_queue(
    client: Client, broker: QuorateBroker
):
    await passes(client, broker)


@pytest.mark.clients
@pytest.mark.timeout(CLIENT_S_MAX)
@pytest.mark.xdist_group("clients-nats")
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("client", [marked(client) for client in NATS_CLIENTS])
async def test_of_nats_does_the_same_through_the_death_of_its_streams_leader(
    client: Client, nats_broker: QuorateBroker
):
    await passes(client, nats_broker)


async def passes(client: Client, broker: QuorateBroker) -> None:
    results = await run_client(client, broker)

    failed = [f"{r.step}: {r.detail}" for r in results if r.outcome is Outcome.FAILED]
    assert failed == []
    if missing := {r.detail for r in results if r.outcome is Outcome.NOT_RUN}:
        pytest.skip(missing.pop())
