"""What earlier releases wrote: `.venv/bin/python -m tests.acceptance.upgrade.golden COMMIT NAME`.

Made once for each release, by its frozen source and three nodes of it: random histories of both
machines with their answers and states, a backup, and the log of a node. No file is ever made anew.
"""

from __future__ import annotations

import asyncio
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import aiohttp
import pika

import quorate
from cluster.log.format import segment_number
from tests.acceptance.upgrade import histories, releases
from tests.acceptance.upgrade.rehearsal import Fleet, Load, fleet

GOLDEN = Path(__file__).parent / "golden"
HISTORIES = "histories.cbor.xz"
#: With the folders `backup` and `log`.
FILES = "files.tar.xz"

BY_GUEST = {"Authorization": aiohttp.encode_basic_auth("guest", "guest")}
QUEUES: dict[str, dict[str, object]] = {
    "ranked": {"x-max-priority": 5},
    "dying": {
        "x-message-ttl": 50,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "end",
    },
    "few": {"x-max-length": 10, "x-overflow": "drop-head"},
    "full": {"x-max-length": 10, "x-overflow": "reject-publish"},
    "one": {"x-single-active-consumer": True, "x-delivery-limit": 2},
    "lost": {"x-expires": 60_000},
    "end": {},
}


async def make(commit: str, name: str) -> None:
    tree = releases.frozen(commit, [*releases.PACKAGES, "tests/__init__.py", "tests/machine"])
    place = GOLDEN / name
    place.mkdir(parents=True)
    made = subprocess.run(
        [sys.executable, histories.__file__],
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        check=True,
    )
    (place / HISTORIES).write_bytes(lzma.compress(made.stdout, preset=9))
    with tempfile.TemporaryDirectory(prefix="quorate-golden-") as folder:
        async with fleet(Path(folder), tree) as cluster, Load.on(cluster) as load:
            await features(cluster)
            await cluster.until_noted()
            await load.end()
            backup = Path(folder) / "backup"
            await cluster.quorate(tree, "backup", str(backup))
        log = cluster.nodes[0].folder / "data"
        with tarfile.open(place / FILES, "w:xz", preset=9) as tar:
            tar.add(backup, "backup")
            for part in sorted(log.iterdir()):
                if part.name == "snapshots" or segment_number(part.name) is not None:
                    tar.add(part, f"log/{part.name}")


async def features(cluster: Fleet) -> None:
    """Some of all that a group may hold."""
    node = cluster.nodes[0]
    async with aiohttp.ClientSession(f"{node.url}/api/", headers=BY_GUEST) as http:
        for path, body in {
            "vhosts/other": {},
            "users/eve": {"password": "p", "tags": "monitoring"},
            "permissions/other/eve": {"configure": "^$", "write": ".*", "read": ".*"},
            "exchanges/%2F/logs": {"type": "topic"},
            "policies/%2F/short-one": {"pattern": "^one$", "definition": {"max-length": 500}},
            "parameters/x/%2F/y": {"value": {"a": 1}},
            "vhost-limits/other/max-queues": {"value": 7},
        }.items():
            async with http.put(path, json=body) as answer:
                assert answer.status in (201, 204), path
    await asyncio.to_thread(_by_amqp, node.amqp_url)
    async with quorate.connect(cluster.urls) as client:
        await client.publish_many("one", [b"%d" % each for each in range(300)], batch=50)
        async with client.consume_batches("one", credit=40) as consumer:
            async for batch in consumer:
                await batch.settle()
                if b"200" in batch.bodies:
                    break


def _by_amqp(url: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    for name, arguments in QUEUES.items():
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_bind(name, "logs", f"{name}.#")
    for number in range(60):
        for name in QUEUES:
            said = pika.BasicProperties(
                priority=number % 7,
                headers={"n": number, "t": [1, "x", None]},
                expiration="40" if number % 5 == 0 and name == "ranked" else None,
                message_id=str(number),
            )
            channel.basic_publish("logs", f"{name}.x", b"%d" % number, said)
    for number in range(30):
        method, _, _ = channel.basic_get("ranked")
        if method is not None and number % 3:
            channel.basic_nack(method.delivery_tag, requeue=number % 3 == 1)
        elif method is not None:
            channel.basic_ack(method.delivery_tag)
    connection.close()


if __name__ == "__main__":
    asyncio.run(make(*sys.argv[1:]))
