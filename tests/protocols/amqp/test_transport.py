"""The socket of a connection, on the loop that nodes run on."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

import uvloop

from cluster.read_slices import SLICE_BYTES
from node.protocols.amqp.wire import Wire

BODY_BYTES = 32 << 20


class Reads(asyncio.Protocol):
    """Notes how much is read in each turn of the loop."""

    def __init__(self) -> None:
        self.turn = 0
        self.bytes = Counter[int]()
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = Wire(cast("asyncio.Transport", transport), buffer_bytes_max=1 << 20)

    def data_received(self, data: bytes) -> None:
        self.bytes[self.turn] += len(data)
        self.wire.received(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


async def reads_of_a_large_body() -> Reads:
    reads = Reads()
    server = await asyncio.get_running_loop().create_server(lambda: reads, "127.0.0.1", 0)
    turns = asyncio.create_task(reads.count_turns())
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(bytes(BODY_BYTES))
    writer.close()
    async with asyncio.timeout(60):
        await reads.ended.wait()
    turns.cancel()
    server.close()
    return reads


def test_what_comes_fast_is_read_in_slices_and_others_have_their_turn_in_between() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        reads = runner.run(reads_of_a_large_body())
    assert reads.wire.received_bytes == BODY_BYTES
    assert not reads.wire.paused
    assert max(reads.bytes.values()) < 2 * SLICE_BYTES
