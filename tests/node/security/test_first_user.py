"""A new cluster has the user of its settings, and then no guest."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError

from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes, until
from tests.node.security.processes import get

GIVEN = {"default_user": "admin", "default_password": "of the settings"}


def at(nodes: Nodes, password: str = "of the settings") -> Api:
    return api_of(nodes.one).as_user("admin", password)


async def test_it_is_there_instead_of_guest_on_every_protocol(tmp_path: Path):
    async with Nodes(tmp_path, 3, **GIVEN) as nodes:
        for node in nodes.nodes.values():
            api = api_of(node).as_user("admin", "of the settings")
            assert [user["name"] for user in await api.get("users")] == ["admin"]
            assert (await api_of(node).ask("GET", "whoami")).status == 401
            assert (await get(f"http://{node.http_address}/v1/status"))[0] == 401
            assert node.amqp.address is not None
            port = int(node.amqp.address.rpartition(":")[2])

            def use(user: str, password: str, port: int = port) -> None:
                credentials = pika.PlainCredentials(user, password)
                parameters = pika.ConnectionParameters("127.0.0.1", port, credentials=credentials)
                with pika.BlockingConnection(parameters) as connection:
                    connection.channel().queue_declare("q", durable=True)

            await asyncio.to_thread(use, "admin", "of the settings")
            with pytest.raises(AMQPError):
                await asyncio.to_thread(use, "guest", "guest")


async def test_later_settings_change_nobody(tmp_path: Path):
    async with Nodes(tmp_path, **GIVEN) as nodes:
        await until(lambda: is_there(nodes))
        assert await at(nodes).put("users/admin", password="a new one", tags="administrator")
        await nodes.stop("n1")
        await nodes.start("n1")
        assert (await at(nodes, "a new one").get("whoami"))["name"] == "admin"
        assert (await at(nodes).ask("GET", "whoami")).status == 401


async def test_guest_may_be_the_one_with_a_password_of_its_own(tmp_path: Path):
    given = {"default_user": "guest", "default_password": "of the settings"}
    async with Nodes(tmp_path, **given) as nodes:
        api = api_of(nodes.one).as_user("guest", "of the settings")
        assert [user["name"] for user in await api.get("users")] == ["guest"]
        assert (await api_of(nodes.one).ask("GET", "whoami")).status == 401


async def is_there(nodes: Nodes) -> bool:
    return (await at(nodes).ask("GET", "whoami")).status == 200
