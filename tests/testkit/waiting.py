"""Waiting for what another task or process does: until it is so, or a limit that no slow machine
reaches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

#: Long: it is waited for what must come, on a machine that may be slow.
WAIT_S = 120.0
LOOK_S = 0.01
#: How long nothing happens where nothing is to happen.
QUIET_S = 0.2


async def until(
    check: Callable[[], Any] | Callable[[], Awaitable[Any]], *, within_s: float = WAIT_S
) -> Any:
    """What `check` answers, once that is true."""
    async with asyncio.timeout(within_s):
        while True:
            value = check()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(LOOK_S)


async def stays(check: Callable[[], Any], *, for_s: float = QUIET_S) -> None:
    """For what must not happen: `check` is true, and is still true after a while. On a machine that
    is slow it sees less, and does not fail for that.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + for_s
    while loop.time() < end_s:
        assert check()
        await asyncio.sleep(LOOK_S)
    assert check()


def wait_until(check: Callable[[], Any], *, within_s: float = WAIT_S) -> Any:
    """The same where nothing else has to go on in this thread."""
    end_s = time.monotonic() + within_s
    while not (value := check()):
        assert time.monotonic() < end_s, f"it did not happen within {within_s:g} s"
        time.sleep(LOOK_S)
    return value
