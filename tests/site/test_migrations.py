"""The migrations from RabbitMQ and from NATS, with what is left there to move."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import nats.js.api
import pika
import pytest
import pytest_asyncio

from quorate.local import LocalCluster
from tests.acceptance.bench.compare.peers import Missing, bring_nats
from tests.acceptance.clients.toolchains import MissingError, natscli
from tests.local_nodes import three_nodes
from tests.site.walks import Walk
from tests.testkit import rabbitmq
from tests.testkit.nats_server import NatsServers

MESSAGES = 100

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("walks"),
]


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with three_nodes(tmp_path / "cluster") as cluster:
        yield cluster


def program(folder: Path, name: str, *command: object, **environment: object) -> None:
    """A command of that name, which does this."""
    folder.mkdir(exist_ok=True)
    sets = " ".join(f"{key}={shlex.quote(str(value))}" for key, value in environment.items())
    line = " ".join(shlex.quote(str(word)) for word in command)
    (folder / name).write_text(f'#!/bin/sh\nexec env {sets} {line} "$@"\n')
    (folder / name).chmod(0o755)


async def test_from_rabbitmq_with_checks_and_back_again(cluster: LocalCluster, tmp_path: Path):
    if not rabbitmq.installed():
        pytest.skip("RabbitMQ is not installed. On Debian: apt-get install rabbitmq-server")
    names = rabbitmq.Names(tmp_path / "rabbit")
    process = rabbitmq.RabbitProcess(names)
    try:
        await asyncio.to_thread(process.start)
        await asyncio.to_thread(fill, process.url)
        control = [rabbitmq.PROGRAMS / "rabbitmqctl", "-n", process.name]
        program(tmp_path / "bin", "rabbitmqctl", *control, **owned(names))
        walk = Walk(
            cluster,
            tmp_path / "clone",
            programs=tmp_path / "bin",
            addresses={"rabbit.example:5672": f"127.0.0.1:{process.amqp}"},
        )

        assert await walk.through("guides/from-rabbitmq.md") > 10
    finally:
        process.kill()
        names.end()


def owned(names: rabbitmq.Names) -> dict[str, str]:
    """What it needs of its environment, besides what this process has."""
    return {k: v for k, v in names.environment.items() if os.environ.get(k) != v}


def fill(url: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("shop", "topic", durable=True)
        channel.queue_declare("orders", durable=True)
        channel.queue_bind("orders", "shop", "order.#")
        channel.confirm_delivery()
        for number in range(MESSAGES):
            body = f"order {number + 1}".encode()
            channel.basic_publish("shop", "order.new", body, mandatory=True)


async def test_from_nats_with_checks_and_back_again(cluster: LocalCluster, tmp_path: Path):
    try:
        server, _ = await asyncio.to_thread(bring_nats)
        tool = await natscli()
    except (Missing, MissingError) as missing:
        pytest.skip(str(missing))
    servers = NatsServers(server, tmp_path / "nats")
    try:
        await asyncio.to_thread(servers.start)
        address = f"127.0.0.1:{next(iter(servers.ports.values()))}"
        await fill_stream(f"nats://{address}")
        folder = tmp_path / "bin"
        program(folder, "nats", Path(tool.environment["PATH"].partition(os.pathsep)[0]) / "nats")
        walk = Walk(
            cluster, tmp_path / "clone", programs=folder, addresses={"nats.example:4222": address}
        )

        assert await walk.through("guides/from-nats.md") > 10
    finally:
        servers.stop()


async def fill_stream(url: str) -> None:
    """With a consumer that has acknowledged the first ten."""
    client = await nats.connect(url)
    js = client.jetstream(timeout=60)
    while True:
        try:
            await js.add_stream(name="ORDERS", subjects=["orders.>"], num_replicas=3)
            break
        except (nats.errors.Error, nats.js.errors.APIError, TimeoutError):
            await asyncio.sleep(0.2)  # they agree on who leads
    for number in range(MESSAGES):
        await js.publish("orders.new", f"order {number + 1}".encode())
    billing = await js.pull_subscribe("orders.>", durable="billing")
    for message in await billing.fetch(10, timeout=60):
        await message.ack_sync(timeout=60)
    await client.close()
