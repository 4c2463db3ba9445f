"""x-cancel-on-ha-failover: the client hears of its end before the next leader does (C42)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiormq
import pytest

from cluster.machine.commands import Cancel
from tests.node.nodes import Nodes, machine_of, until


@pytest.mark.parametrize("no_ack", [False, True], ids=["acks", "no ack"])
@pytest.mark.parametrize("before", ["n1", "n2"], ids=["led at home", "led elsewhere"])
async def test_what_the_next_leader_hands_to_a_cancelled_consumer_goes_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, no_ack: bool
):
    async with Nodes(tmp_path, 3) as nodes:
        home = nodes.nodes["n1"]
        url = f"amqp://guest:guest@{home.amqp.address}/%2F"
        told, other = aiormq.Connection(url), aiormq.Connection(url)
        await told.connect()
        await other.connect()
        cancelled: Any = await told.channel()
        staying: Any = await other.channel()
        got: list[str] = []

        def take(who: str) -> Any:
            async def taken(message: Any) -> None:
                got.append(f"{who} {message.body.decode()}")

            return taken

        await staying.queue_declare("orders", durable=True)
        info = home.cluster.queue_info("/", "orders")
        assert info is not None

        await nodes.led_by(before, info.group)
        asked = {"x-cancel-on-ha-failover": True}
        await cancelled.basic_consume(
            "orders", take("told"), no_ack=no_ack, consumer_tag="told", arguments=asked
        )
        await staying.basic_publish(b"held", routing_key="orders")
        await until(lambda: got == ["told held"])
        await staying.basic_consume("orders", take("other"), no_ack=no_ack)

        held_back = asyncio.Event()
        ask = home.broker.ask

        async def slow(group: Any, command: Any) -> Any:
            if type(command) is Cancel:
                await held_back.wait()
            return await ask(group, command)

        monkeypatch.setattr(home.broker, "ask", slow)
        await nodes.led_by("n3", info.group)
        await until(lambda: "told" not in cancelled.consumers)  # the client knows of it
        queue, machine = machine_of(nodes, "orders")

        def subscribed() -> int:
            return sum(each.status != "cancelled" for each in machine.queue(queue).consumers)

        assert subscribed() == 2  # the leader does not

        for number in range(4):
            await staying.basic_publish(b"%d" % number, routing_key="orders")
        await until(lambda: len(got) == 5)
        assert sorted(got[1:]) == [f"other {number}" for number in range(4)]

        held_back.set()
        await until(lambda: subscribed() == 1)
        await told.close()
        if not no_ack:  # what its client had goes back with its channel
            await until(lambda: "other held" in got)
        await other.close()
