"""An event loop on which time passes when everybody waits, and then at once.

A test marked `virtual_time` and its fixtures run on one: `asyncio.sleep(3600)` takes no time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from typing import Any

import pytest


class _Selector(selectors.DefaultSelector):
    """Instead of sleeping, time jumps."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "every task waits and no timer is set"
            self._loop.ns += max(0, round(timeout * 1e9))
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A `tests.testkit.clocks.Moment`."""

    def __init__(self) -> None:
        self.ns = 1_000 * 10**9
        super().__init__(_Selector(self))
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.ns / 1e9


def running() -> VirtualLoop:
    """The loop of the test that runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "the test is not marked `virtual_time`"
    return loop


def loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """For the hook of pytest-asyncio."""
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}
