"""Tools that were written for RabbitMQ: rabbitmqadmin from Debian's package, and Flower."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from flower.utils.broker import RabbitMQ

from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes

IN_PACKAGE = "root/usr/bin/rabbitmqadmin"


@pytest.fixture(scope="session")
def rabbitmqadmin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script, from this machine or from its package; it needs no Erlang."""
    found = shutil.which("rabbitmqadmin")
    if found is not None:
        return Path(found)
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg")
    if apt is None or dpkg is None:
        pytest.skip("rabbitmqadmin is not installed, and there is no apt-get to get it with")
    folder = tmp_path_factory.mktemp("rabbitmqadmin")
    fetched = subprocess.run([apt, "download", "rabbitmq-server"], cwd=folder, check=False)
    packages = sorted(folder.glob("*.deb"))
    if fetched.returncode or not packages:
        pytest.skip("apt-get could not download rabbitmq-server")
    subprocess.run([dpkg, "-x", packages[0], folder / "root"], check=True)
    return folder / IN_PACKAGE


class Admin:
    """rabbitmqadmin, run for one node."""

    def __init__(self, script: Path, port: int) -> None:
        self._command = [sys.executable, str(script), "-H", "127.0.0.1", "-P", str(port)]

    async def run(self, *arguments: str, fails: bool = False) -> str:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert (process.returncode != 0) == fails, output.decode()
        return output.decode()

    async def listed(self, what: str, *columns: str) -> list[dict[str, Any]]:
        return json.loads(await self.run("-f", "raw_json", "list", what, *columns))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Api]:
    async with Nodes(tmp_path) as nodes:
        yield api_of(nodes.one)


@pytest.fixture
def admin(rabbitmqadmin: Path, node: Api) -> Admin:
    return Admin(rabbitmqadmin, node.port)


async def test_rabbitmqadmin_declares_publishes_gets_and_deletes(admin: Admin):
    await admin.run("declare", "queue", "name=q", "durable=true")
    await admin.run("declare", "queue", "name=typed", "queue_type=quorum")
    await admin.run("declare", "exchange", "name=e", "type=topic")
    await admin.run("declare", "binding", "source=e", "destination=q", "routing_key=a.*")
    assert "typed" in await admin.run("list", "queues")

    assert "published" in await admin.run("publish", "routing_key=q", "payload=hello")
    assert "NOT routed" in await admin.run("publish", "routing_key=nobody", "payload=x")
    published = await admin.run("publish", "exchange=e", "routing_key=a.b", "payload=there")
    assert "NOT" not in published
    assert await admin.listed("queues", "name", "messages") == [
        {"name": "q", "messages": 2},
        {"name": "typed", "messages": 0},
    ]

    got = await admin.run("get", "queue=q", "ackmode=ack_requeue_false", "count=1")
    assert "hello" in got
    await admin.run("purge", "queue", "name=q")
    assert (await admin.listed("queues", "name", "messages"))[0]["messages"] == 0

    bindings = await admin.listed("bindings", "source", "properties_key")
    assert {"source": "e", "properties_key": "a.%2A"} in bindings
    await admin.run(
        "delete",
        "binding",
        "source=e",
        "destination_type=queue",
        "destination=q",
        "properties_key=a.%2A",
    )
    await admin.run("delete", "exchange", "name=e")
    await admin.run("delete", "queue", "name=q")
    assert "Not found" in await admin.run("delete", "queue", "name=q", fails=True)
    assert [queue["name"] for queue in await admin.listed("queues", "name")] == ["typed"]


async def test_rabbitmqadmin_federates(admin: Admin):
    upstream = ("component=federation-upstream", "name=u")
    value = 'value={"uri":"amqp://","max-hops":2}'
    await admin.run("declare", "parameter", *upstream, value)
    wrong = 'value={"uri":"amqp://","max-hops":0}'
    assert "max-hops" in await admin.run("declare", "parameter", *upstream, wrong, fails=True)
    members = 'value=[{"upstream":"u"}]'
    await admin.run("declare", "parameter", "component=federation-upstream-set", "name=s", members)
    definition = 'definition={"federation-upstream-set":"s"}'
    await admin.run("declare", "policy", "name=f", "pattern=^fed", definition)
    assert [each["name"] for each in await admin.listed("parameters", "name")] == ["u", "s"]
    assert [each["name"] for each in await admin.listed("policies", "name")] == ["f"]
    await admin.run("delete", "policy", "name=f")
    await admin.run("delete", "parameter", *upstream)


async def test_rabbitmqadmin_administers(admin: Admin, tmp_path: Path):
    await admin.run("declare", "vhost", "name=v")
    await admin.run("declare", "user", "name=u", "password=p", "tags=monitoring")
    await admin.run("declare", "permission", "vhost=v", "user=u", "configure=", "write=", "read=.*")
    await admin.run("declare", "policy", "name=p", "pattern=^q", 'definition={"max-length":3}')
    await admin.run(
        "declare", "operator_policy", "name=o", "pattern=^q", 'definition={"max-length":2}',
        "priority=1", "apply-to=queues",
    )  # fmt: skip
    await admin.run("declare", "vhost_limit", "vhost=v", "name=max-queues", "value=5")
    shovel = ("component=shovel", "name=s")
    value = '{"src-uri":"amqp://","src-queue":"q","dest-uri":"amqp://","dest-queue":"q2"}'
    half = 'value={"src-uri":"amqp://"}'
    assert "src-queue" in await admin.run("declare", "parameter", *shovel, half, fails=True)
    await admin.run("declare", "parameter", *shovel, f"value={value}")
    assert [row["name"] for row in await admin.listed("parameters", "name")] == ["s"]
    await admin.run("delete", "parameter", *shovel)
    mirrored = ("name=ha", "pattern=^q", 'definition={"ha-mode":"all"}')
    assert "ha-mode: " in await admin.run("declare", "policy", *mirrored, fails=True)
    await admin.run("declare", "queue", "name=q")
    for what in (
        "connections",
        "channels",
        "consumers",
        "exchanges",
        "queues",
        "bindings",
        "users",
        "vhosts",
        "permissions",
        "nodes",
        "parameters",
        "policies",
        "operator_policies",
        "vhost_limits",
    ):
        await admin.run("list", what)
    assert "Quorate" in await admin.run("show", "overview", "product_name", "cluster_name")
    (policy,) = await admin.listed("policies")
    assert (policy["name"], policy["definition"]) == ("p", {"max-length": 3})

    file = tmp_path / "definitions.json"
    await admin.run("export", str(file))
    exported = json.loads(file.read_text())
    await admin.run("delete", "vhost", "name=v")
    await admin.run("delete", "policy", "name=p")
    await admin.run("delete", "user", "name=u")
    await admin.run("import", str(file))
    await admin.run("export", str(file))
    assert json.loads(file.read_text()) == exported


@pytest.mark.parametrize("vhost", ["", "/", "v"])
async def test_flower_shows_the_queues_of_its_broker(node: Api, vhost: str):
    await node.put("vhosts/v")
    await node.queue("celery", vhost=vhost or "/")
    await node.queue("other", vhost=vhost or "/")
    broker: Any = RabbitMQ(
        f"amqp://guest:guest@localhost/{vhost}",
        f"http://guest:guest@127.0.0.1:{node.port}/api/",
    )

    shown = await broker.queues(["celery"])

    assert [each["name"] for each in shown] == ["celery"]
    fields = ("messages", "messages_unacknowledged", "messages_ready", "consumers")
    assert [shown[0][field] for field in fields] == [0, 0, 0, 0]
