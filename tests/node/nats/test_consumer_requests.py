"""Requests about consumers that come while another one about the same is under way: the copy here
does not say yet what becomes of it, like that of a leader that has just been replaced.
"""

# pyright: basic
from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests.node.nodes import Running
from tests.testkit.waiting import WAIT_S

CONFIG = {"durable_name": "c", "description": "old"}


@pytest.fixture
async def client(running: Running) -> AsyncIterator[Client]:
    listener = running.node.nats
    assert listener is not None
    client = await nats.connect(f"nats://{listener.address}", user="guest", password="guest")
    await both(client, ("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]}))
    for n in range(3):
        await client.jetstream().publish("s", b"%d" % n)
    await both(client, made())
    yield client
    await both(client, ("STREAM.DELETE.S", {}))
    await client.close()


def made(action: str = "", **more: Any) -> tuple[str, dict[str, Any]]:
    about = {"stream_name": "S", "config": CONFIG | more, "action": action}
    return "CONSUMER.CREATE.S.c", about


async def both(client: Client, *requests: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """They are asked one behind the other; nobody waits for an answer in between."""
    asked = [
        client.request(f"$JS.API.{verb}", json.dumps(about).encode(), timeout=WAIT_S)
        for verb, about in requests
    ]
    found = [json.loads(each.data) for each in await asyncio.gather(*asked)]
    assert not any("error" in each for each in found), found
    return found


async def config(client: Client) -> dict[str, Any]:
    (found,) = await both(client, ("CONSUMER.INFO.S.c", {}))
    return found["config"]


async def test_what_is_created_is_there_although_it_was_being_deleted(client: Client):
    await both(client, ("CONSUMER.DELETE.S.c", {}), made())
    assert (await config(client))["description"] == "old"


async def test_what_is_being_created_is_not_created_otherwise(client: Client):
    await both(client, ("CONSUMER.DELETE.S.c", {}))
    verb, about = made("create", description="new")
    asked = [
        client.request(f"$JS.API.{verb}", json.dumps(each).encode(), timeout=WAIT_S)
        for each in (made()[1] | {"config": CONFIG | {"ack_policy": "none"}}, about)
    ]
    found = [json.loads(each.data) for each in await asyncio.gather(*asked)]
    assert [each.get("error", {}).get("err_code") for each in found] == [None, 10148]


async def test_what_is_being_created_may_be_changed_only_as_far_as_it_can_be(client: Client):
    await both(client, ("CONSUMER.DELETE.S.c", {}))
    bodies = (made(ack_policy="none")[1], made(ack_policy="explicit")[1])
    asked = [
        client.request("$JS.API.CONSUMER.CREATE.S.c", json.dumps(each).encode(), timeout=WAIT_S)
        for each in bodies
    ]
    found = [json.loads(each.data) for each in await asyncio.gather(*asked)]
    assert [each.get("error", {}).get("err_code") for each in found] == [None, 10012]


async def test_what_is_being_created_can_be_deleted(client: Client):
    await both(client, ("CONSUMER.DELETE.S.c", {}))
    await both(client, made(), ("CONSUMER.DELETE.S.c", {}))


@pytest.mark.parametrize("verb", ["PAUSE", "RESET"])
async def test_who_pauses_or_resets_it_changes_nothing_else(client: Client, verb: str):
    about = {"pause_until": "2100-01-01T00:00:00Z"} if verb == "PAUSE" else {"seq": 2}
    await both(client, made("update", description="new"), (f"CONSUMER.{verb}.S.c", about))
    assert (await config(client))["description"] == "new"


async def test_who_creates_a_paused_one_again_does_not_resume_it(client: Client):
    """Applications do so whenever they start; to pause and to resume is its operator's."""
    until = "2100-01-01T00:00:00Z"
    await both(client, ("CONSUMER.PAUSE.S.c", {"pause_until": until}))
    for request in (
        made(),
        made("create"),
        made("update", description="new"),
        made(description="newer", pause_until="2200-01-01T00:00:00Z"),
    ):
        (found,) = await both(client, request)
        assert (found.get("paused"), found["config"].get("pause_until")) == (True, until)
    assert found["config"]["description"] == "newer"

    await both(client, ("CONSUMER.PAUSE.S.c", {}))
    (found,) = await both(client, made(pause_until=until))
    assert "paused" not in found
    assert "pause_until" not in found["config"]


async def test_who_resets_it_to_what_was_acknowledged_passes_over_what_is_being(client: Client):
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch": 2}', reply=inbox)
    first, second = [await subscription.next_msg(WAIT_S) for _ in range(2)]
    await client.publish(first.reply, b"+ACK")
    await client.publish(second.reply, b"+ACK")
    (found,) = await both(client, ("CONSUMER.RESET.S.c", {}))
    assert found["reset_seq"] == 3


@pytest.mark.parametrize("verb", ["DELETE", "PAUSE", "RESET"])
async def test_what_is_being_deleted_is_not_found(client: Client, verb: str):
    """As what has been is not: clients go by the number."""
    subjects = [f"$JS.API.CONSUMER.{each}.S.c" for each in ("DELETE", verb)]
    asked = [client.request(each, b"", timeout=WAIT_S) for each in subjects]
    _, found = [json.loads(each.data) for each in await asyncio.gather(*asked)]
    assert (found["error"]["code"], found["error"]["err_code"]) == (404, 10014)
