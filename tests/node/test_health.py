"""Probes: what each of them says, and what it does not depend on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from cluster.log import RealDisk
from node import node as node_module
from node.node import Node
from node.settings.settings import load
from tests.node.nodes import Nodes, free_ports, until

PROBES = ("live", "startup", "ready", "quorum-critical")


async def probe(url: str, name: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/health/{name}") as answer:
        return answer.status, await answer.json()


async def ready(node: Node) -> bool:
    return node.health.why_not_ready() == []


async def test_a_node_that_is_well_says_so_to_everyone(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        await until(lambda: ready(nodes.one))
        for name in PROBES:
            assert await probe(nodes.url("n1"), name) == (200, {"ok": True, "reasons": []}), name


async def test_two_of_three_are_lost_and_the_last_one_stays_ready(tmp_path: Path):
    """Clients are not cut off from what it still can do."""
    async with Nodes(tmp_path, 3) as nodes:
        await until(lambda: ready(nodes.nodes["n1"]))
        await nodes.stop("n2", transfer=False)
        await nodes.stop("n3", transfer=False)
        await until(lambda: nodes.one.cluster.catalog.leader is None)

        assert (await probe(nodes.url("n1"), "ready"))[0] == 200
        assert (await probe(nodes.url("n1"), "live"))[0] == 200
        status, said = await probe(nodes.url("n1"), "quorum-critical")
        assert status == 503
        assert "catalog lacks n2, n3" in said["reasons"]


async def test_a_node_that_comes_back_is_ready_once_it_has_what_was_committed(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("orders")
        await nodes.stop("n3")
        await nodes.declare("invoices")
        committed = {group.id: group.commit_index for group in nodes.one.cluster.groups.values()}
        back = await nodes.start("n3")
        await until(lambda: ready(back))

        for group, index in committed.items():
            assert back.cluster.groups[group].applied_index >= index


async def test_while_a_copy_is_behind_its_node_is_not_ready_and_the_others_are_critical(
    tmp_path: Path,
):
    async with Nodes(tmp_path, 3) as nodes:
        for node in nodes.nodes.values():
            await until(lambda node=node: ready(node))
        nodes.nodes["n3"].catch_up.done = False  # as it says after its start

        status, said = await probe(nodes.url("n3"), "ready")
        assert (status, said["reasons"][0].split(":")[0]) == (503, "copies here are behind")
        status, said = await probe(nodes.url("n1"), "quorum-critical")
        assert (status, said["reasons"][0]) == (503, "catalog lacks n3")

        nodes.nodes["n3"].catch_up.done = True
        assert (await probe(nodes.url("n1"), "quorum-critical"))[0] == 200


async def test_without_a_quorum_a_node_is_ready_after_a_while(tmp_path: Path):
    async with Nodes(tmp_path, 3, **{"health.catch_up_ms_max": 3_000}) as nodes:
        for name in ("n1", "n2", "n3"):
            await nodes.stop(name, transfer=False)
        alone = await nodes.start("n1")
        assert alone.health.why_not_ready() != []
        await until(lambda: ready(alone))
        assert alone.cluster.catalog.leader is None


async def test_a_local_alarm_makes_a_node_unready(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        await until(lambda: ready(nodes.one))
        nodes.one.alarms.sample(disk=True)

        status, said = await probe(nodes.url("n1"), "ready")

        assert (status, said["reasons"]) == (503, ["this node is low on disk: see its disk_alarm"])
        assert (await probe(nodes.url("n1"), "live"))[0] == 200


async def test_probes_are_answered_while_the_log_is_read_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(node_module, "PROGRESS_S", 0.01)
    [port, peer] = free_ports(2)
    node = Node(
        load(
            environment={},
            flags={
                "node": "n1",
                "data_dir": str(tmp_path),
                "http": f"127.0.0.1:{port}",
                "peer": f"127.0.0.1:{peer}",
                "amqp": "off",
                "log.min_free_bytes": 0,
            },
        )
    )
    url = f"http://127.0.0.1:{port}"
    held = asyncio.Event()
    reading = asyncio.Event()

    async def slow(disk: RealDisk, path: str) -> None:
        reading.set()
        await held.wait()
        await sync_dir(disk, path)

    sync_dir = RealDisk.sync_dir
    RealDisk.sync_dir = slow
    try:
        starting = asyncio.create_task(node.start())
        await reading.wait()
        assert (await probe(url, "live"))[0] == 200
        for name in ("startup", "ready", "quorum-critical"):
            assert await probe(url, name) == (
                503,
                {"ok": False, "reasons": ["the node is starting"]},
            ), name
        async with aiohttp.ClientSession() as http:
            for path in ("/v1/status", "/v1/connect", "/metrics"):
                async with http.get(url + path) as answer:
                    assert answer.status == 503, path
                    assert (await answer.json())["code"] == "stopping"
        node.cluster.replay.segments, node.cluster.replay.read = 100, 40
        said = (await probe(url, "startup"))[1]
        assert said["reasons"] == ["the log is being read: 40 of 100 segments"]
        with structlog.testing.capture_logs() as logs:
            await until(lambda: any(each["event"] == "reading_log" for each in logs))
        assert (logs[0]["segments_read"], logs[0]["segments"]) == (40, 100)
    finally:
        RealDisk.sync_dir = sync_dir
        held.set()
    await starting
    assert (await probe(url, "startup"))[0] == 200
    await node.stop()


async def test_reading_the_log_says_how_many_segments_there_are(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        await nodes.stop("n1")
        again = await nodes.start("n1")

        assert again.cluster.replay.segments >= 1
        assert again.cluster.replay.read == again.cluster.replay.segments
