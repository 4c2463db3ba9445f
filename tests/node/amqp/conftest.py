"""One node for all tests of this folder, in a thread of its own, and connections to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node.nodes import Nodes
from tests.semantics.wire import Wire

Connect = Callable[[], Wire]

LONGEST_S = 20.0
POLL_S = 0.01


def until(check: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LONGEST_S
    while not check():
        assert time.monotonic() < end_s
        time.sleep(POLL_S)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="node")
    thread.start()
    folder: Path = tmp_path_factory.mktemp("amqp")
    nodes = Nodes(folder)
    asyncio.run_coroutine_threadsafe(nodes.__aenter__(), loop).result()
    yield f"amqp://guest:guest@{nodes.one.amqp.address}/%2F"
    asyncio.run_coroutine_threadsafe(nodes.__aexit__(None, None, None), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """A connection with channel 1 open, as often as it is called."""
    made: list[Wire] = []

    def connected() -> Wire:
        wire = Wire(url)
        made.append(wire)
        wire.open()
        return wire

    yield connected
    for wire in made:
        wire.close()
