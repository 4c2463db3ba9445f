"""One node for all tests of this folder, in a thread of its own, and connections to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from node.node import Node
from tests.node.nodes import Nodes
from tests.semantics.wire import Wire

Connect = Callable[[], Wire]
T = TypeVar("T")

LONGEST_S = 60.0
POLL_S = 0.01


def until(check: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LONGEST_S
    while not check():
        assert time.monotonic() < end_s
        time.sleep(POLL_S)


@dataclass(frozen=True)
class Running:
    """The node, and its loop, which is the only place where it may be touched."""

    node: Node
    loop: asyncio.AbstractEventLoop

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="node")
    thread.start()
    folder: Path = tmp_path_factory.mktemp("amqp")
    nodes = Nodes(folder)
    asyncio.run_coroutine_threadsafe(nodes.__aenter__(), loop).result()
    yield Running(nodes.one, loop)
    asyncio.run_coroutine_threadsafe(nodes.__aexit__(None, None, None), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


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
