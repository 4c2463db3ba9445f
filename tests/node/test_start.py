"""A start that fails half way, and a stop in which something fails: nothing is left behind."""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster_node import ClusterNode
from cluster.log import FatalDiskError
from cluster.log.disk import RealDisk, RealFile
from cluster.machine.commands import Barrier
from cluster.types import CATALOG_GROUP
from node import node as node_module
from node.access.auth import Auth
from node.broker.vhost_quotas import VhostQuotas
from node.clients.relay import Relay
from node.clients.sessions import Sessions
from node.data_folder import DataFolder
from node.node import Node
from node.operating.drain import Drain
from node.protocols.amqp.server import AmqpServer
from node.protocols.http_server import HttpServer
from node.protocols.local_token import FILE as TOKEN
from node.settings.settings import SettingsError, load
from quorate.ports import free_port
from tests.node.nodes import until

ROOT = Path(__file__).parents[2]


def node_in(folder: Path, **flags: Any) -> Node:
    given = {
        "node": "n1",
        "data_dir": str(folder),
        "http": f"127.0.0.1:{free_port()}",
        "amqp": f"127.0.0.1:{free_port()}",
        "peer": f"127.0.0.1:{free_port()}",
        "log.min_free_bytes": 0,
    }
    return Node(load(environment={}, flags=given | flags))


def running() -> set[asyncio.Task[Any] | threading.Thread]:
    """Also what other tests have running for as long as this process lives."""
    return asyncio.all_tasks() | set(threading.enumerate())


async def leaves_nothing(node: Node, before: set[asyncio.Task[Any] | threading.Thread]) -> None:
    await until(lambda: not left_of(node, before))


def left_of(node: Node, before: set[asyncio.Task[Any] | threading.Thread]) -> list[str]:
    """What is still there of a node that has ended."""
    settings = node.settings
    left = [
        each.name if isinstance(each, threading.Thread) else f"task {each.get_name()}"
        for each in running() - before
        if isinstance(each, asyncio.Task) or each.name == "watchdog"
    ]
    for key, address in (
        ("http", settings.http),
        ("amqp", settings.amqp),
        ("peer", settings.peer),
    ):
        assert address is not None
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0:
                left.append(f"listener {key}")
    folder = DataFolder(settings.data_dir)
    try:
        folder.open()
    except SettingsError:
        left.append("the lock")
    folder.close()
    if (Path(settings.data_dir) / TOKEN).exists():
        left.append("the token")
    return left


@contextmanager
def taken() -> Generator[str]:
    """An address at which somebody else listens. What refuses connections counts as free here."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{other.getsockname()[1]}"


def registered_is_a_folder(folder: Path) -> None:
    (folder / "registered").mkdir(parents=True)


def token_cannot_be_written(folder: Path) -> None:
    (folder / f"{TOKEN}.new").mkdir(parents=True)


@pytest.mark.parametrize(
    ("break_it", "error", "says"),
    [
        (registered_is_a_folder, FatalDiskError, "registered failed"),
        (token_cannot_be_written, OSError, TOKEN),
    ],
)
async def test_a_start_that_a_file_stops_says_why_and_leaves_nothing(
    tmp_path: Path, break_it: Callable[[Path], None], error: type[Exception], says: str
):
    break_it(tmp_path)
    before = running()
    node = node_in(tmp_path)

    with pytest.raises(error, match=says):
        await node.start()

    await leaves_nothing(node, before)


@pytest.mark.parametrize("key", ["http", "peer", "amqp"])
async def test_a_start_that_a_port_stops_says_why_and_leaves_nothing(tmp_path: Path, key: str):
    before = running()
    with taken() as address:
        node = node_in(tmp_path, **{key: address})
        with pytest.raises((SettingsError, OSError), match="in use"):
            await node.start()

    await leaves_nothing(node, before)


async def test_a_start_that_is_cancelled_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reading = asyncio.Event()

    async def stuck(disk: RealDisk, path: str) -> None:
        reading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(RealDisk, "sync_dir", stuck)
    before = running()
    node = node_in(tmp_path)
    starting = asyncio.create_task(node.start())
    await reading.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    await leaves_nothing(node, before)


@pytest.mark.parametrize(
    "part",
    [Drain.stop, Sessions.stop, AmqpServer.stop, HttpServer.stop, ClusterNode.stop, Auth.close],
    ids=lambda part: part.__qualname__,
)
async def test_a_stop_in_which_a_part_fails_ends_the_others_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Callable[..., Any]
):
    async def fails(self: Any, **how: Any) -> None:
        ended = part(self, **how)
        if ended is not None:
            await ended
        raise RuntimeError(f"{part.__qualname__} failed")

    def fails_at_once(self: Any) -> None:
        part(self)
        raise RuntimeError(f"{part.__qualname__} failed")

    kind, name = part.__qualname__.split(".")
    broken = fails if inspect.iscoroutinefunction(part) else fails_at_once
    monkeypatch.setattr(vars(sys.modules[part.__module__])[kind], name, broken)
    before = running()
    node = node_in(tmp_path)
    await node.start()
    with pytest.raises(RuntimeError, match="failed"):
        await node.stop()

    await leaves_nothing(node, before)


@pytest.mark.parametrize(("part", "name"), [(Relay, "tick"), (VhostQuotas, "sample")])
async def test_a_node_whose_work_broke_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: type[Any], name: str
):
    """Without its relay a node loses consumers, without a look at its disk it fills it."""
    node = node_in(tmp_path)
    await node.start()
    try:

        def fails(_: Any) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(part, name, fails)
        node.relay._busy.set()  # it waits until there is something to look at
        async with asyncio.timeout(60):
            assert str(await node.failed) == "a bug"
    finally:
        monkeypatch.undo()
        await node.stop(transfer=False)


async def test_a_disk_that_answers_no_more_does_not_hold_up_the_end_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    is_stuck = asyncio.Event()

    async def stuck(_: RealFile) -> None:
        is_stuck.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(node_module, "CLUSTER_STOP_S", 0.0)
    before = running()
    node = node_in(tmp_path, stop_ms_max=1000)
    await node.start()
    await until(lambda: node.cluster.catalog.ready)
    monkeypatch.setattr(RealFile, "sync", stuck)
    node.cluster.propose(CATALOG_GROUP, Barrier())
    await is_stuck.wait()
    stopping = asyncio.create_task(node.stop())
    try:
        await asyncio.wait({stopping}, timeout=60)
        assert stopping.done()
    finally:
        monkeypatch.undo()
        stopping.cancel()
    await stopping

    await leaves_nothing(node, before)


#: A node in a process of its own, in which something takes for ever.
PROCESS = """
import asyncio, sys
from cluster.log.disk import RealDisk, RealFile
from cluster.machine.commands import Barrier
from cluster.types import CATALOG_GROUP
from node import node as node_module
from node import node
from node.operating.drain import Drain
from node.settings.settings import load, parse_flags

async def stuck(*_):
    print("stuck", file=sys.stderr, flush=True)
    await asyncio.Event().wait()

setattr({where}, stuck)
sys.exit(node.main(load(environment={{}}, flags=parse_flags(sys.argv[1:]))))
"""


def process(folder: Path, where: str) -> subprocess.Popen[str]:
    http, peer = free_port(), free_port()
    flags = ["--data-dir", str(folder), "--http", f"127.0.0.1:{http}", "--amqp", "off"]
    flags += ["--peer", f"127.0.0.1:{peer}", "--log.min-free-bytes", "0"]
    code = PROCESS.format(where=where)
    return subprocess.Popen(
        [sys.executable, "-c", code, *flags], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )


def read_until(node: subprocess.Popen[str], word: str) -> str:
    assert node.stderr is not None
    seen = ""
    while word not in seen:
        line = node.stderr.readline()
        assert line, seen
        seen += line
    return seen


def ends_well(node: subprocess.Popen[str]) -> str:
    """What it said last."""
    _, rest = node.communicate(timeout=100)
    assert node.returncode == 0, rest
    assert json.loads(rest.splitlines()[-1])["event"] == "node_stopped"
    return rest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_node_that_starts(tmp_path: Path, number: signal.Signals):
    """The first process of a container would not even be killed by one that it does not handle."""
    node = process(tmp_path, "RealDisk, 'sync_dir'")
    read_until(node, "stuck")
    node.send_signal(number)

    ends_well(node)


def test_a_second_signal_does_not_wait_for_the_others(tmp_path: Path):
    node = process(tmp_path, "Drain, 'until_others_came_back'")
    read_until(node, "node_registered")
    node.send_signal(signal.SIGTERM)
    read_until(node, "stuck")
    node.send_signal(signal.SIGTERM)

    assert "stop_asked_again" in ends_well(node)
