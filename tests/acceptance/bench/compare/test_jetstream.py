"""The probe of failovers ends when it is told to."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from nats.aio.client import Client

from tests.acceptance.bench.compare.jetstream import Probe


class Swallowing:
    """A client whose `flush` is done just when it is cancelled, which `wait_for` then hides."""

    def __init__(self) -> None:
        self.flushing = asyncio.Event()
        self.flushes = 0

    def new_inbox(self) -> str:
        return "_INBOX.probe"

    async def subscribe(self, *_: Any, **__: Any) -> None: ...
    async def publish(self, *_: Any, **__: Any) -> None: ...

    async def flush(self) -> None:
        self.flushes += 1
        self.flushing.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if self.flushes > 1:
                raise


async def test_a_probe_whose_client_swallows_a_cancellation_ends_all_the_same():
    client = Swallowing()

    async with asyncio.timeout(5), Probe(cast(Client, client), "subject").running():
        await client.flushing.wait()

    assert client.flushes == 1
