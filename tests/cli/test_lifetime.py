"""Whoever starts nodes may be killed: its nodes end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.live.live_cluster import from_thread_that_lasts
from quorate.lifetime import STARTER, tied
from tests.testkit.waiting import wait_until

ROOT = Path(__file__).parents[2]
#: Says which processes it has started, and waits to be killed.
HARNESS = """
import asyncio, pathlib, sys
from quorate.local import LocalCluster

async def work():
    cluster = LocalCluster.prepare(pathlib.Path(sys.argv[1]), nodes=2, preferred_ports=False)
    await cluster.start_all()
    await cluster.until_ready()
    print(*(node.pid for node in cluster.nodes), flush=True)
    await asyncio.sleep(600)

asyncio.run(work())
"""
#: The same by pytest, in a test that hangs, with a node that the command `up` has started.
HANGING_TEST = """
import json, os, pathlib, subprocess, sys, time

def test_that_hangs(tmp_path):
    command = [sys.executable, "-m", "quorate", "up", "--dir", str(tmp_path), "--json"]
    up = subprocess.Popen([*command, "--nodes", "1"], stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pids = [up.pid, *json.loads(up.stdout.readline())["pids"], other.pid]
    new = pathlib.Path(os.environ["PIDS"] + ".new")
    new.write_text(" ".join(map(str, pids)))
    new.rename(os.environ["PIDS"])
    time.sleep(600)
"""

#: More than importing takes, and much less than a seed.
BEGUN_S = 4.0


@pytest.fixture
def here() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def until_gone(pids: list[int]) -> None:
    assert pids
    wait_until(lambda: not any(map(runs, pids)))


def worked_s(pid: int) -> float:
    """Of a processor's time."""
    user = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]
    return int(user) / os.sysconf("SC_CLK_TCK")


def runs(pid: int) -> bool:
    """A zombie does not: it waits for whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nodes_end_with_the_program_that_started_them(
    here: list[subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
):
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path / "nodes")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    here.append(harness)
    assert harness.stdout is not None
    pids = [int(pid) for pid in harness.stdout.readline().split()]
    assert all(map(runs, pids))

    harness.send_signal(number)

    until_gone(pids)


@pytest.mark.parametrize(
    ("number", "options"),
    [(signal.SIGKILL, ["-n", "1"]), (signal.SIGTERM, []), (signal.SIGINT, [])],
    ids=["kill", "terminate", "interrupt"],
)
def test_a_test_run_that_is_aborted_leaves_nothing_behind(
    here: list[subprocess.Popen[str]],
    tmp_path: Path,
    number: signal.Signals,
    options: list[str],
):
    """Under the project's own conftest, as every test is; not even programs of others."""
    hanging, told = tmp_path / "test_hanging.py", tmp_path / "pids"
    hanging.write_text(HANGING_TEST)
    printed = tmp_path / "printed"
    with printed.open("w") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", *options, str(hanging)],
            cwd=ROOT,
            env={**os.environ, "PIDS": str(told)},
            stdout=output,
            text=True,
        )
    here.append(run)
    wait_until(lambda: told.exists() or run.poll() is not None, within_s=120)
    assert run.poll() is None, printed.read_text()
    pids = [int(pid) for pid in told.read_text().split()]
    assert len(pids) == 3
    assert all(map(runs, pids))

    run.send_signal(number)

    until_gone(pids)


def test_a_simulation_that_is_killed_leaves_no_worker_behind(here: list[subprocess.Popen[str]]):
    run = subprocess.Popen(
        [sys.executable, "-m", "chaos.simulator", "--seeds", "100", "--jobs", "2"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    here.append(run)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")

    def workers() -> list[int]:
        pids = map(int, children.read_text().split())
        return [pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    wait_until(lambda: len(workers()) == 2, within_s=120)
    pids = workers()
    # One that has not begun yet ends by itself.
    wait_until(lambda: all(worked_s(pid) > BEGUN_S for pid in pids), within_s=120)
    run.kill()
    run.wait()

    until_gone(pids)


#: Ends with its starter, like a node of a harness; else when it has read a line.
TIED = (
    "from quorate.lifetime import end_with_starter as begin; begin(); print(1, flush=True); input()"
)


def test_a_process_does_not_end_with_the_thread_that_asked_for_it():
    started: list[subprocess.Popen[bytes]] = []

    def ask() -> None:
        process = from_thread_that_lasts(
            lambda: subprocess.Popen(
                [sys.executable, "-c", TIED],
                cwd=ROOT,
                env=tied(dict(os.environ)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        started.append(process)
        assert started[0].stdout is not None
        started[0].stdout.readline()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()

    said, _ = started[0].communicate(b"go on\n")
    assert (said, started[0].returncode) == (b"", 0)


def test_a_process_whose_starter_has_ended_ends_though_nobody_has_waited_for_that():
    starter = subprocess.Popen(["true"])
    wait_until(lambda: not runs(starter.pid))
    try:
        late = subprocess.run(
            [sys.executable, "-c", TIED],
            cwd=ROOT,
            env={**os.environ, STARTER: str(starter.pid)},
            input=b"go on\n",
            capture_output=True,
            check=False,
        )
    finally:
        starter.wait()
    assert (late.stdout, late.returncode) == (b"", 1)
