"""What a consumer is given reaches somebody, whenever those who asked for it leave."""

# pyright: basic
from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from tests.node.nats.conftest import Running
from tests.testkit.waiting import WAIT_S

SECOND_NS = 1_000_000_000


@pytest.fixture
async def client(running: Running) -> AsyncIterator[Client]:
    address = f"nats://{running.node.nats.address}"
    client = await nats.connect(address, user="guest", password="guest")
    yield client
    for name in (await api(client, "STREAM.NAMES"))["streams"] or ():
        await api(client, f"STREAM.DELETE.{name}")
    await client.close()


async def api(client: Client, verb: str, **about: Any) -> dict[str, Any]:
    answer = await client.request(f"$JS.API.{verb}", json.dumps(about).encode(), timeout=WAIT_S)
    found = json.loads(answer.data)
    assert "error" not in found, found
    return found


async def make(client: Client, retention: str, **config: Any) -> None:
    await api(client, "STREAM.CREATE.S", name="S", subjects=["s"], retention=retention)
    about = {"stream_name": "S", "config": {"durable_name": "c", **config}}
    await api(client, "CONSUMER.CREATE.S.c", **about)


async def pull(client: Client, inbox: str, batch: int, seconds: float) -> None:
    ask = {"batch": batch, "expires": int(seconds * SECOND_NS)}
    await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", json.dumps(ask).encode(), reply=inbox)


async def bodies_of(subscription: Subscription, count: int) -> list[bytes]:
    return [(await subscription.next_msg(WAIT_S)).data for _ in range(count)]


async def emptied(client: Client) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await api(client, "STREAM.INFO.S"))["state"]["messages"]:
            await asyncio.sleep(0.01)


class TestWithoutAcknowledgements:
    @pytest.mark.parametrize("pushed", [False, True])
    async def test_what_goes_when_it_was_delivered_is_delivered(self, client: Client, pushed: bool):
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        more = {"deliver_subject": inbox} if pushed else {}
        await make(client, "interest", ack_policy="none", **more)
        for n in range(5):
            await client.jetstream().publish("s", b"%d" % n)
        if not pushed:
            await pull(client, inbox, 5, WAIT_S)

        assert await bodies_of(subscription, 5) == [b"0", b"1", b"2", b"3", b"4"]

        await emptied(client)
        info = await api(client, "CONSUMER.INFO.S.c")
        assert (info["num_ack_pending"], info["num_redelivered"]) == (0, 0)
        assert info["ack_floor"]["stream_seq"] == 5
