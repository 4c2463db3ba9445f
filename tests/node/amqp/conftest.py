"""One node for all tests of this folder, in a thread of its own, and connections to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.semantics.wire import Wire
from tests.node.nodes import Running, in_a_thread

Connect = Callable[[], Wire]


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with in_a_thread(tmp_path_factory.mktemp("amqp")) as running:
        yield running


@pytest.fixture
def connect(running: Running) -> Iterator[Connect]:
    """A connection with channel 1 open, as often as it is called."""
    made: list[Wire] = []
    url = f"amqp://guest:guest@{running.node.amqp.address}/%2F"

    def connected() -> Wire:
        wire = Wire(url)
        made.append(wire)
        wire.open()
        return wire

    yield connected
    for wire in made:
        wire.close()
