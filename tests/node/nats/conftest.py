"""One node, and three, for all tests of this folder, in threads of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import nats
import pytest
from nats.js.client import JetStreamContext

from node.protocols.nats.interest import Match
from tests.node.nats.wire import Wire
from tests.node.nodes import Nodes, Running, in_a_thread, until
from tests.testkit import threads
from tests.testkit.waiting import WAIT_S

Connect = Callable[..., Wire]


@dataclass(frozen=True)
class Three:
    """Nodes n1, n2 and n3, and their loop."""

    nodes: Nodes
    loop: asyncio.AbstractEventLoop

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def knows(self, node: str, subject: bytes, check: Callable[[Match], Any]) -> None:
        """Waits until what that node knows of a subject is so."""
        subjects = self.nodes.nodes[node].parts.subjects
        self.do(until(lambda: check(subjects.match("/", subject))))


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with in_a_thread(
        tmp_path_factory.mktemp("nats"), nats="127.0.0.1:0", nats_monitor="127.0.0.1:0"
    ) as running:
        yield running


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    nodes = Nodes(
        tmp_path_factory.mktemp("nats-three"), 3, nats="127.0.0.1:0", nats_monitor="127.0.0.1:0"
    )
    with threads.in_a_thread(nodes) as (entered, loop):
        yield Three(entered, loop)


@pytest.fixture
def wires() -> Iterator[Callable[..., Wire]]:
    made: list[Wire] = []

    def make(address: str, **options: Any) -> Wire:
        made.append(Wire(address, **options))
        return made[-1]

    yield make
    for wire in made:
        wire.close()


@pytest.fixture
def connect(running: Running, wires: Callable[..., Wire]) -> Connect:
    """A client of the one node, as often as it is called."""

    def connected(**options: Any) -> Wire:
        assert running.node.nats is not None
        assert running.node.nats.address is not None
        return wires(running.node.nats.address).connect(**options)

    return connected


@pytest.fixture
def at(three: Three, wires: Callable[..., Wire]) -> Connect:
    """A client of one of the three, by its name."""

    def connected(node: str, **options: Any) -> Wire:
        nats = three.nodes.nodes[node].nats
        assert nats is not None
        assert nats.address is not None
        return wires(nats.address).connect(**options)

    return connected


@pytest.fixture
async def contexts(three: Three) -> AsyncIterator[list[JetStreamContext]]:
    """A client of each node. What streams there were are gone."""
    clients = [
        await nats.connect(f"nats://{node.nats.address}", user="guest", password="guest")
        for _, node in sorted(three.nodes.nodes.items())
        if node.nats is not None
    ]
    found = [client.jetstream(timeout=WAIT_S) for client in clients]
    for each in await found[0].streams_info():
        await found[0].delete_stream(str(each.config.name))
    yield found
    for client in clients:
        await client.close()
