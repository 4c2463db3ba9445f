"""A node's life: its folder, its start, its graceful end."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

from node.data_folder import DataFolder, FolderInUse
from node.operating.logs import configure_logs
from node.settings.settings import SettingsError, load
from tests.node.nodes import Client, Nodes, free_ports, until
from tests.testkit.clocks import FakeClock

ROOT = Path(__file__).parents[2]


def test_a_folder_has_one_owner(tmp_path: Path):
    first, second = DataFolder(str(tmp_path)), DataFolder(str(tmp_path))
    first.open()
    with pytest.raises(FolderInUse, match=f"process {os.getpid()}"):
        second.open()
    first.close()
    second.open()
    second.close()


def test_a_folder_that_cannot_be_made_is_a_bad_setting(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="data_dir"):
        DataFolder(str(tmp_path / "file" / "inside")).open()


def test_a_new_folder_outlives_a_power_failure_and_so_does_each_that_was_made_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: list[Path] = []
    fsync = os.fsync

    def recorded(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    for _ in range(2):
        folder = DataFolder(str(tmp_path / "var" / "quorate" / "n1"))
        folder.open()
        folder.close()

    made = [tmp_path / "var" / "quorate", tmp_path / "var", tmp_path]
    assert synced == [*made, tmp_path / "var" / "quorate"]


def test_incarnations_grow_though_the_clock_stands_still(tmp_path: Path):
    folder = DataFolder(str(tmp_path))
    clock = FakeClock()

    assert [folder.next_incarnation(clock) for _ in range(3)] == [
        clock.wall + each for each in range(3)
    ]


async def test_a_second_start_in_the_same_folder_is_refused(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        with pytest.raises(FolderInUse, match="is in use"):
            await nodes.start("n1")


async def test_a_port_that_is_taken_is_a_bad_setting(tmp_path: Path):
    async with Nodes(tmp_path / "a") as nodes:
        taken = nodes.one.http_address
        with pytest.raises(SettingsError, match="http: cannot listen"):
            await Nodes(tmp_path / "b", http=taken).start("n1")


async def test_what_was_confirmed_is_there_after_a_restart(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        await nodes.declare("orders")
        async with Client(nodes.url("n1")) as client:
            await client.publish("orders", b"a", b"b")
        await nodes.stop("n1")
        await nodes.start("n1")
        await until(nodes.settled)
        async with Client(nodes.url("n1")) as client:
            await client.ask(20, 1, "orders", {})
            assert await client.deliveries(2) == [(1, b"a"), (2, b"b")]


async def test_a_stop_tells_clients_to_go_elsewhere(tmp_path: Path):
    async with Nodes(tmp_path) as nodes, Client(nodes.url("n1")) as client:
        closing = asyncio.create_task(client.closed())
        await nodes.stop("n1")
        assert await closing == 4013


async def test_a_stop_under_load_confirms_what_it_took_and_is_quick(tmp_path: Path):
    # So long that an end in a part of it is no matter of how fast the machine is.
    flags: dict[str, Any] = {"stop_ms_max": 200_000}
    async with Nodes(tmp_path, **flags) as nodes, Client(nodes.url("n1")) as client:
        await nodes.declare("orders")
        sent = 0

        async def load() -> None:
            nonlocal sent
            while not client.socket.closed:
                await client.send(10, sent + 1, "orders", "p", sent + 1, [b"x"], None, None)
                sent += 1

        loading = asyncio.create_task(load())
        ending = asyncio.create_task(client.closed())
        await until(lambda: sent > 500)
        async with asyncio.timeout(100):  # less than that: it does not wait for the load's end
            await nodes.stop("n1")
        assert await ending == 4013
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        confirmed = [one[0] for frame in client.seen if frame[0] == 11 for one in frame[1]]
        assert confirmed == list(range(1, len(confirmed) + 1))

        await nodes.start("n1")
        await until(nodes.settled)
        async with Client(nodes.url("n1")) as later:
            stored = (await later.ask(54, 1, "orders"))[2]["messages"]
        assert stored >= len(confirmed)


async def test_a_stop_hands_leaderships_over(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("orders")
        leader = await nodes.leader("orders")
        terms = {}
        for name, node in nodes.nodes.items():
            info = node.broker.locate("/", "orders")
            assert info is not None
            terms[name] = node.cluster.groups[info.group].term
        await nodes.stop(leader)
        successor = await nodes.leader("orders")
        assert successor != leader


def test_log_lines_are_json_unless_people_read_them():
    try:
        stream = io.StringIO()
        configure_logs(load(environment={}), stream)
        structlog.get_logger().info("leader_changed", group=3)
        line = json.loads(stream.getvalue())
        assert (line["event"], line["group"], line["level"]) == ("leader_changed", 3, "info")

        stream = io.StringIO()
        configure_logs(load(environment={}, flags={"log_format": "human"}), stream)
        structlog.get_logger().debug("hidden")
        structlog.get_logger().info("leader_changed", group=3)
        assert "leader_changed" in stream.getvalue()
        assert "hidden" not in stream.getvalue()
    finally:
        structlog.reset_defaults()


@pytest.mark.parametrize("log_format", ["human", "json"])
async def test_a_traceback_has_no_values_of_variables(log_format: str):
    """Buffers of the log hold bodies of messages; checks of logins hold passwords."""
    stream = io.StringIO()

    def write(buffers: list[bytes], password: str) -> None:
        kept = dict.fromkeys(buffers, password)
        raise OSError(28, f"No space left for {len(kept)}")

    try:
        configure_logs(load(environment={}, flags={"log_format": log_format}), stream)
        log = structlog.get_logger()
        try:
            first = 7_000  # source lines are shown
            write([b"body-%d" % (first + 1)], f"password-{first + 2}")
        except OSError as error:
            log.exception("listener_failed")
            log.error("node_failed", exc_info=error)
    finally:
        structlog.reset_defaults()
    said = stream.getvalue()
    assert said.count("No space left for 1") >= 2
    assert said.count("test_life.py") >= 2
    assert "7001" not in said
    assert "7002" not in said


def process(*flags: str) -> subprocess.Popen[str]:
    """A node in a process of its own."""
    code = (
        "import sys; from node.node import main; "
        "from node.settings.settings import load, parse_flags; "
        "sys.exit(main(load(environment={}, flags=parse_flags(sys.argv[1:]))))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *flags], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )


def test_a_node_started_from_flags_alone_says_where_it_listens(tmp_path: Path):
    settings = ("http", "peer", "amqp", "nats", "nats-monitor")
    ports = [word for each in settings for word in (f"--{each}", "127.0.0.1:0")]
    node = process(*ports, "--data-dir", str(tmp_path / "n"), "--log.min-free-bytes", "0")
    assert node.stderr is not None
    said: dict[str, str] = {}
    while said.get("event") != "node_started":
        said = json.loads(node.stderr.readline())

    for name in ("http", "amqp", "nats", "nats_monitor"):
        host, _, port = said[name].rpartition(":")
        socket.create_connection((host, int(port))).close()
    node.terminate()
    _, rest = node.communicate(timeout=100)
    assert node.returncode == 0, rest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_process_gracefully(tmp_path: Path, number: signal.Signals):
    http, peer = free_ports(2)
    flags = ["--data-dir", str(tmp_path / "n"), "--http", f"127.0.0.1:{http}", "--amqp", "off"]
    node = process(*flags, "--peer", f"127.0.0.1:{peer}", "--log.min-free-bytes", "0")
    assert node.stderr is not None
    seen = ""
    while "node_registered" not in seen:
        line = node.stderr.readline()
        assert line, seen
        seen += line
    node.send_signal(number)
    _, rest = node.communicate(timeout=100)

    assert node.returncode == 0, rest
    assert json.loads(rest.splitlines()[-1])["event"] == "node_stopped"


def test_a_folder_of_another_node_is_refused(tmp_path: Path):
    http, peer = free_ports(2)
    folder = ["--data-dir", str(tmp_path / "n"), "--log.min-free-bytes", "0"]
    at = ["--http", f"127.0.0.1:{http}", "--peer", f"127.0.0.1:{peer}", "--amqp", "off"]
    node = process(*folder, *at)
    assert node.stderr is not None
    while "node_registered" not in (line := node.stderr.readline()):
        assert line
    node.terminate()
    node.communicate(timeout=100)
    other = process(*folder, *at, "--node", "other")
    _, text = other.communicate(timeout=100)

    assert other.returncode == 3, text
    assert "data_refused" in text
