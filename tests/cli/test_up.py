"""What `quorate up` says of nodes that take long to start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quorate.cli.up import Progress, View
from quorate.local import LocalCluster, LocalNode, Reading

SEGMENTS = 60


@asynccontextmanager
async def reading(node: LocalNode) -> AsyncIterator[list[int]]:
    """At the address of the node, what a real one answers while it reads one segment after each
    question, and then that it is ready.
    """
    asked: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(len(asked))
        text = f"the log is being read: {asked[-1]} of {SEGMENTS} segments"
        if request.path == "/v1/status":
            return web.json_response({"code": "stopping", "reason": text}, status=503)
        if asked[-1] >= SEGMENTS:
            return web.json_response({"ok": True})
        return web.json_response({"ok": False, "reasons": [text]}, status=503)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", node.http).start()
    try:
        yield asked
    finally:
        await runner.cleanup()


@pytest.fixture
async def local_one(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Its process runs, and listens nowhere."""
    cluster = LocalCluster.prepare(tmp_path / "one", nodes=1, preferred_ports=False)
    node = cluster.nodes[0]
    node.process = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        yield cluster
    finally:
        await cluster.kill(node)
        await cluster.stop()


async def test_a_node_that_reads_its_log_is_waited_for_as_long_as_it_gets_on(
    local_one: LocalCluster,
):
    told: list[Reading] = []
    async with reading(local_one.nodes[0]):
        # In all it takes longer than that.
        await local_one.until_ready(timeout_s=2.0, told=lambda _, far: told.append(far))

    assert told == [Reading(read, SEGMENTS) for read in range(SEGMENTS)]
    assert str(told[40]) == "reading its log: 40 of 60 segments"


async def test_a_node_that_was_started_again_is_shown_reading(local_one: LocalCluster):
    node = local_one.nodes[0]
    async with reading(node), aiohttp.ClientSession() as http:
        view = View(local_one, http)
        await view.refresh()
        assert view.reading[node.name].segments == SEGMENTS
        assert node.name not in view.status
    await local_one.kill(node)
    await view.refresh()
    assert view.reading == {}


def test_how_far_it_is_is_said_once_a_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    node = LocalNode("node-1", 1, 2, 3, tmp_path)
    for as_json in (True, False):
        progress = Progress(as_json=as_json)
        for read in range(40, 90):
            progress.told(node, Reading(read, 100))

    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[0]) == {
        "event": "reading",
        "node": "node-1",
        "read": 40,
        "segments": 100,
    }
    assert err.splitlines()[0] == "node-1 is reading its log: 40 of 100 segments"
    assert len(out.splitlines()) < 50
