"""What a node tells clients when it has lost others."""

# pyright: basic
from __future__ import annotations

import json
from pathlib import Path

import nats
import pytest
from nats.js.api import ConsumerConfig

from tests.node.nodes import Nodes, until
from tests.testkit.waiting import WAIT_S

TYPE = "io.nats.jetstream.advisory.v1."


async def test_who_led_streams_and_is_alone_says_so(tmp_path: Path):
    soon = {"raft.election_ms_min": 600, "raft.election_ms_max": 900}
    async with Nodes(tmp_path, 3, nats="127.0.0.1:0", **soon) as nodes:
        listener = nodes.one.nats
        assert listener is not None
        first = await nats.connect(f"nats://{listener.address}", user="guest", password="guest")
        js = first.jetstream(timeout=WAIT_S)
        await js.add_stream(name="S", subjects=["s"])
        await js.add_consumer("S", ConsumerConfig(durable_name="c"))
        await first.close()
        leader = await nodes.leader("S")
        listener = nodes.nodes[leader].nats
        assert listener is not None
        client = await nats.connect(f"nats://{listener.address}", user="guest", password="guest")
        told = await client.subscribe("$JS.EVENT.ADVISORY.*.QUORUM_LOST.>")
        await client.flush()

        for name in [each for each in nodes.nodes if each != leader]:
            await nodes.stop(name, transfer=False)

        of_stream, of_consumer = [await told.next_msg(timeout=WAIT_S) for _ in range(2)]
        assert of_stream.subject == "$JS.EVENT.ADVISORY.STREAM.QUORUM_LOST.S"
        assert of_consumer.subject == "$JS.EVENT.ADVISORY.CONSUMER.QUORUM_LOST.S.c"
        about = json.loads(of_stream.data)
        assert about["type"] == f"{TYPE}stream_quorum_lost"
        up = [each["name"] for each in about["replicas"] if each["current"]]
        assert (len(about["replicas"]), up) == (3, [leader])
        about = json.loads(of_consumer.data)
        assert (about["type"], about["consumer"]) == (f"{TYPE}consumer_quorum_lost", "c")
        await client.close()


async def test_a_pull_that_was_sent_on_twice_ends_with_the_node_where_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The client's node did not know yet who leads."""
    async with Nodes(tmp_path, 3, nats="127.0.0.1:0") as nodes:
        first, second, leader = "n1", "n2", "n3"
        listener, cluster = nodes.nodes[first].nats, nodes.nodes[first].cluster
        assert listener is not None
        client = await nats.connect(f"nats://{listener.address}", user="guest", password="guest")
        js = client.jetstream(timeout=WAIT_S)
        await js.add_stream(name="S", subjects=["s"])
        await js.add_consumer("S", ConsumerConfig(durable_name="c"))
        info = cluster.queue_info("/", "S")
        assert info is not None
        await nodes.led_by(leader, info.group)
        assert await nodes.leader("S") == leader
        told = await client.subscribe("told")
        await client.flush()
        monkeypatch.setattr(cluster, "leader_of", lambda _: second)

        body = json.dumps({"batch": 1, "expires": 3_600_000_000_000}).encode()
        await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", body, reply="told")
        waiting = nodes.nodes[leader].parts.jetstream.leading
        await until(lambda: waiting.waiting(info, "c")[0])
        monkeypatch.undo()
        await nodes.stop(leader, transfer=False)

        found = await told.next_msg(timeout=WAIT_S)
        assert (found.headers or {})["Status"] == "409"
        await client.close()
