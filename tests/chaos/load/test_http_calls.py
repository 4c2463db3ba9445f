"""What is asked over HTTP is asked once, or surely did nothing before."""

from __future__ import annotations

import asyncio
import random

from chaos.load.addresses import Address, Chooser
from chaos.load.http_calls import HttpCalls


async def test_a_request_whose_answer_was_lost_is_not_sent_again():
    asked: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        address = Address("n1", f"http://{host}:{port}", f"amqp://guest:guest@{host}:1/%2F")
        calls = HttpCalls(Chooser([address], random.Random(1)))
        answer = await calls.call("DELETE", "/api/bindings/x")
        await calls.close()

    assert (answer.type, len(asked)) == ("unknown", 1)
