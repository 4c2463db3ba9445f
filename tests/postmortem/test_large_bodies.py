"""The logs of nodes through which large bodies went: their parts are entries, and no messages."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import quorate
from chaos.history import History, line_of
from cluster.machine.commands import BodyPart
from tests.node.amqp.test_large_bodies import LIMIT, MIB, body_of, of, send
from tests.node.nodes import Nodes, machine_of, until
from tests.testkit.draws import one_of_long

pytestmark = pytest.mark.spark


async def lives(folder: Path, history: History) -> list[str]:
    """c:1 and c:3 are delivered and settled, c:2 is purged, and c:4 is said to be confirmed."""

    def now() -> dict[str, Any]:
        return {"wall_ms": time.time_ns() // 1_000_000}

    async with Nodes(folder, 3, **{"limits.message_bytes_max": LIMIT}) as nodes:
        await nodes.declare("q")
        leader = await nodes.leader("q")
        info = nodes.one.cluster.queue_info("/", "q")
        assert info is not None
        groups = [node.cluster.groups[info.group] for node in nodes.nodes.values()]
        await until(lambda: all(group.machine.version >= 3 for group in groups))

        async def publish(number: int, size: int) -> None:
            value = {"queue": "q", "publisher": "c", "first": number, "count": 1, "ordered": True}
            invoked = history.invoke("c", "publish", value, **now())
            if size:
                body = b"c:%d|" % number + body_of(size)
                await of(nodes, send, nodes.one, body)
            history.end(invoked, "ok", **now())

        async def consume(client: Any, number: int) -> None:
            (found,) = await client.get("q")
            assert found.body.startswith(b"c:%d|" % number)
            value = {"queue": "q", "consumer": found._key, "messages": [f"c:{number}"]}
            seen = {"first": found.position, "token": found.token}
            counts = {"delivery_count": 0, "acquired_count": 0}
            history.saw("worker", "deliver", {**value, **seen, **counts}, **now())
            invoked = history.invoke("worker", "settle", {**value, "token": found.token}, **now())
            await found.settle()
            history.end(invoked, "ok", {"count": 1}, **now())

        await publish(1, 20 * MIB)
        await publish(2, 2 * MIB)
        async with quorate.connect(nodes.url(leader), timeout=60) as client:
            await consume(client, 1)
            assert await client.purge("q") == 1
            queue, _ = machine_of(nodes, "q")
            copy = nodes.nodes[leader].cluster.groups[info.group]
            await copy.ask(BodyPart(queue, "unfinished", 0, bytes(MIB // 2)))
            for group in groups:
                group.take_snapshot()
            await publish(3, 20 * MIB)
            for group in groups:
                group.take_snapshot()
            await consume(client, 3)
        await publish(4, 0)
        history.saw("harness", "drain", {"queue": "q"}, **now())
        paths = [node.settings.data_dir for node in nodes.nodes.values()]
    return [str(path) for path in paths]


@one_of_long("large bodies")
@pytest.mark.timeout(1200)
def test_large_messages_are_replayed_and_judged(tmp_path: Path, spark: Any) -> None:
    from chaos.postmortem.pipeline import Asked, run
    from chaos.postmortem.tables import Tables

    history = History()
    paths = asyncio.run(lives(tmp_path / "nodes", history))
    file = tmp_path / "history.jsonl"
    file.write_text("".join(map(line_of, history)))

    result = run(paths, tmp_path / "out", spark=spark, asked=Asked(history=file))

    rows = Tables(spark, tmp_path / "out" / "tables")["messages"].where("name = 'q'").collect()
    told = {row["position"]: (row["outcome"], row["deliveries"]) for row in rows}
    assert told == {1: ("settled", 1), 2: ("purged", 0), 3: ("settled", 1)}
    found = [(each["code"], each["message"]) for each in result.findings]
    # The disk of a busy machine may be slow to sync.
    assert [each for each in found if each[0] != "slow_sync"] == [("lost_message", "c:4")]
