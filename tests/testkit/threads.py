"""What runs on a loop in a thread of its own, for who blocks or has a loop already."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def in_a_thread(
    made: AbstractAsyncContextManager[T],
) -> Iterator[tuple[T, asyncio.AbstractEventLoop]]:
    """What it enters to, and its loop, which is the only place where that may be touched."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        entered = asyncio.run_coroutine_threadsafe(made.__aenter__(), loop).result()
        try:
            yield entered, loop
        finally:
            asyncio.run_coroutine_threadsafe(made.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
