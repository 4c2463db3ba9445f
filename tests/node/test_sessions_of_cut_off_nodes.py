"""The links of a node were reset though its process lives: groups end the sessions of its clients.
Nobody can tell it at that moment, and its clients must not wait for ever.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiormq
import pytest

from cluster.machine.commands import NodeDown
from tests.node.nodes import WAIT_S, Nodes


@pytest.mark.parametrize("comes_home", [False, True], ids=["led elsewhere", "led at home"])
async def test_an_amqp_client_hears_that_its_session_ended(tmp_path: Path, comes_home: bool):
    async with Nodes(tmp_path, 3) as nodes:
        home = nodes.nodes["n1"]
        connection = aiormq.Connection(f"amqp://guest:guest@{home.amqp.address}/%2F")
        await connection.connect()
        channel: Any = await connection.channel()
        await channel.queue_declare("orders", durable=True)
        await channel.basic_consume("orders", lambda _: None)
        info = home.cluster.queue_info("/", "orders")
        assert info is not None
        for node in nodes.nodes.values():  # what is told now does not arrive
            node.relay.notify_session_over = lambda *_: None  # type: ignore[method-assign]

        await nodes.led_by("n2", info.group)
        gone = NodeDown(home.cluster.node, home.cluster.links.incarnation, gone=True)
        assert (await nodes.nodes["n2"].cluster.ask(info.group, gone)).kind == "ok"
        await nodes.led_by("n1" if comes_home else "n3", info.group)

        await asyncio.wait([connection.closing], timeout=WAIT_S)  # type: ignore[list-item]
        assert connection.is_closed
