"""Deliveries that wait for their turn."""

# pyright: basic
from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import uvloop
from nats.js.api import ConsumerConfig

from tests.node.nodes import Nodes
from tests.testkit.waiting import WAIT_S

MESSAGES = 400


def test_a_timer_that_is_early_does_not_end_a_rate(tmp_path: Path):
    """Those of uvloop are rounded to milliseconds: these turns end a fraction of one later."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_received(tmp_path)) == MESSAGES


async def _received(folder: Path) -> int:
    async with Nodes(folder, 1, nats="127.0.0.1:0") as nodes:
        listener = nodes.one.nats
        assert listener is not None
        client = await nats.connect(f"nats://{listener.address}", user="guest", password="guest")
        js = client.jetstream(timeout=WAIT_S)
        await js.add_stream(name="S", subjects=["s"])
        await asyncio.gather(*(js.publish("s", b"x" * 333) for _ in range(MESSAGES)))
        inbox = await client.subscribe("to")
        rate = ConsumerConfig(deliver_subject="to", ack_policy="none", rate_limit_bps=998_000)
        await js.add_consumer("S", rate)
        count = 0
        for _ in range(MESSAGES):
            await inbox.next_msg(timeout=WAIT_S)
            count += 1
        await client.close()
        return count
